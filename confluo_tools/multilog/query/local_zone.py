"""Local time: when its offset from UTC changed, and will change."""

from __future__ import annotations

from confluo_tools.units import SECOND, utc_offset

# From 1972, when the last zone (Liberia) got a legal time in whole quarters of an hour, to 2262, s: later times do not
# fit into ns.  Records of before 1972 have the offset of 1972.
FIRST, LAST = 64_000_000, 9_223_372_036
LOOK = 7 * 86400  # offsets that hold for a shorter time are not found; none is known

Changes = tuple[tuple[int, int], ...]


def offset_changes() -> Changes:
    """(time in ns from which on it holds, offset in ns) of the local zone, the first from -2**63 on."""
    out = [(-(1 << 63), utc_offset(FIRST * SECOND) * SECOND)]
    for start in range(FIRST, LAST, LOOK):
        end = min(start + LOOK, LAST)
        after = utc_offset(end * SECOND) * SECOND
        if after != out[-1][1]:
            out.append((_change(start, end) * SECOND, after))
    return tuple(out)


def _change(low: int, high: int) -> int:
    """The first second of the offset of ``high``; ``low`` has another."""
    after = utc_offset(high * SECOND)
    while high - low > 1:
        middle = (low + high) // 2
        if utc_offset(middle * SECOND) == after:
            high = middle
        else:
            low = middle
    return high
