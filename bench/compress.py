"""A log, the same log compressed in place, and as an archive: bytes, and the CPU time of questions.  Prints TSV.

    .venv/bin/python bench/compress.py [--rows 3_000_000] [--times 5]

The rows are those of bench/archive.py.  The questions are whole commands, in turn, files in the page cache; the CPU
time (user and system) is the median.  "start" is a question for a second that no row has: what each command costs
before it reads rows.  The folder is below $TMPDIR and is removed at the end.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from bench.archive import CHUNK, START, rows, size, timed
from bench.timing import ROOT, machine, run
from confluo_tools import multilog, schema
from confluo_tools.multilog.archive.writer import ArchiveWriter
from confluo_tools.multilog.compress import Compressor
from confluo_tools.multilog.retain import disk_use

QUESTIONS = {
    "start": [f"ts >= @{START // 10**9 - 10} && ts < @{START // 10**9 - 9}", "--count"],
    "count one port": ["dst_port == 443", "--count"],
    "three columns": ["src_port > 50000 && ttl == 64 && ip_len > 1000", "--count"],
    "group by address": ["--agg", "count,sum(len)", "--by", "src_ip"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-compress-"))
    try:
        print(machine())
        measure(folder, args.rows, args.times)
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, n: int, times: int) -> None:
    packet = schema.builtin("packet")
    plain = folder / "plain.ml"
    log = multilog.create(plain, packet)
    chance = np.random.default_rng(1)
    with log.writer() as writer:
        for at in range(0, n, CHUNK):
            writer.append(rows(packet, chance, at, min(CHUNK, n - at), 3_500_000_000_000 // n))
    print("#fields\twhat\tbytes_per_row\tof_plain\tcpu_s\trows_per_cpu_s", flush=True)
    whole = disk_use(str(plain))
    show("plain", n, whole, whole, 0)
    kinds = {"plain": plain}
    for codec in ("lz4", "zstd"):
        kinds[codec] = folder / f"{codec}.ml"
        shutil.copytree(plain, kinds[codec])
        _, cpu = timed(lambda codec=codec: compress(kinds[codec], codec))  # type: ignore[misc]
        show(codec, n, disk_use(str(kinds[codec])), whole, cpu)
    kinds["archive"] = folder / "moved.ml"
    shutil.copytree(plain, kinds["archive"])
    _, cpu = timed(lambda: archive(kinds["archive"], folder / "parquet"))
    show("archive", n, size(folder / "parquet"), whole, cpu)

    print("#fields\tquestion\t" + "\t".join(f"{kind}_cpu_s" for kind in kinds), flush=True)
    for name, words in QUESTIONS.items():
        spent: dict[str, list[float]] = {kind: [] for kind in kinds}
        for turn in range(times + 1):
            for kind, path in kinds.items():
                cpu = run([str(ROOT / "bin/confluo-query"), str(path), *words]).cpu
                if turn:  # the first reads the files
                    spent[kind].append(cpu)
        print(name, *(f"{statistics.median(found):.3f}" for found in spent.values()), sep="\t", flush=True)


def compress(path: Path, codec: str) -> None:
    with multilog.open(path) as log:
        compressor = Compressor(log, codec)
        for segment in compressor.planned():
            compressor.run(segment)


def archive(path: Path, to: Path) -> None:
    with multilog.open(path) as log, ArchiveWriter(log, to, "h") as writer:
        for batch, record in writer.plan(None):
            writer.run(batch, record)


def show(what: str, n: int, used: int, whole: int, cpu: float) -> None:
    speed = f"{n / cpu:.3g}" if cpu else "-"
    print(f"{what}\t{used / n:.2f}\t{used / whole:.2f}\t{cpu:.2f}\t{speed}", flush=True)


if __name__ == "__main__":
    main()
