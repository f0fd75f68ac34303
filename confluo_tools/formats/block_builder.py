"""Blocks from Python values, for small results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.schema.types import ARRAY_CODES

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Schema

ROWS = 65536  # of a block


def block_of(schema: Schema, columns: Mapping[str, Sequence[Any]], rows: int) -> Block:
    """A block of ``rows`` (at most 65,536) from the values of its physical columns; those that are missing are zero.

    Numbers as they are; text and bytes cut to their room (text between characters); lists as sequences.
    """
    from array import array

    from confluo_tools.core.block.block import Block

    buffers: list[Any] = []
    for column in schema.columns:
        values = columns.get(column.name)
        if values is None:
            buffers.append(None)
        elif column.code > len(ARRAY_CODES):
            size = column.size * column.count
            buffers.append(b"".join([_cut(v, size) for v in values]))
        elif column.count > 1:
            flat = [n for v in values for n in [*v, *[0] * (column.count - len(v))][: column.count]]
            buffers.append(array(ARRAY_CODES[column.code - 1], flat))
        else:
            buffers.append(array(ARRAY_CODES[column.code - 1], values))
    return Block.wrap(schema.layout, rows, buffers)


def blocks_of(schema: Schema, columns: Mapping[str, Sequence[Any]], rows: int) -> Iterator[Block]:
    """The same for any number of rows."""
    for start in range(0, rows, ROWS):
        part = {name: values[start : start + ROWS] for name, values in columns.items()}
        yield block_of(schema, part, min(ROWS, rows - start))


def block_of_rows(schema: Schema, rows: Sequence[Mapping[str, Any]]) -> Block:
    """The same (at most 65,536 rows) from rows {physical column: value}; what a row lacks is zero."""
    names = {name for row in rows for name in row}
    columns: dict[str, list[Any]] = {}
    for column in schema.columns:
        if column.name in names:
            empty: Any = b"" if column.code > len(ARRAY_CODES) else () if column.count > 1 else 0
            columns[column.name] = [row.get(column.name, empty) for row in rows]
    return block_of(schema, columns, len(rows))


def blocks_of_rows(schema: Schema, rows: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """The same for any number of rows."""
    for start in range(0, len(rows), ROWS):
        yield block_of_rows(schema, rows[start : start + ROWS])


def packed_address(text: str) -> tuple[int, bytes]:
    """The number of an IPv4 address and no bytes; or the hash of an IPv6 address and its 16 bytes.  Raises OSError."""
    import socket

    from confluo_tools.schema import fold6

    if ":" in text:
        packed = socket.inet_pton(socket.AF_INET6, text)
        return fold6(packed), packed
    return int.from_bytes(socket.inet_pton(socket.AF_INET, text), "big"), b""


def address_columns(side: str, address: str) -> dict[str, Any]:
    """The physical columns of ``src_ip`` or ``dst_ip``, and the version, of an address as text; none of ''."""
    plain = address.partition("%")[0]
    if not plain:
        return {}
    number, packed = packed_address(plain)
    return {"ip_version": 6 if packed else 4, f"{side}_ip": number} | ({f"{side}_ip6": packed} if packed else {})


def _cut(value: Any, size: int) -> bytes:
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogateescape")
        return (data if len(data) <= size else data[:size].decode("utf-8", "ignore").encode()).ljust(size, b"\0")
    return bytes(value[:size]).ljust(size, b"\0")
