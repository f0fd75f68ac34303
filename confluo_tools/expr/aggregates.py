"""Parser of ``--agg`` and ``--by``: text -> Aggregate and GroupKey, checked against a schema."""

from __future__ import annotations

import re

from confluo_tools.expr.aggregate_functions import ANY_FIELD, KNOWN, WRITTEN, function_of, written
from confluo_tools.expr.leaves import Leaf
from confluo_tools.expr.syntax import MAX_TEXT, ExprError
from confluo_tools.schema import Field, Schema
from confluo_tools.schema.choose import FLOW_FIELDS
from confluo_tools.units import format_duration, try_duration

MAX_ITEMS = 64

_ITEM = re.compile(
    r"\s*([A-Za-z_][A-Za-z0-9_.]*~?)\s*(?:\(\s*([A-Za-z_][A-Za-z0-9_]*|\*)?\s*\))?\s*(?:\s[aA][sS]\s+([A-Za-z_]\w*)\s*)?\Z"
)
_GROUP = re.compile(r"\s*([^\s/]+)\s*(?:/\s*([^\s/]+)\s*)?(?:/\s*([^\s/]+)\s*)?(?:\s[aA][sS]\s+([A-Za-z_]\w*)\s*)?\Z")
_LABEL = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")


class Aggregate(Leaf):
    """One aggregate: ``func`` of ``field`` (None: of rows), in a column called ``label``.

    ``func``: a key of `aggregate_functions.FUNCTIONS`; ``q`` of a quantile: 0 < q < 1.
    """

    __slots__ = __match_args__ = ("func", "field", "q", "label")

    def __init__(self, func: str, field: str | None, q: float | None, label: str) -> None:
        self.func, self.field, self.q, self.label = func, field, q, label

    @property
    def text(self) -> str:
        """As it is written: ``sum(len)``."""
        return written(self.func, self.field, self.q)


class GroupKey(Leaf):
    """One group key: ``kind`` field, prefix, bucket or flow.

    prefix: ``arg`` bits of an IPv4 (or MAC) address, ``arg6`` bits of an IPv6 address.
    bucket: ``arg`` nanoseconds of the time or duration ``field``.
    """

    __slots__ = __match_args__ = ("kind", "field", "arg", "arg6", "label")

    def __init__(self, kind: str, field: str, arg: int, arg6: int, label: str) -> None:
        self.kind, self.field, self.arg, self.arg6, self.label = kind, field, arg, arg6, label


class _ItemReader:
    """Splits a list into items and makes errors with their position."""

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


def parse_aggregates(text: str, schema: Schema) -> list[Aggregate]:
    """'count, sum(len), p99(len) as slowest' -> list of Aggregate.  Raises ExprError."""
    reader = _ItemReader(text, schema, "aggregates")
    out: list[Aggregate] = []
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


def _aggregate(
    reader: _ItemReader, part: str, func: str, argument: str | None, given: str | None, taken: set[str]
) -> Aggregate:
    found = function_of(func)
    if found is None:
        raise reader.fail(f"no aggregate '{func}'", _near(func))
    function, q = found
    if argument not in (None, "*") and not function.fields:
        raise reader.fail("count counts rows", f"write count, or distinct({argument})", argument)
    if argument is None and not function.rows:
        raise reader.fail(f"'{func}' needs a field", f"write {func}(len)")
    if argument == "*" and function.fields:
        raise reader.fail(f"'{func}' needs a field, not *", f"write {func}(len)", "*")
    name = func.rstrip("~").replace(".", "_")
    if argument is None or argument == "*":
        return Aggregate(function.name, None, None, reader.label(given, name, taken))
    field = reader.field(argument)
    if function.takes is not None and field.type.element not in function.takes:
        what = f"{func} needs numbers; {field.name} is {field.type.text}"
        raise reader.fail(what, f"count, {', '.join(ANY_FIELD[:-1])} and {ANY_FIELD[-1]} take any field", argument)
    label = reader.label(given, f"{name}_{field.name}", taken)
    if q is None:
        return Aggregate(function.name, field.name, None, label)
    if not 0 < q < 1:
        raise reader.fail(f"'{func}' is not a quantile", "write p1 to p99.99")
    return Aggregate(function.name, field.name, round(q, 6), label)


def _near(func: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(func, WRITTEN, n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else f"there are {KNOWN}"


def parse_by(text: str, schema: Schema) -> list[GroupKey]:
    """'dst_ip/24, 1s, flow, src_ip/24/64, proto' -> list of GroupKey.  Raises ExprError."""
    reader = _ItemReader(text, schema, "groups")
    out: list[GroupKey] = []
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


def _group(
    reader: _ItemReader, name: str, first: str | None, second: str | None, given: str | None, taken: set[str]
) -> GroupKey:
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
        return GroupKey("flow", "flow", 0, 0, "flow")
    field = reader.field(name)
    kind = field.type.kind
    if first is None:
        if field.type.is_float:
            raise reader.fail(f"{field.name} ({field.type.text}) has too many values to group by")
        return GroupKey("field", field.name, 0, 0, reader.label(given, field.name, taken))
    if kind in ("time", "duration") and second is None:
        step = try_duration(first)
        return _bucket(reader, field, step, first, given, taken)
    widths = {"ip": 32, "ipv4": 32, "mac": 48}
    if kind not in widths:
        what = f"{field.name} ({field.type.text}) has no prefixes"
        raise reader.fail(what, "addresses have: dst_ip/24; times have steps: ts/1s", "/")
    if second is not None and kind != "ip":
        raise reader.fail(
            f"{field.name} ({field.type.text}) takes one prefix length", f"write {field.name}/{first}", "/"
        )
    bits = _bits(reader, first, 128 if kind == "ip" and second is None else widths[kind])
    bits6 = _bits(reader, second, 128) if second is not None else 64 if bits <= 32 else bits
    label = reader.label(given, field.name, taken)
    return GroupKey("prefix", field.name, min(bits, widths[kind]), bits6 if kind == "ip" else 0, label)


def _bits(reader: _ItemReader, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text) <= most):
        raise reader.fail(f"'{text}' is not a prefix length", f"0 to {most}", text)
    return int(text)


def _bucket(
    reader: _ItemReader, field: Field, step: int | None, text: str, given: str | None, taken: set[str]
) -> GroupKey:
    if step is None:
        raise reader.fail(f"'{text}' is not a duration", "write e.g. 1s, 100ms", text)
    if step <= 0:
        raise reader.fail(f"a step of {format_duration(step)} is not possible", "write e.g. 1s, 100ms", text)
    return GroupKey("bucket", field.name, step, 0, reader.label(given, field.name, taken))
