"""The predicate engine in plain Python: what a tree of tests means, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from confluo_tools.expr import leaves

# (smallest, largest) of the integer codes of pyx/block/c_block.pxd
BOUNDS = {
    1: (0, 2**8 - 1),
    2: (0, 2**16 - 1),
    3: (0, 2**32 - 1),
    4: (0, 2**64 - 1),
    5: (-(2**7), 2**7 - 1),
    6: (-(2**15), 2**15 - 1),
    7: (-(2**31), 2**31 - 1),
    8: (-(2**63), 2**63 - 1),
}


def masked(value: int, mask: int | None, code: int) -> int:
    """value & mask, in the type of the column."""
    if mask is None:
        return value
    low, high = BOUNDS[code]
    bits = (high - low) & mask & value
    return bits - (high - low + 1) if bits > high else bits


def glob(pattern: bytes, value: bytes) -> bool:
    if not pattern:
        return not value
    if pattern[:1] == b"*":
        return any(glob(pattern[1:], value[i:]) for i in range(len(value) + 1))
    return bool(value) and pattern[:1] in (b"?", value[:1]) and glob(pattern[1:], value[1:])


def matches(tree: Any, row: Sequence[Any], codes: Sequence[int]) -> bool:
    """Does ``tree`` hold for ``row`` (a value, or a tuple of values, a column)?"""
    if isinstance(tree, leaves.Const):
        return tree.value
    if isinstance(tree, leaves.And):
        return all(matches(t, row, codes) for t in tree.items)
    if isinstance(tree, leaves.Or):
        return any(matches(t, row, codes) for t in tree.items)
    if isinstance(tree, leaves.Not):
        return not matches(tree.item, row, codes)
    code = codes[tree.col]
    value = row[tree.col]
    if isinstance(tree, (leaves.ListElement, leaves.ListLength, leaves.ListSequence)):
        return of_list(tree, value if isinstance(value, tuple) else (value,), row, codes)
    if isinstance(tree, leaves.Pair):
        other = row[tree.col2]
        if tree.mask is not None:
            value = masked(value, tree.mask, code)
        return {
            "==": value == other,
            "!=": value != other,
            "<": value < other,
            "<=": value <= other,
            ">": value > other,
            ">=": value >= other,
        }[tree.op]
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(tree, leaves.Range):
            hit = tree.lo <= masked(one, tree.mask, code) <= tree.hi
        elif isinstance(tree, leaves.InSet):
            hit = masked(one, tree.mask, code) in tree.values
        elif isinstance(tree, (leaves.InRanges, leaves.InByteRanges)):
            hit = any(lo <= one <= hi for lo, hi in tree.pairs)  # type: ignore[operator]
        elif isinstance(tree, leaves.FRange):
            hit = not math.isnan(one) and (tree.lo < one if tree.lo_open else tree.lo <= one)
            hit = hit and (one < tree.hi if tree.hi_open else one <= tree.hi)
        elif isinstance(tree, leaves.Bytes):
            x = one if tree.mask is None else bytes(a & b for a, b in zip(one, tree.mask, strict=True))
            hit = tree.lo <= x <= tree.hi
        else:
            hit = glob(tree.pattern, one.rstrip(b"\0"))
        if hit:
            return True
    return False


def of_list(tree: Any, value: tuple[Any, ...], row: Sequence[Any], codes: Sequence[int]) -> bool:
    n = len(value)
    while n and value[n - 1] == 0:
        n -= 1
    if isinstance(tree, leaves.ListLength):
        return any(lo <= n <= hi for lo, hi in tree.pairs)
    if isinstance(tree, leaves.ListElement):
        at = tree.index if tree.index >= 0 else n + tree.index
        one = list(row)
        one[tree.col] = value[at] if at >= 0 else type(value[0])()
        return matches(tree.test, one, codes)
    hits = [[lo <= one <= hi for lo, hi in tree.items] for one in value]
    if tree.how == leaves.BEFORE:
        item = 0
        for hit in hits:
            item += item < len(tree.items) and hit[item]
        return item == len(tree.items)
    starts = [all(hits[at + i][i] for i in range(len(tree.items))) for at in range(len(value) - len(tree.items) + 1)]
    return any(starts) if tree.how == leaves.RUN else starts[0] and (tree.how == leaves.STARTS or n == len(tree.items))


def select(tree: Any, block: Any) -> list[int]:
    """The row numbers of ``block`` for which ``tree`` holds."""
    layout = block.layout
    codes = [layout.describe(i)[1] for i in range(len(layout.names))]
    used = sorted(leaves.columns(tree))
    chosen = []
    for number in range(len(block)):
        row: list[Any] = [None] * len(codes)
        for i in used:
            row[i] = block.get(i, number)
        if matches(tree, row, codes):
            chosen.append(number)
    return chosen
