"""Counts and aggregates of one log on one core and on all, next to DuckDB over Parquet.  Prints TSV.

    .venv/bin/python bench/all_cores.py [--rows 50_000_000]

Each figure is the best of three whole questions in one process, with the files in the page cache.
The last column is the time on one core divided by that on all, for each program.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import duckdb
import numpy as np

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


def best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


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


def ask_duckdb(sql: str) -> None:
    duckdb.sql(sql).fetchall()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(text.replace("_", "")), default=50_000_000)
    rows = parser.parse_args().rows
    folder = tempfile.mkdtemp(prefix="confluo-bench-")
    try:
        path, parquet = f"{folder}/sample.ml", f"{folder}/sample.parquet"
        make(path, rows)
        import confluo_tools.api as ct

        everything = ct.open(path).query(zone=False)  # noqa: F841 - DuckDB finds it by its name
        columns = "epoch_ns(ts) as ts, src_ip, dst_port, proto, len"
        duckdb.sql(f"copy (select {columns} from everything) to '{parquet}'")
        print("question", "program", "1 core, s", f"{CORES} cores, s", "M rows/s", "speed-up", sep="\t")
        for name, (text, aggregates, by, sql) in QUESTIONS.items():
            ours = [best(partial(ask, path, n, text, aggregates, by)) for n in (1, CORES)]
            theirs = []
            for n in (1, CORES):
                duckdb.sql(f"set threads={n}")
                theirs.append(best(partial(ask_duckdb, sql.replace("from T", f"from '{parquet}'"))))
            for program, times in (("confluo", ours), ("DuckDB", theirs)):
                one, several = times
                figures = f"{one:.3f}\t{several:.3f}\t{rows / several / 1e6:.0f}\t{one / several:.2f}"
                print(name, program, figures, sep="\t", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
