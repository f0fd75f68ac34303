"""Evaluation of an expression on the smallest and largest values of columns, without reading rows.

The same as the zone maps in pyx/query/c_program.pxd, for statistics of other formats.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from confluo_tools.expr.leaves import (
    And,
    Bytes,
    Const,
    FRange,
    Glob,
    InByteRanges,
    InRanges,
    InSet,
    ListElement,
    ListLength,
    ListSequence,
    Not,
    Or,
    Pair,
    Range,
    Test,
    Tree,
)

NONE, SOME, ALL = 0, 1, 2
Zone = Callable[[int], tuple[Any, Any] | None]


def holds(tree: Tree, zone: Zone, lists: frozenset[int] = frozenset()) -> int:
    """NONE: no row passes; ALL: every row passes; SOME: unknown.

    ``zone(col)``: (smallest, largest) value of a column, wider is allowed, NaN is not among them; None: unknown.
    ``lists``: columns with several values per row, for which ALL is never the answer.
    """
    if isinstance(tree, Const):
        return ALL if tree.value else NONE
    if isinstance(tree, And):
        return min([holds(item, zone, lists) for item in tree.items], default=ALL)
    if isinstance(tree, Or):
        return max([holds(item, zone, lists) for item in tree.items], default=NONE)
    if isinstance(tree, Not):
        return ALL - _test(tree.item, zone, lists)
    return _test(tree, zone, lists)


def _test(test: Test, zone: Zone, lists: frozenset[int]) -> int:
    if isinstance(test, (Glob, Pair, ListLength)):
        return SOME
    if isinstance(test, ListElement):
        return min(_test(test.test, zone, lists), SOME)
    known = zone(test.col)
    if known is None:
        return SOME
    low, high = known
    if isinstance(test, ListSequence):
        return NONE if any(hi < low or high < lo for lo, hi in test.items) else SOME
    if isinstance(test, FRange):
        if not (low <= high):
            return SOME
        below = high < test.lo or (high == test.lo and test.lo_open)
        above = low > test.hi or (low == test.hi and test.hi_open)
        return NONE if below or above else SOME  # there may be NaN, which never passes
    if test.mask is not None:
        return SOME
    if isinstance(test, InSet):
        at = bisect_left(test.values, low)
        if at == len(test.values) or test.values[at] > high:
            return NONE
        return ALL if low == high and test.col not in lists else SOME
    lo: Any
    hi: Any
    if isinstance(test, (InRanges, InByteRanges)):
        pairs: tuple[tuple[Any, Any], ...] = test.pairs
        at = bisect_left(pairs, low, key=itemgetter(1))  # the first that does not end before
        if at == len(pairs):
            return NONE
        lo, hi = pairs[at]
    else:
        assert isinstance(test, (Range, Bytes))
        lo, hi = test.lo, test.hi
    if high < lo or low > hi:
        return NONE
    return ALL if lo <= low and high <= hi and test.col not in lists else SOME
