"""Schemas and values as pyarrow has them, next to ours."""

from __future__ import annotations

import pyarrow as pa

from confluo_tools.schema import Schema

ARROW = {
    "u8": pa.uint8(), "u16": pa.uint16(), "u32": pa.uint32(), "u64": pa.uint64(), "i8": pa.int8(), "i16": pa.int16(),
    "i32": pa.int32(), "i64": pa.int64(), "f32": pa.float32(), "f64": pa.float64(), "ipv4": pa.uint32(),
    "mac": pa.uint64(), "time": pa.timestamp("ns", "UTC"), "duration": pa.duration("ns"), "ip": pa.uint32(),
    "enum": pa.uint8(), "enum(u32)": pa.uint32(), "flags": pa.uint16(), "flags(u64)": pa.uint64(),
}  # fmt: skip


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema that a schema must have, said in pyarrow."""
    fields = []
    for f in schema.fields:
        if f.type.kind == "bytes":
            type_: pa.DataType = pa.binary(f.type.size)
        elif f.type.is_list:
            type_ = pa.list_(pa.field("item", ARROW[f.type.element], nullable=False), f.type.count)
        else:
            type_ = ARROW[f.type.base if f.type.kind in ("enum", "flags") else f.type.text]
        fields.append(pa.field(f.name, type_, nullable=False))
        if f.type.kind == "ip":
            fields.append(pa.field(f.name + "6", pa.binary(16), nullable=False))
    return pa.schema(fields)


def same(a: pa.Table, b: pa.Table) -> bool:
    """Equal schemas and equal bytes; Table.equals says no for NaN."""
    return bool(a.schema.equals(b.schema)) and a.num_rows == b.num_rows and [values(c) for c in a] == [
        values(c) for c in b
    ]  # fmt: skip


def values(column: pa.ChunkedArray) -> bytes:
    """The bytes of the values of a column, of its rows only."""
    out = b""
    for chunk in column.chunks:
        flat = chunk.flatten() if pa.types.is_fixed_size_list(chunk.type) else chunk
        width = flat.type.byte_width
        out += flat.buffers()[1].to_pybytes()[flat.offset * width : (flat.offset + len(flat)) * width]
    return out
