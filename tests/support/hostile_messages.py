"""Messages of Kafka that lie: right checksums, wrong everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from confluo_tools.core.block.block import Block
from confluo_tools.core.kafka.message import MessagePacker
from confluo_tools.formats import arrow_meta as meta
from confluo_tools.formats.block_builder import blocks_of_rows
from confluo_tools.kafka.message import KEY, envelope_text, shape_of
from confluo_tools.schema import Schema, builtin

FIELDS = ["ts", "len", "ip_version", "src_ip", "proto", "tcp_flags", "tcp_sack", "eth_src"]
ROWS = 10


@cache
def honest() -> tuple[Schema, Block, bytes]:
    """A message that is right: its schema, its rows, its bytes."""
    schema = builtin("packet").project(FIELDS)
    rows = [{"ts": 10**18 + i, "len": 60 + i, "ip_version": 4, "src_ip": i, "tcp_sack": (1,) * 8} for i in range(ROWS)]
    block = next(iter(blocks_of_rows(schema, rows)))
    return schema, block, MessagePacker(shape_of(schema, "alpha", 0, 7), 100).pack(block, seq=3)


def parts(value: bytes) -> tuple[bytes, bytes, bytes]:
    """The schema message, the batch message, and what follows."""
    first = 8 + int.from_bytes(value[4:8], "little")
    second = first + 8 + int.from_bytes(value[first + 4 : first + 8], "little")
    return value[:first], value[first:second], value[second:]


def with_envelope(text: str, **batch: Any) -> bytes:
    """The honest message with this envelope; ``batch``: rows, buffers and body_length that are others."""
    schema, _, value = honest()
    head, old, rest = parts(value)
    message = meta.parse_message(old)
    lengths = {"rows": message.rows, "body_length": message.body_length, "buffers": _values(message), **batch}
    made = meta.batch_message(schema, metadata={KEY: text}, **lengths)
    return sealed(head + made + rest)


def _values(message: meta.Message) -> list[tuple[int, int]]:
    return [(at, size) for at, size in message.buffers if size]


def numbers(**changed: Any) -> str:
    """An envelope that is right but for ``changed``: values, as JSON has them."""
    text = envelope_text("alpha", 0, 7)
    honest_text = meta.parse_message(parts(honest()[2])[1]).metadata[KEY]
    data: Mapping[str, Any] = json.loads(honest_text)
    for name, value in {**data, **changed}.items():
        start = text.index(f'"{name}": ') + len(name) + 4
        end = text.index(",", start) if name != "crc32c" else len(text) - 1
        shown = value if name in changed and isinstance(value, str) else json.dumps(value)
        text = f"{text[:start]}{shown:>{end - start}}{text[end:]}"
    return text


def with_schema(text: str) -> bytes:
    """The honest message with this text as its schema; its columns are as they were."""
    schema, _, value = honest()
    _, batch, rest = parts(value)
    fields = meta._vector([meta._column(column) for column in schema.columns])
    pairs = meta._key_values({"confluo:schema": text})
    head = meta._message(meta.SCHEMA, meta._table({0: ("h", 0), 1: fields, 2: pairs}), 0, None)
    return sealed(head + batch + rest)


def sealed(value: bytes) -> bytes:
    """The message with its right checksum, where it has a place for one (and is not refused long before that)."""
    at = value.rfind(b'"crc32c": "') + 11
    if at < 11 or len(value) > 1 << 20:
        return value
    blank = value[:at] + b"00000000" + value[at + 8 :]
    return value[:at] + b"%08x" % crc32c(blank) + value[at + 8 :]


@cache
def _table() -> list[int]:
    out = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        out.append(byte)
    return out


def crc32c(data: bytes) -> int:
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[crc & 0xFF ^ byte]
    return crc ^ 0xFFFFFFFF
