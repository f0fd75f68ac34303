"""What to compute (``--agg``) and what to group by (``--by``): text -> Agg and By, checked against a schema."""

from __future__ import annotations

import re

from confluo_tools.expr.leaves import Leaf
from confluo_tools.expr.syntax import MAX_TEXT, ExprError
from confluo_tools.expr.values import NUMBERS
from confluo_tools.schema import Field, Schema
from confluo_tools.units import format_duration, try_duration

MAX_ITEMS = 64
NUMERIC = NUMBERS | {"f32", "f64", "duration"}
FUNCTIONS = {
    "count": "", "rate": "?", "sum": "number", "avg": "moment", "mean": "moment", "stddev": "moment",
    "min": "any", "max": "any", "first": "any", "last": "any", "distinct": "any", "distinct~": "any",
    "median": "number",
}  # fmt: skip
FLOW_FIELDS = ("src_ip", "dst_ip", "src_port", "dst_port", "proto")

_QUANTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,4})?)\Z")
_ITEM = re.compile(
    r"\s*([A-Za-z_][A-Za-z0-9_.]*~?)\s*(?:\(\s*([A-Za-z_][A-Za-z0-9_]*|\*)?\s*\))?\s*(?:\s[aA][sS]\s+([A-Za-z_]\w*)\s*)?\Z"
)
_GROUP = re.compile(r"\s*([^\s/]+)\s*(?:/\s*([^\s/]+)\s*)?(?:/\s*([^\s/]+)\s*)?(?:\s[aA][sS]\s+([A-Za-z_]\w*)\s*)?\Z")
_LABEL = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")


class Agg(Leaf):
    """One aggregate: ``func`` of ``field`` (None: of rows), in a column called ``label``.

    ``func``: count sum avg min max stddev first last distinct distinct~ quantile rate; ``q`` of quantile: 0 < q < 1.
    """

    __slots__ = __match_args__ = ("func", "field", "q", "label")

    def __init__(self, func: str, field: str | None, q: float | None, label: str) -> None:
        self.func, self.field, self.q, self.label = func, field, q, label


class By(Leaf):
    """One group key: ``kind`` field, prefix, bucket or flow.

    prefix: ``arg`` bits of an IPv4 (or MAC) address, ``arg6`` bits of an IPv6 address.
    bucket: ``arg`` nanoseconds of the time or duration ``field``.
    """

    __slots__ = __match_args__ = ("kind", "field", "arg", "arg6", "label")

    def __init__(self, kind: str, field: str, arg: int, arg6: int, label: str) -> None:
        self.kind, self.field, self.arg, self.arg6, self.label = kind, field, arg, arg6, label


class _Reader:
    """Items of a list and errors that show their place."""

    def __init__(self, text: str, schema: Schema, name: str) -> None:
        self.text, self.schema, self.name = text, schema, name
        self.at, self.end = 0, len(text)
        if len(text) > MAX_TEXT:
            raise self.fail(f"longer than {MAX_TEXT} characters")

    def fail(self, what: str, hint: str = "", part: str = "", last: bool = False) -> ExprError:
        text = self.text[: self.end].lower()
        shift = -1 if not part else text.rfind(part.lower()) if last else text.find(part.lower(), self.at)
        return ExprError(what, self.text[:MAX_TEXT], max(shift, self.at), hint, self.name)

    def items(self) -> list[str]:
        parts = self.text.split(",")
        if len(parts) > MAX_ITEMS:
            raise self.fail(f"more than {MAX_ITEMS} items")
        return parts

    def start(self, offset: int, part: str) -> None:
        self.at, self.end = offset + len(part) - len(part.lstrip()), offset + len(part)

    def field(self, name: str) -> Field:
        if name.lower() not in self.schema:
            what = f"no field '{name}' in schema '{self.schema.kind}'"
            raise self.fail(what, self.schema.suggest(name.lower()), name)
        return self.schema[name.lower()]

    def label(self, given: str | None, made: str, taken: set[str]) -> str:
        label = (given or made).lower()
        if not _LABEL.match(label):
            raise self.fail(f"'{label}' is too long for a name", "give one: ... as NAME")
        if label in taken:
            raise self.fail(
                f"two columns would be called '{label}'", "give one another name: ... as NAME", given or "", True
            )
        taken.add(label)
        return label


def parse_aggregates(text: str, schema: Schema) -> list[Agg]:
    """'count, sum(len), p99(len) as slowest' -> list of Agg.  Raises ExprError."""
    reader = _Reader(text, schema, "aggregates")
    out: list[Agg] = []
    taken: set[str] = set()
    offset = 0
    for part in reader.items():
        reader.start(offset, part)
        offset += len(part) + 1
        match = _ITEM.match(part)
        if match is None:
            what = f"'{part.strip()}' is not an aggregate" if part.strip() else "an aggregate expected"
            raise reader.fail(what, "write e.g. count, sum(len), p99(len)")
        func, argument, given = match[1].lower(), match[2], match[3]
        out.append(_aggregate(reader, part, func, argument, given, taken))
    return out


def _aggregate(reader: _Reader, part: str, func: str, argument: str | None, given: str | None, taken: set[str]) -> Agg:
    quantile = _QUANTILE.match(func)
    needs = "number" if quantile else FUNCTIONS.get(func)
    if needs is None:
        raise reader.fail(f"no aggregate '{func}'", _near(func))
    if func == "count" and argument not in (None, "*"):
        raise reader.fail("count counts rows", f"write count, or distinct({argument})", argument)
    if argument is None and needs != "?" and func != "count":
        raise reader.fail(f"'{func}' needs a field", f"write {func}(len)")
    if argument == "*" and func != "count":
        raise reader.fail(f"'{func}' needs a field, not *", f"write {func}(len)", "*")
    name = "count" if func == "count" else func.rstrip("~").replace(".", "_")
    if argument is None or argument == "*":
        return Agg(func, None, None, reader.label(given, name, taken))
    field = reader.field(argument)
    if needs != "any" and field.type.element not in (NUMERIC | {"time"} if needs == "moment" else NUMERIC):
        what = f"{func} needs numbers; {field.name} is {field.type.text}"
        raise reader.fail(what, "count, distinct, first, last, min and max take any field", argument)
    label = reader.label(given, f"{name}_{field.name}", taken)
    if quantile or func == "median":
        q = float(quantile[1]) / 100 if quantile else 0.5
        if not 0 < q < 1:
            raise reader.fail(f"'{func}' is not a quantile", "write p1 to p99.99")
        return Agg("quantile", field.name, round(q, 6), label)
    return Agg("avg" if func == "mean" else func, field.name, None, label)


def _near(func: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(func, FUNCTIONS, n=1, cutoff=0.6)
    known = "count sum avg min max stddev first last distinct distinct~ p50..p99.9 rate"
    return f"did you mean '{near[0]}'?" if near else f"there are {known}"


def parse_by(text: str, schema: Schema) -> list[By]:
    """'dst_ip/24, 1s, flow, src_ip/24/64, proto' -> list of By.  Raises ExprError."""
    reader = _Reader(text, schema, "groups")
    out: list[By] = []
    taken: set[str] = set()
    offset = 0
    for part in reader.items():
        reader.start(offset, part)
        offset += len(part) + 1
        match = _GROUP.match(part)
        if match is None:
            what = f"'{part.strip()}' is not a group" if part.strip() else "a group expected"
            raise reader.fail(what, "write e.g. dst_ip/24, 1s, flow, proto")
        out.append(_group(reader, match[1], match[2], match[3], match[4], taken))
    return out


def _group(reader: _Reader, name: str, first: str | None, second: str | None, given: str | None, taken: set[str]) -> By:
    step = try_duration(name)
    if step is not None and first is None:
        field = reader.schema.time_field
        if field is None:
            raise reader.fail(f"schema '{reader.schema.kind}' has no time to group by")
        return _bucket(reader, field, step, name, given, taken)
    if name.lower() == "flow" and "flow" not in reader.schema and first is None:
        lacking = [n for n in FLOW_FIELDS if n not in reader.schema]
        if lacking:
            raise reader.fail(
                f"'flow' needs the fields {', '.join(lacking)}, which schema '{reader.schema.kind}' lacks"
            )
        if given:
            raise reader.fail("'flow' is five columns, which keep their names", part=given, last=True)
        for field_name in FLOW_FIELDS:
            reader.label(None, field_name, taken)
        return By("flow", "flow", 0, 0, "flow")
    field = reader.field(name)
    kind = field.type.kind
    if first is None:
        if field.type.is_float:
            raise reader.fail(f"{field.name} ({field.type.text}) has too many values to group by")
        return By("field", field.name, 0, 0, reader.label(given, field.name, taken))
    if kind in ("time", "duration") and second is None:
        step = try_duration(first)
        return _bucket(reader, field, step, first, given, taken)
    widths = {"ip": 32, "ipv4": 32, "mac": 48}
    if kind not in widths:
        what = f"{field.name} ({field.type.text}) has no prefixes"
        raise reader.fail(what, "addresses have: dst_ip/24; times have steps: ts/1s", "/")
    if second is not None and kind != "ip":
        raise reader.fail(
            f"{field.name} ({field.type.text}) has one length of prefix", f"write {field.name}/{first}", "/"
        )
    bits = _bits(reader, first, 128 if kind == "ip" and second is None else widths[kind])
    bits6 = _bits(reader, second, 128) if second is not None else 64 if bits <= 32 else bits
    label = reader.label(given, field.name, taken)
    return By("prefix", field.name, min(bits, widths[kind]), bits6 if kind == "ip" else 0, label)


def _bits(reader: _Reader, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text) <= most):
        raise reader.fail(f"'{text}' is not a length of prefix", f"0 to {most}", text)
    return int(text)


def _bucket(reader: _Reader, field: Field, step: int | None, text: str, given: str | None, taken: set[str]) -> By:
    if step is None:
        raise reader.fail(f"'{text}' is not a duration", "write e.g. 1s, 100ms", text)
    if step <= 0:
        raise reader.fail(f"a step of {format_duration(step)} is not possible", "write e.g. 1s, 100ms", text)
    return By("bucket", field.name, step, 0, reader.label(given, field.name, taken))
