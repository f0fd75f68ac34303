"""Rows for the store's tests: made with numpy, read back with numpy, compared as plain arrays."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np

from confluo_tools.core.block.block import Block
from confluo_tools.multilog import Log, Version
from confluo_tools.schema import Field, Schema

# Every physical type, lists, both columns of an ip.
ALL_TYPES = Schema(
    "all_types",
    [
        Field("ts", "time"),
        Field("a", "u8"),
        Field("b", "u16"),
        Field("c", "u32"),
        Field("d", "u64"),
        Field("e", "i8"),
        Field("f", "i16"),
        Field("g", "i32"),
        Field("h", "i64"),
        Field("x", "f32"),
        Field("y", "f64"),
        Field("addr", "ip"),
        Field("hw", "mac"),
        Field("gap", "duration"),
        Field("kind", "enum", names={1: "one"}),
        Field("bits", "flags", names={1: "low"}),
        Field("name", "bytes(5)"),
        Field("path", "list(u16, 3)"),
        Field("marks", "list(f32, 2)"),
        Field("one", "list(i8, 1)"),
    ],
)
# What the writers of the concurrency tests write: who, which row, and a function of both.
SIGNED = Schema("signed", [Field("writer", "u32"), Field("seq", "u64"), Field("check", "u64")])

DTYPES = {1: "u1", 2: "<u2", 3: "<u4", 4: "<u8", 5: "i1", 6: "<i2", 7: "<i4", 8: "<i8", 9: "<f4", 10: "<f8"}


def dtype(schema: Schema, i: int) -> np.dtype[Any]:
    """A numpy type with the bytes of one row of column i."""
    column = schema.columns[i]
    if column.code == 11:
        return np.dtype((np.void, column.size))
    return np.dtype((DTYPES[column.code], (column.count,))) if column.count > 1 else np.dtype(DTYPES[column.code])


def random_columns(schema: Schema, rows: int, seed: int, zero: float = 0.2) -> list[np.ndarray[Any, Any]]:
    """Random bytes for each column; about ``zero`` of the columns are all zero."""
    rng = np.random.default_rng(seed)
    out = []
    for i, column in enumerate(schema.columns):
        width = column.size * column.count
        data = rng.integers(0, 256, rows * width, dtype=np.uint8)
        if rng.random() < zero:
            data[:] = 0
        out.append(np.frombuffer(data.tobytes(), dtype(schema, i)) if rows else np.empty(0, dtype(schema, i)))
    return out


def block_of(schema: Schema, columns: list[np.ndarray[Any, Any]]) -> Block:
    """A block over the columns; a column of zeros is given as the absent one it is, every other time."""
    rows = len(columns[0])
    buffers = [None if i % 2 and not any(c.tobytes()) else c.tobytes() for i, c in enumerate(columns)]
    return Block.wrap(schema.layout, rows, buffers)


def read_columns(log: Log, version: Version | None = None) -> list[list[bytes]]:
    """For each lane: the bytes of each column, all blocks together.  Every block is checked."""
    lanes: dict[int, list[bytes]] = {}
    for block in log.blocks(version):
        assert block.check(), log.damage
        columns = lanes.setdefault(block.lane, [b""] * log.schema.layout.n)
        assert block.base * log.schema.columns[0].size == len(columns[0])
        for i in range(log.schema.layout.n):
            columns[i] += bytes(block.buffer(i))
    assert log.damage == []
    return [lanes[lane] for lane in sorted(lanes)]


def signed_block(writer: int, start: int, rows: int) -> Block:
    """Rows start.. of ``writer`` in the SIGNED schema."""
    seq = np.arange(start, start + rows, dtype="<u8")
    return Block.wrap(
        SIGNED.layout,
        rows,
        [np.full(rows, writer, "<u4").tobytes(), seq.tobytes(), (seq * 0x9E3779B97F4A7C15 ^ writer).tobytes()],
    )


_COUNTED = np.arange(65_536, dtype="<u8")
_MADE = np.empty(65_536, "<u8")  # large new arrays would cost more than what is done with them


def signed_rows(block: Block) -> list[tuple[int, int, int]]:
    """Runs of consecutive rows in a block: (writer, first seq, rows).  AssertionError for an unknown row."""
    writer, seq, check = (np.frombuffer(block.buffer(i), t) for i, t in enumerate(["<u4", "<u8", "<u8"]))
    if not len(seq):
        return []
    made = _MADE[: len(seq)]
    np.multiply(seq, np.uint64(0x9E3779B97F4A7C15), out=made)
    np.bitwise_xor(made, writer, out=made)
    assert np.array_equal(made, check), "a row that was never written"
    np.subtract(seq, seq[0], out=made)
    if np.array_equal(made, _COUNTED[: len(seq)]) and (writer == writer[0]).all():
        return [(int(writer[0]), int(seq[0]), len(seq))]
    breaks = np.flatnonzero((np.diff(seq) != 1) | (np.diff(writer.astype("i8")) != 0)) + 1
    edges = [0, *breaks.tolist(), len(seq)]
    return [(int(writer[a]), int(seq[a]), b - a) for a, b in itertools.pairwise(edges)]


def order_key(code: int, value: Any) -> int:
    """The order-preserving 64-bit key of one element: c_sort_key.pxd in Python."""
    if code <= 4:
        return int(value)
    if code <= 8:
        return int(value) + (1 << 63)
    if code <= 10:
        bits = struct.unpack("<Q", struct.pack("<d", float(value) + 0.0))[0]
        return (~bits & (1 << 64) - 1) if bits >> 63 else bits | 1 << 63
    return int.from_bytes(bytes(value)[:8].ljust(8, b"\0"), "big")


_INFINITE = order_key(10, float("-inf")), order_key(10, float("inf"))


def without_nan(schema: Schema, zones: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Zones in which all NaN are one value below, and one above, everything else: their payloads have no order."""
    low, high = _INFINITE[0] - 1, _INFINITE[1] + 1
    floats = [column.code in (9, 10) for column in schema.columns]
    return [(max(a, low), min(b, high)) if f else (a, b) for f, (a, b) in zip(floats, zones, strict=True)]


def zones_of(schema: Schema, columns: list[np.ndarray[Any, Any]]) -> list[tuple[int, int]]:
    """(smallest, largest) key of each column, the slow way."""
    out = []
    for column, data in zip(schema.columns, columns, strict=True):
        keys = [order_key(column.code, v) for v in (data if column.code == 11 else data.ravel())]
        out.append((min(keys), max(keys)))
    return without_nan(schema, out)


def zones_in(block: Block, schema: Schema) -> list[tuple[int, int]]:
    """The zones that a block of the store carries."""
    return without_nan(schema, [block.zones(i) or (-1, -1) for i in range(schema.layout.n)])
