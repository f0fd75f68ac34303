"""Roll-ups against brute-force reference code: every aggregate, key and kind of picks, and merges of any partition."""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block, Layout, Picks
from confluo_tools.core.query.rollup import Rollup
from confluo_tools.core.query.rollup_codec import dump, load
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.expr import compile
from confluo_tools.expr.aggregates import Aggregate
from confluo_tools.expr.group_keys import GroupKey
from confluo_tools.multilog.query.aggregation import Aggregation, aggregate
from confluo_tools.schema.choose import FLOW_FIELDS
from twin_rollup import SCHEMA, Row, block_of, key_of, picks_of, read, twin

NUMBERS = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64", "gap", "path", "drops"]
ANY = [*NUMBERS, "ts", "ip", "bare", "v4", "mac", "enum", "flags", "short", "long"]
ALL_AGGS = (
    [Aggregate("count", None, None, "n"), Aggregate("rate", None, None, "r")]
    + [Aggregate(f, n, None, f"{f}_{n}") for f in ("sum", "avg", "stddev", "rate") for n in NUMBERS]
    + [Aggregate("quantile", n, q, f"p{round(q * 1e6)}_{n}") for q in (0.0, 0.5, 0.9, 0.999, 1.0) for n in NUMBERS]
    + [
        Aggregate(f, n, None, f"{f.rstrip('~')}{'x' * f.endswith('~')}_{n}")
        for f in ("min", "max", "first", "last", "distinct", "distinct~")
        for n in ANY
    ]
)


def field(name: str) -> GroupKey:
    return GroupKey("field", name, 0, 0, f"k_{name}")


KEYS = {
    "none": [],
    **{name: [field(name)] for name in [*ANY, "keep"]},
    "ip/24": [GroupKey("prefix", "ip", 24, 64, "net")],
    "bare/8/48": [GroupKey("prefix", "bare", 8, 48, "net")],
    "ip/0": [GroupKey("prefix", "ip", 0, 0, "net")],
    "ip/32/128": [GroupKey("prefix", "ip", 32, 128, "net")],
    "v4/12": [GroupKey("prefix", "v4", 12, 0, "net")],
    "v4/24": [GroupKey("prefix", "v4", 24, 0, "net")],
    "v4/0": [GroupKey("prefix", "v4", 0, 0, "net")],
    "mac/24": [GroupKey("prefix", "mac", 24, 0, "oui")],
    "1ns": [GroupKey("bucket", "ts", 1, 0, "t")],
    "1s": [GroupKey("bucket", "ts", 10**9, 0, "t")],
    "7ns": [GroupKey("bucket", "ts", 7, 0, "t")],
    "292y": [GroupKey("bucket", "ts", 2**63 - 1, 0, "t")],
    "gap/10": [GroupKey("bucket", "gap", 10, 0, "g")],
    "gap power": [GroupKey("power", "gap", 10, 0, "g")],
    **{f"{n}/{w}": [GroupKey("step", n, w, 0, "k")] for n, w in {"u8": 3, "u64": 7, "i8": 100, "i64": 9}.items()},
    **{f"log2({n})": [GroupKey("power", n, 2, 0, "k")] for n in ("u64", "i16")},
    "numbers": [GroupKey("power", "i8", 10, 0, "k"), GroupKey("step", "u16", 10, 0, "k2"), field("ip")],
    "two": [field("u16"), field("u32")],
    "two wide": [field("u64"), field("i64")],
    "net and second": [GroupKey("prefix", "ip", 24, 64, "net"), GroupKey("bucket", "ts", 10**9, 0, "t")],
    "version": [field("ip"), field("ver")],
    "many": [field(n) for n in ("ip", "bare", "u16", "i8", "f64", "long", "path", "u64", "short", "mac", "i32")],
}

INTS = {
    "u8": (0, 8),
    "u16": (0, 16),
    "u32": (0, 32),
    "u64": (0, 64),
    "i8": (1, 8),
    "i16": (1, 16),
    "i32": (1, 32),
    "i64": (1, 64),
    "v4": (0, 32),
    "mac": (0, 48),
    "enum": (0, 8),
    "flags": (0, 16),
}


def ints(signed: int, bits: int) -> st.SearchStrategy[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.one_of(st.integers(0, 3), st.sampled_from([low, high, high - 1, high // 2]), st.integers(low, high))


FLOATS = st.sampled_from([0.0, -0.0, 1.0, -2.5, math.nan, 1e-3, 1e15, -1e15, 3.0]) | st.floats(-1e6, 1e6, width=32)
ADDRESSES = st.sampled_from(
    [
        None,
        None,
        "10.0.0.1",
        "10.0.0.2",
        "10.0.1.1",
        "0.0.0.0",
        "0.0.0.1",
        "0.0.0.7",
        "255.255.255.255",
        "::",
        "::1",
        "2001:db8::1",
        "2001:db8::2",
        "2001:db8:0:1::1",
        "::ffff:a00:1",
        "fe80::",
        "ff02::1:2",
    ]
)
# Without a version column 0.0.0.0 means no address and 0.0.0.1 is ::.
BARE = ADDRESSES.filter(lambda a: a not in ("0.0.0.0", "0.0.0.1"))
TIMES = st.integers(-3, 3).map(lambda s: s * 500_000_000) | st.sampled_from([-(2**63), 2**63 - 1, 0, 1])
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "ts": TIMES,
    "keep": st.integers(0, 1),
    "ip": ADDRESSES,
    "bare": BARE,
    **{name: ints(*spec) for name, spec in INTS.items()},
    "f32": FLOATS.map(lambda v: struct.unpack("f", struct.pack("f", v))[0]),
    "f64": FLOATS,
    "gap": st.integers(-30, 30) | st.integers(-(2**40), 2**40),
    "short": st.binary(max_size=5),
    "long": st.sampled_from([b"", b"a", b"x" * 21, b"x" * 20 + b"y"]),
    "path": st.tuples(*[st.integers(0, 3)] * 3),
    "drops": st.tuples(*[st.sampled_from([0, -1, 2**31 - 1, -(2**31)])] * 2),
}
CONSTANT: Row = {
    **dict.fromkeys([*INTS, "gap"], 1),
    **{
        "f32": 1.0,
        "f64": 1.0,
        "ip": "::1",
        "bare": "::1",
        "short": b"s",
        "long": b"l",
        "path": (1, 2, 3),
        "drops": (4, 5),
    },
}


@functools.cache
def rows_of(names: frozenset[str]) -> st.SearchStrategy[list[Row]]:
    """Rows with any values in these columns; values of columns that no question names are constant: drawing is slow."""
    drawn = {name: values for name, values in COLUMNS.items() if name in names or name in ("ts", "keep")}
    return st.lists(st.fixed_dictionaries(drawn).map(lambda row: CONSTANT | row), max_size=12)


def rows_for(aggs: Sequence[Aggregate], by: Sequence[GroupKey]) -> st.SearchStrategy[list[Row]]:
    return rows_of(frozenset([agg.field or "ts" for agg in aggs] + [key.field for key in by]))


ROWS = rows_of(frozenset(COLUMNS))
PICKS = st.sampled_from(["none", "all", "list", "mask"])


def in_order(rows: Sequence[tuple[int, int, Row]]) -> list[Row]:
    """Rows by time, then lane, then row number."""
    return [r for _, _, r in sorted(rows, key=lambda x: (x[2]["ts"], x[0], x[1]))]


def groups_of(rows: list[Row], by: list[GroupKey]) -> dict[tuple[Any, ...], list[Row]]:
    out: dict[tuple[Any, ...], list[Row]] = {} if by else {(): []}
    plain = any(key.field == "ver" for key in by)
    for row in rows:
        out.setdefault(tuple(key_of(row, key, plain=plain) for key in by), []).append(row)
    return out


def close(found: Any, wanted: Any, agg: Aggregate, rows: list[Row]) -> bool:
    """Compare a result with the reference: exactly, apart from float rounding and sketch errors."""
    if isinstance(wanted, float) and math.isnan(wanted):
        return found == 0 if agg.field == "gap" and agg.func != "rate" else math.isnan(found)
    if agg.func == "quantile":
        return abs(found - wanted) <= abs(wanted) / 256 + (0.5 if agg.field == "gap" else 0)
    if agg.func in ("sum", "count", "distinct", "distinct~", "min", "max", "first", "last") and agg.field not in (
        "f32",
        "f64",
    ):
        return bool(found == wanted)
    if agg.field == "gap" and agg.func != "rate":
        return isinstance(found, int) and abs(found - wanted) <= 0.5 + 1e-9
    if agg.field is not None and agg.field in ("f32", "f64") and agg.func not in ("min", "max", "first", "last"):
        size = math.fsum(abs(r[agg.field]) for r in rows if not math.isnan(r[agg.field]))
        return abs(found - float(wanted)) <= 1e-15 * abs(found) + (1e-8 if agg.func == "stddev" else 1e-22) * size
    return math.isclose(found, wanted, rel_tol=1e-15 if agg.func != "stddev" else 1e-13)


def check(question: Aggregation, found: list[Row], rows: list[Row], by: list[GroupKey], seconds: float) -> None:
    wanted = groups_of(rows, by)
    keys = [tuple("nan" if row[n] != row[n] else row[n] for n in question.keys) for row in found]
    assert sorted(keys, key=repr) == sorted(wanted, key=repr)
    for key, row in zip(keys, found, strict=True):
        for agg in question.aggs:
            value = twin(wanted[key], agg, seconds=seconds) if agg.func != "rate" or seconds > 0 else math.nan
            assert close(row[agg.label], value, agg, wanted[key]), (agg, key, row[agg.label], value)


def span(rows: list[Row]) -> float:
    return (max(r["ts"] for r in rows) - min(r["ts"] for r in rows)) / 1e9 if rows else 0.0


def too_large(rows: list[Row], aggs: list[Aggregate], by: list[GroupKey]) -> bool:
    """Whether some sum does not fit 64 bits."""
    for agg in aggs:
        if agg.func == "sum" and agg.field not in ("f32", "f64"):
            signed = agg.field in ("i8", "i16", "i32", "i64", "gap", "drops")
            low, high = (-(2**63), 2**63 - 1) if signed else (0, 2**64 - 1)
            if any(not low <= twin(g, agg) <= high for g in groups_of(rows, by).values()):
                return True
    return False


def ask(
    rows: list[Row], aggs: list[Aggregate], by: list[GroupKey], cuts: list[int], kind: str, lanes: list[int]
) -> None:
    """Split rows into blocks at ``cuts``, in ``lanes``, and compare the result with the reference."""
    question = Aggregation(SCHEMA, aggs, by)
    bounds = [0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]
    pairs, numbered = [], []
    for i, (start, end) in enumerate(itertools.pairwise(bounds)):
        lane = lanes[i % len(lanes)]
        block = block_of(rows[start:end], lane=lane, base=start)
        pairs.append((block, picks_of(block, kind)))
        numbered += [(lane, n, rows[n]) for n in range(start, end) if kind in ("none", "all") or rows[n]["keep"]]
    chosen = in_order(numbered)
    step = next((b.arg / 1e9 for b in by if b.kind == "bucket" and b.field == "ts"), 0.0)
    try:
        schema, blocks = aggregate(pairs, SCHEMA, aggs, by)
    except ConfluoError:
        schema = None
    assert (schema is None) == too_large(chosen, aggs, by)
    if schema is None:
        return
    assert schema == question.result
    found = read(schema, blocks)
    check(question, found, chosen, by, step or span(chosen))


CUTS = st.lists(st.integers(0, 12), max_size=3)
LANES = st.lists(st.integers(0, 2), min_size=1, max_size=3) | st.just([-1])


@pytest.mark.parametrize("by", KEYS.values(), ids=KEYS.keys())
@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    aggs=st.lists(st.sampled_from(ALL_AGGS), max_size=4, unique_by=lambda a: a.label),
    cuts=CUTS,
    kind=PICKS,
    lanes=LANES,
)
def test_every_kind_of_key(
    by: list[GroupKey], data: st.DataObject, aggs: list[Aggregate], cuts: list[int], kind: str, lanes: list[int]
) -> None:
    ask(data.draw(rows_for(aggs, by)), aggs or [Aggregate("count", None, None, "n")], by, cuts, kind, lanes)


@pytest.mark.parametrize("agg", ALL_AGGS, ids=lambda a: a.label)
@settings(max_examples=12, deadline=None)
@given(
    data=st.data(),
    by=st.sampled_from([[], [field("keep")], [field("u32"), field("ip")]]),
    cuts=CUTS,
    kind=PICKS,
    lanes=LANES,
)
def test_every_aggregate(
    agg: Aggregate, data: st.DataObject, by: list[GroupKey], cuts: list[int], kind: str, lanes: list[int]
) -> None:
    ask(data.draw(rows_for([agg], by)), [agg], by, cuts, kind, lanes)


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from(sorted(KEYS)),
    aggs=st.lists(st.sampled_from([a for a in ALL_AGGS if a.func != "sum"]), max_size=5, unique_by=lambda a: a.label),
)
def test_a_merge_of_any_partition_is_the_whole(data: st.DataObject, name: str, aggs: list[Aggregate]) -> None:
    by = KEYS[name]
    rows = data.draw(rows_for(aggs, by))
    question = Aggregation(SCHEMA, aggs or [Aggregate("count", None, None, "n")], by)
    parts = [question.rollup() for _ in range(data.draw(st.integers(1, 4)))]
    numbered = []
    for i, row in enumerate(rows):
        lane = data.draw(st.integers(0, 2))
        part = data.draw(st.integers(0, len(parts) - 1))
        parts[part].update(block_of([row], lane=lane, base=i))
        numbered.append((lane, i, row))
    while len(parts) > 1:
        one = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        if data.draw(st.booleans()):  # encoded and decoded, as between processes
            copy = question.rollup()
            load(copy, dump(one))
            one = copy
        before = len(one), one.rows
        parts[0].merge(one)
        assert (len(one), one.rows) == before
    assert parts[0].rows == len(rows)
    chosen = in_order(numbered)
    step = next((b.arg / 1e9 for b in by if b.kind == "bucket" and b.field == "ts"), 0.0)
    check(question, read(question.result, question.answer(parts[0])), chosen, by, step or span(chosen))


def test_rows_in_no_lane_merge_in_the_order_of_the_merges() -> None:
    question = Aggregation(SCHEMA, [Aggregate(f, "u32", None, f) for f in ("first", "last")], [])
    parts = []
    for start in (10, 20, 30):
        rollup = question.rollup()
        for value in (start, start + 1):
            rollup.update(block_of([{"u32": value}]))
        parts.append(rollup)
    for later in parts[1:]:
        parts[0].merge(later)
    assert read(question.result, question.answer(parts[0])) == [{"first": 10, "last": 31}]


def test_a_finished_rollup_goes_on() -> None:
    question = Aggregation(
        SCHEMA,
        [
            Aggregate("count", None, None, "n"),
            Aggregate("quantile", "u8", 0.5, "p"),
            Aggregate("min", "ip", None, "low"),
            Aggregate("distinct~", "u8", None, "d"),
        ],
        [field("keep")],
    )
    rollup = question.rollup()
    for n in range(1, 4):
        rollup.update(block_of([{"u8": n, "ip": f"10.0.0.{9 - n}"}]))
        answers = [read(question.result, question.answer(rollup)) for _ in range(2)]
        assert answers[0] == answers[1]
        assert answers[0] == [{"k_keep": 0, "n": n, "p": (n + 1) // 2, "low": f"10.0.0.{9 - n}", "d": n}]


def test_first_and_last_go_by_time_then_lane_then_row() -> None:
    aggs = [Aggregate(f, n, None, f"{f}_{n}") for f in ("first", "last") for n in ("u32", "ip", "long", "path")]
    rows = [(1, 0, 5, 1), (0, 7, 5, 2), (0, 3, 5, 3), (2, 0, 9, 4), (1, 4, 9, 5), (1, 2, 9, 6)]  # lane, row, time, tag
    blocks = [
        (
            block_of(
                [{"ts": t, "u32": tag, "ip": f"10.0.0.{tag}", "long": bytes([tag]), "path": (tag, 0, 1)}],
                lane=lane,
                base=row,
            ),
            None,
        )
        for lane, row, t, tag in rows
    ]
    (found,) = read(*aggregate(blocks, SCHEMA, aggs, []))
    assert found == {
        "first_u32": 3,
        "first_ip": "10.0.0.3",
        "first_long": b"\3".ljust(21, b"\0"),
        "first_path": (3, 0, 1),
        "last_u32": 4,
        "last_ip": "10.0.0.4",
        "last_long": b"\4".ljust(21, b"\0"),
        "last_path": (4, 0, 1),
    }


def test_equal_hashes_neither_split_nor_join_addresses() -> None:
    """Two IPv6 addresses with one hash are two groups; one address is one group, with any value of NAME."""
    from confluo_tools.schema import Schema

    schema = Schema("t", [SCHEMA["bare"]])
    six = bytes(range(1, 17))
    other = bytes(range(2, 18))
    block = Block.wrap(
        schema.layout, 4, [b"".join(n.to_bytes(4, "little") for n in (7, 7, 8, 9)), six + other + six + other]
    )
    found = read(
        *aggregate(
            [(block, None)],
            schema,
            [Aggregate("count", None, None, "n"), Aggregate("distinct", "bare", None, "d")],
            [GroupKey("field", "bare", 0, 0, "bare")],
        )
    )
    assert [(r["bare"], r["n"], r["d"]) for r in found] == [
        ("102:304:506:708:90a:b0c:d0e:f10", 2, 1),
        ("203:405:607:809:a0b:c0d:e0f:1011", 2, 1),
    ]


def test_sums_beyond_64_bits_are_an_error_that_says_so() -> None:
    most = 2**64 - 1
    whole = block_of([{"u64": most, "i64": -(2**63), "gap": 2**63 - 1}])
    for name, text in (("u64", "u64"), ("i64", "i64"), ("gap", "duration")):
        agg = Aggregate("sum", name, None, "s")
        assert len(read(*aggregate([(whole, None)], SCHEMA, [agg], []))) == 1
        with pytest.raises(ConfluoError, match=rf"sum\({name}\) does not fit {text}; use avg"):
            aggregate([(whole, None), (whole, None)], SCHEMA, [agg], [])
    aggs = [Aggregate(f, "u64", None, f) for f in ("avg", "stddev", "min", "max", "rate")]
    (found,) = read(*aggregate([(whole, None)] * 3, SCHEMA, aggs, [], since=0, until=10**9))
    assert found == {"avg": float(most), "stddev": 0.0, "min": most, "max": most, "rate": 3.0 * most}


def test_squares_of_64_bit_numbers_are_exact() -> None:
    """A mean of 2^63 and a deviation of 1: with doubles all digits would cancel."""
    rows = [{"u64": 2**63 - 1, "i64": 2**62 - 1}, {"u64": 2**63 + 1, "i64": 2**62 + 1}] * 500
    aggs = [Aggregate("stddev", n, None, n) for n in ("u64", "i64")]
    assert read(*aggregate([(block_of(rows), None)], SCHEMA, aggs, [])) == [{"u64": 1.0, "i64": 1.0}]


@pytest.mark.parametrize("by", [[], [field("keep")]])
@pytest.mark.parametrize("most", [2**63 - 1, 9_210_000_000_000_000_000, 2**55 + 3])
def test_long_durations_have_quantiles(most: int, by: list[GroupKey]) -> None:
    """Beyond 2^53 ns a float has no nanoseconds, and beyond 9.2e18 ns rounding up ends outside 64 bits."""
    aggs = [Aggregate("quantile", "gap", q, f"q{n}") for n, q in enumerate((0.01, 0.5, 0.99))]
    (row,) = read(*aggregate([(block_of([{"gap": most - 2 * n} for n in range(3)]), None)], SCHEMA, aggs, by))
    assert (row["q0"], row["q2"]) == (most - 4, most)
    assert most - 4 <= row["q1"] <= most
    pair = block_of([{"gap": -(2**63)}, {"gap": most}])
    (row,) = read(*aggregate([(pair, None)], SCHEMA, [Aggregate("stddev", "gap", None, "s")], by))
    assert row["s"] == pytest.approx((2**63 + most) / 2, rel=1e-15)


def test_a_compensated_sum_keeps_what_doubles_lose() -> None:
    rows = [{"f64": v} for v in [1e16, *[1.0] * 1000, -1e16]]
    for by in ([], [field("keep")]):
        (found,) = read(*aggregate([(block_of(rows), None)], SCHEMA, [Aggregate("sum", "f64", None, "s")], by))
        assert found["s"] == 1000.0


def test_infinities_and_nan() -> None:
    inf = math.inf
    aggs = [Aggregate(f, "f64", None, f) for f in ("sum", "min", "max", "avg")] + [
        Aggregate("quantile", "f64", 0.5, "p")
    ]
    for by in ([], [field("keep")]):

        def values(*numbers: float, by: list[GroupKey] = by) -> list[Any]:
            (row,) = read(*aggregate([(block_of([{"f64": n} for n in numbers]), None)], SCHEMA, aggs, by))
            return [row[a.label] for a in aggs]

        assert values(inf, 1.0, math.nan) == [inf, 1.0, inf, inf, 1.0]
        assert values(-inf, inf, -inf, inf, 0.0)[1:3] == [-inf, inf]
        assert math.isnan(values(-inf, inf)[0])
        assert values(inf, inf, inf) == [inf] * 5
        assert values(math.nan, math.nan)[0] == 0.0
        assert all(math.isnan(v) for v in values(math.nan)[1:])


def test_no_rows() -> None:
    aggs = [a for a in ALL_AGGS if a.func != "rate"]
    for pairs in ([], [(block_of([]), None)], [(block_of([{}, {}]), Picks.of(2, []))]):
        (found,) = read(*aggregate(pairs, SCHEMA, aggs[:60], []))
        assert found["n"] == 0
        assert found["sum_u8"] == 0
        assert math.isnan(found["avg_u8"])
        assert read(*aggregate(pairs, SCHEMA, aggs[:60], [field("u8")])) == []


def test_flow_is_five_keys() -> None:
    from confluo_tools.schema import builtin

    schema = builtin("packet")
    rows = [
        {"src_ip": "10.0.0.1", "dst_ip": "10.0.0.2", "src_port": 1, "dst_port": 80, "proto": 6, "len": n}
        for n in (60, 1500)
    ]
    rows.append({"src_ip": "fe80::1", "dst_ip": "ff02::1", "proto": 58, "len": 90})
    result, blocks = aggregate(
        [(block_of(rows, schema), None)],
        schema,
        [Aggregate("sum", "len", None, "bytes")],
        [GroupKey("flow", "flow", 0, 0, "flow")],
    )
    assert [f.name for f in result.fields] == [*FLOW_FIELDS, "bytes"]
    assert [tuple(r.values()) for r in read(result, blocks)] == [
        ("10.0.0.1", "10.0.0.2", 1, 80, 6, 1560),
        ("fe80::1", "ff02::1", 0, 0, 58, 90),
    ]


@pytest.mark.parametrize("name", sorted(set(KEYS) - {"none"}))
@settings(max_examples=10, deadline=None)
@given(rows=ROWS)
def test_rows_come_sorted_by_key_time_first(name: str, rows: list[Row]) -> None:
    by = KEYS[name]
    schema, blocks = aggregate([(block_of(rows), None)], SCHEMA, [Aggregate("count", None, None, "n")], by)
    question = Aggregation(SCHEMA, [Aggregate("count", None, None, "n")], by)
    order = [b.label for b in by if b.kind == "bucket"] + list(question.keys)

    def rank(value: Any, kind: str) -> Any:
        if kind == "ip":  # absent, IPv4, IPv6
            found = ip_address(value) if value is not None else None
            if found is not None and int(found) >> 1 == 0xFFFF << 31:  # so are 0.0.0.0 and 0.0.0.1 without a version
                found = ip_address(int(found) & 1)
            return (0, 0) if found is None else (found.version, int(found))
        return (value != value, value)

    keys = [tuple(rank(row[n], schema[n].type.kind) for n in order) for row in read(schema, blocks)]
    assert keys == sorted(keys)


@pytest.mark.parametrize("descending", [False, True])
def test_addresses_of_results_are_sorted_and_compared(descending: bool) -> None:
    """Without the version field: 0.0.0.0 is IPv4, :: is IPv6, and a group without an address comes last."""
    addresses = [None, "::", "0.0.0.0", "0.0.0.1", "10.0.0.1", "::1"]
    rows = [{"u8": n, "ip": a, "ver": 0 if a is None else 6 if ":" in a else 4} for n, a in enumerate(addresses)]
    question = Aggregation(SCHEMA, [Aggregate("min", "ip", None, "least")], [GroupKey("field", "u8", 0, 0, "u8")])
    rollup = question.rollup()
    rollup.update(block_of(rows), None)
    found = [r["u8"] for r in read(question.result, question.answer(rollup, order=[("least", descending)]))]
    assert found == [*([5, 1, 4, 3, 2] if descending else [2, 3, 4, 1, 5]), 0]
    for text, groups in (("least == 0.0.0.0", [2]), ("least in 0.0.0.0/0", [2, 3, 4]), ("least < 10.0.0.1", [2, 3])):
        having = compile(text, question.result)
        assert [r["u8"] for r in read(question.result, question.answer(rollup, having=having))] == groups


def test_wrong_questions() -> None:
    layout = SCHEMA.layout
    with pytest.raises(UsageError, match="nothing to compute"):
        Aggregation(SCHEMA, [], [])
    with pytest.raises(UsageError, match="sum needs numbers; ip is ip"):
        Aggregation(SCHEMA, [Aggregate("sum", "ip", None, "x")], [])
    with pytest.raises(UsageError, match="quantile needs numbers; ts is time"):
        Aggregation(SCHEMA, [Aggregate("quantile", "ts", 0.5, "x")], [])
    with pytest.raises(UsageError, match="two result columns are called 'n'"):
        Aggregation(SCHEMA, [Aggregate("count", None, None, "n")], [GroupKey("field", "u8", 0, 0, "n")])
    with pytest.raises(UsageError, match="two result columns are called 'k6'"):
        Aggregation(SCHEMA, [Aggregate("count", None, None, "k6")], [GroupKey("field", "ip", 0, 0, "k")])
    for keys, aggs in [
        ((("column", 99),), ()),
        ((("bucket", layout.index("u8"), 5),), ()),
        ((("bucket", 0, 0),), ()),
        ((("prefix", layout.index("v4"), 32, 33),), ()),
        ((("what", 0),), ()),
        (((),), ()),
        ((("ip", 0, 1, -1, 32, 128, False),), ()),
        ((), (("sum",),)),
        ((), (("nope", ("column", 0)),)),
        ((), (("sum", ("column", layout.index("short"))),)),
        ((), (("quantile", ("column", 0), 1000001),)),
        ((), (("sum", ("bucket", 0, 5)),)),
        ((), (("count", ("column", 0)),)),
        ((), (("sum", ("column", -1)),)),
    ]:
        with pytest.raises((ValueError, IndexError)):
            Rollup(layout, keys, aggs)


def test_blocks_and_picks_of_something_else() -> None:
    rollup = Aggregation(SCHEMA, [Aggregate("count", None, None, "n")], []).rollup()
    block = block_of([{}, {}])
    with pytest.raises(ValueError, match="other columns"):
        rollup.update(Block.wrap(Layout([("ts", 8, 8, 1)]), 0, [None]))
    with pytest.raises(ValueError, match="of another block"):
        rollup.update(block, Picks.of(3))
    with pytest.raises(ValueError, match="with itself"):
        rollup.merge(rollup)
    with pytest.raises(ValueError, match="different keys or aggregates"):
        rollup.merge(Aggregation(SCHEMA, [Aggregate("min", "u8", None, "n")], []).rollup())
    with pytest.raises(ValueError, match="result column"):
        rollup.finish(Layout([("n", 3, 4, 1)]))
    with pytest.raises(ValueError, match="result columns"):
        rollup.finish(Layout([("n", 4, 8, 1), ("m", 4, 8, 1)]))
    rollup.update(block)
    assert rollup.rows == 2
