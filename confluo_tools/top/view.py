"""The live view as lines of text for a terminal of any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluo_tools.chart.terminal import bar, shortened, sparkline
from confluo_tools.formats.table import CUT, cut
from confluo_tools.units import format_duration, format_time, value_text

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Field
    from confluo_tools.top.model import TopLook

BOLD, DIM, REVERSE, CYAN, GREEN = "1", "2", "7", "36", "32"
KEYS = "k key  m metric  s sort  w window  b bits  p pause  q quit"
ALL_KEYS = (
    ("k, K", "group by the next, the previous keys"),
    ("m, M", "show the next, the previous aggregates"),
    ("s, S", "sort by the next, the previous aggregate"),
    ("w, W", "a longer, a shorter window"),
    ("b", "bits or bytes"),
    ("p, blank", "pause, go on"),
    ("r", "draw again"),
    ("q", "quit"),
)
GAP = 2
NARROWEST = 7  # columns of a name or a key that is cut
ADDRESS = 15  # columns of an address, which are the last to be cut
BYTE_RATES = ("B/s", "bytes/s")  # units that can be bits
BAR = 8  # columns of the bar, at least


class TopView:
    """``title``: names of the inputs and the expression.  ``every``: ns between updates.

    ``colour``: with colours; ``local``: local times.
    """

    def __init__(self, title: str, every: int, *, colour: bool, local: bool) -> None:
        self.title, self.colour, self.local = title, colour, local
        self.step = "second" if every == 10**9 else format_duration(every)
        self.bits = True

    def room(self, height: int) -> int:
        """How many groups fit."""
        return max(height - (4 if height > 5 else 1), 1)

    def lines(self, look: TopLook | None, width: int, height: int, *, paused: bool, ended: bool, help: bool) -> str:
        """The whole screen."""
        if help:
            found = [self._styled(BOLD, cut("keys", width))]
            found += [cut(f"  {keys:9} {what}", width) for keys, what in ALL_KEYS]
            return "\n".join(found[:height])
        if look is None:
            text = "no record came" if ended else f"waiting for records of a whole {self.step}"
            return "\n".join([self._head(None, width, paused, ended), "", cut(text, width)][:height])
        out = [self._head(look, width, paused, ended), self._total(look, width)]
        table = self._table(look, width, self.room(height))
        if height <= 5:
            return "\n".join([*table[1:], *out][:height] if height < 3 else table[:height])
        out += table
        out += [""] * (height - 1 - len(out))
        return "\n".join([*out[: height - 1], self._styled(DIM, cut(KEYS, width))])

    # -- lines

    def _head(self, look: TopLook | None, width: int, paused: bool, ended: bool) -> str:
        left, right = self.title, ""
        if look is not None:
            span = format_duration((look.window.until - look.window.since) // 10**6 * 10**6)
            right = f"{span} to {self._clock(look)}"
            if look.behind:
                exact = 60 * 10**9 if look.behind > 3600 * 10**9 else 10**9
                right += f", {format_duration(look.behind // exact * exact)} ago"
        right += ", paused" if paused else ", ended" if ended else ""
        room = width - len(right) - GAP
        if room < 8:
            return self._styled(BOLD, cut(left, width))
        return self._styled(BOLD, cut(left, room).ljust(room)) + " " * GAP + right

    def _clock(self, look: TopLook) -> str:
        text = format_time(look.window.until, 0, self.local)
        return text[11:19] if not look.behind else text[:19].replace("T", " ")

    def _total(self, look: TopLook, width: int) -> str:
        fields = {f.name: f for f in look.question.values}
        parts = [f"{self._name(fields[n])} {self._value(fields[n], v)}" for n, v in look.window.totals.items()]
        text = cut("  ".join([f"{look.window.groups:,} group{'s' * (look.window.groups != 1)}", *parts]), width)
        room = width - len(text) - GAP
        if room >= 10 and any(look.history):
            values = shortened(look.history[-room:], room)
            text += " " * GAP + self._styled(GREEN, sparkline(values, 0.0, max(look.history)).rjust(len(values)))
        return text

    def _name(self, field: Field) -> str:
        name = field.name
        return name + " bit/s" if self.bits and field.unit in BYTE_RATES else name

    def _value(self, field: Field, value: float | None) -> str:
        unit = "ns" if field.type.kind == "duration" else field.unit
        if unit in BYTE_RATES and self.bits:
            value, unit = None if value is None else value * 8, ""
        elif unit == "/s":
            unit = ""
        if value is not None and not unit and 0.001 < abs(value) < 1:
            return f"{value:.2g}"  # not 300 m
        return value_text(None if value != value else value, unit)

    # -- the table

    def _table(self, look: TopLook, width: int, most: int) -> list[str]:
        question = look.question
        keys, values, raw = self._cells(look, most)
        heads = [*question.keys, *[self._name(f) + ("↓" if f.name == look.order else "") for f in question.values]]
        rows = [[*k, *v] for k, v in zip(keys, values, strict=True)]
        order = len(question.keys) + [f.name for f in question.values].index(look.order)
        shown = fitting(heads, rows, len(question.keys), order, width)
        head = self._row([middle_cut(n, shown.get(i, 0)) for i, n in enumerate(heads)], shown, len(question.keys))
        room = width - len(head) - GAP
        whole = look.window.totals.get(look.order) or max(raw, default=0.0)
        lines = [self._styled(REVERSE, head.ljust(width) if self.colour else head)]
        for row, value in zip(rows, raw, strict=True):
            line = self._row(row, shown, len(question.keys))
            if room >= BAR + 5 and whole:
                share = f"{100 * value / whole:3.0f} %" if look.order in look.window.totals else ""
                drawn = bar(value, whole, min(room - 6, 40))
                line += " " * GAP + share.rjust(5) + " " + self._styled(CYAN, drawn)
            lines.append(line)
        return lines

    def _cells(self, look: TopLook, most: int) -> tuple[list[list[str]], list[list[str]], list[float]]:
        """Texts of the keys, texts of the aggregates, and the values that the rows are sorted by."""
        from confluo_tools.core.text.text_writer import Printer
        from confluo_tools.formats.text import printing_plan

        schema, keys = look.question.coarse.result, look.question.keys
        printer = Printer(schema.layout, printing_plan(schema, keys, "tsv"), "tsv", True)
        names: list[list[str]] = []
        values: list[list[str]] = []
        raw: list[float] = []
        for block in look.window.rows:
            lines = printer.lines(block).decode("utf-8", "replace").split("\n")[:-1] if keys else [""] * block.rows
            for i in range(min(block.rows, most - len(names))):
                names.append([cell if cell != "-" else "" for cell in lines[i].split("\t")] if keys else [])
                values.append([self._value(f, _number(block, schema.index(f.name), i)) for f in look.question.values])
                raw.append(float(_number(block, schema.index(look.order), i) or 0.0))
        return names, values, raw

    def _row(self, cells: Sequence[str], shown: dict[int, int], keys: int) -> str:
        out = []
        for i, width in shown.items():
            cell = cut(cells[i], width)
            out.append(cell.ljust(width) if i < keys else cell.rjust(width))
        return (" " * GAP).join(out)

    def _styled(self, style: str, text: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self.colour and text else text


def middle_cut(name: str, width: int) -> str:
    """A name in ``width`` columns: its beginning and its end, which tell names of aggregates apart."""
    if len(name) <= width or width < 5:
        return cut(name, width)
    end = (width - 1) // 2
    return name[: width - 1 - end] + CUT + name[-end:]


def fitting(heads: Sequence[str], rows: Sequence[Sequence[str]], keys: int, order: int, width: int) -> dict[int, int]:
    """{column: its width} of the columns that fit: the first ``keys`` ones are group keys, ``order`` is sorted by.

    In this order, names are cut, long keys are cut, aggregates left out, keys cut more, and keys left out.
    """
    data = [max(map(len, column), default=0) for column in zip(*rows, strict=True)] or [0] * len(heads)
    shown = {i: max(len(head), data[i]) for i, head in enumerate(heads)}
    while sum(shown.values()) + GAP * (len(shown) - 1) > width:
        names = [i for i in shown if i >= keys and shown[i] > max(data[i], NARROWEST)]
        long = [i for i in shown if i < keys and shown[i] > ADDRESS]
        others = [i for i in shown if i >= keys and i != order]
        cuttable = [i for i in shown if i < keys and shown[i] > NARROWEST]
        if names or long:
            shown[max(names or long, key=lambda i: shown[i])] -= 1
        elif others:
            del shown[others[-1]]
        elif cuttable:
            shown[max(cuttable, key=lambda i: shown[i])] -= 1
        elif len(shown) > 1:
            del shown[min(shown)]
        else:
            return {order: width}
    return shown


def _number(block: Block, column: int, row: int) -> float | None:
    value = block.get(column, row)
    return value if isinstance(value, int | float) else None
