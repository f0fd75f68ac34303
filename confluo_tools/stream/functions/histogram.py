"""histogram: {field: len, bins: 0..1500/100, every: 10s}.  Counts of values by bin, for each window of time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools import units
from confluo_tools.errors import UsageError
from confluo_tools.stream.functions import words
from confluo_tools.stream.functions.words import Windows

if TYPE_CHECKING:
    from confluo_tools.core.stream.histogram import Bins, HistogramStage
    from confluo_tools.schema import Field, Schema

EXAMPLE = "histogram: {field: len, bins: 0..1500/100, every: 10s}"
BINS = "write 0..1500/100 for bins of 100, or log2"
MAX_BINS = 10_000
U64, I64, F64 = 4, 8, 10  # types of the values, as the core numbers them

_VALUE = re.compile(r"([A-Za-z_]\w*)(?:\s*([+-])\s*([A-Za-z_]\w*))?\Z")
_BINS = re.compile(r"([^/]+?)\.\.([^/]+)/([^/]+)\Z")


class EqualBins(NamedTuple):
    """Bins from ``low`` to ``high`` in steps."""

    low: int | float
    high: int | float
    step: int | float


def read(value: Any, schema: Schema, where: str, flow: str) -> WindowHistogram:
    """``value``: {field, bins, every} and perhaps {late}."""
    needed = ("field", "bins", "every")
    given = words.mapping(value, (*needed, "late"), needed, where, EXAMPLE)
    fields = value_of(words.text(given["field"], f"{where}: field", EXAMPLE, 130), schema, f"{where}: field")
    code = code_of(schema[name] for name in fields[::2])
    bins = bins_of(given["bins"], schema[fields[0]], code, f"{where}: bins")
    return WindowHistogram(flow, fields, bins, code, words.windows(given, schema, where))


def value_of(text: str, schema: Schema, where: str) -> tuple[str, ...]:
    """(field,) or (field, + or -, field)."""
    match = _VALUE.match(text)
    if match is None:
        raise UsageError(f"'{text[:60]}' is not a field", where=where, hint="write a field, A - B or A + B")
    first, sign, second = match.groups()
    if sign is None:
        return (number_field(first, schema, where).name,)
    fields = [number_field(name, schema, where) for name in (first, second)]
    for field in fields:
        if field.type.base == "u64":
            what = f"{field.name} ({field.type.text}) cannot be a part of a sum"
            raise UsageError(what, where=where, hint="fields of fewer bits can")
    return fields[0].name, sign, fields[1].name


def number_field(name: str, schema: Schema, where: str) -> Field:
    if name.lower() not in schema:
        hint = schema.suggest(name.lower())
        raise UsageError(f"no field '{name}' in schema '{schema.kind}'", where=where, hint=hint)
    field = schema[name.lower()]
    if field.type.is_list or field.type.is_bytes or field.type.element in ("ip", "ipv4", "mac"):
        raise UsageError(f"{field.name} ({field.type.text}) is not a number", where=where)
    return field


def code_of(fields: Iterable[Field]) -> int:
    bases = [field.type.base for field in fields]
    if any(base.startswith("f") for base in bases):
        return F64
    return I64 if len(bases) > 1 or bases[0].startswith("i") else U64


def bins_of(value: Any, field: Field, code: int, where: str) -> EqualBins | None:
    """LOW..HIGH/STEP; None for log2."""
    if value == "log2":
        return None
    match = _BINS.match(value.strip()) if isinstance(value, str) and len(value) <= 200 else None
    if match is None:
        raise UsageError(f"'{str(value)[:60]}' is not a range of bins", where=where, hint=BINS)
    low, high, step = (bound(part.strip(), field, code, where) for part in match.groups())
    if step <= 0:
        raise UsageError(f"bins of {match[3]} are not possible", where=where, hint=BINS)
    if low >= high:
        what = f"the range '{match[1]}..{match[2]}' is empty"
        raise UsageError(what, where=where, hint="write the smaller value first")
    least, most = (-(1 << 63), (1 << 63) - 1) if code == I64 else (0, (1 << 64) - 1)
    if code != F64 and not (least <= low and high <= most):
        raise UsageError(f"{field.name} ({field.type.text}) has no values from {match[1]} to {match[2]}", where=where)
    if (high - low) / step > MAX_BINS:
        raise UsageError(f"there are more than {MAX_BINS} bins", where=where, hint="use wider bins, or log2")
    return EqualBins(low, high, step)


def bound(text: str, field: Field, code: int, where: str) -> int | float:
    """A number; of a time or a duration also a duration."""
    number: int | float | None = units.try_number(text)
    if number is None and field.type.kind in ("time", "duration"):
        number = units.try_duration(text)
    if number is None or (code == F64 and not finite(number)):
        raise UsageError(f"'{text[:60]}' is not a number", where=where, hint=BINS)
    if code == F64:
        return float(number)
    if not isinstance(number, int):
        raise UsageError(f"{field.name} ({field.type.text}) holds whole numbers, not {text}", where=where)
    return number


def finite(number: int | float) -> bool:
    """Whether it is a finite double, small enough for the span of a range to be one."""
    return abs(number) < 1e300 and math.isfinite(number)


@dataclass(frozen=True)
class WindowHistogram:
    """Counts of the values of ``fields``: (field,) or (field, + or -, field).  ``bins``: None is log2."""

    flow: str
    fields: tuple[str, ...]
    bins: EqualBins | None
    code: int
    windows: Windows
    ordered = False
    keeps = False
    whole = True

    @property
    def needs(self) -> frozenset[str]:
        return frozenset([self.windows.time, *self.fields[::2]])

    def after(self, schema: Schema) -> Schema:
        from confluo_tools.schema import builtin

        return builtin("histogram")

    def remarks(self, stage: HistogramStage) -> list[str]:
        out = words.remarks(stage, self.windows)
        if stage.nans:
            out.append(f"{words.number(stage.nans, 'record')} had no number in {' '.join(self.fields)}")
        return out

    def core_bins(self) -> Bins:
        from confluo_tools.core.stream.histogram import Bins

        return Bins(self.code, *self.bins) if self.bins is not None else Bins(self.code)

    def part(self, schema: Schema) -> HistogramStage:
        from confluo_tools.core.stream.shared_windows import SLOTS

        return self.stage(schema, SLOTS)

    def stage(self, schema: Schema, slots: int = 0) -> HistogramStage:
        from confluo_tools.core.stream.histogram import HistogramStage

        value: tuple[int, ...] = (schema.index(self.fields[0]),)
        if len(self.fields) > 1:
            value += (1 if self.fields[1] == "+" else -1, schema.index(self.fields[2]))
        (time, every, late), out = self.windows, self.after(schema)
        number = schema.index(time)
        texts, bins = self.texts(out), self.core_bins()
        return HistogramStage(schema.layout, number, every, late, value, bins, out.layout, texts, slots)

    def texts(self, out: Schema) -> dict[str, bytes]:
        """The columns of text of its records, whole characters only."""
        import os

        texts = {"flow": self.flow, "field": " ".join(self.fields), "host": os.uname().nodename}
        cut = {name: text.encode()[: out[name].type.size] for name, text in texts.items()}
        return {name: text.decode(errors="ignore").encode() for name, text in cut.items()}
