"""Types of fields as types of ClickHouse's columns: those of a new table, and what an existing one may have."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from confluo_tools.schema import Field

_NUMBER = re.compile(r"(U?)Int(8|16|32|64)")
_TIME = re.compile(r"DateTime64\((\d)(?:, *'[^']*')?\)")
_SECONDS = re.compile(r"DateTime(?:\('[^']*'\))?")
_ENUM = re.compile(r"Enum(8|16)\((.*)\)", re.DOTALL)
_MEMBER = re.compile(r"'((?:[^'\\]|\\.)*)' *= *(-?\d+)", re.DOTALL)
_ESCAPE = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f"}
REST = ("unknown", "other", "")  # members of an Enum for values without a name, the first one that it has
_BITS = {"u8": "UInt8", "u16": "UInt16", "u32": "UInt32", "u64": "UInt64"}
_BITS |= {"i8": "Int8", "i16": "Int16", "i32": "Int32", "i64": "Int64", "f32": "Float32", "f64": "Float64"}


class Dialect(NamedTuple):
    """What a server knows of types.  18.16 knows neither; servers since 2020 know both.

    ``times``: DateTime64, IPv4 and IPv6.  ``converts``: a String given for LowCardinality(String) and the like.
    """

    times: bool = True
    converts: bool = True


class ColumnCast(NamedTuple):
    """How the values of a field become those of a column.

    ``type``: as the block names it.  ``cast``: of `core.clickhouse.native_batch`.  ``to``: bytes of a value; of texts,
    those of the field; of lists, of one element.  ``unit``: ns.  ``members``: of an Enum, two bytes for each value of
    the field.
    """

    type: str
    cast: str
    to: int
    unit: int = 1
    nullable: bool = False
    members: bytes = b""


def new_type(field: Field, dialect: Dialect) -> str:
    """The type of a column for ``field`` in a new table."""
    kind, type = field.type.element, field.type
    if type.is_list:
        return f"Array({_scalar_type(kind, type.base, dialect)})"
    if kind == "bytes":
        return f"FixedString({type.size})"
    if kind == "text":
        return "String"
    return _scalar_type(kind, type.base, dialect)


def _scalar_type(kind: str, base: str, dialect: Dialect) -> str:
    if kind == "enum":
        return "LowCardinality(String)" if dialect.converts else "String"
    if dialect.times:
        known = {"time": "DateTime64(9, 'UTC')", "ip": "IPv6", "ipv4": "IPv4"}
    else:
        known = {"time": "Int64", "ip": "FixedString(16)", "ipv4": "UInt32"}
    return known.get(kind) or _BITS[base]


def cast_of(field: Field, type: str, dialect: Dialect) -> ColumnCast | None:
    """How ``field`` is written into a column of ClickHouse's ``type``; None: it does not fit."""
    inner, few = _inside(type, "LowCardinality")
    if few and not dialect.converts:
        return None
    plain, nullable = _inside(inner, "Nullable")
    if field.type.is_list:
        element, is_array = _inside(plain, "Array")
        found = _number(field, element) or _time(field, element) or _address(field, element) if is_array else None
        if found is None or found.cast != "copy":
            return None
        return ColumnCast(inner, "array", found.to)
    found = (
        _number(field, plain)
        or _time(field, plain)
        or _address(field, plain)
        or _text(field, plain)
        or _enum(field, plain)
    )
    return found._replace(type=inner, nullable=nullable) if found is not None else None


def _inside(type: str, word: str) -> tuple[str, bool]:
    """(what is between the parentheses of ``word``, True), or (``type``, False)."""
    if type.startswith(f"{word}(") and type.endswith(")"):
        return type[len(word) + 1 : -1], True
    return type, False


def _number(field: Field, type: str) -> ColumnCast | None:
    kind, base, size = field.type.element, field.type.base, field.type.size
    if kind in ("ip", "bytes", "text"):
        return None
    if field.type.is_float:
        if type == _BITS[base]:
            return ColumnCast(type, "copy", size)
        return ColumnCast(type, "double", 8) if type == "Float64" else None
    match = _NUMBER.fullmatch(type)
    if match is None:
        return None
    to, signed = int(match[2]) // 8, not match[1]
    if to == size and (signed == (base[0] == "i") or kind in ("time", "mac")):
        return ColumnCast(type, "copy", size)
    return ColumnCast(type, "widen", to) if to > size and (signed or base[0] == "u") else None


def _time(field: Field, type: str) -> ColumnCast | None:
    if field.type.element != "time":
        return None
    match = _TIME.fullmatch(type)
    if match is not None:
        unit = int(10 ** (9 - int(match[1])))
        return ColumnCast(type, "copy", 8) if unit == 1 else ColumnCast(type, "divide", 8, unit)
    return ColumnCast(type, "divide", 4, 10**9) if _SECONDS.fullmatch(type) else None


def _address(field: Field, type: str) -> ColumnCast | None:
    kind = field.type.element
    if kind == "ipv4" and type == "IPv4":
        return ColumnCast(type, "copy", 4)
    if kind in ("ip", "ipv4") and type in ("IPv6", "FixedString(16)"):
        return ColumnCast(type, "address" if kind == "ip" else "mapped", 16)
    return None


def _text(field: Field, type: str) -> ColumnCast | None:
    kind, size = field.type.kind, field.type.size
    if kind in ("bytes", "text"):
        if type == f"FixedString({size})":
            return ColumnCast(type, "copy", size)
        return ColumnCast(type, "whole" if kind == "bytes" else "string", size) if type == "String" else None
    if kind in ("enum", "flags", "ip", "ipv4", "mac") and type == "String":
        return ColumnCast(type, "printed", 0)
    return None


def _enum(field: Field, type: str) -> ColumnCast | None:
    """By the names of both.  A value without a name needs a member of `REST`: a record never fails for its value."""
    match = _ENUM.fullmatch(type)
    if match is None or field.type.kind != "enum" or field.type.is_list or field.type.base not in ("u8", "u16"):
        return None
    members = {_unescaped(name): int(number) for name, number in _MEMBER.findall(match[2])}
    rest = next((members[name] for name in REST if name in members), None)
    numbers = [members.get(field.names.get(value, ""), rest) for value in range(1 << 8 * field.type.size)]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    return ColumnCast(type, "member", int(match[1]) // 8, members=struct.pack(f"<{len(known)}h", *known))


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPE.get(match[1], match[1]), text, flags=re.DOTALL)
