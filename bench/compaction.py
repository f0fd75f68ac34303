"""Seconds of a query of an archive with many small parts, before and after confluo-archive --compact.

    bench/compaction.py [--parts 1000] [--rows 2000]

Packets-like rows of 16 hours; each part is a batch of its own, as confluo-archive makes them once a minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.multilog.archive.writer import ArchiveWriter
from confluo_tools.schema import Field, Schema

BIN = Path(__file__).resolve().parents[1] / "bin"
SCHEMA = Schema("sample", [Field("ts", "time"), Field("port", "u16"), Field("len", "u32"), Field("src", "ipv4")])
QUESTIONS = (["port == 443", "--count"], ["--agg", "count, sum(len)", "--by", "port"], ["src == 10.0.0.7"])
MINUTE = 60_000_000_000


def fill(folder: Path, parts: int, rows: int) -> Path:
    chance = np.random.default_rng(1)
    with multilog.create(folder / "t.ml", SCHEMA, segment_blocks=1) as log:
        for k in range(parts):
            ts = np.sort(chance.integers(0, MINUTE, rows)) + (k + 10_000_000) * MINUTE
            columns = (
                ts.astype("<i8"),
                chance.choice([53, 80, 443, 8080], rows).astype("<u2"),
                chance.integers(40, 1500, rows).astype("<u4"),
                (0x0A000000 + chance.integers(0, 1000, rows)).astype("<u4"),
            )
            with log.writer(ahead=-1) as writer:
                writer.append(Block.wrap(SCHEMA.layout, rows, [c.tobytes() for c in columns]))
            with ArchiveWriter(log, folder / "a", "bench") as archive:
                for batch, record in archive.plan(None):
                    archive.run(batch, record)
    return folder / "a"


def seconds(*words: object) -> float:
    begin = time.perf_counter()
    subprocess.run([str(word) for word in words], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--parts", type=int, default=1000)
    options.add_argument("--rows", type=int, default=2000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        archive = fill(Path(name), given.parts, given.rows)

        def measure() -> list[float]:
            return [min(seconds(BIN / "confluo-query", archive, *words) for _ in range(3)) for words in QUESTIONS]

        def size() -> tuple[int, int]:
            found = [path.stat().st_size for path in archive.glob("host=*/*/*/*.parquet")]
            return len(found), sum(found)

        for step in ("before", "after"):
            parts, total = size()
            print(f"{step}\t{parts} parts\t{total / 1e6:.1f} MB\t" + "\t".join(f"{s:.3f} s" for s in measure()))
            if step == "before":
                print(f"merged in {seconds(BIN / 'confluo-archive', '--compact', archive):.2f} s")


if __name__ == "__main__":
    main()
