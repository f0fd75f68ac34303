"""Aggregation: what ``--agg`` and ``--by`` ask for, over any picked rows, as records of a result schema.

Every question is a `Question`: the columns it reads, a partial state per part of the rows (`Question.rollup`),
and a merge.  `aggregate` is the whole of it in one process; lanes, processes or hosts make one roll-up each,
`Rollup.merge` joins them, and `Question.answer` finishes.

Types of results: count and distinct u64; sum u64 or i64 as its field is signed, f64 for floats, and an error where
it does not fit; avg, stddev (of the population: the rows selected) and quantiles f64; rate f64 per second; min, max,
first and last the type of their field.  Of durations they stay durations; avg of times is a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.schema import Field, Schema

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.core.rollup import Rollup
    from confluo_tools.expr import Expr
    from confluo_tools.expr.aggregates import Agg, By

FLOW = ("src_ip", "dst_ip", "src_port", "dst_port", "proto")
NS = 1_000_000_000
_NUMBERS = {"u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64", "duration"}
_CORE = {"distinct~": "hyper"}
_WORDS = {
    "sum": "sum", "avg": "mean", "stddev": "standard deviation", "min": "smallest", "max": "largest",
    "first": "first", "last": "last", "distinct": "number of different values",
    "distinct~": "estimated number of different values", "rate": "sum per second",
}  # fmt: skip


class Question:
    """Aggregates ``aggs`` of the rows of ``schema`` grouped ``by`` keys; ``result`` is the schema of the answer.

    ``reads`` are the names of the fields that it looks at, ``keys`` those of the result's group columns.
    Raises UsageError for an aggregate that has no meaning for its field.
    """

    def __init__(self, schema: Schema, aggs: Sequence[Agg], by: Sequence[By]) -> None:
        self.source, self.aggs = schema, tuple(aggs)
        self._time = schema.time_field
        self._step = 0  # of the time bucket, ns
        self._keys: list[tuple[Any, ...]] = []
        self._first: list[str] = []  # buckets
        fields: list[Field] = []
        flat = list(_flat(by))
        if not flat and not self.aggs:
            raise UsageError("nothing to compute", hint="name an aggregate or a group")
        versions = {key.field: label for key, label in flat if key.kind == "field"}
        for key, label in flat:
            fields.append(self._key(key, label, versions))
        self.keys = tuple(f.name for f in fields)
        fields += [self._result(agg) for agg in self.aggs]
        names = [c.name for f in fields for c in f.columns]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two result columns are called '{name}'", hint="rename one: ... as NAME")
        words = ", ".join(_text(agg) for agg in self.aggs) or "groups"
        grouped = f" by {', '.join(self.keys)}" if self.keys else ""
        self.result = Schema("aggregate", fields, f"{words}{grouped} of {schema.kind}")
        self._specs = tuple(self._spec(agg) for agg in self.aggs)
        self._rated = any(agg.func == "rate" for agg in self.aggs)
        self.reads = self._read(key.field for key, _ in flat)

    # What the core computes

    def _operand(self, field: Field, bits4: int = 32, bits6: int = 128, plain: bool = False) -> tuple[Any, ...]:
        col = self.source.index(field.name)
        if field.type.kind != "ip":
            return ("column", col)
        version = self.source.index(field.version) if field.version else -1
        return ("ip", col, col + 1, version, bits4, bits6, plain)

    def _key(self, key: By, label: str, versions: dict[str, str]) -> Field:
        field = self.source[key.field]
        kind, about, version = field.type.kind, field.description, ""
        if kind == "ip" and field.version in versions:
            version = versions[field.version]
        if key.kind == "bucket":
            if kind not in ("time", "duration") or key.arg <= 0:
                raise UsageError(f"{field.name} ({field.type.text}) has no steps of {key.arg} ns")
            self._keys.append(("bucket", self.source.index(field.name), key.arg))
            self._first.append(label)
            if kind == "time" and not self._step:
                self._step = key.arg
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

    def _result(self, agg: Agg) -> Field:
        if agg.field is None:
            if agg.func == "rate":
                return Field(agg.label, "f64", "/s", "rows per second")
            return Field(agg.label, "u64", "", "rows")
        field = self.source[agg.field]
        kind, unit, names = field.type.element, field.unit, field.names
        moment = kind in ("time", "duration")
        signed = field.type.base.startswith("i")
        about = f"{_WORDS.get(agg.func, agg.func)} of {field.name}: {field.description}"
        if agg.func in ("distinct", "distinct~"):
            return Field(agg.label, "u64", "", about)
        if agg.func in ("min", "max", "first", "last"):
            whole = agg.func in ("first", "last") or not field.type.is_list
            return Field(agg.label, field.type if whole else kind, unit, about, names)
        if kind not in _NUMBERS and not (kind == "time" and agg.func in ("avg", "stddev")):
            raise UsageError(f"{agg.func} needs numbers; {field.name} is {field.type.text}")
        if agg.func == "sum":
            type_ = "f64" if field.type.is_float else kind if moment else "i64" if signed else "u64"
            return Field(agg.label, type_, unit, about)
        if agg.func == "rate":
            return Field(agg.label, "f64", f"{unit}/s", about)
        if agg.func == "quantile":
            about = f"{100 * (agg.q or 0):g} % of {field.name} are at most this (within 0.4 %): {field.description}"
        elif agg.func not in ("avg", "stddev"):
            raise UsageError(f"no aggregate '{agg.func}'")
        return Field(agg.label, ("duration" if agg.func == "stddev" else kind) if moment else "f64", unit, about)

    def _spec(self, agg: Agg) -> tuple[Any, ...]:
        func = _CORE.get(agg.func, agg.func)
        if agg.field is None:
            return (func,)
        if self._time is not None and agg.field == self._time.name and func in ("first", "last"):
            func = "min" if func == "first" else "max"  # the same, and cheaper
        spec = (func, self._operand(self.source[agg.field]))
        return (*spec, round((agg.q or 0.0) * 1_000_000)) if func == "quantile" else spec

    def _read(self, keys: Iterable[str]) -> tuple[str, ...]:
        names = {*keys, *(agg.field for agg in self.aggs if agg.field is not None)}
        names |= {self.source[name].version for name in names}
        if self._time is not None and (
            (self._rated and not self._step) or any(agg.func in ("first", "last") for agg in self.aggs)
        ):
            names.add(self._time.name)
        return tuple(f.name for f in self.source.fields if f.name in names)

    # Partial, merge, finish

    def rollup(self) -> Rollup:
        """An empty partial state: give it blocks by ``update``, other states by ``merge``."""
        from confluo_tools.core.rollup import Rollup

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
        """The result as blocks of ``result``; see `aggregate` for the arguments."""
        try:
            rows = rollup.finish(self.result.layout, self._seconds(rollup, since, until))
        except OverflowError as e:
            column = self.result.columns[e.args[0]]
            agg = next(a for a in self.aggs if a.label == column.field.name)
            hint = f"ask for avg({agg.field}) and count, or group by more"
            raise ConfluoError(f"{_text(agg)} does not fit {column.field.type.text}", hint=hint) from None
        if having is not None:
            select: Callable[[Block], Picks] = having.program.select
            rows.keep(select)
        named = list(order or ())
        if top is not None and order is None and self.aggs:
            named = [(self.aggs[0].label, True)]
        named += [(name, False) for name in (*self._first, *self.keys)]
        rows.sort(self._columns(named), top)
        return rows.blocks()

    def _columns(self, named: Iterable[tuple[str, bool]]) -> list[tuple[int, bool]]:
        # Columns to sort by, each once.  IPv6 addresses come behind IPv4, whose 16 bytes are zero.
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
    aggs: Sequence[Agg],
    by: Sequence[By],
    *,
    having: Expr | None = None,
    top: int | None = None,
    order: Sequence[tuple[str, bool]] | None = None,
    since: int | None = None,
    until: int | None = None,
) -> tuple[Schema, Iterator[Block]]:
    """Fold the picked rows of blocks of ``schema``, and answer: (schema of the result, its blocks).

    Without keys the answer is one row, also of no rows at all.
    Rows come sorted by their keys, time steps first.  ``having`` is an expression compiled against the result
    schema (`Question.result`) and keeps the rows for which it holds.  ``top`` keeps the first so many rows by the
    first aggregate, descending, ties by key.  ``order``: names of result columns with True for descending, instead.
    ``since`` and ``until`` (ns) are the span that rates divide by when no time step is among the keys; a missing
    one is the first or last time of the picked rows.  Memory grows with the groups, not with the rows.

    Raises UsageError for a question without meaning, ConfluoError for a sum beyond 64 bits.
    """
    question = Question(schema, aggs, by)
    rollup = question.rollup()
    for block, picks in pairs:
        rollup.update(block, picks)
    return question.result, question.answer(rollup, having=having, top=top, order=order, since=since, until=until)


def _flat(by: Iterable[By]) -> Iterator[tuple[By, str]]:
    """The keys with their labels; `flow` is five of them."""
    from confluo_tools.expr.aggregates import By

    for key in by:
        if key.kind == "flow":
            for name in FLOW:
                yield By("field", name, 0, 0, name), name
        else:
            yield key, key.label


def _text(agg: Agg) -> str:
    func = f"p{100 * (agg.q or 0):g}" if agg.func == "quantile" else agg.func
    return func if agg.field is None else f"{func}({agg.field})"
