"""Queries of the paper's Figure 8 over 50 million 64-byte records, next to DuckDB and a linear scan.  Prints TSV.

    .venv/bin/python bench/query.py [--rows 50_000_000] [--no-peers]

Data: addresses from a /24, 10 ports, 10,000 records per millisecond, as in the paper.  One core for everybody; best of
several runs with the files in the page cache.  The log, the Parquet file and the flat columns stand in a folder below
$TMPDIR that is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its idle threads would count as ours

import numpy as np

from confluo_tools import expr, multilog, schema
from confluo_tools.core.block.block import Block
from confluo_tools.multilog import views
from confluo_tools.multilog.query.plan import QueryPlan

CHUNK = 65536 * 16
NET = 0x0A000000  # 10.0.0.0/24
PORTS = (22, 25, 53, 80, 123, 443, 993, 3306, 5432, 8080)
START = 1_700_000_000_000_000_000
INDEXED = ("src_ip", "dst_ip", "src_port", "dst_port", "ts")
FETCHED = ("ts", "src_ip", "dst_ip", "src_port", "dst_port", "len")
A, B, P, Q = "10.0.0.17", "10.0.0.99", 443, 8080
QUERIES = {
    "q1 A to B": (f"src_ip == {A} && dst_ip == {B}", 10),
    "q2 to A": (f"dst_ip == {A}", 10),
    "q3 from A, port P": (f"src_ip == {A} && dst_port == {P}", 10),
    "q4 4-tuple": (f"src_ip == {A} && dst_ip == {B} && src_port == {P} && dst_port == {Q}", 10),
    "q5 to or from A": (f"src_ip == {A} || dst_ip == {A}", 50),
    "scan u16 (len of payload)": ("payload_len == 1000", 50),
    "scan u32 (len)": ("len == 1040", 50),
    "time range of 100 ms": (f"ts >= @{(START + 10**9) / 1e9:.9f} && ts < @{(START + 11 * 10**8) / 1e9:.9f}", 10),
}
SQL = {
    "q1 A to B": "src_ip = {a} AND dst_ip = {b}",
    "q2 to A": "dst_ip = {a}",
    "q3 from A, port P": "src_ip = {a} AND dst_port = {p}",
    "q4 4-tuple": "src_ip = {a} AND dst_ip = {b} AND src_port = {p} AND dst_port = {q}",
    "q5 to or from A": "src_ip = {a} OR dst_ip = {a}",
    "scan u16 (len of payload)": "payload_len = 1000",
    "scan u32 (len)": "len = 1040",
    "time range of 100 ms": f"ts >= {START + 10**9} AND ts < {START + 11 * 10**8}",
}


def address(text: str) -> int:
    a, b, c, d = map(int, text.split("."))
    return a << 24 | b << 16 | c << 8 | d


def columns(rng: np.random.Generator, first: int, n: int) -> dict[str, np.ndarray]:
    """One chunk of records; what the queries do not ask for is there, too, so that a row has its 64 bytes."""
    size = rng.integers(0, 1461, n, dtype="u2")
    return {
        "ts": START + (np.arange(first, first + n, dtype="i8") * 100),
        "src_ip": NET + rng.integers(0, 256, n, dtype="u4"),
        "dst_ip": NET + rng.integers(0, 256, n, dtype="u4"),
        "src_port": rng.choice(np.array(PORTS, dtype="u2"), n),
        "dst_port": rng.choice(np.array(PORTS, dtype="u2"), n),
        "len": size.astype("u4") + 40,
        "tcp_seq": rng.integers(0, 1 << 32, n, dtype="u4"),
        "tcp_ack": rng.integers(0, 1 << 32, n, dtype="u4"),
        "tcp_tsval": (np.arange(first, first + n) // 10000).astype("u4"),
        "tcp_tsecr": (np.arange(first, first + n) // 10000).astype("u4"),
        "flow_hash": rng.integers(0, 1 << 32, n, dtype="u4"),
        "payload_len": size,
        "tcp_window": rng.integers(0, 65536, n, dtype="u2"),
        "ip_id": rng.integers(0, 65536, n, dtype="u2"),
        "tcp_flags": np.full(n, 16, "u2"),
        "proto": np.full(n, 6, "u1"),
        "ttl": np.full(n, 64, "u1"),
    }


def build(folder: Path, rows: int, peers: bool) -> multilog.Log:
    """The log, and (for the peers) the Parquet file and one flat file a column."""
    s = schema.builtin("header64")
    log = multilog.create(folder / "bench.ml", s)
    rng = np.random.default_rng(1)
    parquet = None
    flat = {name: open(folder / f"{name}.col", "wb") for name in (*FETCHED, "payload_len")} if peers else {}
    zero = {c.name: None for c in s.columns}
    with log.writer() as writer:
        for first in range(0, rows, CHUNK):
            chunk = columns(rng, first, min(CHUNK, rows - first))
            n = len(chunk["ts"])
            for at in range(0, n, 65536):
                m = min(65536, n - at)
                cut = {name: memoryview(values[at : at + m]).cast("B") for name, values in chunk.items()}
                writer.append(Block.wrap(s.layout, m, [(zero | cut)[c.name] for c in s.columns]))
            for name, out in flat.items():
                chunk[name].tofile(out)
            if peers:
                import pyarrow as pa
                import pyarrow.parquet as pq

                table = pa.table(chunk)
                parquet = parquet or pq.ParquetWriter(folder / "bench.parquet", table.schema, compression="snappy")
                parquet.write_table(table, row_group_size=122880)
    if parquet is not None:
        parquet.close()
    for out in flat.values():
        out.close()
    return log


def best(work, runs: int = 5):
    """(least milliseconds of CPU, result)."""
    least, result = float("inf"), None
    for _ in range(runs):
        begin = time.process_time_ns()
        result = work()
        least = min(least, (time.process_time_ns() - begin) / 1e6)
    return least, result


def fetch(log: multilog.Log, compiled: expr.Expr, use_indexes: bool, reader: views.ViewReader) -> int:
    """Copy the chosen rows of the six main columns, block by block."""
    part = log.schema.project(FETCHED).layout
    numbers = [log.schema.index(name) for name in FETCHED]
    total = 0
    for block, picks in QueryPlan(log, None, compiled, columns=numbers, use_indexes=use_indexes, reader=reader):
        total += len(block.project(part).take(picks))
    return total


def find(log: multilog.Log, compiled: expr.Expr, reader: views.ViewReader) -> int:
    """The numbers of the chosen rows, block by block."""
    return sum(len(picks) for _, picks in QueryPlan(log, None, compiled, columns=[], reader=reader))


def machine() -> str:
    with open("/proc/cpuinfo") as f:
        model = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "?")
    from confluo_tools.core.query.predicate import instruction_set

    return f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, kernels {instruction_set()}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=lambda t: int(t.replace("_", "")), default=50_000_000)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="confluo-bench-"))
    try:
        run(folder, options.rows, not options.no_peers)
    finally:
        shutil.rmtree(folder)


def line(*values: object) -> None:
    print("\t".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in values), flush=True)


def run(folder: Path, rows: int, peers: bool) -> None:
    begin = time.perf_counter()
    log = build(folder, rows, peers)
    seconds = time.perf_counter() - begin
    print(f"# {machine()}\n# {rows} rows built in {seconds:.0f} s; CPU milliseconds, one core, best of 5")
    line("#fields", "what", "who", "rows", "ms", "bar_ms", "times_ours")
    s = log.schema
    compiled = {name: expr.compile(text, s) for name, (text, _) in QUERIES.items()}
    reader = views.ViewReader(log)
    ours: dict[str, float] = {}
    for name in QUERIES:
        ms, n = best(lambda name=name: QueryPlan(log, None, compiled[name], use_indexes=False, reader=reader).count())
        ours[name] = ms
        line(name, "scan, count", n, ms, QUERIES[name][1] if name.startswith("scan") else "-", "-")
    begin = time.process_time()
    for field in INDEXED:
        at = time.process_time()
        views.build(log, views.add_index(log, field))
        line(f"index of {field}", "build", rows, (time.process_time() - at) * 1e3, "-", "-")
    spent = time.process_time() - begin
    line("5 indexes, M rows/s", "build", rows, rows / spent / 1e6, "5 or more", "-")
    size = sum(f.stat().st_blocks * 512 for f in (folder / "bench.ml").rglob("*") if f.is_file())
    line("bytes a row with 5 indexes", "disk", rows, size / rows, "95 or less", "-")
    for name in QUERIES:
        ms, n = best(lambda name=name: QueryPlan(log, None, compiled[name], reader=reader).count())
        bar = QUERIES[name][1]
        line(name, "indexed, count", n, ms, bar, "-")
        ours[name] = min(ours[name], ms)
        ms, n = best(lambda name=name: find(log, compiled[name], reader))
        line(name, "indexed, row numbers", n, ms, bar, "-")
        ms, _ = best(lambda name=name: QueryPlan(log, None, compiled[name]).count(), 1)
        line(name, "indexed, count, first time", n, ms, "-", "-")
        ms, n = best(lambda name=name: fetch(log, compiled[name], True, reader))
        line(name, "indexed, 6 columns", n, ms, "-", "-")
        ours[name + " fetch"] = ms
    group(log, ours)
    if peers:
        duck(folder, ours)
        linear(folder, rows, ours)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line("resident MiB at most", "whole bench", rows, most, "-", "-")


def group(log: multilog.Log, ours: dict[str, float]) -> None:
    from confluo_tools.expr import parse_aggregates, parse_by
    from confluo_tools.multilog.query.aggregation import Aggregation

    question = Aggregation(log.schema, parse_aggregates("count", log.schema), parse_by("dst_port", log.schema))

    def work() -> int:
        rollup = question.rollup()
        for block, picks in QueryPlan(log, columns=[log.schema.index("dst_port")]):
            rollup.update(block, picks)
        return len(rollup)

    ms, n = best(work)
    line("count by dst_port", "scan", n, ms, 150, "-")
    ours["count by dst_port"] = ms


def duck(folder: Path, ours: dict[str, float]) -> None:
    import duckdb

    db = duckdb.connect(config={"threads": 1})
    values = {"a": address(A), "b": address(B), "p": P, "q": Q}
    source = f"'{folder / 'bench.parquet'}'"
    for name, where in SQL.items():
        where = where.format(**values)
        ms, n = best(lambda where=where: db.execute(f"SELECT count(*) FROM {source} WHERE {where}").fetchall()[0][0], 3)
        line(name, "DuckDB on Parquet, count", n, ms, "-", ms / ours[name])
        sql = f"SELECT {', '.join(FETCHED)} FROM {source} WHERE {where}"
        ms, n = best(lambda sql=sql: len(db.execute(sql).fetchnumpy()["ts"]), 3)
        line(name, "DuckDB on Parquet, 6 columns", n, ms, "-", ms / ours[name + " fetch"])
    ms, n = best(lambda: len(db.execute(f"SELECT dst_port, count(*) FROM {source} GROUP BY 1").fetchall()), 3)
    line("count by dst_port", "DuckDB on Parquet", n, ms, "-", ms / ours["count by dst_port"])


def linear(folder: Path, rows: int, ours: dict[str, float]) -> None:
    """What a flow tool does: read every record's columns from start to end, vectorised."""
    kinds = {"ts": "i8", "src_ip": "u4", "dst_ip": "u4", "len": "u4"}
    kinds |= dict.fromkeys(("src_port", "dst_port", "payload_len"), "u2")
    c = {name: np.memmap(folder / f"{name}.col", dtype=kind, mode="r") for name, kind in kinds.items()}
    a, b = address(A), address(B)
    work = {
        "q1 A to B": lambda: (c["src_ip"] == a) & (c["dst_ip"] == b),
        "q2 to A": lambda: c["dst_ip"] == a,
        "q3 from A, port P": lambda: (c["src_ip"] == a) & (c["dst_port"] == P),
        "q4 4-tuple": lambda: (c["src_ip"] == a) & (c["dst_ip"] == b) & (c["src_port"] == P) & (c["dst_port"] == Q),
        "q5 to or from A": lambda: (c["src_ip"] == a) | (c["dst_ip"] == a),
        "scan u16 (len of payload)": lambda: c["payload_len"] == 1000,
        "scan u32 (len)": lambda: c["len"] == 1040,
        "time range of 100 ms": lambda: (c["ts"] >= START + 10**9) & (c["ts"] < START + 11 * 10**8),
    }
    for name, make in work.items():
        ms, n = best(lambda make=make: int(np.count_nonzero(make())), 3)
        line(name, "linear scan (numpy), count", n, ms, "-", ms / ours[name])
    ms, n = best(lambda: int(np.count_nonzero(np.bincount(c["dst_port"], minlength=65536))), 3)
    line("count by dst_port", "linear scan (numpy)", n, ms, "-", ms / ours["count by dst_port"])


if __name__ == "__main__":
    main()
