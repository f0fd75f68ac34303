"""Counts and aggregates of one log on one core and on all, next to DuckDB over Parquet.  Prints TSV.

    .venv/bin/python bench/all_cores.py [--rows 50_000_000]

Each figure is the best of five whole questions in one process, those of one core and of all in turn, with the files
in the page cache.  The speed-up is the time on one core divided by that on all, for each program.
The last column is the speed-up that this machine allows: as many processes as cores ask the question at once, each on
one core; it is the number of processes, times what one alone takes, divided by what the slowest of them takes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from bench.timing import header, row
from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.engine.forks import Forks
from confluo_tools.engine.reader import EngineReader
from confluo_tools.expr import compile, parse_aggregates, parse_by
from confluo_tools.formats.reader import Reader
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.multilog.reader import LogReader
from confluo_tools.schema import Field, Schema

SCHEMA = Schema(
    "sample",
    [Field("ts", "time"), Field("src_ip", "u32"), Field("dst_port", "u16"), Field("proto", "u8"), Field("len", "u32")],
)
ROUNDS = 5
CORES = len(os.sched_getaffinity(0))
# name: (expression, aggregates or None for a count, keys, SQL)
QUESTIONS: dict[str, tuple[str, str | None, str | None, str]] = {
    "scan": ("len > 700 and proto == 6", None, None, "select count(*) from T where len > 700 and proto = 6"),
    "by port": ("", "count, sum(len)", "dst_port", "select dst_port, count(*), sum(len) from T group by 1"),
    "by address": ("", "count, sum(len)", "src_ip", "select src_ip, count(*), sum(len) from T group by 1"),
    "percentiles": ("", "p50(len), p99(len)", "10s",
                    "select ts // 10000000000, approx_quantile(len, [0.5, 0.99]) from T group by 1"),
    "filtered": ("dst_port == 443", "count, avg(len)", "src_ip, 10s",
                 "select src_ip, ts // 10000000000, count(*), avg(len) from T where dst_port = 443 group by 1, 2"),
}  # fmt: skip


def make(path: str, rows: int) -> None:
    rng = np.random.default_rng(1)
    with multilog.create(path, SCHEMA) as log, log.writer() as writer:
        for start in range(0, rows, 65536):
            n = min(65536, rows - start)
            columns: list[Any] = [np.arange(start, start + n, dtype="<i8") * 1000, rng.integers(0, 50_000, n, "<u4")]
            columns += [rng.choice(np.array([53, 80, 443, 8080], "<u2"), n), rng.choice(np.array([6, 17], "u1"), n)]
            columns.append(rng.integers(60, 1500, n, "<u4"))
            writer.append(Block.wrap(SCHEMA.layout, n, [c.tobytes() for c in columns]))


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def best(runs: Sequence[Callable[[], object]]) -> list[float]:
    """The least time of each of the runs, which take turns."""
    times = [[seconds(run) for run in runs] for _ in range(ROUNDS)]
    return [min(own) for own in zip(*times, strict=True)]


def at_once(run: Callable[[], object]) -> float:
    """The time that the slowest of as many processes as cores takes for its best run; all run at the same time."""
    pipes = []
    for _ in range(CORES):
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                os.write(write, struct.pack("d", min(seconds(run) for _ in range(ROUNDS))))
            finally:
                os._exit(0)
        os.close(write)
        pipes.append(read)
    slowest = max(struct.unpack("d", os.read(pipe, 8))[0] for pipe in pipes)
    for pipe in pipes:
        os.close(pipe)
        os.wait()
    return float(slowest)


def ask(path: str, threads: int, text: str, aggregates: str | None, by: str | None) -> None:
    reader: Reader = LogReader(path)
    if threads > 1:
        reader = EngineReader(reader, Forks(threads))
    expr = compile(text, reader.schema)
    if aggregates is None:
        reader.count(expr)
        return
    keys = parse_by(by, reader.schema) if by else []
    question = Aggregation(reader.schema, parse_aggregates(aggregates, reader.schema), keys)
    rollup, _ = reader.fold(expr, [reader.schema.index(name) for name in question.reads], question.rollup)
    for _ in question.answer(rollup):
        pass


def ask_duckdb(threads: int, sql: str) -> None:
    import duckdb

    duckdb.sql(f"set threads={threads}")
    duckdb.sql(sql).fetchall()


def report(name: str, program: str, rows: int, times: list[float], allowed: str) -> None:
    one, several = times
    figures = f"{one:.3f}", f"{several:.3f}", f"{rows / several / 1e6:.0f}", f"{one / several:.2f}"
    row(name, program, *figures, allowed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(text.replace("_", "")), default=50_000_000)
    rows = parser.parse_args().rows
    folder = tempfile.mkdtemp(prefix="confluo-bench-")
    try:
        path, parquet = f"{folder}/sample.ml", f"{folder}/sample.parquet"
        make(path, rows)
        header("question", "program", "1 core, s", f"{CORES} cores, s", "M rows/s", "speed-up", "allowed")
        for name, (text, aggregates, by, _) in QUESTIONS.items():
            alone = partial(ask, path, 1, text, aggregates, by)
            times = best([alone, partial(ask, path, CORES, text, aggregates, by)])
            report(name, "confluo", rows, times, f"{CORES * times[0] / at_once(alone):.2f}")
        # Only now: a process with more memory takes longer to fork.
        import duckdb

        import confluo_tools.api as ct

        everything = ct.open(path).query(zone=False)  # noqa: F841 - DuckDB finds it by its name
        columns = "epoch_ns(ts) as ts, src_ip, dst_port, proto, len"
        duckdb.sql(f"copy (select {columns} from everything) to '{parquet}'")
        for name, (_, _, _, sql) in QUESTIONS.items():
            query = sql.replace("from T", f"from '{parquet}'")
            report(name, "DuckDB", rows, best([partial(ask_duckdb, n, query) for n in (1, CORES)]), "-")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
