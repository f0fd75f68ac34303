"""Error bounds of the sketches: quantiles within 1/256 of the value, HyperLogLog within its standard error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from confluo_tools.core.block.block import Block
from confluo_tools.expr.aggregates import Aggregate
from confluo_tools.expr.group_keys import GroupKey
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.schema import Schema

BLOCK = 65536
RANKS = (0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0)


def schema_of(kind: str) -> Schema:
    from confluo_tools.schema import Field

    return Schema("t", [Field("g", "u32"), Field("v", kind)])


def ask(
    kind: str, values: NDArray[Any], aggs: list[Aggregate], groups: NDArray[Any] | None = None, parts: int = 1
) -> list[dict[str, Any]]:
    """Aggregates of ``values`` (type ``kind``) by group, from blocks in ``parts`` merged roll-ups."""
    schema = schema_of(kind)
    question = Aggregation(schema, aggs, [] if groups is None else [GroupKey("field", "g", 0, 0, "g")])
    rollups = [question.rollup() for _ in range(parts)]
    for k, start in enumerate(range(0, len(values), BLOCK)):
        part = values[start : start + BLOCK]
        keys = None if groups is None else np.ascontiguousarray(groups[start : start + BLOCK], "<u4")
        rollups[k % parts].update(Block.wrap(schema.layout, len(part), [keys, np.ascontiguousarray(part)]))
    for other in rollups[1:]:
        rollups[0].merge(other)
    result = question.result
    return [
        {f.name: b.get(i, row) for i, f in enumerate(result.fields)}
        for b in question.answer(rollups[0])
        for row in range(b.rows)
    ]


RNG = np.random.default_rng(20261121)
N = 150_000
DISTRIBUTIONS: dict[str, tuple[str, Callable[[], NDArray[Any]]]] = {
    "uniform u16": ("u16", lambda: RNG.integers(0, 1 << 16, N).astype("<u2")),
    "uniform u64": ("u64", lambda: RNG.integers(0, 1 << 64, N, dtype=np.uint64)),
    "uniform i64": ("i64", lambda: RNG.integers(-(1 << 63), (1 << 63) - 1, N, dtype=np.int64)),
    "small i8": ("i8", lambda: RNG.integers(-128, 128, N).astype("<i1")),
    "lognormal u64": ("u64", lambda: RNG.lognormal(12, 4, N).clip(0, 1.8e19).astype("<u8")),
    "lognormal f64": ("f64", lambda: RNG.lognormal(0, 20, N)),
    "lognormal f32": ("f32", lambda: RNG.lognormal(0, 3, N).astype("<f4")),
    "pareto f64": ("f64", lambda: RNG.pareto(0.5, N)),
    "pareto u32": ("u32", lambda: (RNG.pareto(1.1, N) * 40).clip(0, 2**32 - 1).astype("<u4")),
    "normal f64": ("f64", lambda: RNG.normal(0, 1e-9, N)),
    "normal i32": ("i32", lambda: RNG.normal(-1000, 5000, N).astype("<i4")),
    "constant": ("u64", lambda: np.full(N, 123_456_789_012, "<u8")),
    "two points": ("f64", lambda: np.where(RNG.random(N) < 0.3, -7.25e200, 3.5e-200)),
    "zeros and few": ("u32", lambda: np.where(RNG.random(N) < 0.999, 0, RNG.integers(0, 1 << 32, N)).astype("<u4")),
    "negatives": ("f64", lambda: -RNG.exponential(1e6, N)),
    "packets": ("u16", lambda: RNG.choice([40, 52, 60, 576, 1500], N, p=[0.2, 0.2, 0.1, 0.1, 0.4]).astype("<u2")),
    "durations": ("duration", lambda: RNG.gamma(2, 1e6, N).astype("<i8")),
}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_quantiles_are_within_a_256th_of_the_value(name: str, grouped: bool) -> None:
    kind, make = DISTRIBUTIONS[name]
    values = make()
    groups = RNG.integers(0, 7, N) if grouped else None
    aggs = [Aggregate("quantile", "v", q, f"q{i}") for i, q in enumerate(RANKS)]
    for parts in (1, 3):
        rows = ask(kind, values, aggs, groups, parts)
        assert len(rows) == (7 if grouped else 1)
        for g, row in enumerate(rows):
            mine = np.sort(values if groups is None else values[groups == g])
            for i, q in enumerate(RANKS):
                wanted = float(mine[max(math.ceil(round(q * 10_000) * len(mine) / 10_000), 1) - 1])
                assert abs(row[f"q{i}"] - wanted) <= abs(wanted) / 256 + (0.5 if kind == "duration" else 0), q
            assert row["q0"] == float(mine[0])
            assert row[f"q{len(RANKS) - 1}"] == float(mine[-1])


@pytest.mark.parametrize("kind", ["u64", "i64", "f64", "f32"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_quantile_of_any_numbers(kind: str, data: st.DataObject) -> None:
    """One value between two others: all magnitudes, signs and bit patterns."""
    if kind[0] == "f":
        width = 32 if kind == "f32" else 64
        tiny = 2.0**-126 if kind == "f32" else 2.0**-1022
        strategy: st.SearchStrategy[Any] = st.floats(width=width, allow_nan=False).filter(
            lambda v: v == 0 or abs(v) >= tiny
        )
    elif kind == "u64":
        strategy = st.integers(0, 2**64 - 1) | st.integers(0, 64).map(lambda b: max((1 << b) - 1, 0))
    else:
        strategy = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 63).map(lambda b: -(1 << b))
    values = sorted(data.draw(st.lists(strategy, min_size=1, max_size=9)))
    array = np.array(values, dtype={"u64": "<u8", "i64": "<i8", "f64": "<f8", "f32": "<f4"}[kind])
    ranks = [k / len(values) for k in range(1, len(values) + 1)]
    (row,) = ask(kind, array, [Aggregate("quantile", "v", q, f"q{i}") for i, q in enumerate(ranks)])
    for i, q in enumerate(ranks):
        # q is rounded to a millionth: the rank may be the next
        rank = max(-(-round(q * 1_000_000) * len(values) // 1_000_000), 1)
        wanted = float(values[rank - 1])
        found = row[f"q{i}"]
        assert found == wanted or abs(found - wanted) <= abs(wanted) / 256


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 10, 100, 1000, 10_000, 100_000, 1_000_000])
def test_distinct_estimates_stay_within_four_standard_errors(count: int, grouped: bool) -> None:
    rows = 2 * count
    values = RNG.permutation(np.concatenate([np.arange(count), RNG.integers(0, max(count, 1), rows - count)]))
    values = values.astype("<u8") * np.uint64(0x9E3779B97F4A7C15) + np.uint64(12345)
    groups = np.zeros(rows, "<u4") if grouped else None
    found = ask(
        "u64", values, [Aggregate("distinct~", "v", None, "about"), Aggregate("distinct", "v", None, "exact")], groups
    )
    if not count:
        assert found == ([] if grouped else [{"about": 0, "exact": 0}])
        return
    (row,) = found
    assert row["exact"] == count
    assert abs(row["about"] - count) <= 4 * count * 1.04 / math.sqrt(1 << (12 if grouped else 14))
    if count <= (384 if grouped else 1536):
        assert row["about"] == count


def test_the_standard_error_is_the_one_that_is_promised() -> None:
    """64 groups of 20,000 different values: root mean square error about 1.04 / sqrt(4096), mean about 0."""
    per = 20_000
    groups = np.repeat(np.arange(64), per)
    found = ask("u64", np.arange(64 * per, dtype="<u8"), [Aggregate("distinct~", "v", None, "about")], groups, parts=2)
    errors = [row["about"] / per - 1 for row in found]
    promised = 1.04 / math.sqrt(1 << 12)
    assert 0.7 * promised < math.sqrt(sum(e * e for e in errors) / 64) < 1.3 * promised
    assert abs(sum(errors) / 64) < 3 * promised / 8


@pytest.mark.parametrize("kind", ["u8", "i16", "f32", "f64", "i64"])
def test_sequential_and_narrow_values_hash_well(kind: str) -> None:
    dtype = {"u8": "<u1", "i16": "<i2", "f32": "<f4", "f64": "<f8", "i64": "<i8"}[kind]
    values = np.arange(-5000, 5000).astype(dtype)
    values = np.concatenate([values, values])
    (row,) = ask(kind, values, [Aggregate("distinct~", "v", None, "about")])
    count = len(set(values.tolist()))
    assert abs(row["about"] - count) <= 3 * count * 1.04 / 128


def test_sketches_of_parts_merge_to_the_sketch_of_the_whole() -> None:
    """Parts that are exact, registers or empty: bit for bit the same estimates and quantiles."""
    sizes = np.array([1, 3, 300, 400, 3000, 50_000])
    groups = np.repeat(np.arange(len(sizes)), sizes * 4)
    values = np.concatenate([RNG.integers(0, s * 10, s * 4) for s in sizes]).astype("<u8")
    order = RNG.permutation(len(values))
    aggs = [
        Aggregate("distinct~", "v", None, "about"),
        Aggregate("quantile", "v", 0.5, "p50"),
        Aggregate("quantile", "v", 0.999, "p999"),
    ]
    whole = ask("u64", values[order], aggs, groups[order])
    assert len(whole) == len(sizes)
    for parts in (2, 4):
        assert ask("u64", values[order], aggs, groups[order], parts) == whole
        assert ask("u64", values, aggs, groups, parts) == whole
    single = ask("u64", values[order], aggs)
    assert ask("u64", values, aggs, None, 4) == single
