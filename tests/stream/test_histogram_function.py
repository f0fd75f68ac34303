"""histogram: every value is in the bin of its size, in the window of its time."""

from __future__ import annotations

import math
import struct
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.block.block import Picks
from confluo_tools.core.stream.histogram import Bins
from confluo_tools.errors import UsageError
from confluo_tools.expr import compile
from confluo_tools.stream.functions import read as read_function
from function_lab import FunctionRun, cut
from twin_rollup import FORMATS, SCHEMA, block_of

SECOND = 10**9
START = 1_700_000_000 * SECOND
U64, I64, F64 = 4, 8, 10
LIMITS = {base: struct.calcsize(code) * 8 for base, code in FORMATS.items() if code.isalpha() and code not in "fd"}


def bin_of(value: float, low: float, high: float, step: float) -> int:
    """By the definition: bin k has low + (k - 1) * step <= value < low + k * step, the last one ends at high."""
    count = math.ceil((high - low) / step) if isinstance(step, float) else -((low - high) // step)
    if value < low:
        return 0
    if value >= high:
        return int(count) + 1
    return int((value - low) // step) + 1


@given(st.data(), st.sampled_from([(U64, 0, 2**64 - 1), (I64, -(2**63), 2**63 - 1), (U64, 0, 2**32)]))
def test_whole_numbers_are_in_the_bin_of_their_size(data: Any, domain: tuple[int, int, int]) -> None:
    code, least, most = domain
    low = data.draw(st.integers(least, most - 1))
    step = data.draw(st.one_of(st.integers(1, 2**34), st.integers(1, 2**62), st.just(1)))
    high = data.draw(st.integers(low + 1, min(low + step * 10_000, most)))
    bins = Bins(code, low, high, step)
    edges = [low + k * step + d for k in (0, 1, 2, bins.n - 3, bins.n - 2) for d in (-1, 0, 1)]
    values = [v for v in [*edges, high - 1, high, least, most] if least <= v <= most]
    values += data.draw(st.lists(st.integers(least, most), max_size=20))
    values += data.draw(st.lists(st.integers(low, high), max_size=20))
    assert bins.find(*values) == [bin_of(v, low, high, step) for v in values]


@given(st.lists(st.integers(0, 2**64 - 1)), st.lists(st.integers(-(2**63), 2**63 - 1)), st.lists(st.floats()))
def test_powers_of_two(unsigned: list[int], signed: list[int], doubles: list[float]) -> None:
    def expected(v: float) -> int | None:
        if v != v:
            return None
        if v < 1:
            return 0 if v < 0 else 1
        k = 0
        while k < 64 and v >= 2 ** (k + 1):
            k += 1
        return k + 2

    assert Bins(U64).find(*unsigned) == list(map(expected, unsigned))
    assert Bins(I64).find(*signed) == list(map(expected, signed))
    assert Bins(F64).find(*doubles) == list(map(expected, doubles))


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3), st.integers(1, 500), st.lists(st.floats(), max_size=30))
def test_doubles_are_between_the_edges_of_their_bin(low: float, step: float, count: int, more: list[float]) -> None:
    high = low + step * count
    bins = Bins(F64, low, high, step)
    edges = [*[low + i * step for i in range(bins.n - 2)], high]
    values = [*edges, *[math.nextafter(e, -math.inf) for e in edges], math.inf, -math.inf, math.nan, *more]
    for value, found in zip(values, bins.find(*values), strict=True):
        if value != value:
            assert found is None
            continue
        assert found is not None
        assert found == 0 or edges[found - 1] <= value
        assert found == bins.n - 1 or value < edges[found]


def values_of(base: str) -> st.SearchStrategy[int]:
    bits, signed = LIMITS[base], base.startswith("i")
    return st.integers(-(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1)


@pytest.mark.parametrize("name", ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"])
@given(data=st.data())
def test_fields_of_every_width(name: str, data: Any) -> None:
    values = data.draw(st.lists(values_of(name), min_size=1, max_size=60))
    keep = data.draw(st.lists(st.booleans(), min_size=60, max_size=60))
    least = -100 if name.startswith("i") else 0
    bins = data.draw(st.sampled_from([f"{least}..100/7", "1..90/1", "log2", "10..11/5"]))
    block = block_of([{"ts": START + i * SECOND, name: v} for i, v in enumerate(values)])
    out = FunctionRun({"histogram": {"field": name, "bins": bins, "every": "10s"}}, SCHEMA)
    rows = [i for i in range(len(values)) if keep[i]]
    assert out.stage.write(block, Picks.of(block.rows, rows))
    out.finish()
    found: Counter[tuple[int, int]] = Counter()
    for start, low, high, count, total in out.rows("ts", "low", "high", "count", "total"):
        inside = [i for i in rows if start <= START + i * SECOND < start + 10 * SECOND]
        assert total == len(inside)
        assert count == sum(low <= values[i] < high for i in inside) > 0
        found[start, total] += count
    assert all(count == total for (_, total), count in found.items())
    assert sum(found.values()) == len(rows)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=40))
def test_sums_and_differences_of_fields(pairs: list[tuple[int, int]]) -> None:
    block = block_of([{"ts": START, "u32": a, "i64": b, "f64": float(b)} for a, b in pairs])
    limits = -(2**63), 2**63 - 1
    for field, value in {
        "u32 - i64": lambda a, b: min(max(a - b, limits[0]), limits[1]),
        "u32+i64": lambda a, b: min(max(a + b, limits[0]), limits[1]),
        "u32 - u32": lambda a, b: 0,
        "u32 - f64": lambda a, b: float(a) - float(b),
    }.items():
        out = FunctionRun({"histogram": {"field": field, "bins": "-5000..5000/10", "every": "1s"}}, SCHEMA)
        out.write(cut(block, [7]))
        out.finish()
        expected = Counter(bin_of(value(a, b), -5000, 5000, 10) for a, b in pairs)
        assert dict(out.rows("bin", "count")) == expected


def test_counts_are_those_of_a_query() -> None:
    rows = [
        {"ts": START + i * 10**7, "u32": i * 7919 % 2000, "f64": i * 0.5 if i % 9 else math.nan} for i in range(3000)
    ]
    block = block_of(rows)
    out = FunctionRun({"histogram": {"field": "u32", "bins": "100..1500/100", "every": "10s"}}, SCHEMA)
    out.write(cut(block, [1024]))
    out.finish()
    assert len(out.blocks) == 3
    for start, low, high, count in out.rows("ts", "low", "high", "count"):
        bounds = [f"u32 >= {low:.0f}"] * (low > 0) + [f"u32 < {high:.0f}"] * (high < math.inf)
        picks = compile(" and ".join(bounds), SCHEMA).program.select(block)
        assert count == sum(start <= rows[i]["ts"] < start + 10 * SECOND for i in picks.tolist())  # type: ignore[operator]
    floats = FunctionRun({"histogram": {"field": "f64", "bins": "0..2k/1k", "every": "1m"}}, SCHEMA)
    floats.write([block])
    stage: Any = floats.finish()
    assert stage.nans == 334
    assert sum(n for [n] in floats.rows("count")) == 3000 - 334


def test_a_duration_has_bins_of_time() -> None:
    gaps = [-1, 0, 99_999, 100_000, 9_999_999, 10_000_000]
    out = FunctionRun({"histogram": {"field": "gap", "bins": "0..10ms/100us", "every": "1s"}}, SCHEMA)
    out.write([block_of([{"ts": START, "gap": g} for g in gaps])])
    out.finish()
    assert out.rows("bin", "count") == [(0, 1), (1, 2), (2, 1), (100, 1), (101, 1)]


def test_records_name_their_flow_in_whole_characters() -> None:
    out = FunctionRun({"histogram": {"field": "u32 - u16", "bins": "0..10/5", "every": "1s"}}, SCHEMA, "größe" * 20)
    out.write([block_of([{"ts": START, "u32": 3}, {"ts": START, "u16": 3}])])
    out.finish()
    flow, field = (bytes(text).rstrip(b"\0").decode() for text in out.rows("flow", "field")[0])
    assert ("größe" * 20).startswith(flow)
    assert len(flow.encode()) in (63, 64)
    assert field == "u32 - u16"
    assert out.rows("low", "high") == [(-math.inf, 0.0), (0.0, 5.0)]
    assert out.rows("window") == [(SECOND,)] * 2


BAD = [
    ("len", "needs field, bins, every; as in 'histogram: {field: len, bins: 0..1500/100, every: 10s}'"),
    ({"field": "u32", "bins": "log2"}, "needs every"),
    ({"field": "u32", "bins": "log2", "every": "10s", "by": "ip"}, "unknown word 'by'"),
    ({"field": "u33", "bins": "log2", "every": "10s"}, "field: no field 'u33' in schema 'test'; did you mean 'u32'?"),
    ({"field": "u32 * 8", "bins": "log2", "every": "10s"}, "field: 'u32 * 8' is not a field; write a field, A - B or"),
    ({"field": ["u32"], "bins": "log2", "every": "10s"}, "field: is not a text"),
    ({"field": "ip", "bins": "log2", "every": "10s"}, "field: ip (ip) is not a number"),
    ({"field": "path", "bins": "log2", "every": "10s"}, "field: path (list(u16, 3)) is not a number"),
    ({"field": "short", "bins": "log2", "every": "10s"}, "field: short (bytes(5)) is not a number"),
    ({"field": "u64 - u8", "bins": "log2", "every": "10s"}, "field: u64 (u64) cannot be a part of a sum"),
    ({"field": "u32", "bins": "log10", "every": "10s"}, "bins: 'log10' is not a range of bins; write 0..1500/100"),
    ({"field": "u32", "bins": "0..10", "every": "10s"}, "bins: '0..10' is not a range of bins"),
    ({"field": "u32", "bins": "a..b/c", "every": "10s"}, "bins: 'a' is not a number"),
    ({"field": "u32", "bins": "0..10/0", "every": "10s"}, "bins: bins of 0 are not possible"),
    ({"field": "u32", "bins": "0..10/-1", "every": "10s"}, "bins: bins of -1 are not possible"),
    ({"field": "u32", "bins": "10..10/1", "every": "10s"}, "bins: the range '10..10' is empty; write the smaller"),
    ({"field": "u32", "bins": "0..1e18/1", "every": "10s"}, "bins: there are more than 10000 bins; use wider bins"),
    ({"field": "u32", "bins": "-5..10/1", "every": "10s"}, "bins: u32 (u32) has no values from -5 to 10"),
    ({"field": "u64", "bins": "0..1e30/1e29", "every": "10s"}, "bins: u64 (u64) has no values from 0 to 1e30"),
    ({"field": "u32", "bins": "0..1/0.1", "every": "10s"}, "bins: u32 (u32) holds whole numbers, not 0.1"),
    ({"field": "f64", "bins": "0..1e308/1e305", "every": "10s"}, "bins: '1e308' is not a number"),
    ({"field": "f64", "bins": "0..1/1e-320", "every": "10s"}, "bins: there are more than 10000 bins"),
    ({"field": "f64", "bins": "0..nan/1", "every": "10s"}, "bins: 'nan' is not a number"),
    ({"field": "u32", "bins": 100, "every": "10s"}, "bins: '100' is not a range of bins"),
    ({"field": "u32", "bins": [[[[]]]], "every": "10s"}, "bins: '[[[[]]]]' is not a range of bins"),
    ({"field": "u32", "bins": "9" * 10_000, "every": "10s"}, "is not a range of bins"),
    ({"field": "u32", "bins": "log2", "every": "0s"}, "every: 0 is not from 1ms to 366d"),
    ({"field": "u32", "bins": "log2", "every": None}, "every: is not a time"),
    ({"field": "u32", "bins": "log2", "every": "1s", "late": "-1s"}, "late: -1s is not from 0 to 366d"),
]


@pytest.mark.parametrize(("value", "complaint"), BAD)
def test_a_wrong_histogram_is_one_clear_line(value: object, complaint: str) -> None:
    with pytest.raises(UsageError) as e:
        read_function("histogram", value, SCHEMA, "flows.yaml: flow 'f'")
    line = str(e.value)
    assert line.startswith("flows.yaml: flow 'f': histogram: ")
    assert complaint in line
    assert "\n" not in line
    assert len(line) < 300
