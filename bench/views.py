"""Appending while views are kept up to date by the same core, in one thread: filters, indexes, an aggregate by key.

usage: bench/views.py [MILLION_ROWS [ROUNDS]]      (2 and 3)

Records of 64 bytes as in the anchor study: addresses from a /24, ports from 10 values, 10,000 records to a
millisecond; filters cycle through its five templates.  Batches of 32 and 1,024 ready-made rows are appended, and
after every block `Maintainer.step` brings all views up to date.  Time is that of the CPU, over all threads.

Also 100 path conformance filters over one batch of 32 rows that stays in the cache (membership in a list of switches;
addresses and switches).

And an index of a list of five switches: to build it, and a condition on it with and without the index.

Prints TSV: what, rows a batch, million rows a second, ns a row (the best of the rounds), and the bar.
Bars: 64 filters >= 2 M rows/s, 16 >= 5 M rows/s, 64 filters and 5 indexes >= 1.5 M rows/s, an aggregate by key of
10,000 matches to a millisecond <= 100 ns a row (appending not counted), 100 conformance filters <= 11 us for 32 rows.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from timing import header, row

from confluo_tools import expr, multilog
from confluo_tools.core.block.block import Block
from confluo_tools.core.query.shared_filters import SharedFilters
from confluo_tools.multilog import views
from confluo_tools.multilog.query.plan import QueryPlan
from confluo_tools.schema import Field, Schema, builtin

SOURCE_ROWS = 65_536
SEGMENT_BLOCKS = 16
PER_MS = 10_000
START = 1_700_000_000_000_000_000
INDEXES = ("src_ip", "dst_ip", "src_port", "dst_port", "ts")
PORTS = [22, 53, 80, 123, 443, 1024, 3306, 5432, 8080, 9090]


def templates(n: int) -> list[str]:
    """q1 A to B, q2 to A, q3 from A on port P, q4 the four-tuple, q5 to or from A: each with other addresses."""
    out = []
    for i in range(n):
        a, b, p, q = f"10.0.0.{i * 7 % 256}", f"10.0.0.{i * 13 % 256}", PORTS[i % 10], PORTS[i * 3 % 10]
        out.append(
            [
                f"src_ip == {a} and dst_ip == {b}",
                f"dst_ip == {a}",
                f"src_ip == {a} and dst_port == {p}",
                f"src_ip == {a} and dst_ip == {b} and src_port == {q} and dst_port == {p}",
                f"src_ip == {a} or dst_ip == {a}",
            ][i % 5]
        )
    return out


def source(schema: Schema) -> list[Block]:
    """Three blocks of rows, so that times go on; the other columns stay as they are."""
    chance = np.random.default_rng(1)
    columns: dict[str, np.ndarray] = {
        "src_ip": (0x0A000000 + chance.integers(0, 256, SOURCE_ROWS)).astype("u4"),
        "dst_ip": (0x0A000000 + chance.integers(0, 256, SOURCE_ROWS)).astype("u4"),
        "src_port": chance.choice(np.array(PORTS, "u2"), SOURCE_ROWS),
        "dst_port": chance.choice(np.array(PORTS, "u2"), SOURCE_ROWS),
        "len": chance.integers(40, 1500, SOURCE_ROWS).astype("u4"),
    }
    out = []
    for k in range(3):
        columns["ts"] = START + (np.arange(SOURCE_ROWS, dtype="i8") + k * SOURCE_ROWS) * (1_000_000 // PER_MS)
        buffers = []
        for c in schema.columns:
            data = columns.get(c.name)
            if data is not None:
                data = data.astype({1: "u1", 2: "u2", 3: "u4", 4: "u8"}.get(c.code, data.dtype.str))
            elif c.code == 11 and not c.name.endswith("6"):
                data = chance.integers(0, 256, SOURCE_ROWS * c.size, dtype=np.uint8)
            buffers.append(None if data is None else data.tobytes())
        out.append(Block.wrap(schema.layout, SOURCE_ROWS, buffers))
    return out


def run(
    folder: Path,
    schema: Schema,
    blocks: list[Block],
    batch: int,
    rows: int,
    filters: int,
    indexes: int,
    aggregate: bool,
) -> float:
    """Seconds of CPU a row to append and keep the views."""
    path = folder / "bench.ml"
    shutil.rmtree(path, ignore_errors=True)
    log = multilog.create(path, schema, segment_blocks=SEGMENT_BLOCKS)
    for i, text in enumerate(templates(filters)):
        views.add_filter(log, f"f{i}", text)
    for field in INDEXES[:indexes]:
        views.add_index(log, field)
    if aggregate:
        views.add_aggregate(log, "by_key", "sum(len)" if "len" in schema else "count", by="dst_ip")
    cuts = [[block.slice(at, batch) for at in range(0, SOURCE_ROWS, batch)] for block in blocks]
    maintainer = views.Maintainer(log) if filters or indexes or aggregate else None
    if maintainer is not None:
        maintainer.step()
    begin = time.process_time()
    with log.writer() as writer:
        for i in range(rows // SOURCE_ROWS):
            for cut in cuts[i % 3]:
                writer.append(cut)
            if maintainer is not None:
                maintainer.step()
    if maintainer is not None:
        maintainer.step()
    spent = time.process_time() - begin
    version = log.version()
    for view in views.views(log):
        assert views.coverage(log, view, version)[0] == version.rows, view
    log.close()
    return spent / version.rows


def conformance() -> list[tuple[str, float]]:
    """Microseconds for 100 filters over one batch of 32 rows."""
    schema = Schema("path", [Field("src_ip", "ipv4"), Field("dst_ip", "ipv4"), Field("switch_path", "list(u16, 8)")])
    chance = np.random.default_rng(2)
    path = np.zeros((32, 8), "u2")
    path[:, :5] = chance.integers(1, 200, (32, 5))
    addresses = [(0x0A000000 + chance.integers(0, 1 << 16, 32)).astype("u4") for _ in range(2)]
    block = Block.wrap(schema.layout, 32, [*(a.tobytes() for a in addresses), path.tobytes()])
    sets = {
        "switch_path != S": [f"switch_path != {300 + i}" for i in range(100)],
        "networks and a switch": [
            f"src_ip in 10.0.{i}.0/24 and dst_ip in 10.0.{i * 7 % 200}.0/24 and switch_path != {i + 1}"
            for i in range(100)
        ],
        "networks and three switches": [
            f"src_ip in 10.0.{i}.0/24 and not switch_path in {{{i + 1}, {i + 9}, {i + 50}}}" for i in range(100)
        ],
    }
    out = []
    for name, texts in sets.items():
        bank = SharedFilters([expr.compile(t, schema).tree for t in texts], schema.layout)
        best = 1e9
        for _ in range(20):
            begin = time.perf_counter()
            for _ in range(200):
                bank.run(block)
            best = min(best, (time.perf_counter() - begin) / 200)
        out.append((name, best * 1e6))
    return out


def of_lists(folder: Path, rounds: int) -> list[tuple[str, float, str]]:
    """(what, ns a row, a note), for paths of five of 2,000 switches."""
    schema = Schema("path", [Field("ts", "time"), Field("switch_path", "list(u16, 8)")])
    chance, blocks = np.random.default_rng(2), 16
    log = multilog.create(folder / "lists.ml", schema, segment_blocks=blocks)
    with log.writer() as writer:
        for k in range(blocks):
            path = np.zeros((SOURCE_ROWS, 8), "u2")
            path[:, :5] = chance.integers(1, 2001, (SOURCE_ROWS, 5))
            ts = START + np.arange(SOURCE_ROWS, dtype="i8") + k * SOURCE_ROWS
            writer.append(Block.wrap(schema.layout, SOURCE_ROWS, [ts.tobytes(), path.tobytes()]))
    view = views.build(log, views.add_index(log, "switch_path"))
    size = views.coverage(log, view, log.version()).bytes / (blocks * SOURCE_ROWS)
    out = [("an index of a list: build", best_of(rounds, lambda: views.rebuild(log, view)), f"{size:.1f} bytes a row")]
    for text in ("switch_path == 7", "switch_path has 3, 7", "switch_path starts 3"):
        question = expr.compile(text, schema)
        for name, indexed in (("scan", False), ("index", True)):
            spent = best_of(rounds * 5, lambda: _found(log, question, indexed))  # noqa: B023
            out.append((f"{text}: {name}", spent, ""))
    return [(what, seconds / (blocks * SOURCE_ROWS) * 1e9, note) for what, seconds, note in out]


def best_of(rounds: int, work: Callable[[], object]) -> float:
    best = 1e9
    for _ in range(rounds):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def _found(log: multilog.Log, question: expr.Expr, indexed: bool) -> int:
    return sum(len(picks) for _, picks in QueryPlan(log, None, question, use_indexes=indexed))


def main(million: float, rounds: int) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows = max(int(million * 1e6) // SOURCE_ROWS, 1) * SOURCE_ROWS
    schema = builtin("header64")
    blocks = source(schema)
    header("what", "batch", "mrows_s", "ns_row", "bar")
    cases = [
        ("no view", 0, 0, False, ""),
        ("16 filters", 16, 0, False, ">= 5 M rows/s"),
        ("64 filters", 64, 0, False, ">= 2 M rows/s"),
        ("64 filters, 5 indexes", 64, 5, False, ">= 1.5 M rows/s"),
        ("an aggregate by key", 0, 0, True, "<= 100 ns more than no view"),
    ]
    with tempfile.TemporaryDirectory(prefix="confluo-bench-") as scratch:
        for batch in (32, 1024):
            for name, filters, indexes, aggregate, bar in cases:
                best = min(
                    run(Path(scratch), schema, blocks, batch, rows, filters, indexes, aggregate) for _ in range(rounds)
                )
                row(name, batch, 1e-6 / best, best * 1e9, bar)
        for name, ns, note in of_lists(Path(scratch), rounds):
            row(name, SOURCE_ROWS, 1e3 / ns, ns, note)
    for name, us in conformance():
        row(f"100 filters: {name}", 32, 32 / us, us * 1000 / 32, f"{us:.2f} us; <= 11 us")


if __name__ == "__main__":
    if len(sys.argv) > 3:
        raise SystemExit(__doc__)
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
