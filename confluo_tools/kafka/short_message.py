"""Short messages: how their head is written, and what it says.

A small Arrow stream is mostly schema.  So a message of few records has a binary head and the columns (docs/format.md),
and names its schema by a hash of the schema message.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.core.kafka.short_message import ShortShape, read_columns, sound
from confluo_tools.errors import FormatError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Layout

MAGIC = b"CFLM"
VERSION = 1
HEAD = struct.Struct("<4sHHII16sQIIIIQqqQ")
HASH = 16  # bytes
MAX_NAME = 255  # characters of a host


class ShortHead(NamedTuple):
    """The numbers of a head, in their order."""

    magic: bytes
    version: int
    host_bytes: int
    size: int
    crc: int
    schema: bytes
    run: int
    pipeline: int
    partition: int
    records: int
    zero: int
    seq: int
    first: int
    last: int
    dropped: int


def schema_hash(message: bytes) -> bytes:
    """The name of a schema in short messages.  ``message``: an Arrow schema message with its prefix."""
    return hashlib.sha256(message).digest()[:HASH]


def short_shape(layout: Layout, schema: bytes, host: str, pipeline: int, run: int) -> ShortShape:
    """The shape of the short messages of one sequence.  ``schema``: the name of theirs."""
    name = host.encode("ascii", "backslashreplace")[:MAX_NAME]
    head = HEAD.pack(MAGIC, VERSION, len(name), 0, 0, schema, run, pipeline, 0, 0, 0, 0, 0, 0, 0)
    return ShortShape(layout, head + name + bytes(-len(name) % 8))


def short_head(value: bytes) -> tuple[ShortHead, str]:
    """The head of a short message, and its host.  Raises FormatError for what is not one, or is damaged."""
    if len(value) < HEAD.size:
        raise FormatError("is damaged: it ends in its head")
    head = ShortHead(*HEAD.unpack_from(value))
    if head.version != VERSION:
        raise FormatError(f"has version {head.version} of short messages, these tools read {VERSION}")
    if head.size != len(value):
        raise FormatError("is damaged: its numbers do not fit its length")
    if not sound(value):
        raise FormatError("is damaged: its checksum is wrong")
    name = value[HEAD.size : HEAD.size + head.host_bytes]
    host = name.decode("ascii", "replace")
    right = len(name) == head.host_bytes and 0 < len(name) <= MAX_NAME and name.isascii() and host.isprintable()
    if not right or head.run >= 1 << 63 or head.partition >= 1 << 31 or head.zero:
        raise FormatError("has a head with a wrong host, run or partition")
    return head, host


def short_rows(value: bytes, layout: Layout) -> Block:
    """The rows of a short message, after `short_head`.  ``layout``: of its schema.  Raises FormatError."""
    block = read_columns(layout, value)
    if block is None:
        raise FormatError("is damaged: its rows do not fit its schema")
    return block
