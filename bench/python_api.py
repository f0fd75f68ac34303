"""Answers of the Python API as Arrow tables, next to a copy of the same bytes and to DuckDB.  Prints TSV.

    .venv/bin/python bench/python_api.py [--rows 10_000_000]

Four columns (24 bytes a row) of a MultiLog of packets: all rows, every second row, and one row of a hundred.
"copy": numpy copies the columns of the answer from memory to memory, which no library that copies could beat.
Best of several runs, files in the page cache, one core.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
for name in ("OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(name, "1")

import duckdb
import numpy as np
import pyarrow as pa

import confluo_tools as ct
from confluo_tools import multilog
from confluo_tools.core.block.block import Block

SCHEMA = ct.Schema(
    "sample", [ct.Field("ts", "time"), ct.Field("len", "u32"), ct.Field("flow_hash", "u64"), ct.Field("choice", "u32")]
)
FIELDS = ["ts", "len", "flow_hash", "choice"]
NAMES = ", ".join(FIELDS)
RUNS = 5


def make(path: str, rows: int) -> None:
    rng = np.random.default_rng(1)
    with multilog.create(path, SCHEMA) as log, log.writer() as writer:
        for start in range(0, rows, 65536):
            n = min(65536, rows - start)
            ts = np.arange(start, start + n, dtype="<i8") * 1000
            columns = [ts, rng.integers(60, 1500, n, "<u4"), rng.integers(0, 1 << 63, n, "<u8")]
            columns.append(rng.integers(0, 100, n, "<u4"))
            writer.append(Block.wrap(SCHEMA.layout, n, [c.tobytes() for c in columns]))


def best(run: Callable[[], Any]) -> float:
    """Seconds of the fastest run; the result is freed before the next."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
        del result
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(text.replace("_", "")), default=10_000_000)
    rows = parser.parse_args().rows
    folder = tempfile.mkdtemp(prefix="confluo-bench-")
    try:
        path = f"{folder}/sample.ml"
        make(path, rows)
        log = ct.open(path)
        parquet = f"{folder}/sample.parquet"
        everything = log.query()  # noqa: F841 - DuckDB finds it by its name
        duckdb.sql("set threads=1")
        duckdb.sql(f"copy (from everything) to '{parquet}'")
        print("answer", "rows", "what", "s", "M rows/s", "to the copy", sep="\t")
        for expr, sql in (("", ""), ("choice < 50", "where choice < 50"), ("choice == 7", "where choice = 7")):
            table = log.query(expr, fields=FIELDS).to_arrow()
            columns = [
                np.concatenate([np.asarray(c) for c in table[n].cast(pa.int64()).chunks])
                if n == "ts"
                else np.concatenate([np.asarray(c) for c in table[n].chunks])
                for n in FIELDS
            ]
            n = table.num_rows
            copy = best(lambda columns=columns: [c.copy() for c in columns])
            runs: dict[str, Callable[[], Any]] = {
                "copy": lambda columns=columns: [c.copy() for c in columns],
                "confluo to_arrow": lambda expr=expr: log.query(expr, fields=FIELDS).to_arrow(),
                "confluo to_polars": lambda expr=expr: log.query(expr, fields=FIELDS).to_polars(),
                "confluo, one piece": lambda expr=expr: log.query(expr, fields=FIELDS).to_arrow().combine_chunks(),
                "duckdb of Parquet": lambda sql=sql: duckdb.sql(
                    f"select {NAMES} from '{parquet}' {sql}"
                ).to_arrow_table(),
            }
            for what, run in runs.items():
                seconds = copy if what == "copy" else best(run)
                figures = f"{seconds:.4f}\t{n / seconds / 1e6:.1f}\t{seconds / copy:.2f}"
                print(expr or "all", n, what, figures, sep="\t", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
