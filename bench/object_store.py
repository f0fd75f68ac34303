"""The same questions of an archive on disk and in an object store, next to pyarrow and Polars on the same objects.

    .venv/bin/python bench/object_store.py [--rows 8_000_000] [--delays 0 20 60]

The store is moto on loopback behind a relay in a process of its own, which counts requests and delays each answer (ms).
Every figure is the best of three; each starts without anything known of the objects but the connection.
Prints TSV: seconds, requests and megabytes, and the time divided by ours in the same store.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import numpy as np

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.expr import compile, parse_aggregates, parse_by
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.archive.writer import ArchiveWriter
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.objects import remote_file
from confluo_tools.objects import store as objects
from confluo_tools.schema import Field, Schema

SCHEMA = Schema(
    "sample",
    [Field("ts", "time"), Field("src_ip", "u32"), Field("dst_port", "u16"), Field("proto", "u8"), Field("len", "u32")],
)
STEP = 4_000_000  # ns between two rows: 900,000 an hour
RELAY = """
import sys
sys.path[:0] = [{root!r}, {root!r} + "/tests/support"]
from s3_lab import Relay
relay = Relay({port})
relay.delay = {delay} / 1000
print(relay.port, flush=True)
for line in sys.stdin:
    print(len(relay.log), sum(one.sent for one in relay.log), flush=True)
    relay.log.clear()
"""
BUCKET = "bench"
HOURS = 3_600_000_000_000
# name: expression, aggregates, keys
QUESTIONS: dict[str, tuple[str, str | None, str | None]] = {
    "count, one hour": ("dst_port == 443 and ts >= @3600 and ts < @7200", None, None),
    "count, all": ("len > 700 and proto == 6", None, None),
    "group by port": ("", "count, sum(len)", "dst_port"),
}


def make(path: str, rows: int) -> multilog.Log:
    rng = np.random.default_rng(1)
    log = multilog.create(path, SCHEMA)
    with log.writer() as writer:
        for start in range(0, rows, 65536):
            n = min(65536, rows - start)
            columns: list[Any] = [np.arange(start, start + n, dtype="<i8") * STEP, rng.integers(0, 50_000, n, "<u4")]
            columns += [rng.choice(np.array([53, 80, 443, 8080], "<u2"), n), rng.choice(np.array([6, 17], "u1"), n)]
            columns.append(rng.integers(60, 1500, n, "<u4"))
            writer.append(Block.wrap(SCHEMA.layout, n, [c.tobytes() for c in columns]))
    log.seal_orphans()
    return log


def ours(place: str, question: str) -> Any:
    text, aggregates, keys = QUESTIONS[question]
    remote_file._tails.clear()
    reader = ArchiveReader(place)
    expr = compile(text, reader.schema)
    if aggregates is None or keys is None:
        return reader.count(expr)
    asked = Aggregation(reader.schema, parse_aggregates(aggregates, reader.schema), parse_by(keys, reader.schema))
    rollup, _ = reader.fold(expr, [reader.schema.index(name) for name in asked.reads], asked.rollup)
    return list(asked.answer(rollup))


def pyarrow_dataset(endpoint: str, question: str) -> Any:
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    from pyarrow import fs

    store = fs.S3FileSystem(endpoint_override=endpoint, region="us-east-1")
    data = ds.dataset(f"{BUCKET}/a", filesystem=store, format="parquet", partitioning="hive")
    ts = pc.field("ts").cast("int64")
    if question == "count, one hour":
        where = (pc.field("dst_port") == 443) & (pc.field("hour") == 1) & (ts >= HOURS) & (ts < 2 * HOURS)
        return data.count_rows(filter=where)
    if question == "count, all":
        return data.count_rows(filter=(pc.field("len") > 700) & (pc.field("proto") == 6))
    return data.to_table(columns=["dst_port", "len"]).group_by("dst_port").aggregate([("len", "sum"), ("len", "count")])


def polars(endpoint: str, question: str) -> Any:
    import polars as pl

    options = {"aws_endpoint_url": endpoint, "aws_region": "us-east-1", "aws_allow_http": "true"}
    frame = pl.scan_parquet(f"s3://{BUCKET}/a/host=*/**/*.parquet", storage_options=options, hive_partitioning=True)
    if question == "count, one hour":
        ts = pl.col("ts").cast(pl.Int64)
        where = (pl.col("dst_port") == 443) & (pl.col("hour") == 1) & (ts >= HOURS) & (ts < 2 * HOURS)
        return frame.filter(where).select(pl.len()).collect().item()
    if question == "count, all":
        return frame.filter((pl.col("len") > 700) & (pl.col("proto") == 6)).select(pl.len()).collect().item()
    return frame.group_by("dst_port").agg(pl.len().alias("n"), pl.col("len").sum()).collect()


def best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(text.replace("_", "")), default=8_000_000)
    parser.add_argument("--delays", type=int, nargs="*", default=[0, 20, 60], metavar="MS")
    asked = parser.parse_args()
    from s3_lab import S3Server

    folder = tempfile.mkdtemp()
    server = S3Server()
    relays: list[subprocess.Popen[str]] = []
    try:
        os.environ.update(server.env)
        server._ask("PUT", f"/{BUCKET}")
        log = make(f"{folder}/t.ml", asked.rows)
        for to in (f"{folder}/a", f"s3://{BUCKET}/a"):
            with ArchiveWriter(log, to, "h") as archive:
                for batch, record in archive.plan(None):
                    archive.run(batch, record, remove=False)
        print("#fields\tquestion\tplace\tprogram\tseconds\tof_ours\trequests\tmegabytes")
        for question in QUESTIONS:
            print(f"{question}\tdisk\tconfluo\t{best(lambda q=question: ours(f'{folder}/a', q)):.3f}\t-\t-\t-")
        for delay in asked.delays:
            program = RELAY.format(root=str(ROOT), port=server.port, delay=delay)
            relay = subprocess.Popen(
                [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            relays.append(relay)
            assert relay.stdin is not None
            assert relay.stdout is not None
            endpoint = f"http://127.0.0.1:{relay.stdout.readline().strip()}"
            os.environ["AWS_ENDPOINT_URL"] = endpoint
            objects._buckets.clear()
            for question in QUESTIONS:
                first = 0.0
                for name, run in (
                    ("confluo", lambda q=question: ours(f"s3://{BUCKET}/a/", q)),
                    ("pyarrow", lambda q=question, e=endpoint: pyarrow_dataset(e, q)),
                    ("polars", lambda q=question, e=endpoint: polars(e, q)),
                ):
                    seconds = best(run)
                    first = first or seconds
                    relay.stdin.write("\n")
                    relay.stdin.flush()
                    requests, size = map(int, relay.stdout.readline().split())
                    row = f"{seconds:.3f}\t{seconds / first:.2f}\t{requests / 3:.0f}\t{size / 3e6:.1f}"
                    print(f"{question}\ts3 +{delay} ms\t{name}\t{row}", flush=True)
    finally:
        for relay in relays:
            relay.kill()
            relay.wait()
        server.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
