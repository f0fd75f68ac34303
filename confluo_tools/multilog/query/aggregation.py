"""Aggregation: ``--agg`` and ``--by`` over selected rows, with the result as records of a result schema.

An `Aggregation` knows the columns to read, creates roll-ups (`Aggregation.rollup`: a partial state per part of the
rows) and turns a roll-up into result rows (`Aggregation.answer`).  `aggregate` does all steps in one process.  Several
lanes, processes or hosts fill one roll-up each, and `Rollup.merge` combines them.

Result types: count and distinct are u64; sum is u64, i64 (signed field) or f64 (float field), with an error on
overflow; avg, stddev (of the population: the selected rows) and quantiles are f64; rate is f64 per second; min, max,
first and last have the type of their field.  Aggregates of durations are durations; avg of times is a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.expr.aggregate_functions import FUNCTIONS
from confluo_tools.schema import Field, Schema
from confluo_tools.schema.choose import FLOW_FIELDS

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.expr import Expr
    from confluo_tools.expr.aggregates import Aggregate, GroupKey

NS = 1_000_000_000
DAY = 86400 * NS


class Aggregation:
    """The aggregates ``aggs`` of rows of ``schema``, grouped ``by`` keys; ``result`` is the schema of the result.

    ``local``: steps of whole days are days of local time.  ``reads``: names of the fields that are read.
    ``keys``: names of the group columns of the result.
    Raises UsageError when an aggregate does not apply to the type of its field.
    """

    def __init__(
        self, schema: Schema, aggs: Sequence[Aggregate], by: Sequence[GroupKey], *, local: bool = False
    ) -> None:
        self.source, self.aggs = schema, tuple(aggs)
        self._time = schema.time_field
        self._step = 0  # ns of the time bucket
        self.time_key = ""  # name of its column
        self._local = local
        self.local_days = False  # whether a result depends on the local time
        self._keys: list[tuple[Any, ...]] = []
        self._first: list[str] = []  # names of the bucket columns
        fields: list[Field] = []
        flat = list(_flat(by))
        if not flat and not self.aggs:
            raise UsageError("nothing to compute", hint="give an aggregate or a group")
        versions = {key.field: label for key, label in flat if key.kind == "field"}
        for key, label in flat:
            fields.append(self._key(key, label, versions))
        self.keys = tuple(f.name for f in fields)
        fields += [self._result(agg) for agg in self.aggs]
        names = [c.name for f in fields for c in f.columns]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two result columns are called '{name}'", hint="rename one: ... as NAME")
        words = ", ".join(agg.text for agg in self.aggs) or "groups"
        grouped = f" by {', '.join(self.keys)}" if self.keys else ""
        self.result = Schema("aggregate", fields, f"{words}{grouped} of {schema.kind}")
        self._specs = tuple(self._spec(agg) for agg in self.aggs)
        self._rated = any(agg.func == "rate" for agg in self.aggs)
        self.reads = self._read(key.field for key, _ in flat)

    @property
    def step(self) -> int:
        """Length of the steps of time among the groups, ns; 0 without them."""
        return self._step

    # --- keys and aggregates, as the core takes them

    def _operand(self, field: Field, bits4: int = 32, bits6: int = 128, plain: bool = False) -> tuple[Any, ...]:
        col = self.source.index(field.name)
        if field.type.kind != "ip":
            return ("column", col)
        version = self.source.index(field.version) if field.version else -1
        return ("ip", col, col + 1, version, bits4, bits6, plain)

    def _value(self, field: Field) -> tuple[Any, ...]:
        # What a function takes; as a key, a zero is a group of its own.
        kind, *rest = self._operand(field)
        return ("nonzero" if kind == "column" and field.type.zero_is_absent else kind, *rest)

    def _key(self, key: GroupKey, label: str, versions: dict[str, str]) -> Field:
        field = self.source[key.field]
        kind, about, version = field.type.kind, field.description, ""
        if kind == "ip" and field.version in versions:
            version = versions[field.version]
        if key.kind == "bucket":
            if kind not in ("time", "duration") or key.arg <= 0:
                raise UsageError(f"{field.name} ({field.type.text}) cannot be grouped by steps of {key.arg} ns")
            self._keys.append(("bucket", self.source.index(field.name), key.arg, *self._zone(kind, key.arg)))
            self._first.append(label)
            if kind == "time" and not self._step:
                self._step, self.time_key = key.arg, label
            return Field(label, field.type, "ns", f"start of the step: {about}")
        if key.kind == "prefix" and kind == "ip":
            self._keys.append(self._operand(field, key.arg, key.arg6, bool(version)))
            about = f"first {key.arg} bits (IPv6: {key.arg6}) of {about}"
        elif key.kind == "prefix":
            width = {"ipv4": 32, "mac": 48}.get(kind)
            if width is None:
                raise UsageError(f"{field.name} ({field.type.text}) has no prefixes")
            self._keys.append(("prefix", self.source.index(field.name), width, key.arg))
            about = f"first {key.arg} bits of {about}"
        else:
            self._keys.append(self._operand(field, plain=bool(version)))
        return Field(label, field.type, field.unit, about, field.names, version)

    def _zone(self, kind: str, step: int) -> tuple[Any, ...]:
        # Shorter steps are the same in all zones, or would have an hour twice when the clock goes back.
        if not self._local or kind != "time" or step % DAY:
            return ()
        from confluo_tools.multilog.query.local_days import offset_changes

        self.local_days = True
        return (offset_changes(),)

    def _result(self, agg: Aggregate) -> Field:
        function = FUNCTIONS.get(agg.func)
        if function is None:
            raise UsageError(f"no aggregate '{agg.func}'")
        if agg.field is None:
            if function.result == "rate":
                return Field(agg.label, "f64", "/s", "rows per second")
            return Field(agg.label, "u64", "", "rows")
        field = self.source[agg.field]
        kind, unit = field.type.element, field.unit
        if function.takes is not None and kind not in function.takes:
            raise UsageError(f"{agg.func} needs numbers; {field.name} is {field.type.text}")
        about = f"{function.words} of {field.name}: {field.description}"
        moment = kind in ("time", "duration")
        signed = field.type.base.startswith("i")
        if function.result == "count":
            return Field(agg.label, "u64", "", about)
        if function.result in ("element", "field"):
            whole = function.result == "field" or not field.type.is_list
            return Field(agg.label, field.type if whole else kind, unit, about, field.names)
        if function.result == "sum":
            type_ = "f64" if field.type.is_float else kind if moment else "i64" if signed else "u64"
            return Field(agg.label, type_, unit, about)
        if function.result == "rate":
            return Field(agg.label, "f64", f"{unit}/s", about)
        if agg.q is not None:
            about = f"{100 * agg.q:g} % of {field.name} are at most this (within 0.4 %): {field.description}"
        deviation = function.result == "deviation"
        return Field(agg.label, ("duration" if deviation else kind) if moment else "f64", unit, about)

    def _spec(self, agg: Aggregate) -> tuple[Any, ...]:
        function = FUNCTIONS[agg.func]
        if agg.field is None:
            return (function.core,)
        field = self.source[agg.field]
        by_time = self._time is not None and agg.field == self._time.name
        spec = (function.time_core if by_time and function.time_core else function.core, self._value(field))
        return spec if agg.q is None else (*spec, round(agg.q * 1_000_000))

    def _read(self, keys: Iterable[str]) -> tuple[str, ...]:
        names = {*keys, *(agg.field for agg in self.aggs if agg.field is not None)}
        names |= {self.source[name].version for name in names}
        if self._time is not None and (
            (self._rated and not self._step) or any(agg.func in ("first", "last") for agg in self.aggs)
        ):
            names.add(self._time.name)
        return tuple(f.name for f in self.source.fields if f.name in names)

    # --- filling and finishing

    def rollup(self) -> Rollup:
        """An empty roll-up; add blocks with ``update`` and other roll-ups with ``merge``."""
        from confluo_tools.core.query.rollup import Rollup

        time = -1 if self._time is None else self.source.index(self._time.name)
        spanning = self._rated and not self._step
        return Rollup(self.source.layout, tuple(self._keys), self._specs, time, spanning)

    def answer(
        self,
        rollup: Rollup,
        *,
        having: Expr | None = None,
        top: int | None = None,
        order: Sequence[tuple[str, bool]] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> Iterator[Block]:
        """The result as blocks of schema ``result``; see `aggregate` for the arguments."""
        try:
            rows = rollup.finish(self.result.layout, self._seconds(rollup, since, until))
        except OverflowError as e:
            column = self.result.columns[e.args[0]]
            agg = next(a for a in self.aggs if a.label == column.field.name)
            hint = f"use avg({agg.field}) and count, or group by more keys"
            raise ConfluoError(f"{agg.text} does not fit {column.field.type.text}", hint=hint) from None
        if having is not None:
            select: Callable[[Block], Picks] = having.program.select
            rows.keep(select)
        rows.sort(self.sorted_by(top, order), top)
        return rows.blocks()

    def sorted_by(self, top: int | None, order: Sequence[tuple[str, bool]] | None = None) -> list[tuple[int, bool]]:
        """The order of the rows that `answer` gives: (number of a result column, True for descending)."""
        named = list(order or ())
        if top is not None and order is None and self.aggs:
            named = [(self.aggs[0].label, True)]
        return self._columns([*named, *((name, False) for name in (*self._first, *self.keys))])

    def _columns(self, named: Iterable[tuple[str, bool]]) -> list[tuple[int, bool]]:
        # Columns to sort by, each once.  IPv4 sorts before IPv6, because its 16 IPv6 bytes are zero.
        out: list[tuple[int, bool]] = []
        seen: set[int] = set()
        for name, descending in named:
            col = self.result.index(self.result[name].name)
            cols = [col + 1, col] if self.result[name].type.kind == "ip" else [col]
            out += [(c, descending) for c in cols if c not in seen]
            seen.update(cols)
        return out

    def _seconds(self, rollup: Rollup, since: int | None, until: int | None) -> float:
        if self._step:
            return self._step / NS
        first, last = rollup.span or (0, 0)
        return max((last if until is None else until) - (first if since is None else since), 0) / NS


def aggregate(
    pairs: Iterable[tuple[Block, Picks | None]],
    schema: Schema,
    aggs: Sequence[Aggregate],
    by: Sequence[GroupKey],
    *,
    having: Expr | None = None,
    top: int | None = None,
    order: Sequence[tuple[str, bool]] | None = None,
    since: int | None = None,
    until: int | None = None,
) -> tuple[Schema, Iterator[Block]]:
    """Aggregate the selected rows of blocks of ``schema``; returns (schema of the result, its blocks).

    Without keys the result is one row, even for an empty input.
    The rows are sorted by their keys, time steps first.  ``having``, an expression compiled against the result
    schema (`Aggregation.result`), keeps the rows for which it holds.  ``top`` keeps that number of rows with the
    largest first aggregate; ties are sorted by key.  ``order`` replaces this order: (result column, True for
    descending).  ``since`` and ``until`` (ns) are the time span for rates if no time step is among the keys; the
    defaults are the first and last time of the selected rows.  Memory grows with the groups, not with the rows.

    Raises UsageError for an invalid aggregation, ConfluoError for a sum that exceeds 64 bits.
    """
    question = Aggregation(schema, aggs, by)
    rollup = question.rollup()
    for block, picks in pairs:
        rollup.update(block, picks)
    return question.result, question.answer(rollup, having=having, top=top, order=order, since=since, until=until)


def _flat(by: Iterable[GroupKey]) -> Iterator[tuple[GroupKey, str]]:
    """The keys with their labels; `flow` is expanded into five keys."""
    from confluo_tools.expr.aggregates import GroupKey

    for key in by:
        if key.kind == "flow":
            for name in FLOW_FIELDS:
                yield GroupKey("field", name, 0, 0, name), name
        else:
            yield key, key.label
