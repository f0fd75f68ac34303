"""Aggregation end to end: against DuckDB on the same rows, result schemas, order, top, having, rates, memory."""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.expr import compile, parse_aggregates, parse_by
from confluo_tools.formats.text import TextWriter
from confluo_tools.multilog.query.aggregation import Aggregation, aggregate
from confluo_tools.schema import Field, Schema, builtin
from twin_rollup import block_of, read, shown

N = 200_000
BLOCK = 65536
HERE = Path(__file__).resolve().parent
PATHS = [str(HERE), str(HERE.parents[1]), str(HERE.parent / "support")]
SCHEMA = Schema(
    "t",
    [
        Field("ts", "time", "ns"),
        Field("a", "u8"),
        Field("b", "u16", "B"),
        Field("c", "u32"),
        Field("d", "i64"),
        Field("e", "f64", "V"),
        Field("f", "f32"),
        Field("g", "i16"),
        Field("h", "u64"),
        Field("w", "duration", "ns"),
        Field("addr", "ipv4"),
        Field("name", "bytes(6)"),
    ],
)


def columns() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(7)
    names = np.array([b"", b"alpha", b"beta", b"gammas"], "S6")
    return {
        "ts": np.sort(rng.integers(-3 * 10**9, 40 * 10**9, N)).astype("<i8"),
        "a": rng.choice([1, 6, 17], N, p=[0.1, 0.6, 0.3]).astype("<u1"),
        "b": rng.zipf(1.3, N).clip(0, 65535).astype("<u2"),
        "c": rng.integers(0, 1 << 32, N).astype("<u4"),
        "d": rng.integers(-(10**12), 10**12, N).astype("<i8"),
        "e": rng.normal(5, 1e3, N),
        "f": rng.normal(0, 1, N).astype("<f4"),
        "g": rng.integers(-300, 300, N).astype("<i2"),
        "h": rng.integers(0, 1 << 44, N).astype("<u8"),
        "w": rng.gamma(2, 5e5, N).astype("<i8"),
        "addr": (0x0A000000 + rng.integers(0, 4000, N) * 37).astype("<u4"),
        "name": rng.choice(names, N),
    }


DATA = columns()


def blocks(data: dict[str, NDArray[Any]] = DATA, schema: Schema = SCHEMA) -> Iterator[Block]:
    count = len(data["ts"])
    for i, start in enumerate(range(0, count, BLOCK)):
        part = [np.ascontiguousarray(data[c.name][start : start + BLOCK]) for c in schema.columns]
        yield Block.wrap(schema.layout, len(part[0]), [p.view("u1").reshape(-1) for p in part], lane=i % 3, base=start)


@pytest.fixture(scope="module")
def duck() -> Iterator[Any]:
    import duckdb
    import pyarrow as pa

    table = pa.table({n: pa.array([v.ljust(6, b"\0") for v in a]) if n == "name" else a for n, a in DATA.items()})
    with duckdb.connect() as con:
        con.register("t", table)
        yield con


SQL = {
    "count": "count(*)",
    "sum": "sum({})",
    "avg": "avg({})",
    "stddev": "stddev_pop({})",
    "min": "min({})",
    "max": "max({})",
    "distinct": "count(distinct {})",
    "first": "arg_min({}, ts)",
    "last": "arg_max({}, ts)",
    "p50": "quantile_disc({}, 0.5)",
    "p99": "quantile_disc({}, 0.99)",
}
KEYS = {
    "": "",
    "a": "a",
    "b": "b",
    "g": "g",
    "addr": "addr",
    "name": "name",
    "a, b": "a, b",
    "c": "c",
    "d, h": "d, h",
    "1s": "cast(floor(ts / 1e9) as bigint) * 1000000000",
    "addr/24": "addr - addr % 256",
    "w/1ms": "w - w % 1000000",
    "addr/24, 9s, a": "addr - addr % 256, cast(floor(ts / 9e9) as bigint) * 9000000000, a",
}
WHERE = {"": "true", "a == 6": "a = 6", "b > 9": "b > 9", "c < 30000000": "c < 30000000", "a == 250": "a = 250"}
# One group per row: few rows suffice.
CASES = [(by, where) for by in KEYS for where in WHERE if by not in ("c", "d, h") or where.startswith("c")]


@pytest.mark.parametrize(("by", "where"), CASES)
def test_like_duckdb(duck: Any, by: str, where: str) -> None:
    fields = ("b", "d", "e", "f", "h", "w")
    asked = [("count", "")] + [(f, n) for f in SQL if f != "count" for n in fields]
    text = ", ".join(f"{f}({n})" if n else f for f, n in asked)
    aggs = parse_aggregates(text, SCHEMA)
    program = compile(where, SCHEMA).program
    pairs = ((block, program.select(block)) for block in blocks())
    keys = parse_by(by, SCHEMA) if by else []
    found = [tuple(row.values()) for row in read(*aggregate(pairs, SCHEMA, aggs, keys))]
    columns = [SQL[f].format(n) for f, n in asked]
    order = len(keys)
    sql = f"select {', '.join([*([KEYS[by]] if by else []), *columns])} from t where {WHERE[where]}"
    if by:
        sql += " group by all"
    wanted = duck.sql(sql).fetchall()
    if by:
        found.sort(key=lambda r: r[:order])
        wanted.sort(key=lambda r: r[:order])
    assert len(found) == len(wanted)
    # Several rows may share the first or last time: here lane and row decide, in DuckDB the order is undefined.
    tied = {k for k, (f, n) in enumerate(asked, order) if f in ("first", "last")}
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours[:order] == theirs[:order]
        for k in range(order, len(ours)):
            func, field = asked[k - order]
            a, b = ours[k], theirs[k]
            if b is None:
                assert a == 0 or math.isnan(a)
            elif func in ("p50", "p99"):
                assert abs(a - b) <= abs(b) / 256 + (0.5 if field == "w" else 0)
            elif field == "w" and func in ("avg", "stddev"):
                assert abs(a - b) <= 0.5 + 1e-6
            elif func in ("avg", "stddev") or field in ("e", "f"):
                assert k in tied or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
            else:
                assert k in tied or a == b, (func, field)


def test_first_and_last_without_ties(duck: Any) -> None:
    data = {**DATA, "ts": np.random.default_rng(1).permutation(N).astype("<i8")}
    found = read(
        *aggregate(
            ((b, None) for b in blocks(data)),
            SCHEMA,
            parse_aggregates("first(c), last(c), first(name), last(addr)", SCHEMA),
            parse_by("b", SCHEMA),
        )
    )
    for row in found:
        mine = np.flatnonzero(data["b"] == row["b"])
        first, last = mine[data["ts"][mine].argmin()], mine[data["ts"][mine].argmax()]
        assert row["first_c"] == data["c"][first]
        assert row["last_c"] == data["c"][last]
        assert row["first_name"] == data["name"][first].ljust(6, b"\0")
        assert row["last_addr"] == data["addr"][last]


def test_many_groups_merge_and_grow(duck: Any) -> None:
    """600,000 groups over tables that double several times, as one roll-up and as merged ones."""
    rng = np.random.default_rng(3)
    count = 600_000
    schema = Schema("t", [Field("k", "u64"), Field("v", "u32")])
    keys = rng.integers(0, 1 << 63, count).astype("<u8")
    values = rng.integers(0, 1000, count).astype("<u4")
    question = Aggregation(
        schema,
        parse_aggregates("count, sum(v), p50(v), distinct(v), distinct~(v) as about", schema),
        parse_by("k", schema),
    )
    rollups = [question.rollup() for _ in range(3)]
    for twice in range(2):
        for i, start in enumerate(range(0, count, BLOCK)):
            block = Block.wrap(
                schema.layout,
                min(BLOCK, count - start),
                [keys[start : start + BLOCK].copy(), values[start : start + BLOCK].copy()],
            )
            rollups[(i + twice) % 3].update(block)
    for other in rollups[1:]:
        rollups[0].merge(other)
    assert len(rollups[0]) == count
    order = np.argsort(keys)
    at = 0
    for block in question.answer(rollups[0]):
        n = block.rows
        part = order[at : at + n]
        assert np.array_equal(np.frombuffer(block.buffer(0), "<u8"), keys[part])
        assert (np.frombuffer(block.buffer(1), "<u8") == 2).all()
        assert np.array_equal(np.frombuffer(block.buffer(2), "<u8"), 2 * values[part].astype("<u8"))
        p50 = np.frombuffer(block.buffer(3), "<f8")
        assert (p50 == values[part]).all()
        assert (np.frombuffer(block.buffer(4), "<u8") == 1).all()
        assert (np.frombuffer(block.buffer(5), "<u8") == 1).all()
        at += n
    assert at == count


def test_keys_that_drift_and_jump() -> None:
    """Adjacent keys are looked up by value in a moving window; the result does not depend on it."""
    rng = np.random.default_rng(5)
    schema = Schema("t", [Field("k", "u32"), Field("s", "i64")])
    parts = []
    for step in range(300):
        start = (step // 40) * 50_000 if step % 7 else (1 << 32) - 40_000 * (1 + step % 3)
        parts.append((start + rng.integers(0, 40_000, 2048)) % (1 << 32))
    keys = np.concatenate([*parts, rng.integers(0, 1 << 32, 4096)]).astype("<u4")
    for column, by in ((0, "k"), (1, "s")):
        buffers: list[Any] = [None, None]
        question = Aggregation(schema, parse_aggregates("count", schema), parse_by(by, schema))
        rollup = question.rollup()
        values = keys if by == "k" else keys.astype("<i8") - (1 << 31)
        for start in range(0, len(keys), 50_000):
            buffers[column] = values[start : start + 50_000].copy()
            rollup.update(Block.wrap(schema.layout, len(buffers[column]), buffers))
        wanted, counts = np.unique(values, return_counts=True)
        found = list(question.answer(rollup))
        assert np.array_equal(np.concatenate([np.frombuffer(b.buffer(0), values.dtype) for b in found]), wanted)
        assert np.array_equal(np.concatenate([np.frombuffer(b.buffer(1), "<u8") for b in found]), counts)


def test_addresses_in_a_log(tmp_path: Path) -> None:
    """Blocks with zones, some without IPv6 addresses by their zone maps, and lanes written in turns."""
    from confluo_tools import multilog

    packet = builtin("packet")
    rng = np.random.default_rng(9)
    four = [None, "10.0.0.1", "10.0.0.2", "10.0.1.1", "0.0.0.0", "192.0.2.7"]
    six = ["2001:db8::1", "2001:db8::2", "::1", "::", "fe80::1", "::ffff:c000:207"]
    parts = []
    for n in range(12):
        pool = (four, six, four + six)[n % 3]
        names = [pool[int(i)] for i in rng.integers(0, len(pool), 7000)]
        parts.append(
            [
                {
                    "ts": n * 7000 + i,
                    "ip_version": 0 if a is None else 6 if ":" in a else 4,
                    "src_ip": a,
                    "len": int(rng.integers(60, 1500)),
                }
                for i, a in enumerate(names)
            ]
        )
    with multilog.create(tmp_path / "a.ml", packet) as log:
        writers = [log.writer() for _ in range(3)]
        for n, part in enumerate(parts):
            writers[n % 3].append(block_of(part, packet))
        for writer in writers:
            writer.close()
        blocks = [*log.blocks()]
        assert any(b.zones(packet.index("ip_version")) == (0, 4) for b in blocks)
        plain = [(block_of(part, packet, n % 3), None) for n, part in enumerate(parts)]
        text = "count, sum(len), distinct(src_ip), distinct~(src_ip) as about, min(src_ip), max(src_ip), first(src_ip)"
        for by in ("", "src_ip", "src_ip/24", "src_ip/8/16, ip_version"):
            keys = parse_by(by, packet) if by else []
            aggs = parse_aggregates(text, packet)
            found = read(*aggregate(((b, None) for b in blocks), packet, aggs, keys))
            assert found == read(*aggregate(plain, packet, aggs, keys))
            assert sum(r["count"] for r in found) == 84_000
    counted = read(*aggregate(plain, packet, parse_aggregates("count", packet), parse_by("src_ip", packet)))
    assert {r["src_ip"] for r in counted} == {shown(row["src_ip"]) for part in parts for row in part}


# ---- result schemas, order, top, having -------------------------------------------------------------------------


def ask(agg: str, by: str = "", **options: Any) -> list[dict[str, Any]]:
    keys = parse_by(by, SCHEMA) if by else []
    return read(*aggregate(((b, None) for b in blocks()), SCHEMA, parse_aggregates(agg, SCHEMA), keys, **options))


def test_types_units_and_words_of_results() -> None:
    packet = builtin("packet")
    text = (
        "count, rate, sum(len), rate(len), avg(len), stddev(len), min(ttl), max(src_ip), first(ts), last(proto),"
        "distinct(src_ip), distinct~(src_ip) as about, p99(len), max(switch_path), first(switch_path),"
        "max(tcp_flags)"
    )
    question = Aggregation(
        packet, parse_aggregates(text, packet), parse_by("dst_ip/24, 10s, proto, eth_src/24", packet)
    )
    got = [(f.name, f.type.text, f.unit) for f in question.result.fields]
    assert got == [
        ("dst_ip", "ip", ""),
        ("ts", "time", "ns"),
        ("proto", "enum", ""),
        ("eth_src", "mac", ""),
        ("count", "u64", ""),
        ("rate", "f64", "/s"),
        ("sum_len", "u64", "B"),
        ("rate_len", "f64", "B/s"),
        ("avg_len", "f64", "B"),
        ("stddev_len", "f64", "B"),
        ("min_ttl", "u8", ""),
        ("max_src_ip", "ip", ""),
        ("first_ts", "time", "ns"),
        ("last_proto", "enum", ""),
        ("distinct_src_ip", "u64", ""),
        ("about", "u64", ""),
        ("p99_len", "f64", "B"),
        ("max_switch_path", "u16", ""),
        ("first_switch_path", "list(u16, 8)", ""),
        ("max_tcp_flags", "flags(u16)", ""),
    ]
    assert question.result["last_proto"].names[6] == "tcp"
    assert question.result["proto"].names[6] == "tcp"
    assert question.result["sum_len"].description == "sum of len: length on the wire"
    assert question.result["p99_len"].description.startswith("99 % of len are at most this (within 0.4 %)")
    text = "sum(w), avg(w), stddev(w), p50(w), min(w), rate(w), sum(d), sum(e)"
    own = Aggregation(SCHEMA, parse_aggregates(text, SCHEMA), [])
    assert [f.type.text for f in own.result.fields] == ["duration"] * 5 + ["f64", "i64", "f64"]


def test_the_fields_a_question_reads() -> None:
    packet = builtin("packet")

    def reads(agg: str, by: str = "") -> tuple[str, ...]:
        return Aggregation(packet, parse_aggregates(agg, packet), parse_by(by, packet) if by else []).reads

    assert reads("count") == ()
    assert reads("count, sum(len)", "dst_port") == ("len", "dst_port")
    assert reads("distinct(src_ip)", "dst_ip/24") == ("ip_version", "src_ip", "dst_ip")
    assert reads("rate") == reads("count", "1s") == reads("rate", "1s") == ("ts",)
    assert reads("last(ttl)", "flow") == (
        "ts",
        "ip_version",
        "proto",
        "src_ip",
        "dst_ip",
        "src_port",
        "dst_port",
        "ttl",
    )


def test_results_print_as_any_records() -> None:
    packet = builtin("packet")
    rows = [
        {"ts": 1_700_000_000_000_000_000 + n, "src_ip": a, "ip_version": v, "proto": p, "len": 60 + n}
        for n, (a, v, p) in enumerate([("10.0.0.1", 4, 6), ("2001:db8::1", 6, 6), ("0.0.0.0", 4, 17), (None, 0, 0)])
    ]
    pair = [(block_of(rows, packet), None)]
    result, out = aggregate(
        pair,
        packet,
        parse_aggregates("count, max(len), last(proto), first(src_ip)", packet),
        parse_by("src_ip, ip_version", packet),
    )
    sink = io.BytesIO()
    writer = TextWriter("tsv", result, sink, header=False)
    for block in out:
        writer.write(block)
    writer.close()
    assert sink.getvalue().decode().splitlines() == [
        "-\t0\t1\t63\t-\t-",
        "0.0.0.0\t4\t1\t62\tudp\t::ffff:0.0.0.0",
        "10.0.0.1\t4\t1\t60\ttcp\t10.0.0.1",
        "2001:db8::1\t6\t1\t61\ttcp\t2001:db8::1",
    ]


def test_top_is_by_the_first_aggregate_ties_by_key() -> None:
    everything = ask("sum(b), count", "addr")
    wanted = sorted(everything, key=lambda r: (-r["sum_b"], r["addr"]))
    for n in (0, 1, 10, 1000, 4000, 10**6):
        assert ask("sum(b), count", "addr", top=n) == wanted[:n]
    ties = sorted(ask("max(a)", "addr"), key=lambda r: (-r["max_a"], r["addr"]))
    assert ask("max(a)", "addr", top=100) == ties[:100]
    some = sorted(ask("avg(e), max(g), min(f)", "addr"), key=lambda r: (r["max_g"], -r["avg_e"], r["addr"]))
    assert ask("avg(e), max(g), min(f)", "addr", top=50, order=[("max_g", False), ("avg_e", True)]) == some[:50]
    assert ask("count", "c", top=3) == sorted(ask("count", "c"), key=lambda r: (-r["count"], r["c"]))[:3]


def test_not_a_number_is_never_at_the_top() -> None:
    schema = Schema("t", [Field("k", "u16"), Field("v", "f64")])
    keys, values = np.arange(9000, dtype="<u2"), np.arange(9000, dtype="<f8")
    values[::3] = np.nan
    pair = [(Block.wrap(schema.layout, 9000, [keys, values]), None)]
    found = read(*aggregate(pair, schema, parse_aggregates("avg(v)", schema), parse_by("k", schema), top=4))
    assert [r["avg_v"] for r in found] == [8999.0, 8998.0, 8996.0, 8995.0]
    found = read(
        *aggregate(pair, schema, parse_aggregates("avg(v)", schema), parse_by("k", schema), order=[("avg_v", False)])
    )
    assert [r["avg_v"] for r in found[:3]] == [1.0, 2.0, 4.0]
    assert math.isnan(found[-1]["avg_v"])


def test_having_holds_before_top() -> None:
    for by in ("addr", "c", "b"):
        aggs = parse_aggregates("sum(b), count, avg(e)", SCHEMA)
        schema = Aggregation(SCHEMA, aggs, parse_by(by, SCHEMA)).result
        having = compile("count >= 2 && avg_e > 0", schema)
        everything = [r for r in ask("sum(b), count, avg(e)", by) if r["count"] >= 2 and r["avg_e"] > 0]
        assert ask("sum(b), count, avg(e)", by, having=having) == everything
        wanted = sorted(everything, key=lambda r: (-r["sum_b"], r[by]))[:7]
        assert ask("sum(b), count, avg(e)", by, having=having, top=7) == wanted


def test_rates() -> None:
    span = (int(DATA["ts"].max()) - int(DATA["ts"].min())) / 1e9
    total = int(DATA["b"].sum())
    (row,) = ask("rate, rate(b), rate(e)")
    assert (row["rate"], row["rate_b"]) == (N / span, pytest.approx(total / span, rel=1e-15))
    assert ask("rate", since=0, until=4 * 10**9) == [{"rate": N / 4}]
    assert ask("rate", since=-3 * 10**9)[0]["rate"] == N / ((int(DATA["ts"].max()) + 3e9) / 1e9)
    per = ask("rate, count, rate(b), sum(b)", "100ms, a")
    assert all(r["rate"] == r["count"] / 0.1 and r["rate_b"] == r["sum_b"] / 0.1 for r in per)
    # Without a time step the span is that of all selected rows, not of each group.
    for r in ask("rate, count", "a"):
        assert r["rate"] == r["count"] / span
    program = compile("a == 6 && ts < @0.000001", SCHEMA).program
    picks = [(b, program.select(b)) for b in blocks()]
    mine = DATA["ts"][(DATA["a"] == 6) & (DATA["ts"] < 1000)]
    (row,) = read(*aggregate(picks, SCHEMA, parse_aggregates("rate", SCHEMA), []))
    assert row["rate"] == len(mine) / ((int(mine.max()) - int(mine.min())) / 1e9)
    one = next(blocks())
    (row,) = read(*aggregate([(one, Picks.of(one.rows, [5]))], SCHEMA, parse_aggregates("rate", SCHEMA), []))
    assert math.isnan(row["rate"])


# ---- memory ------------------------------------------------------------------------------------------------------

# Not getrusage: on Linux the peak includes the memory before exec, here that of pytest.
FEED = """
import sys
from pathlib import Path
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
sys.path[:0] = {path!r}
from test_aggregate import SCHEMA, blocks, parse_aggregates, parse_by, Aggregation
text = "count, sum(b), avg(e), stddev(d), p50(w), p99(e), distinct(b), distinct~(c), first(name), rate, max(addr)"
question = Aggregation(SCHEMA, parse_aggregates(text, SCHEMA), parse_by({by!r}, SCHEMA) if {by!r} else [])
rollup = question.rollup()
data = list(blocks())
for n in range(3):
    for block in data:
        rollup.update(block)
before = peak()
for n in range(40):
    for block in data:
        rollup.update(block)
assert rollup.rows == 43 * {n}
print(peak() - before)
"""


@pytest.mark.parametrize("by", ["", "b", "addr, a"])
def test_memory_does_not_grow_with_rows(by: str) -> None:
    code = FEED.format(path=PATHS, by=by, n=N)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1024  # KiB, for 8 million rows


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer needs the address space itself")
def test_no_memory_is_an_error_not_a_crash() -> None:
    """Groups beyond a limit of address space: MemoryError, and the roll-up is then unusable."""
    code = f"""
import resource, sys
sys.path[:0] = {PATHS!r}
import numpy as np
from confluo_tools.core.block.block import Block
from confluo_tools.schema import Schema, Field
from test_aggregate import parse_aggregates, parse_by, Aggregation
schema = Schema("t", [Field("k", "u64"), Field("v", "bytes(64)")])
question = Aggregation(schema, parse_aggregates("count, p50(k), distinct(k), distinct~(k) as about, first(v)", schema),
                    parse_by("k", schema))
rollup = question.rollup()
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
zeros = bytes(65536 * 64)
try:
    for n in range(1000):
        keys = np.arange(n * 65536, (n + 1) * 65536, dtype="<u8")
        rollup.update(Block.wrap(schema.layout, 65536, [keys, zeros]))
except MemoryError:
    for call in (lambda: rollup.update(Block.wrap(schema.layout, 0, [None, None])),
                 lambda: rollup.finish(question.result.layout), lambda: question.rollup().merge(rollup)):
        try:
            call()
        except ValueError as e:
            print(e)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["this roll-up is unusable after an earlier error"] * 3
