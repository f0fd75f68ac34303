"""What a chart shows: measures of groups, over time or by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.errors import UsageError
from confluo_tools.schema import Field, Schema
from confluo_tools.units import format_time

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.multilog.query.time_steps import TimeSteps

MAX_GROUPS = 200_000
MAX_STEPS = 20_000  # of time, with those that have no group
MAX_LINES = 8  # more are hard to distinguish
MAX_BARS = 60
NUMBERS = frozenset({"u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64", "duration"})

Value = float | None


class ChartMeasure(NamedTuple):
    """One aggregate.  ``unit``: of its values, 'ns' of durations.  ``zero``: without rows it is 0, not unknown."""

    name: str
    unit: str
    zero: bool


class ChartLine(NamedTuple):
    """The values of one name, for each measure, at each position."""

    name: str
    values: tuple[tuple[Value, ...], ...]

    def weight(self) -> float:
        """By which lines are chosen: the sum of the first measure."""
        return sum([abs(v) for v in self.values[0] if v is not None])


class Chart(NamedTuple):
    """``times`` (ns, in steps of about ``step``) are the positions of ``lines``; without times, each line is a bar.

    ``even``: all steps have this length.

    ``hidden``: lines or bars that are left out, those with the smallest values of the first measure.
    """

    title: str
    keys: tuple[str, ...]
    measures: tuple[ChartMeasure, ...]
    times: tuple[int, ...]
    step: int
    lines: tuple[ChartLine, ...]
    hidden: int
    even: bool = True


class ChartGroups:
    """Takes the records of a result: groups ``by`` names; ``time``: the one that is a step of time, or ''.

    ``steps``: its steps.  ``zero``: names of aggregates that are 0 without rows.  ``names``: the aggregates to
    draw, None for all; other names are ignored.
    """

    def __init__(
        self,
        schema: Schema,
        by: Sequence[str],
        time: str,
        steps: TimeSteps | None = None,
        zero: Sequence[str] = (),
        names: Sequence[str] | None = None,
    ) -> None:
        from confluo_tools.core.text.text_writer import Printer
        from confluo_tools.formats.text import printing_plan

        self.schema, self.time, self.steps = schema, time, steps
        self.keys = [name for name in by if name != time]
        self.fields = [schema[n] for n in schema.shown if n not in by and (names is None or n in names)]
        self.measures = tuple(ChartMeasure(f.name, _unit(f), f.name in zero) for f in self.fields)
        wrong = next((f for f in self.fields if f.type.kind not in NUMBERS or f.type.is_list), None)
        if wrong is not None or not self.fields:
            what = f"{wrong.name} ({wrong.type.text}) is not a number" if wrong else "there is no number"
            raise UsageError(f"{what} to draw", hint="choose aggregates such as count, sum(len), p99(len)")
        self._printer = Printer(schema.layout, printing_plan(schema, self.keys, "tsv"), "tsv", True)
        self._columns = [(schema.index(f.name), schema.index(f.present) if f.present else -1) for f in self.fields]
        self._groups: dict[str, dict[int, tuple[Value, ...]]] = {}
        self.rows = 0

    def add(self, block: Block, picks: Picks | None) -> None:
        """Add records.  Raises UsageError if there are too many to draw."""
        rows = range(block.rows) if picks is None else picks.tolist()
        self.rows += len(rows)
        if self.rows > MAX_GROUPS:
            hint = "use longer steps, or fewer groups: --top"
            raise UsageError(f"more than {MAX_GROUPS:,} groups do not fit into a picture", hint=hint)
        names = self._printer.lines(block, picks).decode("utf-8", "replace").split("\n") if self.keys else []
        at = self.schema.index(self.time) if self.time else -1
        for i, row in enumerate(rows):
            name = names[i].replace("\t", " ") if names else ""
            values = tuple(
                [
                    None if mark >= 0 and not block.get(mark, row) else _value(block.get(column, row))
                    for column, mark in self._columns
                ]
            )
            self._groups.setdefault(name, {})[block.get(at, row) if at >= 0 else 0] = values

    def chart(self) -> Chart:
        """The chart of the records so far.  Raises UsageError if its time is too long for its steps."""
        times = self._times()
        nothing = tuple([0.0 if m.zero else None for m in self.measures])
        lines = []
        for name, found in self._groups.items():
            rows = [found.get(t, nothing) for t in times or (0,)]
            lines.append(ChartLine(name, tuple(zip(*rows, strict=True))))
        most = MAX_LINES if self.time else MAX_BARS
        kept = lines
        if len(lines) > most:
            kept = sorted(lines, key=ChartLine.weight, reverse=True)[:most]
            if self._distribution():
                kept = [line for line in lines if line in kept]
        title = ", ".join(m.name for m in self.measures) + (f" by {', '.join(self.keys)}" if self.keys else "")
        hidden = len(lines) - len(kept)
        step, even = (self.steps.length, self.steps.even) if self.steps is not None else (0, True)
        return Chart(title, tuple(self.keys), self.measures, times, step, tuple(kept), hidden, even)

    def _distribution(self) -> bool:
        """Whether the groups are values of one number: their bars stay in its order."""
        return len(self.keys) == 1 and self.schema[self.keys[0]].type.kind in NUMBERS

    def _times(self) -> tuple[int, ...]:
        """All steps from the first to the last, also those without a group."""
        seen = sorted({t for found in self._groups.values() for t in found}) if self.time else []
        if len(seen) < 2:
            return tuple(seen)
        assert self.steps is not None
        most = max(MAX_STEPS, 4 * len(seen))
        if (seen[-1] - seen[0]) // self.steps.length > most:
            what = f"{(seen[-1] - seen[0]) // self.steps.length + 1:,} steps of time do not fit into a picture"
            raise UsageError(what, hint="use longer steps, or a shorter time: --since, --until")
        times = [seen[0]]
        while times[-1] < seen[-1]:
            times.append(self.steps.after(times[-1]))
        return tuple(times)


def _unit(field: Field) -> str:
    return "ns" if field.type.kind == "duration" else field.unit


def _value(value: float) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else float(value)


def highest(lines: Iterable[ChartLine], measure: int) -> float:
    """The largest value of a measure, at least 0."""
    return max([0.0, *[v for line in lines for v in line.values[measure] if v is not None]])


def lowest(lines: Iterable[ChartLine], measure: int) -> float:
    """The smallest value of a measure, at most 0."""
    return min([0.0, *[v for line in lines for v in line.values[measure] if v is not None]])


def label(line: ChartLine) -> str:
    """The name of a line; that of an empty text too."""
    return line.name or "(empty)"


def about(chart: Chart, local: bool) -> str:
    """When, in which steps, and what is left out."""
    words = []
    if chart.times:
        ends = [format_time(t, 3 if chart.step % 10**9 else 0, local) for t in (chart.times[0], chart.times[-1])]
        words.append(ends[0] if len(chart.times) == 1 else f"{ends[0]} to {ends[1]}")
    if chart.hidden:
        words.append(f"{chart.hidden:,} smaller {'lines' if chart.times else 'bars'} are not shown")
    return "; ".join(words)
