"""Arithmetic of fields and of aggregates: text -> `Quantity`, typed, with the steps that compute it.

    sum        a + b   a - b        product    a * b   a / b        atom    12   64KiB   3ms   NAME   -a   (a)

Whole numbers are exact: the steps are chosen by the smallest and largest value that an operand can have.  What could
exceed 64 bits is computed by steps that check each value.  ``/`` gives a float, but a duration by a number is a
duration; a division by zero has no value.

The steps are those of pyx/query/calculation.pyx; ('column', n) is the number of a column for fields, and of an
aggregate for aggregates; ('per', ns) is the length of the time step in units of ns.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.expr.syntax import MAX_DEPTH, MAX_TEXT, ExprError
from confluo_tools.expr.values import NUMBERS
from confluo_tools.units import try_duration, try_number

if TYPE_CHECKING:
    from confluo_tools.schema import Field, Schema

U64 = (0, (1 << 64) - 1)
I64 = (-(1 << 63), (1 << 63) - 1)
SECOND = 10**9
MAX_TERMS = 200

_SPACE = re.compile(r"\s*")
_TOKEN = re.compile(
    r"(?P<number>0[xX][0-9a-fA-F]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+(?![A-Za-z]))?[A-Za-zµμ]*(?:\d+[a-zµμ]+)*)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_.]*~?)"
    r"|(?P<op>[-+*/(),])"
)

Steps = tuple[tuple[Any, ...], ...]


class Quantity(NamedTuple):
    """A value: ``kind`` 'int', 'real', 'duration' or 'time'; all but 'real' are integers from ``lo`` to ``hi``.

    ``kind`` 'other': not a number, such as the largest address; no operator takes it.

    ``unit`` as of fields; ``names``: the fields in it; ``constant``: its value, if it is one; ``checked``: a value
    may not fit 64 bits.
    """

    kind: str
    lo: int
    hi: int
    unit: str
    steps: Steps
    names: tuple[str, ...] = ()
    constant: int | float | None = None
    checked: bool = False

    @property
    def core(self) -> str:
        """Type of its 64 bits."""
        return "f64" if self.kind == "real" else "u64" if self.kind == "int" and self.lo >= 0 else "i64"

    @property
    def type(self) -> str:
        """Type of a field for it."""
        return self.kind if self.kind in ("duration", "time") else self.core


def quantity_of_field(field: Field, column: int) -> Quantity | None:
    """The values of a field; None if they are not numbers."""
    type_ = field.type
    if type_.is_list or type_.kind not in _KINDS:
        return None
    lo, hi = (0, 0) if type_.is_float else type_.bounds
    return Quantity(_KINDS[type_.kind], lo, hi, field.unit, (("column", column),), (field.name,))


_KINDS = dict.fromkeys(NUMBERS, "int")
_KINDS |= {"f32": "real", "f64": "real", "duration": "duration", "time": "time"}


class ArithmeticParser:
    """Reads arithmetic in ``text`` from ``at`` on.  A subclass says what names mean.  ``title``: of its errors."""

    def __init__(self, text: str, at: int, title: str) -> None:
        self.text, self.title, self.end = text, title, len(text)
        self.depth = self.terms = 0
        if len(text) > MAX_TEXT:
            raise ExprError(f"longer than {MAX_TEXT} characters", text[:MAX_TEXT], 0, name=title)
        self.move(at)

    # -- tokens: `token` of `kind` begins at `at`

    def move(self, at: int) -> None:
        """Read the token at or after ``at``."""
        self.at = _SPACE.match(self.text, at).end()  # type: ignore[union-attr]
        match = _TOKEN.match(self.text, self.at, self.end)
        self.kind, self.token = (match.lastgroup or "", match.group()) if match else ("other", self.text[self.at :][:1])
        if self.at >= self.end:
            self.kind, self.token = "end", ""

    def next(self) -> None:
        self.move(self.at + len(self.token))

    def op(self, *ops: str) -> bool:
        return self.kind == "op" and self.token in ops

    def fail(self, what: str, at: int, hint: str = "") -> ExprError:
        return ExprError(what, self.text, at, hint, self.title)

    def found(self) -> str:
        return "the end" if self.kind == "end" else f"'{self.token}'"

    # -- grammar

    def sum(self) -> Quantity:
        left = self.product()
        while self.op("+", "-"):
            op, at = self.token, self.at
            self.next()
            left = self.added(op, left, self.product(), at)
        return left

    def product(self) -> Quantity:
        left = self.factor()
        while self.op("*", "/"):
            op, at = self.token, self.at
            self.next()
            right = self.factor()
            left = self.multiplied(left, right, at) if op == "*" else self.divided(left, right, at)
        return left

    def factor(self) -> Quantity:
        self.terms += 1
        if self.terms > MAX_TERMS:
            raise self.fail(f"more than {MAX_TERMS} terms", self.at)
        at = self.at
        if self.op("-"):
            self.enter()
            value = self.factor()
            self.depth -= 1
            if value.kind == "time":
                raise self.fail("a time has no negative", at)
            zero = Quantity("int" if value.kind == "real" else value.kind, 0, 0, "", (("int", 0),), (), 0)
            return self.added("-", zero, value, at)
        if self.op("("):
            self.enter()
            value = self.sum()
            self.depth -= 1
            if not self.op(")"):
                raise self.fail(f"')' expected, not {self.found()}", self.at)
            self.next()
            return value
        if self.kind == "number":
            return self.constant()
        if self.kind == "word":
            return self.name()
        raise self.fail(f"a value expected, not {self.found()}", at, self.example)

    example = "write e.g. len * 8"

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail(f"more than {MAX_DEPTH} brackets inside each other", self.at)
        self.next()

    def constant(self) -> Quantity:
        value, span = try_number(self.token), None
        if value is None:
            span = try_duration(self.token)
        if value is None and self.token[-1:] == "B":
            value = try_number(self.token[:-1])
        if value is None and span is None:
            raise self.fail(f"'{self.token}' is not a number", self.at, "write e.g. 8, 1.5, 64KiB, 100ms")
        at, pointed = self.at, "." in self.token
        self.next()
        if span is not None:
            return Quantity("duration", span, span, "ns", (("int", span),), (), span)
        if value is not None and (pointed or isinstance(value, float)):
            value = float(value)
            return Quantity("real", 0, 0, "", (("real", value),), (), value)
        assert value is not None
        if not I64[0] <= value <= U64[1]:
            raise self.fail(f"{value} does not fit 64 bits", at)
        return Quantity("int", value, value, "", (("int", value),), (), value)

    def name(self) -> Quantity:
        """The quantity of the name at `at`, which is read."""
        raise NotImplementedError

    def span_division(self, left: Quantity, right: Quantity, at: int) -> Quantity:
        """A number divided by a span of time that is written out."""
        raise self.fail("one row lasts no time", at, "divide the aggregate: sum(len) / 1s")

    # -- operators

    def numbers(self, a: Quantity, b: Quantity, at: int) -> None:
        if "other" in (a.kind, b.kind):
            raise self.fail(f"'{self.text[at]}' needs numbers", at)

    def added(self, op: str, a: Quantity, b: Quantity, at: int) -> Quantity:
        self.numbers(a, b, at)
        unit = a.unit if b.constant is not None or a.unit == b.unit else b.unit if a.constant is not None else ""
        kinds = a.kind, b.kind
        if "time" in kinds:
            if kinds == ("time", "time") and op == "-":
                return self.whole("-", "duration", a, b, "ns")
            if kinds == ("time", "duration") or (kinds == ("duration", "time") and op == "+"):
                return self.whole(op, "time", a, b, "ns")
            raise self.fail(
                f"{_words(a)} {'plus' if op == '+' else 'minus'} {_words(b)} has no meaning", at, _TIME_HINT
            )
        if "duration" in kinds and kinds != ("duration", "duration"):
            what = f"{_words(a)} and {_words(b)} cannot be {'added' if op == '+' else 'subtracted'}"
            raise self.fail(what, at, "a duration has a unit: 5ms")
        if "real" in kinds:
            return _real(op, a, b, unit)
        return self.whole(op, a.kind, a, b, unit)

    def multiplied(self, a: Quantity, b: Quantity, at: int) -> Quantity:
        self.numbers(a, b, at)
        kinds = a.kind, b.kind
        if "time" in kinds or kinds == ("duration", "duration"):
            raise self.fail(f"{_words(a)} and {_words(b)} cannot be multiplied", at)
        unit = a.unit if b.constant is not None else b.unit if a.constant is not None else ""
        if unit == "B" and 8 in (a.constant, b.constant):
            unit = "bit"
        if "duration" in kinds:
            if "real" in kinds:
                return _rounded(_real("*", a, b, "ns"))
            return self.whole("*", "duration", a, b, "ns")
        if "real" in kinds:
            return _real("*", a, b, unit)
        return self.whole("*", "int", a, b, unit)

    def divided(self, a: Quantity, b: Quantity, at: int) -> Quantity:
        self.numbers(a, b, at)
        if "time" in (a.kind, b.kind):
            raise self.fail(f"{_words(a)} cannot be divided by {_words(b)}", at, _TIME_HINT)
        if a.kind == "duration":
            if b.kind == "duration":
                return _real("/", a, b, "")
            return _rounded(_real("/", a, b, "ns"))
        if b.kind == "duration":
            if b.constant is not None:
                return self.span_division(a, b, at)
            seconds = _real("/", b, Quantity("real", 0, 0, "", (("real", float(SECOND)),)), "")
            return _real("/", a, seconds, f"{a.unit}/s")
        unit = a.unit if not b.unit else "" if a.unit == b.unit else f"{a.unit}/{b.unit}" if a.unit else ""
        return _real("/", a, b, unit)

    def whole(self, op: str, kind: str, a: Quantity, b: Quantity, unit: str) -> Quantity:
        """An operation on integers."""
        if op == "*":
            ends = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        else:
            ends = [a.lo + b.lo, a.hi + b.hi] if op == "+" else [a.lo - b.hi, a.hi - b.lo]
        lo, hi = min(ends), max(ends)
        limit = U64 if kind == "int" and lo >= 0 else I64
        fits = limit[0] <= lo and hi <= limit[1]
        step: tuple[Any, ...] = (op,)
        if not fits:
            step = (f"{op}checked", a.core == "i64", b.core == "i64", limit is I64)
        lo, hi = max(lo, limit[0]), min(hi, limit[1])
        if lo > hi:  # no value fits
            lo, hi = limit
        checked = a.checked or b.checked or not fits
        both = fits and a.constant is not None and b.constant is not None
        steps = (("int", lo),) if both else (*a.steps, *b.steps, step)
        return Quantity(kind, lo, hi, unit, steps, _names(a, b), lo if both else None, checked)


_TIME_HINT = "times can be subtracted, and moved by a duration"


def _words(q: Quantity) -> str:
    return {"int": "a number", "real": "a number", "duration": "a duration", "time": "a time"}[q.kind]


def _names(a: Quantity, b: Quantity) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*a.names, *b.names]))


def real_steps(q: Quantity) -> Steps:
    """The steps that give it as a float."""
    return q.steps if q.kind == "real" else (*q.steps, (f"real of {q.core}",))


def _real(op: str, a: Quantity, b: Quantity, unit: str) -> Quantity:
    steps = (*real_steps(a), *real_steps(b), (f"{op}real",))
    return Quantity("real", 0, 0, unit, steps, _names(a, b), None, a.checked or b.checked)


def _rounded(q: Quantity) -> Quantity:
    # A duration of whole nanoseconds.
    return Quantity("duration", *I64, "ns", (*q.steps, ("round",)), q.names, None, True)


class FieldArithmetic(ArithmeticParser):
    """Arithmetic of the fields of ``schema``."""

    def __init__(self, text: str, at: int, title: str, schema: Schema) -> None:
        self.schema = schema
        super().__init__(text, at, title)

    def name(self) -> Quantity:
        name, at = self.token.lower(), self.at
        if name not in self.schema:
            what = f"no field '{self.token}' in schema '{self.schema.kind}'"
            raise self.fail(what, at, self.schema.suggest(name))
        field = self.schema[name]
        found = quantity_of_field(field, self.schema.index(field.name))
        if found is None:
            what = f"{field.name} ({field.type.text}) is not a number"
            hint = f"write count({field.name} has ...)" if field.type.kind == "flags" else ""
            raise self.fail(what, at, hint or "arithmetic needs numbers, durations or times")
        self.next()
        return found
