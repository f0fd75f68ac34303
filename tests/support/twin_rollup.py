"""What the roll-ups should answer, in plain Python; and blocks made of Python rows."""

from __future__ import annotations

import functools
import ipaddress
import math
import struct
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.expr import compile
from confluo_tools.expr.aggregates import Aggregate
from confluo_tools.expr.group_keys import GroupKey
from confluo_tools.schema import Field, Schema, fold6

Row = dict[str, Any]

SCHEMA = Schema(
    "test",
    [
        Field("ts", "time", "ns", "when"),
        Field("keep", "u8"),
        Field("ver", "u8"),
        Field("ip", "ip", version="ver", description="address"),
        Field("bare", "ip", description="address without a version"),
        Field("v4", "ipv4"),
        Field("mac", "mac"),
        Field("u8", "u8"),
        Field("u16", "u16", "B"),
        Field("u32", "u32"),
        Field("u64", "u64"),
        Field("i8", "i8"),
        Field("i16", "i16"),
        Field("i32", "i32"),
        Field("i64", "i64"),
        Field("f32", "f32"),
        Field("f64", "f64", "V"),
        Field("gap", "duration", "ns"),
        Field("enum", "enum", names={1: "one", 2: "two"}),
        Field("flags", "flags(u16)", names={1: "a", 2: "b"}),
        Field("short", "bytes(5)"),
        Field("long", "bytes(21)"),
        Field("path", "list(u16, 3)"),
        Field("drops", "list(i32, 2)"),
    ],
)

FORMATS = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "f32": "f",
    "f64": "d",
}


@functools.lru_cache(1 << 16)
def address_bytes(value: str | None) -> tuple[int, bytes]:
    """NAME and NAME6 of an address."""
    if value is None:
        return 0, bytes(16)
    a = ipaddress.ip_address(value)
    return (int(a), bytes(16)) if a.version == 4 else (fold6(a.packed), a.packed)


def block_of(rows: Sequence[Row], schema: Schema = SCHEMA, lane: int = -1, base: int = 0) -> Block:
    """A block of rows; missing fields are zero; ``ver`` follows from ``ip``."""
    buffers = []
    for field in schema.fields:
        zero: Any = (0,) * field.type.count if field.type.is_list else 0
        if field.type.kind == "ip":
            pairs = [address_bytes(row.get(field.name)) for row in rows]
            buffers.append(struct.pack(f"<{len(rows)}I", *[p[0] for p in pairs]))
            buffers.append(b"".join(p[1] for p in pairs))
        elif field.type.kind == "bytes":
            buffers.append(b"".join(row.get(field.name, b"").ljust(field.type.size, b"\0") for row in rows))
        else:
            values = [row.get(field.name, zero) for row in rows]
            if field.name == "ver" and schema is SCHEMA:
                values = [version(row.get("ip")) for row in rows]
            flat = [v for value in values for v in value] if field.type.is_list else values
            buffers.append(struct.pack(f"<{len(flat)}{FORMATS[field.type.base]}", *flat))
    return Block.wrap(schema.layout, len(rows), buffers, lane=lane, base=base)


def version(value: str | None) -> int:
    return 0 if value is None else ipaddress.ip_address(value).version


def decode(block: Block, schema: Schema, row: int) -> Row:
    """A row as Python values; an address as text, as the text formats print it."""
    return _decode(block, _columns(schema), row)


def _columns(schema: Schema) -> list[tuple[Field, int, int]]:
    """Each field, its column, and the column of its version or -1."""
    return [(f, schema.index(f.name), schema.index(f.version) if f.version else -1) for f in schema.fields]


def _decode(block: Block, columns: list[tuple[Field, int, int]], row: int) -> Row:
    out: Row = {}
    for field, col, version_col in columns:
        value = block.get(col, row)
        if field.type.kind == "ip":
            six = block.get(col + 1, row)
            ver = block.get(version_col, row) if version_col >= 0 else -1
            if ver == 6 or any(six):
                assert value == fold6(six)
                value = _text6(six)
            elif value == 1 and ver < 0:
                value = "::"
            else:
                value = _text4(value) if value or ver == 4 else None
        out[field.name] = value
    return out


@functools.lru_cache(1 << 16)
def _text4(value: int) -> str:
    return str(ipaddress.IPv4Address(value))


@functools.lru_cache(1 << 16)
def _text6(value: bytes) -> str:
    return str(ipaddress.IPv6Address(value))


def read(schema: Schema, blocks: Iterable[Block]) -> list[Row]:
    columns = _columns(schema)
    return [_decode(b, columns, i) for b in blocks for i in range(b.rows)]


# ---- the twin ---------------------------------------------------------------------------------------------------


def key_of(row: Row, key: GroupKey, schema: Schema = SCHEMA, plain: bool = False) -> Any:
    """The value of a group key, as `decode` reads it from a result; plain: one with its version column."""
    field = schema[key.field]
    value = row.get(key.field, (0,) * field.type.count if field.type.is_list else 0)
    if key.field == "ver":
        return version(row.get("ip"))
    if plain and key.field == "ip" and key.kind == "field":
        return row.get("ip")
    if key.kind == "power":
        powers = [key.arg**i for i in range(65) if key.arg**i <= abs(value)]
        return (-powers[-1] if value < 0 else powers[-1]) if powers else 0
    if key.kind in ("bucket", "step"):
        return max(value // key.arg * key.arg, -(2**63))
    if field.type.kind == "ip":
        return masked(
            row.get(key.field), key.arg if key.kind == "prefix" else 32, key.arg6 if key.kind == "prefix" else 128
        )
    if key.kind == "prefix":
        low = {"ipv4": 32, "mac": 48}[field.type.kind] - key.arg
        return value >> low << low
    if field.type.kind == "bytes":
        return row.get(key.field, b"").ljust(field.type.size, b"\0")
    if field.type.is_float:
        return "nan" if value != value else value + 0.0
    return value


def masked(value: str | None, bits4: int, bits6: int) -> str | None:
    if value is None:
        return None
    a = ipaddress.ip_address(value)
    bits = bits4 if a.version == 4 else bits6
    return shown(str(ipaddress.ip_network((a, bits), strict=False).network_address))


def shown(value: str | None) -> str | None:
    """The form of an address in a result without its version column."""
    if value in ("0.0.0.0", "0.0.0.1"):
        return str(ipaddress.IPv6Address(f"::ffff:{value}"))
    return value


def present(rows: Sequence[Row], field: Field) -> list[Any]:
    """The values of a field: elements of lists that are not zero, addresses that are there."""
    if field.type.is_list:
        return [v for row in rows for v in row.get(field.name, ()) if v]
    if field.type.kind in ("ipv4", "mac"):
        return [row[field.name] for row in rows if row.get(field.name)]
    if field.type.kind == "ip":
        return [row[field.name] for row in rows if row.get(field.name) is not None]
    if field.type.kind == "bytes":
        return [row.get(field.name, b"").ljust(field.type.size, b"\0") for row in rows]
    return [row.get(field.name, 0) for row in rows]


def sortable(value: Any) -> Any:
    if isinstance(value, str):
        a = ipaddress.ip_address(value)
        return a.version, int(a)
    return value


def zero(field: Field) -> Any:
    """What a field holds when there is nothing."""
    if field.type.kind == "ip":
        return None
    if field.type.kind == "bytes":
        return bytes(field.type.size)
    return (0,) * field.type.count if field.type.is_list else 0


def exact(value: Any) -> Fraction:
    return Fraction(value)


def twin(rows: Sequence[Row], agg: Aggregate, schema: Schema = SCHEMA, seconds: float = math.nan) -> Any:
    """The value of an aggregate of rows, exactly where it is a sum or mean (Fraction).

    rows: in order of time, then lane, then row.
    """
    if agg.field is None:
        return len(rows) if agg.func == "count" else len(rows) / seconds
    field = schema[agg.field]
    values = present(rows, field)
    if agg.func in ("first", "last"):
        if not rows:
            return zero(field)
        row = rows[0 if agg.func == "first" else -1]
        if field.type.kind == "ip":
            return shown(row.get(field.name))
        if field.type.kind == "bytes":
            return row.get(field.name, b"").ljust(field.type.size, b"\0")
        return row.get(field.name, zero(field))
    if agg.func in ("distinct", "distinct~"):
        return len({"nan" if v != v else v for v in values})
    values = [v for v in values if v == v]
    if agg.func in ("min", "max"):
        if not values:
            return math.nan if field.type.is_float else 0 if field.type.is_list else zero(field)
        best = (min if agg.func == "min" else max)(values, key=sortable)
        return shown(best) if field.type.kind == "ip" else best
    if agg.func == "sum":
        return sum(map(exact, values))
    if agg.func == "rate":
        return sum(map(exact, values)) / exact(seconds)
    if not values:
        return math.nan
    mean = sum(map(exact, values)) / len(values)
    if agg.func == "avg":
        return mean
    if agg.func == "stddev":
        return math.sqrt(sum((exact(v) - mean) ** 2 for v in values) / len(values))
    assert agg.func == "quantile"
    assert agg.q is not None
    rank = max(math.ceil(exact(round(agg.q * 1_000_000)) / 1_000_000 * len(values)), 1)
    return sorted(values)[rank - 1]


def picks_of(block: Block, kind: str, schema: Schema = SCHEMA) -> Picks | None:
    """The rows with keep == 1 as a mask, a list, or whatever the engine makes; all rows as None or Picks."""
    chosen = [i for i in range(block.rows) if block.get(schema.index("keep"), i) == 1]
    if kind == "mask":
        return compile("keep == 1", schema).program.select(block)
    if kind == "list":
        return Picks.of(block.rows, chosen)
    return Picks.of(block.rows) if kind == "all" else None
