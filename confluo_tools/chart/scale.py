"""Axes: round numbers and times, and values as short texts."""

from __future__ import annotations

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
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


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
    start = -(-(first + ahead) // step) * step - ahead
    return list(range(start, last + 1, step))


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


def value_text(value: float | None, unit: str = "") -> str:
    """A value with three digits: ``1.25 MB``, ``830 µs``, ``12``; ``-`` if it is not known."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    size = abs(value)
    if unit == "ns":
        scale, name = next((pair for pair in _TIMES if size >= pair[0]), _TIMES[-1])
        return f"{_three(value / scale)} {name}"
    unit = {"bytes": "B", "bytes/s": "B/s"}.get(unit, unit)
    if 1 <= size < 1000 and not unit:
        return _three(value)
    scale, name = next((pair for pair in _PREFIXES if size >= pair[0] * 0.9995), _PREFIXES[-1])
    return f"{_three(value / scale)} {name}{unit}".rstrip()


def _three(value: float) -> str:
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.0f}"
