"""What smallest and largest values tell of an expression, against its meaning row by row."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.expr import zones
from confluo_tools.expr.leaves import And, Bytes, FRange, InByteRanges, InRanges, InSet, Not, Or, Range, Tree
from confluo_tools.expr.simplify import merge

NUMBERS = st.integers(-5, 5)
FLOATS = st.sampled_from([-2.0, -0.0, 0.0, 1.5, float("inf"), float("nan")])
WORDS = st.sampled_from([b"\0\0", b"aa", b"ab", b"zz"])


def _span(values: st.SearchStrategy[Any], make: Any) -> st.SearchStrategy[Any]:
    return st.tuples(values, values).map(lambda v: make(min(v), max(v)))


TESTS = st.one_of(
    _span(NUMBERS, lambda lo, hi: Range(0, lo, hi)),
    _span(NUMBERS, lambda lo, hi: Range(3, lo, hi)),
    st.sets(NUMBERS, min_size=1).map(lambda v: InSet(0, tuple(sorted(v)))),
    st.sets(NUMBERS, min_size=1).map(lambda v: InRanges(0, tuple(merge((n, n + 2) for n in v)))),
    st.sets(WORDS, min_size=1).map(lambda v: InByteRanges(2, tuple((w, w) for w in sorted(v)))),
    _span(st.sampled_from([-2.0, -0.0, 1.5, 9.0]), lambda lo, hi: FRange(1, lo, hi, hi > 1, lo < 0)),
    _span(WORDS, lambda lo, hi: Bytes(2, lo, hi)),
    NUMBERS.map(lambda n: Range(0, 0, abs(n), 3)),
)
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(TESTS, TESTS.map(Not)),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda i: And(tuple(i))),
        st.lists(inner, min_size=1, max_size=3).map(lambda i: Or(tuple(i))),
    ),
    max_leaves=6,
)


def passes(tree: Tree, row: tuple[Any, ...]) -> bool:
    """The meaning of a tree for one row, as leaves.py defines it."""
    if isinstance(tree, And):
        return all(passes(t, row) for t in tree.items)
    if isinstance(tree, Or):
        return any(passes(t, row) for t in tree.items)
    if isinstance(tree, Not):
        return not passes(tree.item, row)
    value = row[tree.col]  # type: ignore[union-attr]
    if isinstance(tree, Range) and tree.col == 3:
        return any(tree.lo <= v <= tree.hi for v in value)
    if isinstance(tree, Range):
        return tree.lo <= (value if tree.mask is None else value & tree.mask) <= tree.hi
    if isinstance(tree, InSet):
        return value in tree.values
    if isinstance(tree, (InRanges, InByteRanges)):
        return any(lo <= value <= hi for lo, hi in tree.pairs)
    if isinstance(tree, FRange):
        return (tree.lo < value if tree.lo_open else tree.lo <= value) and (
            value < tree.hi if tree.hi_open else value <= tree.hi
        )
    assert isinstance(tree, Bytes)
    return tree.lo <= value <= tree.hi


@settings(max_examples=400, deadline=None)
@given(
    TREES,
    st.lists(st.tuples(NUMBERS, FLOATS, WORDS, st.tuples(NUMBERS, NUMBERS)), min_size=1, max_size=6),
    st.sets(st.integers(0, 3)),
)
def test_zones_never_lie(tree: Tree, rows: list[tuple[Any, ...]], known: set[int]) -> None:
    def zone(col: int) -> tuple[Any, Any] | None:
        values = [v for row in rows for v in (row[3] if col == 3 else [row[col]]) if v == v]
        return (min(values), max(values)) if values and col in known else None

    told = zones.holds(tree, zone, frozenset({3}))
    held = [passes(tree, row) for row in rows]
    assert told != zones.NONE or not any(held)
    assert told != zones.ALL or all(held)
