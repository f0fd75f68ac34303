"""Local time: when its offset from UTC changed, and will change."""

from __future__ import annotations

from itertools import pairwise
from time import localtime

from confluo_tools.units import SECOND

# From 1972, when the last zone (Liberia) got a legal time in whole quarters of an hour, to 2262, s: later times do not
# fit into ns.  Records of before 1972 have the offset of 1972.
FIRST, LAST = 64_000_000, 9_223_372_036
LOOK = 7 * 86400  # offsets that hold for a shorter time are not found; none is known

Changes = tuple[tuple[int, int], ...]


def offset_changes() -> Changes:
    """(time in ns from which on it holds, offset in ns) of the local zone, the first from -2**63 on."""
    times = [*range(FIRST, LAST, LOOK), LAST]
    offsets = [then.tm_gmtoff for then in map(localtime, times)]
    out = [(-(1 << 63), offsets[0] * SECOND)]
    for (start, before), (end, after) in pairwise(zip(times, offsets, strict=True)):
        if after != before:
            out.append((_change(start, end, after) * SECOND, after * SECOND))
    return tuple(out)


def _change(low: int, high: int, after: int) -> int:
    """The first second of the offset ``after``, that of ``high``; ``low`` has another."""
    while high - low > 1:
        middle = (low + high) // 2
        if localtime(middle).tm_gmtoff == after:
            high = middle
        else:
            low = middle
    return high
