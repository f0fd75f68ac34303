"""A chart in a terminal: a sparkline for each line, or bars of block characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from confluo_tools.chart.model import Chart, Value, about, highest, label, lowest
from confluo_tools.units import value_text

BLOCKS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
NARROW = 24  # columns that names may have at least


def spark(chart: Chart, width: int, local: bool = False) -> Iterator[str]:
    """Lines of text, at most ``width`` columns."""
    names = [label(line) if chart.keys else "" for line in chart.lines]
    room = min(max(map(len, names), default=0), max(NARROW, width // 3 if chart.times else width // 2))
    for number, measure in enumerate(chart.measures):
        low, high = lowest(chart.lines, number), highest(chart.lines, number)
        if number:
            yield ""
        yield f"{measure.name}, up to {value_text(high, measure.unit)}"
        for name, line in zip(names, chart.lines, strict=True):
            shown = (name if len(name) <= room else name[: room - 1] + "…").ljust(room) + ("  " if room else "")
            values = line.values[number]
            if chart.times:
                yield shown + sparkline(shortened(values, max(width - len(shown), 8)), low, high)
            else:
                text = value_text(values[0], measure.unit)
                yield f"{shown}{text:>9} {bar(values[0], high, max(width - len(shown) - 10, 8))}".rstrip()
    said = about(chart, local)
    if said:
        yield said


def shortened(values: Sequence[Value], width: int) -> list[Value]:
    """At most ``width`` values: each the largest of its neighbours, so that no peak is lost."""
    size = -(-len(values) // width)
    return [max([v for v in values[i : i + size] if v is not None], default=None) for i in range(0, len(values), size)]


def sparkline(values: Sequence[Value], low: float, high: float) -> str:
    """A character for each value; a blank where there is none."""
    span = (high - low) or 1.0
    return "".join([" " if v is None else BLOCKS[min(int((v - low) / span * 8), 7)] for v in values]).rstrip()


def bar(value: Value, high: float, width: int) -> str:
    """A bar of ``value``; of ``high`` it is ``width`` wide."""
    if value is None or value <= 0 or high <= 0:
        return ""
    eighths = max(round(value / high * width * 8), 1)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
