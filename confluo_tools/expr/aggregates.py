"""Parser of ``--agg``: text -> Aggregate and Formula, checked against a schema.

count   count(COND)   FUNC(FIELD)   FUNC(ARITHMETIC)      and arithmetic of these      ... as NAME
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from confluo_tools.expr.aggregate_functions import (
    ANY_FIELD,
    FUNCTIONS,
    KNOWN,
    WRITTEN,
    AggregateFunction,
    function_of,
    written,
)
from confluo_tools.expr.arithmetic import (
    ArithmeticParser,
    FieldArithmetic,
    Quantity,
    Steps,
    quantity_of_field,
    real_steps,
)
from confluo_tools.expr.labels import bad_label, label_of
from confluo_tools.expr.leaves import Leaf
from confluo_tools.expr.syntax import ExprError, ListError
from confluo_tools.schema import Field, Schema
from confluo_tools.units import format_duration

MAX_ITEMS = 64
MAX_COUNT = (1 << 63) - 1  # of rows
SECOND = 10**9

Conditions = Callable[[str, int], Any]  # compiles a condition at a time, ns, to an `Expr`
NOW, LATER = 1_700_000_000_000_000_000, 1_234_567_890_123_456_789  # two times, for conditions relative to `now`
_SCAN = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[()]", re.DOTALL)


class Computed(Leaf):
    """What an aggregate takes instead of a field: values of type ``type`` and ``unit``, or rows (type '').

    ``operand``: as `Rollup` takes it.  ``names``: the fields in it.  ``checked``: a value may not fit 64 bits.
    """

    __slots__ = __match_args__ = ("text", "type", "unit", "operand", "names", "checked")

    def __init__(
        self, text: str, type: str, unit: str, operand: tuple[Any, ...], names: tuple[str, ...], checked: bool
    ) -> None:
        self.text, self.type, self.unit, self.operand, self.names = text, type, unit, operand, names
        self.checked = checked


class Aggregate(Leaf):
    """One aggregate: ``func`` of ``field`` or ``value`` (both None: of rows), in a column called ``label``.

    ``func``: a key of `aggregate_functions.FUNCTIONS`; ``q`` of a quantile: 0 < q < 1.
    """

    __slots__ = __match_args__ = ("func", "field", "q", "label", "value")

    def __init__(
        self, func: str, field: str | None, q: float | None, label: str, value: Computed | None = None
    ) -> None:
        self.func, self.field, self.q, self.label, self.value = func, field, q, label, value

    @property
    def text(self) -> str:
        """As it is written: ``sum(len)``."""
        return written(self.func, self.field if self.value is None else self.value.text, self.q)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that it reads."""
        return self.value.names if self.value is not None else () if self.field is None else (self.field,)

    @property
    def same(self) -> tuple[Any, ...]:
        """What it computes: all but its name."""
        return self.func, self.field, self.q, self.value

    def result(self, schema: Schema) -> Field:
        """The field of its values.  Raises UsageError if it does not apply to its field."""
        return result_field(self, schema)


class Formula(Leaf):
    """Arithmetic of the aggregates ``parts``, in a column called ``label``, of ``type`` and ``unit``.

    ``steps`` as of `arithmetic`; ('column', i) is the value of parts[i].
    """

    __slots__ = __match_args__ = ("text", "label", "type", "unit", "steps", "parts")

    def __init__(self, text: str, label: str, type: str, unit: str, steps: Steps, parts: tuple[Aggregate, ...]) -> None:
        self.text, self.label, self.type, self.unit, self.steps, self.parts = text, label, type, unit, steps, parts

    def result(self, schema: Schema) -> Field:
        """The field of its values."""
        return Field(self.label, self.type, self.unit, self.text)


Result = Aggregate | Formula


def result_field(agg: Aggregate, schema: Schema) -> Field:
    """The field of the values of an aggregate.  Raises UsageError if it does not apply to its field."""
    from confluo_tools.errors import UsageError

    function = FUNCTIONS.get(agg.func)
    if function is None:
        raise UsageError(f"no aggregate '{agg.func}'")
    if agg.value is not None and not agg.value.type:
        return Field(agg.label, "u64", "", f"rows where {agg.value.text}")
    if agg.value is None and agg.field is None:
        if function.result == "rate":
            return Field(agg.label, "f64", "/s", "rows per second")
        return Field(agg.label, "u64", "", "rows")
    if agg.value is not None:
        about = f"{function.words} of {agg.value.text}"
        field = Field("value", agg.value.type, agg.value.unit, agg.value.text)
    else:
        field = schema[agg.field or ""]
        about = f"{function.words} of {field.name}: {field.description}"
    kind, unit = field.type.element, field.unit
    if function.takes is not None and kind not in function.takes:
        raise UsageError(f"{agg.func} needs numbers; {field.name} is {field.type.text}")
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
        name = agg.field or field.description
        about = f"{100 * agg.q:g} % of {name} are at most this (within 0.4 %): {field.description}"
    deviation = function.result == "deviation"
    return Field(agg.label, ("duration" if deviation else kind) if moment else "f64", unit, about)


def parse_aggregates(text: str, schema: Schema, conditions: Conditions) -> list[Result]:
    """'count, sum(len * 8) / 1s as rate' -> the columns.  ``conditions`` compiles those of count(...).

    Raises ExprError.
    """
    return AggregateParser(text, schema, conditions).results()


def plain_aggregates(text: str, schema: Schema, conditions: Conditions) -> list[Aggregate]:
    """As `parse_aggregates`, for those without arithmetic of aggregates.  Raises ExprError."""
    out = []
    for item in parse_aggregates(text, schema, conditions):
        if isinstance(item, Formula):
            raise ExprError("arithmetic of aggregates is not possible here", text, 0, "", "aggregates")
        out.append(item)
    return out


class AggregateParser(ArithmeticParser):
    """Reads a list of aggregates and arithmetic of them, which may name those ``before`` it."""

    example = "write e.g. count, sum(len), p99(len)"

    def __init__(
        self,
        text: str,
        schema: Schema,
        conditions: Conditions,
        title: str = "aggregates",
        at: int = 0,
        before: AggregateParser | None = None,
    ) -> None:
        self.schema, self.conditions = schema, conditions
        self.parts: list[Aggregate] = [] if before is None else before.parts  # all aggregates so far, each once
        self.known: dict[str, Quantity] = {} if before is None else before.known  # by label
        self.called = False  # whether there was a function with an argument
        super().__init__(text, at, title)

    def results(self) -> list[Result]:
        """The items of the list, to the end of the text."""
        out: list[Result] = []
        while True:
            if self.kind == "end" or self.op(","):
                raise self.fail("an aggregate expected", self.at, self.example)
            out.append(self.item())
            if self.kind == "end":
                return out
            if not self.op(","):
                raise self.fail(f"{self.found()} after an aggregate", self.at, "write a comma between aggregates")
            if len(out) == MAX_ITEMS:
                raise self.fail(f"more than {MAX_ITEMS} items", self.at)
            self.next()

    def item(self) -> Result:
        """One aggregate or formula, with its name."""
        start = self.at
        value = self.sum()
        text = self.text[start : self.at].strip()
        given, at = None, start
        if self.kind == "word" and self.token.lower() == "as":
            self.next()
            given, at = self.token, self.at
            if self.kind != "word":
                raise self.fail(f"a name expected, not {self.found()}", at, "write e.g. sum(len) as bytes")
            self.next()
        result = self.result(value, text, given, start)
        fault = bad_label(result.label, self.known)
        if fault is not None:
            raise self.fail(fault[0], at, fault[1])
        self.known[result.label] = value
        return result

    def result(self, value: Quantity, text: str, given: str | None, at: int) -> Result:
        """The aggregate or formula with this value."""
        numbers = list(dict.fromkeys([step[1] for step in value.steps if step[0] == "column"]))
        if not numbers:
            raise self.fail(f"no aggregate in '{text}'", at, self.example)
        if len(value.steps) == 1:
            agg = self.parts[numbers[0]]
            return Aggregate(agg.func, agg.field, agg.q, (given or agg.label).lower(), agg.value)
        steps = tuple([("column", numbers.index(s[1])) if s[0] == "column" else s for s in value.steps])
        label = (given or label_of(text)).lower()
        text = " ".join(text.split())
        return Formula(text, label, value.type, value.unit, steps, tuple([self.parts[i] for i in numbers]))

    # -- names: functions, and columns that came before

    def name(self) -> Quantity:
        word, at = self.token, self.at
        found = function_of(word.lower())
        if found is None:
            if word.lower() in self.known:
                self.next()
                return self.known[word.lower()]
            raise self.fail(f"no aggregate '{word.lower()}'", at, _near(word.lower()))
        self.next()
        agg = self.aggregate(word.lower(), *found, at)
        places = [i for i, part in enumerate(self.parts) if part.same == agg.same]
        if not places:
            places = [len(self.parts)]
            self.parts.append(agg)
        return self.quantity(agg, places[0])

    def quantity(self, agg: Aggregate, place: int) -> Quantity:
        """The value of an aggregate."""
        found = quantity_of_field(agg.result(self.schema), place)
        if found is None:
            return Quantity("other", 0, 0, "", (("column", place),))
        counts = FUNCTIONS[agg.func].result == "count"
        return found._replace(names=(), hi=MAX_COUNT if counts else found.hi)

    def span_division(self, left: Quantity, right: Quantity, at: int) -> Quantity:
        """A number per span of time: of the steps of time, or of the whole span."""
        span = int(right.constant or 0)
        if span <= 0:
            raise self.fail(f"a span of {format_duration(span)} is not possible", at)
        unit = f"{left.unit}/s" if span == SECOND else f"{left.unit}/{format_duration(span)}"
        return Quantity("real", 0, 0, unit, (*real_steps(left), ("per", span), ("/real",)))

    # -- one aggregate

    def aggregate(self, func: str, function: AggregateFunction, q: float | None, at: int) -> Aggregate:
        """The aggregate of the function that was just read, with its argument; named after both."""
        name = func.rstrip("~").replace(".", "_")
        if q is not None and not 0 < q < 1:
            raise self.fail(f"'{func}' is not a quantile", at, "write p1 to p99.99")
        q = None if q is None else round(q, 6)
        star: int | None = None
        if self.op("("):
            rows, star = self._rows()
            if not rows:
                return self._of_argument(func, function, q, name)
        if star is not None and function.fields:
            raise self.fail(f"'{func}' needs a field, not *", star, f"write {func}(len)")
        if not function.rows:
            raise self.fail(f"'{func}' needs a field", at, f"write {func}(len)")
        return Aggregate(function.name, None, None, name)

    def _rows(self) -> tuple[bool, int | None]:
        """Read `()` or `(*)` if that is next; whether it was, and where the star is."""
        at, star = self.at, None
        self.next()
        if self.op("*"):
            star = self.at
            self.next()
        if self.op(")"):
            self.next()
            return True, star
        self.move(at)
        return False, None

    def _of_argument(self, func: str, function: AggregateFunction, q: float | None, name: str) -> Aggregate:
        self.called = True
        self.next()
        if self.kind == "end":
            raise self.fail("')' expected before the end", self.at)
        if not function.fields:
            return self._rows_where(function, name)
        value = self._argument(func, function)
        if isinstance(value, str):
            return Aggregate(function.name, value, q, f"{name}_{value}")
        return Aggregate(function.name, None, q, label_of(f"{name}_{value.text}"), value)

    def _rows_where(self, function: AggregateFunction, name: str) -> Aggregate:
        """count(COND): what follows the bracket."""
        start, end = self.at, closing_bracket(self.text, self.at)
        if end < 0:
            raise self.fail("')' expected before the end", len(self.text))
        text = self.text[start:end].strip()
        expr = self._compiled(text, start)
        self.move(end + 1)
        shown = " ".join(text.split())
        value = Computed(shown, "", "", ("where", expr.tree), expr.fields, False)
        return Aggregate(function.name, None, None, label_of(f"{name}_{shown}"), value)

    def _compiled(self, text: str, start: int) -> Any:
        try:
            expr = self.conditions(text, NOW)
            if self.conditions(text, LATER).tree != expr.tree:
                raise self.fail("relative to the current time, so a result would change", start, "write a date")
        except ListError:
            raise
        except ExprError as e:
            raise self.fail(e.what, e.pos if e.text is self.text else start + e.pos, e.hint) from None
        return expr

    def _argument(self, func: str, function: AggregateFunction) -> str | Computed:
        """A field of any type, or arithmetic of fields, and the closing bracket."""
        start, word = self.at, self.token.lower()
        if self.kind == "word":
            self.next()
            if self.op(")"):
                self.next()
                return self._field(func, function, word, start)
        inner = FieldArithmetic(self.text, start, self.title, self.schema)
        value = inner.sum()
        if not inner.op(")"):
            raise self.fail(f"')' expected, not {inner.found()}", inner.at, "write e.g. sum(len * 8)")
        text = " ".join(self.text[start : inner.at].split())
        self.move(inner.at)
        self.next()
        if not value.names:
            raise self.fail(f"no field in '{text}'", start, f"write e.g. {func}(len * 8)")
        if function.result == "field":
            raise self.fail(f"{func} takes a field", start, "min and max take arithmetic")
        if function.takes is not None and value.type not in function.takes:
            raise self.fail(f"{func} needs numbers; {text} is a time", start, "subtract another time")
        return Computed(text, value.type, value.unit, ("calc", value.core, value.steps), value.names, value.checked)

    def _field(self, func: str, function: AggregateFunction, name: str, at: int) -> str:
        if name not in self.schema:
            what = f"no field '{self.text[at : at + len(name)]}' in schema '{self.schema.kind}'"
            raise self.fail(what, at, self.schema.suggest(name))
        field = self.schema[name]
        if function.takes is not None and field.type.element not in function.takes:
            what = f"{func} needs numbers; {field.name} is {field.type.text}"
            raise self.fail(what, at, f"count, {', '.join(ANY_FIELD[:-1])} and {ANY_FIELD[-1]} take any field")
        return field.name


def closing_bracket(text: str, at: int) -> int:
    """The position of the bracket that closes one before ``at``; -1: none."""
    deep = 1
    for match in _SCAN.finditer(text, at):
        deep += {"(": 1, ")": -1}.get(match.group(), 0)
        if deep == 0:
            return match.start()
    return -1


def _near(func: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(func, WRITTEN, n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else f"there are {KNOWN}"
