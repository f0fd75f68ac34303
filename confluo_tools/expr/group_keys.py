"""Parser of ``--by``: text -> GroupKey, checked against a schema."""

from __future__ import annotations

import re

from confluo_tools.expr.labels import bad_label
from confluo_tools.expr.leaves import Leaf
from confluo_tools.expr.syntax import MAX_TEXT, ExprError
from confluo_tools.expr.values import NUMBERS
from confluo_tools.schema import Field, Schema
from confluo_tools.schema.choose import ADDRESSES, FLOW_FIELDS
from confluo_tools.units import format_duration, try_duration, try_number

MAX_ITEMS = 64

_LOG = re.compile(r"log(2|10)\s*\(\s*([^\s/()]+)\s*\)\Z", re.IGNORECASE)
_GROUP = re.compile(
    r"\s*([lL][oO][gG](?:2|10)\s*\([^/()]*\)|[^\s/]+)\s*"
    r"(?:/\s*([^\s/]+)\s*)?(?:/\s*([^\s/]+)\s*)?(?:\s[aA][sS]\s+([A-Za-z_]\w*)\s*)?\Z"
)
_CALENDAR = re.compile(r"(\d{1,9})(w|mo|y)\Z")
_UNITS = {"w": ("weeks", 1), "mo": ("months", 1), "y": ("months", 12)}
_MOST = {"weeks": 15_250, "months": 7_015}  # in 64 bits of ns
_MAX_WIDTH = (1 << 63) - 1
_WIDTHS = {"ip": 32, "ipv4": 32, "mac": 48}  # bits of the types that have prefixes


class GroupKey(Leaf):
    """One group key: ``kind`` field, prefix, bucket, weeks, months, step, power, flow, conn or host.

    prefix: ``arg`` bits of an IPv4 (or MAC) address, ``arg6`` bits of an IPv6 address.
    bucket: ``arg`` nanoseconds of the time or duration ``field``.
    weeks: ``arg`` weeks of the time ``field``, from Monday on; months: ``arg`` months.
    step: multiples of ``arg`` of the whole numbers of ``field``.
    conn: the five fields of `flow`, with both directions in one group.
    host: prefixes, as above, of source and destination: a row is in the groups of both.
    power: powers of ``arg`` (2 or 10) of the numbers, or nanoseconds, of ``field``; negative ones for negative values.
    """

    __slots__ = __match_args__ = ("kind", "field", "arg", "arg6", "label")

    def __init__(self, kind: str, field: str, arg: int, arg6: int, label: str) -> None:
        self.kind, self.field, self.arg, self.arg6, self.label = kind, field, arg, arg6, label

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the fields that it reads."""
        return {"flow": FLOW_FIELDS, "conn": FLOW_FIELDS, "host": ADDRESSES}.get(self.kind, (self.field,))

    @property
    def stepped(self) -> bool:
        """Whether the groups are steps of a time or a duration."""
        return self.kind in ("bucket", "weeks", "months")


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
        fault = bad_label(label, taken)
        if fault is not None:
            raise self.fail(*fault, given or "", True)
        taken.add(label)
        return label


def parse_by(text: str, schema: Schema) -> list[GroupKey]:
    """'dst_ip/24, 1s, flow, src_ip/24/64, host, proto' -> list of GroupKey.  Raises ExprError."""
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
    if (try_duration(name) is not None or _CALENDAR.match(name)) and first is None:
        field = reader.schema.time_field
        if field is None:
            raise reader.fail(f"schema '{reader.schema.kind}' has no time to group by")
        return _bucket(reader, field, name, given, taken)
    word = name.lower()
    if word in ("flow", "conn") and word not in reader.schema and first is None:
        return _five_fields(reader, word, given, taken)
    if word in ("host", "endpoint") and word not in reader.schema:
        return _host(reader, word, first, second, given, taken)
    log = _LOG.match(name)
    if log is not None:
        if first is not None:
            raise reader.fail(f"{name} takes no step", f"write {name}, or {log[2]}/{first}", "/")
        return _power(reader, int(log[1]), log[2], given, taken)
    field = reader.field(name)
    kind = field.type.kind
    if first is None:
        if field.type.is_float:
            raise reader.fail(f"{field.name} ({field.type.text}) has too many values to group by")
        return GroupKey("field", field.name, 0, 0, reader.label(given, field.name, taken))
    if kind in ("time", "duration") and second is None:
        return _bucket(reader, field, first, given, taken)
    if kind in NUMBERS:
        return _step(reader, field, first, second, given, taken)
    if kind not in _WIDTHS:
        what = f"{field.name} ({field.type.text}) has no prefixes"
        raise reader.fail(what, "write e.g. dst_ip/24, ts/1s, len/100", "/")
    bits, bits6 = _prefix(reader, field, field.name, first, second)
    return GroupKey("prefix", field.name, bits, bits6, reader.label(given, field.name, taken))


def _prefix(reader: _ItemReader, field: Field, name: str, first: str, second: str | None) -> tuple[int, int]:
    kind = field.type.kind
    if second is not None and kind != "ip":
        raise reader.fail(f"{name} ({field.type.text}) takes one prefix length", f"write {name}/{first}", "/")
    bits = _bits(reader, first, 128 if kind == "ip" and second is None else _WIDTHS[kind])
    bits6 = _bits(reader, second, 128) if second is not None else 64 if bits <= 32 else bits
    return min(bits, _WIDTHS[kind]), bits6 if kind == "ip" else 0


def _five_fields(reader: _ItemReader, word: str, given: str | None, taken: set[str]) -> GroupKey:
    _need(reader, word, FLOW_FIELDS)
    if given:
        raise reader.fail(f"'{word}' is five columns, which keep their names", part=given, last=True)
    for name in FLOW_FIELDS:
        reader.label(None, name, taken)
    if word == "conn":
        _alike(reader, word, *ADDRESSES)
        _alike(reader, word, "src_port", "dst_port")
    return GroupKey(word, word, 0, 0, word)


def _host(
    reader: _ItemReader, word: str, first: str | None, second: str | None, given: str | None, taken: set[str]
) -> GroupKey:
    _need(reader, word, ADDRESSES)
    _alike(reader, word, *ADDRESSES)
    label = reader.label(given, word, taken)
    if first is None:
        return GroupKey("host", "host", 32, 128, label)
    return GroupKey("host", "host", *_prefix(reader, reader.schema["src_ip"], word, first, second), label)


def _need(reader: _ItemReader, word: str, names: tuple[str, ...]) -> None:
    lacking = [n for n in names if n not in reader.schema]
    if lacking:
        raise reader.fail(f"'{word}' needs the fields {', '.join(lacking)}, which schema '{reader.schema.kind}' lacks")


def _alike(reader: _ItemReader, word: str, one: str, other: str) -> None:
    # Types that a row can exchange.
    types = {reader.schema[name].type.text for name in (one, other)}
    if len(types) > 1 or not types <= ({"ip", "ipv4"} if one in ADDRESSES else {"u16", "u32"}):
        raise reader.fail(f"'{word}' does not apply to the fields {one} and {other} of '{reader.schema.kind}'")


def _bits(reader: _ItemReader, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text) <= most):
        raise reader.fail(f"'{text}' is not a prefix length", f"0 to {most}", text)
    return int(text)


def _bucket(reader: _ItemReader, field: Field, text: str, given: str | None, taken: set[str]) -> GroupKey:
    parts = _CALENDAR.match(text)
    if parts is not None and field.type.kind == "time":
        return _calendar_step(reader, field, parts, given, taken)
    step = try_duration(text)
    if step is None:
        if parts is not None:
            what = f"months and years have no fixed length, and {field.name} is a duration"
            raise reader.fail(what, f"write e.g. {field.name}/30d", text)
        raise reader.fail(f"'{text}' is not a duration", "write e.g. 1s, 100ms", text)
    if step <= 0:
        raise reader.fail(f"a step of {format_duration(step)} is not possible", "write e.g. 1s, 100ms", text)
    return GroupKey("bucket", field.name, step, 0, reader.label(given, field.name, taken))


def _calendar_step(
    reader: _ItemReader, field: Field, parts: re.Match[str], given: str | None, taken: set[str]
) -> GroupKey:
    kind, each = _UNITS[parts[2]]
    count = int(parts[1]) * each
    if not 1 <= count <= _MOST[kind]:
        raise reader.fail(f"a step of {parts[0]} is not possible", "write e.g. 1w, 1mo, 1y", parts[0])
    return GroupKey(kind, field.name, count, 0, reader.label(given, field.name, taken))


def _step(
    reader: _ItemReader, field: Field, text: str, second: str | None, given: str | None, taken: set[str]
) -> GroupKey:
    if second is not None:
        raise reader.fail(f"{field.name} ({field.type.text}) takes one step", f"write {field.name}/{text}", "/")
    width = try_number(text)
    if not isinstance(width, int):
        raise reader.fail(f"'{text}' is not a whole number", f"write e.g. {field.name}/100", text)
    if not 1 <= width <= _MAX_WIDTH:
        raise reader.fail(f"a step of {text} is not possible", f"write e.g. {field.name}/100", text)
    return GroupKey("step", field.name, width, 0, reader.label(given, field.name, taken))


def _power(reader: _ItemReader, base: int, name: str, given: str | None, taken: set[str]) -> GroupKey:
    field = reader.field(name)
    if field.type.kind not in NUMBERS and field.type.kind != "duration":
        what = f"{field.name} ({field.type.text}) has no logarithm"
        raise reader.fail(what, "whole numbers and durations have: log2(len)", name)
    return GroupKey("power", field.name, base, 0, reader.label(given, field.name, taken))
