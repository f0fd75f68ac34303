"""Axes: round numbers and times, and values as short texts."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from confluo_tools.units import SECOND, civil_from_days, utc_offset

MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86400 * SECOND
_STEPS = (
    *[factor * 10**power for power in range(9) for factor in (1, 2, 5)],
    *[n * SECOND for n in (1, 2, 5, 10, 15, 30)],
    *[n * MINUTE for n in (1, 2, 5, 10, 15, 30)],
    *[n * HOUR for n in (1, 2, 3, 6, 12)],
    *[n * DAY for n in (1, 2, 7, 14, 28, 91, 182, 364, 3640, 36400)],
)


def value_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from at most ``low`` to at least ``high``: two or more, some ``most`` of them."""
    size = (high - low) or abs(high) or 1.0
    power = 10.0 ** floor(log10(size / most))
    step = next(f * power for f in (1, 2, 5, 10, 20) if size / (f * power) <= most)
    first, last = floor(low / step), -floor(-high / step)
    return [n * step for n in range(first, max(last, first + 1) + 1)]


def time_ticks(first: int, last: int, most: int = 8, local: bool = False) -> list[int]:
    """Round times (ns) inside first .. last, at most ``most``."""
    step = next((s for s in _STEPS if (last - first) // s < most), _STEPS[-1])
    ahead = utc_offset(first) * SECOND if local else 0
    start = -(-(first + ahead) // step) * step
    ticks = [
        t - (utc_offset(t - ahead) * SECOND if local and step >= DAY else ahead)
        for t in range(start, last + ahead + 1, step)
    ]
    return [t for t in ticks if first <= t <= last]


def some(times: Sequence[int], most: int = 8) -> Sequence[int]:
    """At most ``most`` of the times, at equal distances."""
    return times[:: max(-(-len(times) // most), 1)]


def time_text(ns: int, step: int, local: bool = False) -> str:
    """A time at an axis with ticks ``step`` apart: as short as they can differ."""
    seconds, fraction = divmod(ns, SECOND)
    seconds += utc_offset(ns) if local else 0
    days, rest = divmod(seconds, 86400)
    if step >= DAY:
        return "{:04d}-{:02d}-{:02d}".format(*civil_from_days(days))
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}"
    if step < MINUTE:
        text += f":{rest % 60:02d}"
    if step < SECOND:
        digits = next(d for d in (3, 6, 9) if step % 10 ** (9 - d) == 0)
        text += "." + f"{fraction:09d}"[:digits]
    return text
