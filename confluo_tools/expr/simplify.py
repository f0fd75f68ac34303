"""Simplification of trees: constants folded, intervals merged, negation normal form kept.

An ``Intervals`` is a sorted list of disjoint, non-adjacent (lo, hi) pairs of integers.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluo_tools.expr.leaves import FALSE, TRUE, And, Const, InRanges, InSet, Not, Or, Range, Test, Tree
from confluo_tools.schema import Schema

Intervals = list[tuple[int, int]]
POINTS = 8  # an interval of up to this many values is listed one by one when there are other intervals
FEW = 8  # more intervals that are not listed one by one are searched as one test


def merge(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """Sorted, disjoint, non-adjacent."""
    out: Intervals = []
    for lo, hi in sorted(intervals):
        if lo > hi:
            continue
        if out and lo <= out[-1][1] + 1:
            out[-1] = out[-1][0], max(hi, out[-1][1])
        else:
            out.append((lo, hi))
    return out


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """What is in both."""
    out: Intervals = []
    i = j = 0
    while i < len(a) and j < len(b):
        lo, hi = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if lo <= hi:
            out.append((lo, hi))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return out


def intervals_of(test: Range | InSet | InRanges) -> Intervals:
    """The values that pass."""
    if isinstance(test, InRanges):
        return list(test.pairs)
    return [(test.lo, test.hi)] if isinstance(test, Range) else merge((v, v) for v in test.values)


class Simplifier:
    """Builds simplified trees for one schema, which defines the range of each column and which columns are lists."""

    def __init__(self, schema: Schema) -> None:
        self.bounds: list[tuple[int, int] | None] = []
        self.lists: list[bool] = []
        for column in schema.columns:
            bits, code = column.size * 8, column.code
            unsigned, signed = (0, (1 << bits) - 1), (-(1 << bits - 1), (1 << bits - 1) - 1)
            self.bounds.append(unsigned if code <= 4 else signed if code <= 8 else None)
            self.lists.append(column.count > 1)

    def within(self, col: int, intervals: Iterable[tuple[int, int]], mask: int | None = None) -> Tree:
        """(x & mask) in one of ``intervals``, for an integer column; for a list: any element."""
        bounds = self.bounds[col]
        assert bounds is not None
        if mask is not None:
            if bounds[1] & ~mask == 0 and bounds[0] == 0:
                mask = None
            else:
                # Nothing lies between 0 and the lowest bit of the mask: & 2 != 0 is & 2 == 2.
                bounds, lowest = (0, mask), mask & -mask
                intervals = [(lowest if 0 < lo < lowest else lo, hi) for lo, hi in intervals]
        found = merge(intervals)
        if found and (found[0][0] < bounds[0] or found[-1][1] > bounds[1]):
            found = intersect(found, [bounds])
        if not found:
            return FALSE
        if found == [bounds]:
            return TRUE
        if len(found) == 1:
            return Range(col, *found[0], mask)
        if mask is None and sum([hi - lo >= POINTS for lo, hi in found]) > FEW:
            return InRanges(col, tuple(found))
        points: list[int] = []
        tests: list[Tree] = []
        for lo, hi in found:
            if hi - lo < POINTS:
                points.extend(range(lo, hi + 1))
            else:
                tests.append(Range(col, lo, hi, mask))
        if points and points[-1] - points[0] == len(points) - 1:
            tests.append(Range(col, points[0], points[-1], mask))
        elif points:
            tests.append(InSet(col, tuple(points), mask))
        return tests[0] if len(tests) == 1 else Or(tuple(tests))

    def negate(self, tree: Tree) -> Tree:
        """The opposite.  A range that ends where its column ends turns into the other range."""
        if isinstance(tree, Const):
            return FALSE if tree.value else TRUE
        if isinstance(tree, Not):
            return tree.item
        if isinstance(tree, And):
            return self.either([self.negate(item) for item in tree.items])
        if isinstance(tree, Or):
            return self.both([self.negate(item) for item in tree.items])
        if isinstance(tree, Range) and not self.lists[tree.col]:
            lo, hi = (0, tree.mask) if tree.mask is not None else self.bounds[tree.col] or (0, 0)
            if tree.lo == lo:
                return self.within(tree.col, [(tree.hi + 1, hi)], tree.mask)
            if tree.hi == hi:
                return self.within(tree.col, [(lo, tree.lo - 1)], tree.mask)
        return Not(tree)

    def both(self, items: Iterable[Tree]) -> Tree:
        """All of ``items``."""
        flat = _flatten(items, And)
        if FALSE in flat:
            return FALSE
        out = [t for t in self._merged(flat, every=True) if t != TRUE]
        if FALSE in out:
            return FALSE
        out = list(dict.fromkeys(out))
        return And(tuple(out)) if len(out) > 1 else out[0] if out else TRUE

    def either(self, items: Iterable[Tree]) -> Tree:
        """Any of ``items``.  A test that all of them contain is moved in front."""
        flat = _flatten(items, Or)
        if TRUE in flat:
            return TRUE
        out = [t for t in self._merged(flat, every=False) if t != FALSE]
        if TRUE in out:
            return TRUE
        out = list(dict.fromkeys(_flatten(out, Or)))
        if len(out) < 2:
            return out[0] if out else FALSE
        if all(isinstance(t, And) for t in out):
            parts = [t.items for t in out if isinstance(t, And)]
            shared = [p for p in parts[0] if all(p in other for other in parts[1:])]
            if shared:
                rests = [And(tuple([p for p in other if p not in shared])) for other in parts]
                return self.both([self.either([self.both(r.items) for r in rests]), *shared])
        return Or(tuple(out))

    def again(self, tree: Tree) -> Tree:
        """``tree`` after some of its tests were replaced."""
        if isinstance(tree, And):
            return self.both([self.again(item) for item in tree.items])
        if isinstance(tree, Or):
            return self.either([self.again(item) for item in tree.items])
        return tree

    def _merged(self, items: list[Tree], every: bool) -> list[Tree]:
        # Tests of one integer column (and mask) become one: intersected or united.  In a list two
        # elements may each pass one test, so there only unions are the same thing.
        groups: dict[tuple[int, int | None], list[Test]] = {}
        for item in items:
            if isinstance(item, (Range, InSet, InRanges)) and not (every and self.lists[item.col]):
                groups.setdefault((item.col, item.mask), []).append(item)
        done: set[tuple[int, int | None]] = set()
        out: list[Tree] = []
        for item in items:
            key = (item.col, item.mask) if isinstance(item, (Range, InSet, InRanges)) else None
            if key is None or len(groups.get(key, ())) < 2:
                out.append(item)
            elif key not in done:
                done.add(key)
                sets = [intervals_of(t) for t in groups[key] if isinstance(t, (Range, InSet, InRanges))]
                if every:
                    found = sets[0]
                    for other in sets[1:]:
                        found = intersect(found, other)
                else:
                    found = merge([pair for s in sets for pair in s])
                out.append(self.within(key[0], found, key[1]))
        return out


def _flatten(items: Iterable[Tree], kind: type[And] | type[Or]) -> list[Tree]:
    out: list[Tree] = []
    for item in items:
        if isinstance(item, kind):
            out.extend(item.items)
        else:
            out.append(item)
    return out
