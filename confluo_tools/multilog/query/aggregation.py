"""Aggregation: ``--agg`` and ``--by`` over selected rows, with the result as records of a result schema.

An `Aggregation` knows the columns to read, creates roll-ups (`Aggregation.rollup`: a partial state per part of the
rows) and turns a roll-up into result rows (`Aggregation.answer`).  `aggregate` does all steps in one process.  Several
lanes, processes or hosts fill one roll-up each, and `Rollup.merge` combines them.

Result types: count and distinct are u64; sum is u64, i64 (signed field) or f64 (float field), with an error on
overflow; avg, stddev (of the population: the selected rows) and quantiles are f64; rate is f64 per second; min, max,
first and last have the type of their field.  Aggregates of durations are durations; avg of times is a time.

With ``fill``, a group without rows has counts and sums of 0, and no other values: NaN, or 0 in the column `PRESENT`
(see `Field.present`).

Arithmetic of aggregates (`Formula`) is computed on the result rows: `Aggregation.wide` is their schema with all columns
that are needed for it, for --having and for the order of rows; `Aggregation.result` has those that are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.expr.aggregate_functions import FUNCTIONS
from confluo_tools.expr.arithmetic import quantity_of_field
from confluo_tools.multilog.query.absent_results import marked
from confluo_tools.multilog.query.filled_steps import number_steps
from confluo_tools.multilog.query.result_plan import ResultPlan
from confluo_tools.multilog.query.time_steps import TimeSteps
from confluo_tools.schema import Field, Schema, Type
from confluo_tools.schema.choose import ADDRESSES, FLOW_FIELDS

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.block.result_table import Rows
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.expr import Expr
    from confluo_tools.expr.aggregates import Aggregate, Result
    from confluo_tools.expr.group_keys import GroupKey
    from confluo_tools.multilog.query.local_zone import Changes

NS = 1_000_000_000
NO_VERSION, NO_FAMILY = -1, -2  # of the addresses of a column: see `Rows.sort`
PRESENT = "_present"  # whether the group has rows, when groups without rows were added


class Aggregation:
    """The aggregates ``aggs`` of rows of ``schema``, grouped ``by`` keys; ``result`` is the schema of the result.

    ``local``: steps of time are those of local time; ``zone``: of a local time with these changes of its offset.
    ``steps``: the steps of time among the groups, None without them.  ``reads``: names of the fields that are read.
    ``keys``: names of the group columns of the result.  ``items``: the aggregates and formulas as given, ``aggs``:
    the aggregates that the roll-up computes for these and for ``hidden``, columns that are not printed.
    ``fill``: steps of time without rows are groups, too.
    Raises UsageError when an aggregate does not apply to the type of its field.
    """

    def __init__(
        self,
        schema: Schema,
        aggs: Sequence[Result],
        by: Sequence[GroupKey],
        *,
        local: bool = False,
        zone: Changes = (),
        hidden: Sequence[Result] = (),
        fill: bool = False,
    ) -> None:
        self.source, self.items = schema, tuple(aggs)
        self._time = schema.time_field
        self.steps: TimeSteps | None = None
        self.time_key = ""  # name of their column
        self.time_key_field = ""  # the field that is cut into these steps
        self._local, self._zone, self._fill = local, zone, fill
        self._keys: list[tuple[Any, ...]] = []
        self._first: list[str] = []  # names of the bucket columns
        fields: list[Field] = []
        flat = list(_flat(by))
        if not flat and not self.items:
            raise UsageError("nothing to compute", hint="give an aggregate or a group")
        versions = {key.field: label for key, label in flat if key.kind == "field"}
        for key, label in flat:
            fields.append(self._key(key, label, versions))
        numbers = [(label, steps) for key, label in flat if (steps := number_steps(key)) is not None]
        self._number_steps = numbers[:1] if fill and not self.time_key else []
        if fill and not self.time_key and len(numbers) > 1:
            hint = "leave the other steps and logarithms out of --by"
            raise UsageError("fills one step of numbers or durations", where="--fill", hint=hint)
        if fill and not self.time_key and not numbers:
            hint = "write e.g. --by 1s, --by len/100, --by 'log2(len)'"
            raise UsageError("needs a step among the groups", where="--fill", hint=hint)
        if fill and sum(f.type.kind == "time" for f in fields) > 1:
            raise UsageError("fills one step of time", where="--fill", hint="leave the other times out of --by")
        self.keys = tuple(f.name for f in fields)
        self._key_fields = fields
        words = ", ".join(item.text for item in self.items) or "groups"
        grouped = f" by {', '.join(self.keys)}" if self.keys else ""
        self._words = f"{words}{grouped} of {schema.kind}"
        self._by_fields = [name for key, _ in flat for name in key.reads]
        self.result = self._schema(self.items)
        self.hide(hidden)

    def hide(self, hidden: Sequence[Result]) -> None:
        """Compute these columns as well, which are not printed."""
        items = (*self.items, *hidden)
        self._plan = ResultPlan(items, {*self.keys, *(item.label for item in items)})
        self.aggs = self._plan.aggs
        self.wide = self.result
        if self._plan.more(len(self.items)):
            self.wide = self._schema([*self.aggs, *self._plan.formulas])
        self._computed = self.wide if PRESENT not in self.wide else self.wide.project(self.wide.shown)
        self._specs = tuple(self._spec(agg) for agg in self.aggs)
        self._rated = self._plan.rated
        self.reads = self._read(self._by_fields)

    def _schema(self, items: Sequence[Result]) -> Schema:
        fields = [*self._key_fields, *(item.result(self.source) for item in items)]
        if self._fill:
            gaps = marked(fields[len(self._key_fields) :], items, PRESENT)
            fields += [Field(PRESENT, "u8", "", "whether the group has rows")] if gaps else []
        names = [c.name for f in fields for c in f.columns]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two result columns are called '{name}'", hint="rename one: ... as NAME")
        return Schema("aggregate", fields, self._words)

    @property
    def step(self) -> int:
        """Length of the steps of time among the groups, ns, of months about; 0 without them."""
        return self.steps.length if self.steps is not None else 0

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
        absent = field.type.zero_is_absent or field.type.kind == "mac"
        return ("nonzero" if kind == "column" and absent else kind, *rest)

    def _key(self, key: GroupKey, label: str, versions: dict[str, str]) -> Field:
        if key.kind in ("conn", "host"):
            return self._either_end(key, label, versions)
        field = self.source[key.field]
        kind, about, version = field.type.kind, field.description, ""
        if kind == "ip" and field.version in versions:
            version = versions[field.version]
        if key.stepped:
            return self._time_step(key, field, label)
        if key.kind in ("step", "power"):
            return self._number_step(key, field, label)
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

    def _either_end(self, key: GroupKey, label: str, versions: dict[str, str]) -> Field:
        # A key of conversations in one direction, or of both ends.
        field = self.source[ADDRESSES[0] if key.kind == "host" else key.label]
        version = versions.get(field.version, "") if field.type.kind == "ip" else ""
        operand, about = self._operand(field, key.arg, key.arg6, bool(version)), "address of either end"
        if key.kind == "host" and operand[0] == "column" and key.arg < 32:
            operand = ("prefix", operand[1], 32, key.arg)
        if key.kind == "conn":
            about = "the end with the higher port" if label.startswith("src") else "the other end"
        elif key.arg < 32 or key.arg6 < 128:
            about = f"first {key.arg} bits (IPv6: {key.arg6}) of the {about}"
        self._keys.append((key.kind, operand, self._ends(key.kind == "conn")))
        return Field(label, field.type, field.unit, about, field.names, version)

    def _ends(self, ports: bool) -> tuple[tuple[int, int], ...]:
        # The columns that are exchanged with the direction: the first pair decides it, then the next ones.
        one, two = (self.source.index(name) for name in ADDRESSES)
        pairs = [(one, two)]
        if self.source[ADDRESSES[0]].type.kind == "ip":
            pairs.insert(0, (one + 1, two + 1))
            versions = [self.source[name].version for name in ADDRESSES]
            if all(versions):
                pairs.append((self.source.index(versions[0]), self.source.index(versions[1])))
        if ports:
            pairs.insert(0, (self.source.index("src_port"), self.source.index("dst_port")))
        return tuple(pairs)

    def _number_step(self, key: GroupKey, field: Field, label: str) -> Field:
        type_, value = field.type, quantity_of_field(field, self.source.index(field.name))
        if value is None or value.kind not in ("int", "duration"):
            raise UsageError(f"{field.name} ({field.type.text}) cannot be grouped by steps of numbers")
        core, about = value.core, f"power of {key.arg} at or below: {field.description}"
        if key.kind == "step":
            about = f"start of the step: {field.description}"
            if core == "i64" and value.kind == "int":
                type_ = Type("i64")  # the lowest step may begin below the smallest value
        step = ("floor" if key.kind == "step" else "power") + f" {core}"
        self._keys.append(("calc", type_.base, (*value.steps, (step, key.arg))))
        return Field(label, type_, field.unit, about)

    def _time_step(self, key: GroupKey, field: Field, label: str) -> Field:
        kind = field.type.kind
        if kind not in ("time", "duration") or key.arg <= 0:
            raise UsageError(f"{field.name} ({field.type.text}) cannot be grouped by steps of time")
        if self._local and kind == "time" and not self._zone:
            from confluo_tools.multilog.query.local_zone import offset_changes

            self._zone = offset_changes()
        steps = TimeSteps(key, self._zone if kind == "time" else ())
        self._keys.append(steps.spec(self.source.index(field.name)))
        self._first.append(label)
        if kind == "time" and self.steps is None:
            self.steps, self.time_key, self.time_key_field = steps, label, field.name
        return Field(label, field.type, "ns", f"start of the step: {field.description}")

    def _spec(self, agg: Aggregate) -> tuple[Any, ...]:
        function = FUNCTIONS[agg.func]
        if agg.value is not None:
            spec = (function.core, agg.value.operand)
            return spec if agg.q is None else (*spec, round(agg.q * 1_000_000))
        if agg.field is None:
            return (function.core,)
        field = self.source[agg.field]
        by_time = self._time is not None and agg.field == self._time.name
        spec = (function.time_core if by_time and function.time_core else function.core, self._value(field))
        return spec if agg.q is None else (*spec, round(agg.q * 1_000_000))

    def _read(self, keys: Iterable[str]) -> tuple[str, ...]:
        names = {*keys, *(name for agg in self.aggs for name in agg.names)}
        names |= {self.source[name].version for name in names}
        if self._time is not None and (
            (self._rated and self.steps is None) or any(agg.func in ("first", "last") for agg in self.aggs)
        ):
            names.add(self._time.name)
        return tuple(f.name for f in self.source.fields if f.name in names)

    # --- filling and finishing

    def rollup(self) -> Rollup:
        """An empty roll-up; add blocks with ``update`` and other roll-ups with ``merge``."""
        from confluo_tools.core.query.rollup import Rollup

        time = -1 if self._time is None else self.source.index(self._time.name)
        spanning = self._rated and self.steps is None
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
        wide = self.wide_answer(rollup, having=having, top=top, order=order, since=since, until=until)
        return self.printed(wide)

    def wide_answer(
        self,
        rollup: Rollup,
        *,
        having: Expr | None = None,
        top: int | None = None,
        order: Sequence[tuple[str, bool]] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> Iterator[Block]:
        """The result as blocks of schema ``wide``; `printed` turns them into those of ``result``."""
        rows = self._timed_rows(rollup, since, until)
        if self._fill:
            rows = self._filled(rows, since, until)
        if having is not None:
            select: Callable[[Block], Picks] = having.program.select
            rows.keep(select)
        rows.sort(self.sorted_by(top, order), top)
        return rows.blocks()

    def rows(self, rollup: Rollup, seconds: float) -> Rows:
        """The rows of schema ``wide`` but without `PRESENT`, in any order.  ``seconds``: of rates.

        Raises ConfluoError on overflow.
        """
        layout, formulas = self._computed.layout, self._plan.formulas
        try:
            rows = rollup.finish(layout, seconds, len(formulas))
        except OverflowError as e:
            column = self._computed.columns[e.args[0]]
            agg = next(a for a in self.aggs if a.label == column.field.name)
            what = agg.field if agg.value is None else agg.value.text
            hint = f"use avg({what}) and count, or group by more keys"
            raise ConfluoError(f"{agg.text} does not fit {column.field.type.text}", hint=hint) from None
        self._plan.check(self._computed, rows)
        self._plan.fill(self._computed, rows, seconds)
        return rows

    def _timed_rows(self, rollup: Rollup, since: int | None, until: int | None) -> Rows:
        if self.steps is None or self.steps.even or not self._rated:
            return self.rows(rollup, self._seconds(rollup, since, until))
        from confluo_tools.core.block.result_table import Rows
        from confluo_tools.multilog.query.uneven_steps import by_length

        rates = [agg.label for agg in self.aggs if agg.func == "rate"]
        columns = [self._computed.index(name) for name in rates]
        pieces = []
        time = self._computed.index(self.time_key)
        for seconds, rows in by_length(self.rows(rollup, 1.0), time, self.steps, columns):
            self._plan.fill(self._computed, rows, seconds)
            pieces += [(block, 0) for block in rows.blocks()]
        return Rows.of(self._computed.layout, pieces)

    def _filled(self, rows: Rows, since: int | None, until: int | None) -> Rows:
        from confluo_tools.core.block.result_table import Rows
        from confluo_tools.core.query.rollup import Rollup
        from confluo_tools.multilog.query.absent_results import with_mark, without_numbers
        from confluo_tools.multilog.query.filled_steps import filled

        # A group without rows has the result of no rows at all.
        schema = Schema("aggregate", self._computed.fields[len(self._key_fields) :], self._words)
        seconds = self.step / NS
        none = Rollup(self.source.layout, (), self._specs).finish(schema.layout, seconds, len(self._plan.formulas))
        self._plan.fill(schema, none, seconds)
        empty = without_numbers(next(iter(none.blocks())), [*self.aggs, *self._plan.formulas], schema)
        keys, layout = self._computed.layout.n - schema.layout.n, self.wide.layout
        if PRESENT in self.wide:
            rows = Rows.of(layout, [(with_mark(layout, block, 1), 0) for block in rows.blocks()])
            empty = with_mark(self.wide.project(schema.shown).plus([self.wide[PRESENT]]).layout, empty, 0)
        for label, steps in self._number_steps:
            return filled(rows, keys, self.wide.index(label), steps, (None, None), empty)
        assert self.steps is not None
        of_rows = self._time is not None and self.time_key_field == self._time.name
        span = (since, until) if of_rows else (None, None)  # which selects rows by their time, not by another one
        return filled(rows, keys, self.wide.index(self.time_key), self.steps, span, empty)

    def printed(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Blocks of schema ``wide`` as blocks of schema ``result``."""
        if self.wide is self.result:
            yield from blocks
            return
        from confluo_tools.core.block.block import Block

        layout = self.result.layout
        columns = [self.wide.layout.index(name) for name in layout.names]
        for block in blocks:
            yield Block.wrap(layout, block.rows, [block.buffer(i) for i in columns])

    def sorted_by(self, top: int | None, order: Sequence[tuple[str, bool]] | None = None) -> list[tuple[int, ...]]:
        """The order of the rows that `answer` gives, of columns of ``wide``: see `Rows.sort`."""
        named = list(order or ())
        if top is not None and order is None and self.items:
            named = [(self.items[0].label, True)]
        return self._columns([*named, *((name, False) for name in (*self._first, *self.keys))])

    def _columns(self, named: Iterable[tuple[str, bool]]) -> list[tuple[int, ...]]:
        # Columns to sort by, each once.  An absent address is a group, but not a value.
        out: list[tuple[int, ...]] = []
        seen: set[int] = set()
        for name, descending in named:
            field = self.wide[name]
            col = self.wide.index(field.name)
            if field.present and self.wide.index(PRESENT) not in seen:  # groups without a value come last
                out.append((self.wide.index(PRESENT), True))
                seen.add(self.wide.index(PRESENT))
            if col in seen:
                continue
            if field.type.kind in ("ip", "ipv4"):
                version = NO_FAMILY if field.type.kind == "ipv4" else NO_VERSION
                if field.version:
                    version = self.wide.index(field.version)
                out.append((col, descending, version, field.name not in self.keys))
            else:
                out.append((col, descending))
            seen.add(col)
        return out

    def _seconds(self, rollup: Rollup, since: int | None, until: int | None) -> float:
        if self.steps is not None:
            return self.step / NS
        first, last = rollup.span or (0, 0)
        return max((last if until is None else until) - (first if since is None else since), 0) / NS


def aggregate(
    pairs: Iterable[tuple[Block, Picks | None]],
    schema: Schema,
    aggs: Sequence[Result],
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
    """The keys with their labels; `flow` and `conn` are expanded into five keys."""
    from confluo_tools.expr.group_keys import GroupKey

    for key in by:
        if key.kind in ("flow", "conn"):
            for name in FLOW_FIELDS:
                kind = "field" if key.kind == "flow" or name == "proto" else "conn"
                yield GroupKey(kind, name, 32, 128, name), name
        else:
            yield key, key.label


def with_time(result: Schema, block: Block, time: int) -> Block:
    """The rows of a window with its time as their first column."""
    from array import array

    from confluo_tools.core.block.block import Block

    columns = [block.buffer(i) for i in range(block.layout.n)]
    return Block.wrap(result.layout, block.rows, [array("q", [time]) * block.rows, *columns])
