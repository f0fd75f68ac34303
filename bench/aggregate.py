"""Aggregates in process on one core, next to DuckDB on one thread, the same rows in memory.

usage: bench/aggregate.py [MILLION_ROWS [ROUNDS]]      (10 and 3; 1 million rows take 40 MB, and as much in DuckDB)

Rows like the 64-byte header of the paper: addresses from a /24, 10 destination ports, any source port; flows of
20 packets on average; a hash of 32 bits, nearly all different; a measured delay in doubles.  DuckDB has the rows in
a table of its own, which it reads faster than Arrow or Parquet.  It keeps integer sums in 128 bits too; its
approximate quantile is a t-digest without a bound on the error, its approximate distinct count has 64 registers
where ours has 4,096 or 16,384.  Both answer completely: the groups come out sorted here, in any order there.

Prints TSV: question, groups, nanoseconds of CPU a row (medians) of ours and of DuckDB, how many times faster we are
(median of the ratios of neighbouring runs), and our milliseconds scaled to 50 million rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from timing import header, row

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.expr import parse_aggregates, parse_by
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.schema import Field, Schema

BLOCK_ROWS = 65536
SCHEMA = Schema(
    "header",
    [
        Field("ts", "time", "ns"),
        Field("src_ip", "ipv4"),
        Field("dst_ip", "ipv4"),
        Field("src_port", "u16"),
        Field("dst_port", "u16"),
        Field("len", "u32", "B"),
        Field("hash", "u32"),
        Field("proto", "u8"),
        Field("delay", "f64", "s"),
    ],
)

# (agg, by, SQL of the aggregates, SQL of the keys)
SECOND = "ts // 1000000000"
QUESTIONS = [
    ("count", "", "count(*)", ""),
    ("sum(len)", "", "sum(len)", ""),
    ("min(len), max(len)", "", "min(len), max(len)", ""),
    ("sum(delay)", "", "fsum(delay)", ""),
    ("avg(len)", "", "avg(len)", ""),
    ("stddev(len)", "", "stddev_pop(len)", ""),
    ("stddev(delay)", "", "stddev_pop(delay)", ""),
    ("first(len), last(len)", "", "arg_min(len, ts), arg_max(len, ts)", ""),
    ("distinct(src_ip)", "", "count(distinct src_ip)", ""),
    ("distinct(hash)", "", "count(distinct hash)", ""),
    ("distinct~(hash)", "", "approx_count_distinct(hash)", ""),
    ("count(len > 1000)", "", "count(*) filter (len > 1000)", ""),
    ("count(len > 1000 and dst_port == 443)", "", "count(*) filter (len > 1000 and dst_port = 443)", ""),
    ("sum(len * 8)", "", "sum(len::bigint * 8)", ""),
    ("sum((len - 40) * 8), max(len - 40)", "", "sum((len::bigint - 40) * 8), max(len::bigint - 40)", ""),
    ("avg(delay * 1000)", "", "avg(delay * 1000)", ""),
    ("count(len > 1000)", "dst_port", "count(*) filter (len > 1000)", "dst_port"),
    ("count(len > 1000) / count as r", "src_ip", "count(*) filter (len > 1000) / count(*)", "src_ip"),
    ("sum(len * 8)", "dst_port", "sum(len::bigint * 8)", "dst_port"),
    ("p50(len), p99(len)", "", "approx_quantile(len, [0.5, 0.99])", ""),
    ("p99(delay)", "", "approx_quantile(delay, 0.99)", ""),
    ("count", "dst_port", "count(*)", "dst_port"),
    ("count", "src_port", "count(*)", "src_port"),
    ("count", "proto", "count(*)", "proto"),
    ("count", "src_ip", "count(*)", "src_ip"),
    ("count", "src_ip/28", "count(*)", "src_ip >> 4"),
    ("count", "1s", "count(*)", SECOND),
    ("count", "src_ip, dst_port", "count(*)", "src_ip, dst_port"),
    ("count", "src_ip, 1s", "count(*)", f"src_ip, {SECOND}"),
    ("count", "flow", "count(*)", "src_ip, dst_ip, src_port, dst_port, proto"),
    ("count", "hash", "count(*)", "hash"),
    ("sum(len)", "dst_port", "sum(len)", "dst_port"),
    ("count, sum(len), avg(len)", "dst_port", "count(*), sum(len), avg(len)", "dst_port"),
    ("sum(len)", "src_ip", "sum(len)", "src_ip"),
    ("min(len), max(len)", "src_ip", "min(len), max(len)", "src_ip"),
    ("stddev(len)", "src_ip", "stddev_pop(len)", "src_ip"),
    ("sum(delay)", "src_ip", "fsum(delay)", "src_ip"),
    ("p99(len)", "src_ip", "approx_quantile(len, 0.99)", "src_ip"),
    ("distinct(src_port)", "src_ip", "count(distinct src_port)", "src_ip"),
    ("distinct~(hash)", "src_ip", "approx_count_distinct(hash)", "src_ip"),
    ("first(len)", "src_ip", "arg_min(len, ts)", "src_ip"),
    (
        "count, sum(len), p99(len), distinct(src_ip)",
        "dst_ip/24, 1s",
        "count(*), sum(len), approx_quantile(len, 0.99), count(distinct src_ip)",
        f"dst_ip >> 8, {SECOND}",
    ),
    ("sum(len)", "hash", "sum(len)", "hash"),
    (
        "count, sum(len), first(ts), last(ts)",
        "flow",
        "count(*), sum(len), min(ts), max(ts)",
        "src_ip, dst_ip, src_port, dst_port, proto",
    ),
]


def columns(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    flow = rng.integers(0, 1 << 63, max(rows // 20, 1)).astype("<u8")[rng.integers(0, max(rows // 20, 1), rows)]
    return {
        "ts": (1_763_700_000_000_000_000 + np.cumsum(rng.integers(0, 2000, rows))).astype("<i8"),
        "src_ip": (0x0A000000 + (flow >> 55)).astype("<u4"),
        "dst_ip": (0x0A000000 + (flow >> 47 & 255)).astype("<u4"),
        "src_port": (flow >> 32 & 65535).astype("<u2"),
        "dst_port": (5000 + (flow >> 16 & 65535) % 10).astype("<u2"),
        "len": rng.choice([40, 52, 60, 576, 1400, 1500], rows).astype("<u4"),
        "hash": rng.integers(0, 1 << 32, rows).astype("<u4"),
        "proto": np.where(flow >> 12 & 7, 6, 17).astype("<u1"),
        "delay": rng.exponential(0.01, rows),
    }


def blocks_of(data: dict[str, Any]) -> list[Block]:
    rows = len(data["ts"])
    out = []
    for start in range(0, rows, BLOCK_ROWS):
        parts = [data[c.name][start : start + BLOCK_ROWS] for c in SCHEMA.columns]
        out.append(Block.wrap(SCHEMA.layout, len(parts[0]), parts, lane=0, base=start))
    return out


def ask(blocks: list[Block], agg: str, by: str) -> int:
    question = Aggregation(SCHEMA, parse_aggregates(agg, SCHEMA), parse_by(by, SCHEMA) if by else [])
    rollup = question.rollup()
    for block in blocks:
        rollup.update(block)
    return sum(block.rows for block in question.answer(rollup))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def main(rows: int, rounds: int) -> None:
    import duckdb
    import pyarrow as pa

    data = columns(rows)
    blocks = blocks_of(data)
    con = duckdb.connect()
    con.execute("set threads = 1")
    table = pa.table(data)
    con.register("arrow", table)
    con.execute("create table t as select * from arrow")
    con.unregister("arrow")
    header("aggregates", "by", "groups", "ns_a_row", "duckdb_ns_a_row", "faster_by", "ms_for_50M")
    for agg, by, what, keys in QUESTIONS:
        sql = f"select {', '.join(filter(None, [keys, what]))} from t" + (" group by all" if keys else "")
        ours, theirs = [], []
        groups = 0
        for i in range(rounds + 1):
            a, groups = timed(lambda agg=agg, by=by: ask(blocks, agg, by))
            b, table = timed(lambda sql=sql: con.sql(sql).to_arrow_table())
            assert table.num_rows == groups, (agg, by, table.num_rows, groups)
            if i:
                ours.append(a / rows * 1e9)
                theirs.append(b / rows * 1e9)
        mine = float(np.median(ours))
        faster = float(np.median([b / a for a, b in zip(ours, theirs, strict=True)]))
        row(agg, by or "-", groups, mine, float(np.median(theirs)), faster, mine * 50)
    half = Picks.of(BLOCK_ROWS, range(0, BLOCK_ROWS, 2))
    question = Aggregation(SCHEMA, parse_aggregates("count", SCHEMA), parse_by("dst_port", SCHEMA))
    rollup = question.rollup()
    seconds, _ = timed(lambda: [rollup.update(b, half) for b in blocks[:-1]])
    row(
        "count, every second row picked",
        "dst_port",
        len(rollup),
        seconds / rollup.rows * 1e9,
        "-",
        "-",
        seconds / rollup.rows * 5e10,
    )


if __name__ == "__main__":
    if len(sys.argv) > 3:
        raise SystemExit(__doc__)
    main(
        int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 10_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 3
    )
