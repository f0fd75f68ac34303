"""Archiving and its peers: rows a second, bytes a row, and questions to log and archive.  Prints TSV.

    .venv/bin/python bench/archive.py [--rows 3_000_000]

Rows of the packet schema with 12 fields set, an hour of them, made with a fixed seed.  Ours writes, syncs, reads back,
compares and commits; `duckdb` and `pyarrow` write the same rows to the same partitions and do nothing else (COPY, and
write_dataset); `convert` is confluo-convert -o parquet.  Bar: ours at most twice the wall time of the faster peer,
although it reads everything twice, and no more bytes a row.  Queries run in a fresh process, files in the page
cache; the folder is below $TMPDIR and is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from bench.timing import ROOT, machine
from confluo_tools import multilog, schema
from confluo_tools.core.block.block import Block
from confluo_tools.multilog.archive.writer import ArchiveWriter
from confluo_tools.multilog.retain import disk_use

CHUNK = 65536
START = 1_700_000_000_000_000_000 // 3_600_000_000_000 * 3_600_000_000_000
PORTS = np.array([22, 25, 53, 80, 123, 443, 993, 3306, 5432, 8080], "<u2")
QUESTIONS = {
    "count one port": "dst_port == 443",
    "one address": "src_ip == 10.0.0.17",
    "one second of time": f"ts >= @{START // 10**9 + 600} && ts < @{START // 10**9 + 601}",
}


def rows(packet: schema.Schema, chance: np.random.Generator, at: int, n: int, step: int) -> Block:
    """``n`` packets from the ``at``-th on, ``step`` ns apart on average."""
    ts = START + at * step + np.sort(chance.integers(0, n * step, n))
    sizes = chance.choice([40, 52, 576, 1040, 1500], n, p=[0.3, 0.2, 0.1, 0.2, 0.2])
    columns: dict[str, Any] = {
        "ts": ts.astype("<i8"),
        "len": (sizes + 14).astype("<u4"),
        "ip_len": sizes.astype("<u2"),
        "cap_len": (sizes + 14).astype("<u4"),
        "payload_len": np.maximum(sizes - 40, 0).astype("<u2"),
        "src_ip": (0x0A000000 + chance.zipf(1.3, n) % 254).astype("<u4"),
        "dst_ip": (0x0A000100 + chance.zipf(1.3, n) % 254).astype("<u4"),
        "src_port": chance.integers(32768, 60999, n).astype("<u2"),
        "dst_port": chance.choice(PORTS, n),
        "ttl": np.full(n, 64, "u1"),
        "tcp_seq": chance.integers(0, 1 << 32, n).astype("<u4"),
        "proto": np.full(n, 6, "u1"),
    }
    buffers = []
    for column in packet.columns:
        values = columns.get(column.name)
        width = column.size * column.count
        if values is not None and values.itemsize != width:
            values = values.astype(f"<u{width}")
        buffers.append(None if values is None else values.tobytes())
    return Block.wrap(packet.layout, n, buffers)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """(wall, CPU) seconds."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    call()
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*.parquet"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-archive-"))
    try:
        print(machine())
        print("#fields\twhat\trows\twall_s\tcpu_s\trows_per_s\tbytes_per_row", flush=True)
        run(folder, args.rows)
    finally:
        shutil.rmtree(folder)


def run(folder: Path, n: int) -> None:
    packet = schema.builtin("packet")
    log = multilog.create(folder / "live.ml", packet)
    chance = np.random.default_rng(1)
    step = 3_500_000_000_000 // n
    with log.writer() as writer:
        for at in range(0, n, CHUNK):
            writer.append(rows(packet, chance, at, min(CHUNK, n - at), step))
    in_log = disk_use(str(folder / "live.ml"))
    show("log", n, 0, 0, in_log)

    def ours() -> None:
        with ArchiveWriter(log, folder / "archive", "h") as archive:
            for batch, record in archive.plan(None):
                archive.run(batch, record, remove=False)

    segments = sorted(map(str, (folder / "live.ml").glob("lane-*/seg-*.arrow")))
    for _ in range(2):  # the second with warm caches
        shutil.rmtree(folder / "archive", ignore_errors=True)
        wall, cpu = timed(ours)
    show("archive", n, wall, cpu, size(folder / "archive"))
    for name, call in (("duckdb", duckdb_copy), ("pyarrow", pyarrow_write)):
        for _ in range(2):
            shutil.rmtree(folder / name, ignore_errors=True)
            wall, cpu = timed(lambda call=call, name=name: call(segments, folder / name))  # type: ignore[misc]
        show(name, n, wall, cpu, size(folder / name))
    argv = [ROOT / "bin/confluo-convert", folder / "live.ml", "-o", "parquet", "-w", folder / "c.parquet", "--force"]
    begin = time.perf_counter()
    subprocess.run([str(a) for a in argv], check=True)
    show("convert", n, time.perf_counter() - begin, 0, (folder / "c.parquet").stat().st_size)

    for name, text in QUESTIONS.items():
        ask(f"{name}: log", folder / "live.ml", text, n)
    with ArchiveWriter(log, folder / "archive", "h") as archive:
        for batch, record in archive.plan(None):
            archive.run(batch, record)
    for name, text in QUESTIONS.items():
        ask(f"{name}: archive by the log", folder / "live.ml", text, n)
        duckdb_ask(f"{name}: archive by duckdb", folder / "archive", text, n)


def show(what: str, n: int, wall: float, cpu: float, size: int) -> None:
    speed = f"{n / wall:.3g}" if wall else "-"
    print(f"{what}\t{n}\t{wall:.3f}\t{cpu:.3f}\t{speed}\t{size / n if size else 0:.2f}", flush=True)


def ask(what: str, path: Path, text: str, n: int) -> None:
    argv = [str(ROOT / "bin/confluo-query"), str(path), text, "--count"]
    best = min(_wall(argv) for _ in range(3))
    show(what, n, best, 0, 0)


def duckdb_ask(what: str, path: Path, text: str, n: int) -> None:
    where = text.replace("==", "=").replace("&&", "and").replace("10.0.0.17", str(0x0A000011))
    for word in [w for w in where.split() if w.startswith("@")]:
        at = time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(int(word[1:])))
        where = where.replace(word, f"'{at}'::timestamptz_ns")
    sql = f"select count(*) from read_parquet('{path}/**/*.parquet', hive_partitioning=true) where {where}"
    argv = [sys.executable, "-c", f"import duckdb; print(duckdb.sql({sql!r}).fetchall())"]
    show(what, n, min(_wall(argv) for _ in range(3)), 0, 0)


def _wall(argv: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def duckdb_copy(segments: list[str], to: Path) -> None:
    import duckdb
    import pyarrow.dataset

    data = pyarrow.dataset.dataset(segments, format="ipc").to_table()
    # DuckDB has no functions of times of nanoseconds with a zone.
    plain = data.column("ts").cast("timestamp[ns]")
    data = data.set_column(data.column_names.index("ts"), "ts", plain)
    with duckdb.connect() as db:
        db.register("data", data)
        db.execute(
            "copy (select *, 'h' as host, ts::timestamp::date as date, hour(ts::timestamp) as hour from data "
            f"order by ts) to '{to}' "
            "(format parquet, compression zstd, partition_by (host, date, hour))"
        )


def pyarrow_write(segments: list[str], to: Path) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    table = ds.dataset(segments, format="ipc").to_table()
    table = table.append_column("host", pa.array(["h"] * table.num_rows))
    table = table.append_column("hour", pc.hour(table.column("ts")))
    options = ds.ParquetFileFormat().make_write_options(compression="zstd", version="2.6")
    keys = ds.partitioning(pa.schema([("host", pa.string()), ("hour", pa.int64())]), flavor="hive")
    ds.write_dataset(table, to, format="parquet", file_options=options, partitioning=keys)


if __name__ == "__main__":
    main()
