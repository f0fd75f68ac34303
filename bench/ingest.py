"""From raw frames to stored and indexed rows, in one process that is held on one core.

usage: bench/ingest.py CAPTURE.pcap [ROUNDS]      (make one with bench/make_capture.py)

Prints TSV: step, schema, rows, best and median million rows per second of wall clock; helper threads share the core.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from timing import header, row

from confluo_tools import multilog, schema
from confluo_tools.core.block.block import Block
from confluo_tools.formats import pcap
from confluo_tools.multilog import views
from confluo_tools.schema import Schema

INDEXES = {"src_ip": None, "dst_ip": None, "src_port": None, "dst_port": None, "ts": 1_000_000}
BATCH = 1024


def parse(capture: str, kind: Schema) -> int:
    return sum(block.rows for block in pcap.open_captures([capture], kind, rows=BATCH))


def parse_and_store(capture: str, kind: Schema, folder: Path) -> int:
    with multilog.create(folder / "x.ml", kind) as log, log.writer() as writer:
        for block in pcap.open_captures([capture], kind, rows=BATCH):
            writer.append(block)
        return writer.rows


def store_and_index(blocks: list[Block], kind: Schema, folder: Path) -> int:
    with multilog.create(folder / "x.ml", kind) as log:
        with log.writer() as writer:
            for block in blocks:
                writer.append(block)
        for field, bucket in INDEXES.items():
            views.build(log, views.add_index(log, field, bucket))
        return log.version().rows


def main(capture: str, rounds: int) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    narrow, wide = schema.builtin("header64"), pcap.packet_schema(offset=False)
    kept = list(pcap.open_captures([capture], narrow, rows=BATCH))[:2000]
    header("step", "schema", "rows", "best_mrows_s", "median_mrows_s")
    with tempfile.TemporaryDirectory(prefix="confluo-bench-") as scratch:
        folder = Path(scratch)
        steps: list[tuple[str, Schema, Callable[[], int]]] = [
            ("read and parse", narrow, lambda: parse(capture, narrow)),
            ("read and parse", wide, lambda: parse(capture, wide)),
            ("read, parse and store", narrow, lambda: parse_and_store(capture, narrow, folder)),
            ("read, parse and store", wide, lambda: parse_and_store(capture, wide, folder)),
            ("store, then 5 indexes", narrow, lambda: store_and_index(kept, narrow, folder)),
        ]
        for name, kind, step in steps:
            speeds, rows = [], 0
            for _ in range(rounds):
                shutil.rmtree(folder / "x.ml", ignore_errors=True)
                start = time.perf_counter()
                rows = step()
                speeds.append(rows / (time.perf_counter() - start) / 1e6)
            row(name, kind.kind, rows, max(speeds), statistics.median(speeds))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 5)
