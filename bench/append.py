"""Appending ready-made rows, in process, without the interpreter: rows per second and the time of single appends.

usage: bench/append.py [FOLDER [MILLION_ROWS]]     (a temporary folder and 4; segments of 1 million rows each)

Rows are random, so that no column can be skipped, and come from a block of 4,096 that stays in the cache, as rows
do that a parser has just made; the records of the `packet` schema have IPv4 addresses and no
optional fields, as most have.  `prefaulted`: all pages of the segment were touched before, as if the helper had all
the time it needs; else the helper touches them while the writer fills them, on another core if there is one.
Also two writers in two processes against one, in batches of 1,024 (where the memory may be the limit: a row is
written, and the line it goes to is read before), 32 and 1.

Prints TSV: schema, bytes a row, rows a batch, prefaulted or not, million rows a second (median and best of the
rounds), nanoseconds of CPU a row over all threads, and of single appends the 50th, 99th, 99.99th percentile and the
longest (microseconds).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from timing import ROOT, header, row

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.core.multilog.lane import append_repeatedly
from confluo_tools.schema import Schema, builtin

SOURCE_ROWS = 4096
SEGMENT_ROWS = 16 * 65536
ROUNDS = 3


def block_of(schema: Schema) -> Block:
    """Random rows: every column in use but those of IPv6 and the optional ones."""
    chance = np.random.default_rng(1)
    buffers = []
    for column in schema.columns:
        unused = column.field.optional or column.name != column.field.name
        size = SOURCE_ROWS * column.size * column.count
        buffers.append(None if unused else chance.integers(0, 256, size, dtype=np.uint8).tobytes())
    return Block.wrap(schema.layout, SOURCE_ROWS, buffers)


def used_bytes(schema: Schema) -> int:
    return sum(c.size * c.count for c in schema.columns if not c.field.optional and c.name == c.field.name)


def once(folder: Path, schema: Schema, block: Block, batch: int, rows: int, prefaulted: bool) -> tuple[float, ...]:
    """Seconds a row, seconds of CPU a row, and the percentiles of the times of single appends in microseconds."""
    path = folder / "bench.ml"
    shutil.rmtree(path, ignore_errors=True)
    log = multilog.create(path, schema)
    wall = cpu = 0.0
    counts: dict[int, int] = {}
    with log.writer() as writer:
        for _ in range(rows // SEGMENT_ROWS):
            if prefaulted:  # a segment at a time, so that each begins prefaulted
                writer.prefault()
            before = time.process_time()
            took, times = append_repeatedly(writer, block, SEGMENT_ROWS // batch, batch, batch == 1)
            cpu += time.process_time() - before
            wall += took / 1e9
            for k, n in times.items():
                counts[k] = counts.get(k, 0) + n
    assert log.version().rows == rows // SEGMENT_ROWS * SEGMENT_ROWS
    shutil.rmtree(path, ignore_errors=True)
    done = rows // SEGMENT_ROWS * SEGMENT_ROWS
    return wall / done, cpu / done, *(percentile(counts, p) for p in (0.5, 0.99, 0.9999, 1.0))


def percentile(counts: dict[int, int], p: float) -> float:
    total, seen = sum(counts.values()), 0
    for ns in sorted(counts):
        seen += counts[ns]
        if seen >= p * total:
            return ns / 1000
    return float("nan")


def child(path: str, rows: int, batch: int) -> None:
    """One writer of the comparison of processes: reports that it is ready, waits for a line, reports its time."""
    log = multilog.open(path)
    block = block_of(log.schema)
    with log.writer() as writer:
        for _ in range(rows // SEGMENT_ROWS):
            writer.prefault()
            print("ready", flush=True)
            sys.stdin.readline()
            print(append_repeatedly(writer, block, SEGMENT_ROWS // batch, batch)[0], flush=True)


def together(folder: Path, writers: int, rows: int, batch: int) -> float:
    """Rows per second of several processes at once, each with its own lane."""
    path = folder / "bench.ml"
    shutil.rmtree(path, ignore_errors=True)
    multilog.create(path, builtin("header64"))
    running = [
        subprocess.Popen(
            [sys.executable, __file__, "--child", path, str(rows), str(batch)],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        for _ in range(writers)
    ]
    seconds = 0.0
    for _ in range(rows // SEGMENT_ROWS):
        for p in running:
            assert p.stdout is not None
            assert p.stdout.readline() == "ready\n"
        for p in running:
            assert p.stdin is not None
            p.stdin.write("go\n")
            p.stdin.flush()
        seconds += max(int(p.stdout.readline()) for p in running if p.stdout is not None) / 1e9
    for p in running:
        p.communicate()
    shutil.rmtree(path, ignore_errors=True)
    return writers * (rows // SEGMENT_ROWS * SEGMENT_ROWS) / seconds


def main(folder: Path, rows: int) -> None:
    header(
        "schema",
        "row_bytes",
        "batch",
        "pages",
        "Mrows_s",
        "best",
        "cpu_ns_row",
        "p50_us",
        "p99_us",
        "p99.99_us",
        "max_us",
    )
    for name in ("header64", "packet"):
        schema = builtin(name)
        block = block_of(schema)
        for prefaulted in (True, False):
            for batch in (1024, 32, 1):
                rounds = [once(folder, schema, block, batch, rows, prefaulted) for _ in range(ROUNDS)]
                speed = [1e-6 / r[0] for r in rounds]
                times = [f"{median([r[k] for r in rounds]):.3g}" if batch == 1 else "-" for k in range(2, 6)]
                row(
                    name,
                    used_bytes(schema),
                    batch,
                    "prefaulted" if prefaulted else "helper",
                    f"{median(speed):.1f}",
                    f"{max(speed):.1f}",
                    f"{1e9 * median([r[1] for r in rounds]):.1f}",
                    *times,
                )
    for batch in (1024, 32, 1):
        pairs = [(together(folder, 1, rows, batch), together(folder, 2, rows, batch)) for _ in range(ROUNDS)]
        row("header64", 64, batch, "1 process", f"{median([a for a, _ in pairs]) / 1e6:.1f}", *"-" * 6)
        row("header64", 64, batch, "2 processes", f"{median([b for _, b in pairs]) / 1e6:.1f}", *"-" * 6)
        ratios = [b / a for a, b in pairs]
        row("two processes to one", "-", batch, "-", f"{median(ratios):.2f}", f"{max(ratios):.2f}", *"-" * 5)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        with tempfile.TemporaryDirectory(prefix="confluo-bench-") as scratch:
            main(
                Path(sys.argv[1] if len(sys.argv) > 1 else scratch),
                int(float(sys.argv[2]) * SEGMENT_ROWS) if len(sys.argv) > 2 else 4 * SEGMENT_ROWS,
            )
