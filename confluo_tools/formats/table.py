"""Tables: numbers aligned right, as wide as the terminal or 79 columns, `~` marks cut text.

The first rows decide the widths of the columns; later rows are printed as they arrive, so memory use does not grow
with the table.  Rich draws short results on a terminal; all other tables have the same layout without it.
Times in a narrow table lose the digits of a second that those rows do not need to differ from each other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.units import value_text

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.schema import Field, Schema

SAMPLE = 200  # rows that decide the widths
CUT = "~"
SHORTEST = 8  # a column is not cut below this
SHORTEST_NAME = 4  # nor a name below this
PIPE_WIDTH = 79  # columns of a table that is not for a terminal
WHOLE_SECONDS = (8, 19)  # characters of a time without digits of a second: 10:20:30, and after its date
ZONE = 6  # characters behind a local time: +01:00

# Fields to show of a record with too many fields.
SUMMARY = ("ts", "src_ip", "src_port", "dst_ip", "dst_port", "proto", "tcp_flags", "len", "sent", "lost")
OF_KIND = {
    "alert": ("ts", "event", "trigger", "key", "value", "threshold", "rows", "lasted"),
    "probe": ("ts", "kind", "src", "dst", "src_port", "outcome", "retries", "rtt", "elapsed"),
}
AMOUNTS = ("B", "packets", "B/s", "packets/s", "/s")  # units
_NUMBERS = ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64", "duration")


def default_fields(schema: Schema) -> list[str]:
    """The fields that a table shows by default."""
    names = [f.name for f in schema.fields]
    some = [n for n in OF_KIND.get(schema.kind, SUMMARY) if n in schema]
    return some if len(names) > 12 and len(some) >= 4 else names


class TableWriter:
    """Blocks as a table on ``out`` (anything with ``write``).

    ``width``: columns of the screen, None for as wide as the values are (-W).  ``styled``: may use rich.
    ``human``: amounts with three digits and a unit.
    """

    def __init__(
        self,
        schema: Schema,
        out: Any,
        *,
        fields: Sequence[str] | None = None,
        header: bool = True,
        numeric: bool = False,
        width: int | None = PIPE_WIDTH,
        styled: bool = False,
        local: bool = False,
        human: bool = False,
    ) -> None:
        from confluo_tools.core.text.text_writer import Printer
        from confluo_tools.formats.text import printing_plan

        self.names = default_fields(schema) if fields is None else list(fields)
        self.partial = fields is None and len(self.names) < len(schema.fields)
        self.fields = [schema[n] for n in self.names]
        self.out, self.header, self.width, self.styled, self.local = out, header, width, styled, local
        self.printer = Printer(schema.layout, printing_plan(schema, self.names, "tsv", numeric), "tsv", True)
        self._units = {i: f.unit for i, f in enumerate(self.fields) if human and _is_amount(schema, f)}
        self._right = [f.type.kind in _NUMBERS and not f.type.is_list for f in self.fields]
        self._sample: list[list[str]] = []
        self._widths: list[int] | None = None
        self._shown = len(self.names)
        self._date = ""
        self._gap = "  "
        self._zone = ZONE if local else 0
        self._full: dict[int, int] = {}  # columns of times: characters behind the seconds of the longest, as .123456
        self._enough: dict[int, list[int]] = {}  # and the shorter lengths that keep the first rows apart, longest first

    def start(self) -> None:
        """Does nothing: the widths are unknown, so the header is printed with the first rows."""

    def write(self, block: Block, picks: Picks | None = None) -> None:
        total = block.rows if picks is None else picks.n
        for start in range(0, total, 512):
            lines = self.printer.lines(block, picks, start, 512).decode("utf-8", "replace").split("\n")
            rows = [self._cells(line.split("\t")) for line in lines[:-1]]
            if self._widths is None:
                self._sample += rows
                if len(self._sample) >= SAMPLE:
                    self._begin()
            else:
                self._rows(rows)

    def flush(self) -> None:
        """Print the gathered rows, with the widths that they need."""
        if self._widths is None and self._sample:
            self._begin()

    def close(self) -> None:
        if self._widths is not None:
            return
        if self.styled and self._sample:
            self._fit()
            self._draw(self._sample)
        else:
            self._begin()

    # -- cells

    def _cells(self, values: list[str]) -> list[str]:
        out = []
        for i, (field, value) in enumerate(zip(self.fields, values, strict=True)):
            kind = field.type.element
            if value == "-":
                value = ""
            elif i in self._units:
                value = value_text(float(value), {"packets": ""}.get(self._units[i], self._units[i]))
            elif field.type.is_list:
                pass
            elif kind == "time":
                value = self._time(value)
            elif kind == "duration":
                from confluo_tools.units import format_duration

                value = format_duration(int(value))
            elif kind in ("f32", "f64"):
                value = _short_float(value)
            out.append(value)
        return out

    def _time(self, value: str) -> str:
        # 2026-11-20 10:20:30.123456, as many digits as it takes: none, 3, 6 or 9; of local time with its offset.
        zone = ""
        if self.local:
            from confluo_tools import units

            value = units.format_time(units.time(value), 9, local=True)
            zone = value[29:]
        digits = len(value[20:29].rstrip("0"))
        return f"{value[:10]} {value[11 : (19, 23, 26, 29)[-(-digits // 3)]]}{zone}"

    # -- layout

    def _begin(self) -> None:
        self._fit()
        sample, self._sample = self._sample, []
        if self.header:
            self._title()
            self._line([f.name for f in self.fields], more=True)
            assert self._widths is not None
            rule = self._gap.join("-" * w for w in self._widths[: self._shown])
            self.out.write((rule + "\n").encode())
        self._rows(sample)

    def _fit(self) -> None:
        for i, field in enumerate(self.fields):
            if field.type.kind == "time":
                self._full[i] = max([len(self._parts(row[i])[1]) for row in self._sample], default=0)
        self._sample = [self._same_digits(row) for row in self._sample]
        self._hoist_date()
        self._enough = {i: _distinct_lengths([row[i] for row in self._sample], self._zone) for i in self._full}
        data = [1] * len(self.fields)
        for row in self._sample:
            for i, cell in enumerate(row):
                if len(cell) > data[i]:
                    data[i] = len(cell)
        widths = [max(d, len(f.name)) if self.header else d for d, f in zip(data, self.fields, strict=True)]
        if self.width is not None:
            self._squeeze(widths, data, self.width)
        self._shown, self._widths = len(widths), widths

    def _same_digits(self, row: list[str]) -> list[str]:
        for i, full in self._full.items():
            seconds, digits, zone = self._parts(row[i])
            if row[i] and len(digits) < full:
                row[i] = seconds + (digits or ".").ljust(full, "0") + zone
        return row

    def _parts(self, time: str) -> tuple[str, str, str]:
        """A time, with or without its date, up to the seconds; their digits with the point; its offset from UTC."""
        end = len(time) - self._zone
        whole = WHOLE_SECONDS[time[4:5] == "-"]
        return time[:whole], time[whole:end], time[max(whole, end) :]

    def _squeeze(self, widths: list[int], data: list[int], width: int) -> None:
        # In this order: gaps, digits of times, names longer than their column, long values, columns at the right.
        if self._missing(widths, width) > 0:
            self._gap = " "
        for i, lengths in self._enough.items():
            for length in lengths:
                if self._missing(widths, width) > 0:
                    widths[i] = max(length, SHORTEST_NAME)
        while self._missing(widths, width) > 0:
            i = max(range(len(widths)), key=lambda k: widths[k] - max(data[k], SHORTEST_NAME))
            if widths[i] <= max(data[i], SHORTEST_NAME):
                break
            widths[i] -= 1
        floors = [widths[i] if i in self._enough else SHORTEST for i in range(len(widths))]
        while self._missing(widths, width) > 0:
            i = max(range(len(widths)), key=lambda k: (widths[k] > floors[k], widths[k]))
            if widths[i] > floors[i]:
                widths[i] -= 1
            elif len(widths) > 1:
                widths.pop()
            else:
                break

    def _missing(self, widths: list[int], width: int) -> int:
        cut_off = self.partial or len(widths) < len(self.fields)
        return sum(widths) + len(self._gap) * (len(widths) - 1 + cut_off) + cut_off - width

    def _hoist_date(self) -> None:
        # All times of the first column on one day: the date is printed once, above.
        if not self.fields or self.fields[0].type.kind != "time" or not self._sample:
            return
        days = {row[0][:10] for row in self._sample if row[0]}
        if len(days) == 1 and self.width is not None and self.header:
            self._date = days.pop()
            for row in self._sample:
                row[0] = row[0][11:]

    def _title(self) -> None:
        if self._date:
            self.out.write(f"date: {self._date} {'local' if self.local else 'UTC'}\n".encode())

    def _line(self, cells: Sequence[str], more: bool = False) -> None:
        self.out.write((self._text(cells, more) + "\n").encode("utf-8", "replace"))

    def _text(self, cells: Sequence[str], more: bool = False) -> str:
        widths = self._widths or []
        parts = []
        for i in range(self._shown):
            cell = self._cut(i, cells[i])
            parts.append(cell.rjust(widths[i]) if self._right[i] else cell.ljust(widths[i]))
        if more and (self.partial or self._shown < len(self.fields)):
            parts.append(CUT)
        return self._gap.join(parts).rstrip()

    def _cut(self, i: int, cell: str) -> str:
        assert self._widths is not None
        width = self._widths[i]
        if i in self._enough and len(cell) > width and cell[:1].isdigit():  # not the name of the column
            seconds, digits, zone = self._parts(cell)
            room = width - len(zone)
            if room >= len(seconds):
                enough = width in self._enough[i]  # other digits keep the times apart
                return (seconds + digits)[:room] + zone if enough else cut(seconds + digits, room) + zone
        return cut(cell, width)

    def _rows(self, rows: list[list[str]]) -> None:
        out = []
        for row in rows:
            self._same_digits(row)
            if self._date and len(row[0]) > 10 and row[0][4:5] == "-":
                row[0] = row[0][11:] if row[0][:10] == self._date else row[0]
            out.append(self._text(row))
        if out:
            self.out.write(("\n".join(out) + "\n").encode("utf-8", "replace"))

    # -- rich

    def _draw(self, rows: list[list[str]]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table

        assert self._widths is not None
        table = Table(
            box=SIMPLE_HEAD,
            show_header=self.header,
            show_edge=False,
            header_style="bold",
            pad_edge=False,
            padding=(0, len(self._gap) - 1, 0, 0),
        )
        for i in range(self._shown):
            table.add_column(
                cut(self.fields[i].name, self._widths[i]),
                justify="right" if self._right[i] else "left",
                width=self._widths[i],
                no_wrap=True,
                style=_style(self.fields[i]),
            )
        if self.partial or self._shown < len(self.fields):
            table.add_column(CUT, width=1)
        for row in rows:
            table.add_row(*[_escape(self._cut(i, row[i])) for i in range(self._shown)])
        width = sum(self._widths) + 4 * len(self._widths) + 8
        console = Console(force_terminal=True, width=width, color_system="standard", highlight=False)
        with console.capture() as text:
            console.print(table)
        self._title()
        lines = [line.rstrip() for line in text.get().split("\n")]
        self.out.write("\n".join(lines).strip("\n").encode("utf-8", "replace") + b"\n")


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def _style(field: Field) -> str:
    return {"time": "dim", "ip": "cyan", "ipv4": "cyan", "enum": "green", "flags": "yellow"}.get(field.type.kind, "")


def cut(text: str, width: int) -> str:
    """The text in ``width`` columns, its end replaced by `~` when it is longer."""
    return text if len(text) <= width else text[: width - 1] + CUT


def _is_amount(schema: Schema, field: Field) -> bool:
    """Whether a field is an amount, not a port or another number that names something."""
    if field.type.kind not in _NUMBERS or field.type.is_list or field.type.kind == "duration":
        return False
    computed = schema.kind == "aggregate" and field.type.kind in ("u64", "f64")  # a group has the type of its field
    return computed or field.unit in AMOUNTS


def _distinct_lengths(times: list[str], zone: int) -> list[int]:
    """The lengths, without digits of a second or with 3 or 6, that keep different times different; longest first.

    ``zone``: characters of the offset from UTC, which stays, at the end of each time.
    """
    longest = max(map(len, times), default=0) - zone
    different = len(set(times))
    whole = next((n for n in WHOLE_SECONDS if longest in (n, n + 4, n + 7, n + 10)), longest)
    found = []
    for length in (whole + 7, whole + 4, whole):
        if length < longest:
            if len({time[:length] + time[longest:] for time in times}) < different:
                break
            found.append(length + zone)
    return found


def _short_float(text: str) -> str:
    value = float(text)
    if value != value or value in (float("inf"), float("-inf")):
        return text
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.6g}" if not 1e6 <= abs(value) < 1e15 else f"{value:.0f}"


def screen_width() -> int:
    """Columns that a table on the terminal may fill: all but the last one, so that lines do not touch the edge."""
    try:
        columns = os.get_terminal_size(1).columns
    except OSError:
        columns = 0
    return max(20, columns - 1) if columns else PIPE_WIDTH
