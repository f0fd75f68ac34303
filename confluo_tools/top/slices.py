"""Aggregates over the last seconds: a roll-up for each slice of time, merged when they are shown.

Records are aggregated by slice and group, as ``--by 1s,src_ip`` does.  Such a roll-up is divided into slices, and a
window is the merge of its slices: exact, whatever its length, and a record is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.errors import UsageError
from confluo_tools.multilog.query.rollup_slices import MAX_SHARES, divided, starts

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.schema import Field, Schema

MAX_SLICES = 240  # that are kept
MAX_GROUPS = 1_000_000  # of all slices: some 100 bytes each
CODES = {"u64": "Q", "i64": "q", "duration": "q", "f64": "d"}
NUMBERS = ("u8", "u16", "u32", "i8", "i16", "i32", "f32")  # and those of `CODES`
ADDITIVE = ("sum", "share")  # how windows keep aggregates that add up over groups


class SlicedQuestion:
    """``agg`` of the rows of each group of ``by``.  ``every``: length of a slice, ns.

    ``by_slice``: `by` with the slice before it.  Raises UsageError.
    """

    def __init__(self, schema: Schema, agg: str, by: str, every: int) -> None:
        from confluo_tools.expr import parse_aggregates, parse_by
        from confluo_tools.expr.aggregate_functions import FUNCTIONS
        from confluo_tools.multilog.query.aggregation import Aggregation

        if schema.time_field is None:
            raise UsageError(f"schema '{schema.kind}' has no time, so there are no rates")
        time = schema.time_field.name
        aggs, keys = parse_aggregates(agg, schema), parse_by(by, schema) if by else []
        if any(key.stepped and key.field == time for key in keys):
            raise UsageError(f"'{by}' has a step of time", where="--by", hint="--every is the step, leave it out")
        self.agg, self.by, self.every = agg, by, every
        self.by_slice = f"{time}/{every}ns as {time}" + (f", {by}" if by else "")
        self.coarse = Aggregation(schema, aggs, keys)
        self.fine = Aggregation(schema, aggs, parse_by(self.by_slice, schema))
        self.keys = self.coarse.keys
        self.values = [f for f in self.coarse.result.fields if f.name not in self.keys]
        wrong = next((f for f in self.values if f.type.kind not in CODES and f.type.kind not in NUMBERS), None)
        if wrong is not None:
            what = f"{wrong.name} ({wrong.type.text}) is not a number"
            raise UsageError(what, where="--agg", hint="choose aggregates such as count, rate(len), p99(len)")
        found = {a.label: FUNCTIONS.get(getattr(a, "func", "")) for a in aggs}
        self.additive = [f.name for f in self.values if (row := found.get(f.name)) and row.window in ADDITIVE]

    def starts(self, rollup: Rollup) -> list[int]:
        """The slice of each group of a roll-up by slice and group."""
        return starts(rollup, self.fine)

    def totals(self, rollup: Rollup, since: int, until: int) -> dict[str, float]:
        """{aggregate: its value over all groups}, of those that add up."""
        out = dict.fromkeys(self.additive, 0.0)
        for block in self.coarse.answer(rollup, since=since, until=until):
            for name in self.additive:
                out[name] += sum(numbers(block, self.coarse.result, name))
        return out


def numbers(block: Block, schema: Schema, name: str) -> Sequence[float]:
    """The values of a column of 64 bits."""
    field: Field = schema[name]
    code = CODES[field.type.kind]
    return memoryview(block.buffer(schema.index(name))).cast("B").cast(code)  # type: ignore[call-overload,no-any-return]


class GroupWindow(NamedTuple):
    """What is shown: ``rows`` of the largest groups, of the records with ``since`` <= time < ``until`` (ns).

    ``groups``: how many there are; ``totals``: {aggregate: value over all groups}.
    """

    since: int
    until: int
    rows: list[Block]
    groups: int
    totals: dict[str, float]


class SliceStore:
    """The roll-ups of slices, by their start.  ``known``: all records since this time (ns) are in them."""

    def __init__(self, question: SlicedQuestion) -> None:
        self.question = question
        self.known: int | None = None
        self._slices: dict[int, Rollup] = {}
        self._totals: dict[int, dict[str, float]] = {}

    def put(self, chunk: Rollup, first: int, *, replace: bool = False, end: int | None = None) -> None:
        """Take the slices from ``first`` on, and before ``end``, of a roll-up by slice and group; drop older ones.

        ``replace``: it has all rows of these slices, not only new ones.
        """
        every = self.question.every
        last = first + MAX_SHARES * every
        end = last if end is None else min(end, last)
        if replace:
            for start in [start for start in self._slices if first <= start < end]:
                del self._slices[start]
                self._totals.pop(start, None)
        for start, part in self._divided(chunk, first, end):
            if start in self._slices:
                self._slices[start].merge(part)
            else:
                self._slices[start] = part
            self._totals[start] = self.question.totals(self._slices[start], start, start + every)
        for old in sorted(self._totals)[:-MAX_SLICES]:
            del self._totals[old]

    def trim(self, before: int) -> None:
        """Forget slices that ended before this time, and the oldest ones if all have too many groups."""
        every = self.question.every
        groups = sum(map(len, self._slices.values()))
        for old in sorted(self._slices)[:-1]:
            if old + every > before and groups <= MAX_GROUPS:
                break
            groups -= len(self._slices.pop(old))
            self.known = max(old + every, self.known or 0)

    def _divided(self, chunk: Rollup, first: int, end: int) -> list[tuple[int, Rollup]]:
        return divided(chunk, self.question.fine, self.question.coarse, first, end)

    def window(self, since: int, until: int, order: str, most: int) -> GroupWindow:
        """The ``most`` groups with the largest ``order``, an aggregate."""
        question = self.question
        whole = question.coarse.rollup()
        for start in sorted(self._slices):
            if start < until and since < start + question.every:
                whole.merge(self._slices[start])
        rows = list(question.coarse.answer(whole, top=most, order=[(order, True)], since=since, until=until))
        return GroupWindow(since, until, rows, len(whole), question.totals(whole, since, until))

    def history(self, until: int, name: str, length: int) -> list[float]:
        """The totals of an aggregate in the slices before ``until``, at most ``length``; 0 where nothing came."""
        every = self.question.every
        first = min(self._totals, default=until)
        starts = range(max(until - length * every, first), until, every)
        return [self._totals.get(start, {}).get(name, 0.0) for start in starts]
