"""Shared filters against plain Python, on every instruction set, over any range of rows."""

from __future__ import annotations

import random

import numpy as np
import pytest
import test_predicate as single
from hypothesis import given, settings
from hypothesis import strategies as st

import twin_leaves as twin
from confluo_tools.core.block import zone_map
from confluo_tools.core.block.block import Block, Layout, Picks
from confluo_tools.core.query import predicate
from confluo_tools.core.query.shared_filters import SharedFilters
from confluo_tools.expr.leaves import And, Bytes, Const, InSet, Not, Or, Range


@pytest.fixture(scope="module", autouse=True)
def _best_after():
    yield
    predicate.use_instruction_set(None)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_filters_over_any_rows(data):
    block, columns = data.draw(single.blocks())
    pool = data.draw(st.lists(single.trees(columns), min_size=1, max_size=6))
    pick = st.sampled_from(pool)
    joined = st.one_of(pick, pick.map(lambda t: And((t, pool[0]))), st.tuples(pick, pick).map(Or))
    filters = data.draw(st.lists(joined, max_size=12))
    start = data.draw(st.integers(0, len(block)))
    stop = data.draw(st.integers(start, len(block)))
    expected = [[r for r in twin.select(tree, block) if start <= r < stop] for tree in filters]
    for name in single.SETS:
        predicate.use_instruction_set(name)
        bank = SharedFilters(filters, block.layout)
        for one in (block, zone_map.zoned(block), block):
            assert bank.run(one, start, stop) == sum(map(bool, expected)), name
            assert bank.counts() == [len(rows) for rows in expected]
            assert [bank.rows(i) for i in range(len(filters))] == expected


def column(code, rows, rng, count=1):
    low, high = twin.BOUNDS[code]
    few = np.array([low, low + 1, 0, 1, 2, 5, 80, 100, high - 1, high], single.DTYPE[code])
    data = rng.choice(few, rows * count)
    wild = rng.random(rows * count) < 0.3
    data[wild] = rng.integers(low, high, int(wild.sum()), dtype=single.DTYPE[code], endpoint=True)
    return data


@pytest.mark.parametrize("count", [1, 2, 3, 8, 12])
@pytest.mark.parametrize("code", range(1, 9))
def test_tests_of_one_column_are_answered_together(code, count):
    rng, dice = np.random.default_rng(code), random.Random(code)
    low, high = twin.BOUNDS[code]
    rows = 700
    data = column(code, rows, rng, count)
    layout = Layout([("x", code, single.SIZE[code], count)])
    block = Block.wrap(layout, rows, [data.tobytes()])
    filters = []
    for i in range(150):
        lo = dice.choice([low, low + 1, 0, 1, 2, 80, *[dice.randint(low, high) for _ in range(20)]])
        hi = min(lo + dice.choice([0, 0, 0, 1, 3]), high)
        tree = InSet(0, tuple(sorted({lo, hi, dice.randint(low, high)}))) if i % 7 == 0 else Range(0, lo, hi)
        filters.append(Not(tree) if i % 3 == 0 else tree)
    bank = SharedFilters(filters, layout)
    assert bank.describe()["grouped"] > 0
    wide = data.astype(object).reshape(rows, count)
    for start, stop in [(0, rows), (3, 35), (64, 128), (699, 700), (5, 5)]:
        bank.run(block, start, stop)
        found = [{int(v) for v in wide[r]} for r in range(start, stop)]
        for i, tree in enumerate(filters):
            test = tree.item if isinstance(tree, Not) else tree
            values = set(test.values) if isinstance(test, InSet) else range(test.lo, test.hi + 1)
            hits = [any(v in values for v in row) != isinstance(tree, Not) for row in found]
            assert bank.rows(i) == [start + r for r, hit in enumerate(hits) if hit]


def test_full_blocks_and_zone_maps_agree_with_one_filter_at_a_time():
    rng = np.random.default_rng(5)
    layout = Layout([("ip", 3, 4, 1), ("port", 2, 2, 1), ("kind", 1, 1, 1), ("at", 8, 8, 1)])
    rows = 65536
    columns = [column(3, rows, rng), column(2, rows, rng), np.full(rows, 7, "u1"), np.arange(rows, dtype="i8")]
    block = zone_map.zoned(Block.wrap(layout, rows, [c.tobytes() for c in columns]))
    filters = [Range(2, 7, 7), Range(2, 8, 9), Not(Range(2, 7, 7)), And((Range(2, 0, 7), Range(1, 80, 80)))]
    filters += [Or((Range(0, i, i), And((Range(1, i, 2 * i), Not(Range(3, 100, 40000)))))) for i in range(120)]
    filters += [Or(()), And(()), Const(True), Const(False), And((Const(True), Range(3, 5, 6)))]
    bank = SharedFilters(filters, layout)
    picks = Picks()
    for start, stop in [(0, rows), (100, 65001)]:
        bank.run(block, start, stop)
        for i, tree in enumerate(filters):
            expected = [r for r in predicate.Program(tree, layout).select(block).tolist() if start <= r < stop]
            assert bank.picks(i, picks) is picks
            assert picks.tolist() == expected
            assert (bank.counts()[i], picks.rows) == (len(expected), stop)


def test_a_test_that_filters_share_is_compiled_once():
    layout = Layout([("a", 2, 2, 1), ("b", 11, 4, 1)])
    a, b = Range(0, 5, 9), Bytes(1, b"ab\0\0", b"ab\0\0")
    filters = [And((a, b)), And((b, a)), Not(a), Or((Not(a), Not(b))), a, And((a, Not(a))), Or((b, Not(b)))]
    assert SharedFilters(filters, layout).describe() == {"filters": 7, "tests": 2, "grouped": 0, "joins": 2}


def test_what_does_not_fit_is_refused():
    layout = Layout([("a", 2, 2, 1)])
    with pytest.raises(ValueError, match="no column 4"):
        SharedFilters([Range(4, 0, 1)], layout)
    with pytest.raises(ValueError, match="unknown test"):
        SharedFilters([_Odd()], layout)
    with pytest.raises(ValueError, match="other columns"):
        SharedFilters([Range(0, 0, 1)], layout).run(Block.wrap(Layout([("a", 3, 4, 1)]), 0, [b""]))
    deep = Range(0, 7, 7)
    for i in range(120):
        deep = (And if i % 2 else Or)((deep, Range(0, i, i)))
    with pytest.raises(ValueError, match="too deeply"):
        SharedFilters([deep], layout)
    bank = SharedFilters([], layout)
    assert (bank.run(Block.wrap(layout, 3, [bytes(6)])), bank.counts(), len(bank)) == (0, [], 0)
    with pytest.raises(IndexError):
        bank.rows(0)


class _Odd:
    col = 0
