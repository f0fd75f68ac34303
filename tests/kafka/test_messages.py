"""Messages of records: what is packed is read back, by these tools and by pyarrow; damage is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from io import BytesIO
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.core.kafka.message import MessagePacker, MessageShape
from confluo_tools.errors import ConfluoError, FormatError
from confluo_tools.formats.block_builder import blocks_of_rows
from confluo_tools.kafka.message import MessageReader, shape_of, slim, split
from confluo_tools.schema import Schema, builtin

FIELDS = ["ts", "len", "ip_version", "src_ip", "src_port", "tcp_flags", "flow_hash", "tcp_sack", "eth_src"]


@cache
def packets() -> tuple[Schema, Block]:
    """Made-up packets: numbers, IPv4 and IPv6 addresses, flags, lists, bytes."""
    schema = builtin("packet").project(FIELDS)
    random = Random(1)
    rows = [
        {
            "ts": random.randrange(1 << 62),
            "len": random.randrange(1 << 32),
            "ip_version": random.choice((4, 6)),
            "src_ip": random.randrange(1 << 32),
            "src_ip6": random.randbytes(16),
            "src_port": random.randrange(1 << 16),
            "tcp_flags": random.randrange(512),
            "flow_hash": random.randrange(1 << 32),
            "tcp_sack": tuple(random.randrange(1 << 32) for _ in range(8)),
            "eth_src": random.randrange(1 << 48),
        }
        for _ in range(5500)
    ]
    return schema, next(iter(blocks_of_rows(schema, rows)))


def packed(start: int = 0, rows: int = 100, **place: int) -> bytes:
    schema, block = packets()
    return MessagePacker(shape_of(schema, "alpha", 2, 77), 500).pack(block.slice(start, rows), **place)


def values(block: Block) -> list[list[object]]:
    return [[block.get(i, row) for row in range(block.rows)] for i in range(block.layout.n)]


@given(st.integers(0, 5000), st.integers(1, 500), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_rows_and_place_come_back(start: int, rows: int, seq: int, dropped: int) -> None:
    schema, block = packets()
    part = block.slice(start, rows)
    found, again, envelope = MessageReader().read(packed(start, rows, partition=9, seq=seq, dropped=dropped))
    assert found == slim(schema)
    assert values(again) == values(part)
    times = [int(part.get(0, row)) for row in range(rows)]
    assert (envelope.host, envelope.pipeline, envelope.run, envelope.partition) == ("alpha", 2, 77, 9)
    assert (envelope.seq, envelope.dropped, envelope.records) == (seq, dropped, rows)
    assert (envelope.first, envelope.last) == (min(times), max(times))


def test_any_arrow_program_opens_a_message_alone() -> None:
    schema, block = packets()
    with pa.ipc.open_stream(packed(10, 200, seq=5)) as stream:
        batch, metadata = stream.read_next_batch_with_custom_metadata()
        with pytest.raises(StopIteration):
            stream.read_next_batch()
    batch.validate(full=True)
    assert batch.num_rows == 200
    assert batch.schema.names == [c.name for c in schema.columns]
    assert [int(v) for v in batch["ts"].cast(pa.int64()).to_pylist()] == [block.get(0, row) for row in range(10, 210)]
    sack = schema.layout.index("tcp_sack")
    assert [tuple(v) for v in batch["tcp_sack"].to_pylist()] == [block.get(sack, row) for row in range(10, 210)]
    envelope = json.loads(metadata[b"confluo:message"])
    assert envelope | {"crc32c": ""} == {
        "version": 1,
        "host": "alpha",
        "pipeline": 2,
        "run": 77,
        "partition": 0,
        "seq": 5,
        "first": min(int(block.get(0, row)) for row in range(10, 210)),
        "last": max(int(block.get(0, row)) for row in range(10, 210)),
        "records": 200,
        "dropped": 0,
        "crc32c": "",
    }


def test_the_checksum_is_crc32c_of_the_message_with_zeros_in_its_place() -> None:
    value = packed()
    with pa.ipc.open_stream(value) as stream:
        text = stream.read_next_batch_with_custom_metadata()[1][b"confluo:message"].decode()
    crc = json.loads(text)["crc32c"]
    blank = value.replace(f'"{crc}"'.encode(), b'"00000000"')
    assert bitwise_crc32c(blank) == int(crc, 16)


def bitwise_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
def test_each_flipped_byte_is_found(known: bool) -> None:
    value = packed(rows=3)
    for at in range(len(value)):
        reader = MessageReader()
        if known:
            reader.read(value)
        damaged = bytearray(value)
        damaged[at] ^= 0x41
        with pytest.raises(ConfluoError):
            reader.read(bytes(damaged))


def test_each_cut_is_found() -> None:
    value = packed(rows=3)
    reader = MessageReader()
    reader.read(value)
    for size in range(len(value)):
        with pytest.raises(FormatError):
            reader.read(value[:size])


@given(st.data())
def test_no_bytes_do_harm(data: st.DataObject) -> None:
    value = bytearray(packed(rows=5))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    reader = MessageReader()
    if data.draw(st.booleans()):
        reader.read(packed())
    for attempt in (lambda: reader.read(bytes(value)), lambda: list(split(BytesIO(value).read))):
        with suppress(ConfluoError):
            attempt()


def test_a_reader_knows_many_senders() -> None:
    schema, block = packets()
    reader = MessageReader()
    for _ in range(2):
        for host in range(100):  # more than it remembers
            packer = MessagePacker(shape_of(schema, f"host{host}", 0, host), 10)
            assert reader.read(packer.pack(block.slice(host, 10)))[2].host == f"host{host}"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda v: b"", "not an Arrow stream"),
        (lambda v: b'{"a": 1}', "not an Arrow stream"),
        (lambda v: v.replace(b'"version": 1', b'"version": 2'), "version 2"),
        (lambda v: v.replace(b"confluo:message", b"confluo:massage"), "no batch with"),
        (lambda v: v.replace(b"confluo:schema", b"confluo:scheme"), "not one of these tools"),
    ],
)
def test_what_is_no_message_is_said(change: Callable[[bytes], bytes], what: str) -> None:
    with pytest.raises(FormatError, match=what):
        MessageReader().read(change(packed()))


def test_pyarrow_itself_is_said_to_be_foreign() -> None:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"x": [1, 2]})
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write(batch)
    with pytest.raises(FormatError, match="not one of these tools"):
        MessageReader().read(sink.getvalue().to_pybytes())


def test_a_packer_takes_only_what_fits() -> None:
    schema, block = packets()
    shape = shape_of(schema, "alpha", 0, 0)
    with pytest.raises(ValueError, match="rows in a message of 5"):
        MessagePacker(shape, 5).pack(block.slice(0, 6))
    with pytest.raises(ValueError, match="rows in a message"):
        MessagePacker(shape, 0)
    with pytest.raises(ValueError, match="after the head"):
        MessageShape(schema.layout, b"x" * 100, [(0, 0, 0)] * schema.layout.n, [0] * 11, 90, 90, -1)


def test_files_of_messages_are_split() -> None:
    parts = [packed(seq=i, rows=50 + i) for i in range(3)]
    assert list(split(BytesIO(b"".join(parts)).read)) == parts
