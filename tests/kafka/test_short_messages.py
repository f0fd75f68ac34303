"""Short messages: rows come back, by these tools and by pyarrow alone; damage and lies are found."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_messages import packets, values

from confluo_tools.core.block.block import Block
from confluo_tools.core.kafka.message import MessagePacker
from confluo_tools.errors import FormatError
from confluo_tools.formats.arrow_meta import EOS
from confluo_tools.kafka.address import TopicAddress, parse
from confluo_tools.kafka.client import UnreachableError
from confluo_tools.kafka.message import MessageReader, schema_part, shape_of, slim, split
from confluo_tools.kafka.schema_topic import SchemaTopic
from confluo_tools.kafka.short_message import MAGIC, schema_hash, short_shape
from confluo_tools.kafka.topic_reader import TopicReader
from confluo_tools.schema import Schema
from hostile_messages import crc32c, honest
from kafka_lab import Broker
from running import lines, run

ROOT = Path(__file__).resolve().parents[2]
CAMPUS = ROOT / "examples" / "data" / "campus.pcap.gz"
PATIENCE = 60.0  # s


def short(schema: Schema, block: Block, **place: int) -> bytes:
    shape = short_shape(schema.layout, schema_hash(schema_part(schema)), "alpha", 2, 77)
    return MessagePacker(shape_of(schema, "alpha", 2, 77), 500).pack_short(shape, block, **place)


@cache
def small() -> bytes:
    schema, block, _ = honest()
    return short(schema, block, seq=3)


def reader() -> MessageReader:
    """One that knows the schema of `small`."""
    made = MessageReader()
    made.learn(schema_part(honest()[0]) + EOS)
    return made


@given(st.integers(0, 5000), st.integers(1, 500), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_rows_and_place_come_back(start: int, rows: int, seq: int, dropped: int) -> None:
    schema, block = packets()
    part = block.slice(start, rows)
    value = short(schema, part, partition=9, seq=seq, dropped=dropped)
    found, again, envelope = MessageReader(lambda name: schema_part(schema)).read(value)
    assert found == slim(schema)
    assert values(again) == values(part)
    times = [int(part.get(0, row)) for row in range(rows)]
    assert (envelope.host, envelope.pipeline, envelope.run, envelope.partition) == ("alpha", 2, 77, 9)
    assert (envelope.seq, envelope.dropped, envelope.records) == (seq, dropped, rows)
    assert (envelope.first, envelope.last) == (min(times), max(times))


def test_a_whole_message_tells_the_schema_of_later_ones() -> None:
    whole = honest()[2]
    made = MessageReader()
    with pytest.raises(FormatError, match="schema is not known"):
        made.read(small())
    made.read(whole)
    assert values(made.read(small())[1]) == values(honest()[1])


def test_each_damaged_byte_is_found() -> None:
    value = small()
    for at in range(len(value)):
        with pytest.raises(FormatError):
            reader().read(value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :])
    for size in range(len(value)):
        with pytest.raises(FormatError):
            reader().read(value[:size])


def sealed(value: bytes) -> bytes:
    """The message with the length and the checksum that it ought to have."""
    value = value[:8] + struct.pack("<I4x", len(value)) + value[16:]
    return value[:12] + struct.pack("<I", crc32c(value)) + value[16:]


def test_the_checksum_is_crc32c() -> None:
    assert sealed(small()) == small()


def changed(at: int, code: str, number: Any) -> bytes:
    value = bytearray(small())
    struct.pack_into(code, value, at, number)
    return sealed(bytes(value))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (changed(4, "<H", 2), "version 2"),
        (changed(6, "<H", 0), "wrong host"),
        (changed(6, "<H", 65535), "wrong host"),
        (changed(88, "5s", b"al\0ha"), "wrong host"),
        (changed(88, "5s", b"al\xffha"), "wrong host"),
        (changed(93, "B", 1), "do not fit"),  # after the host
        (changed(16, "B", 99), "schema is not known"),
        (changed(32, "<Q", 1 << 63), "wrong host, run"),
        (changed(44, "<I", 1 << 31), "partition"),
        (changed(48, "<I", 11), "do not fit its schema"),
        (changed(48, "<I", 9), "do not fit its schema"),
        (changed(48, "<I", 0xFFFFFFFF), "do not fit its schema"),
        (changed(52, "<I", 1), "wrong host, run"),
        (sealed(small() + bytes(8)), "do not fit its schema"),
        (sealed(small()[:-8]), "do not fit its schema"),
        (MAGIC, "ends in its head"),
    ],
)
def test_a_lie_with_a_right_checksum_is_refused(value: bytes, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        reader().read(value)


def test_a_schema_with_other_columns_does_not_fit() -> None:
    schema, block = packets()
    other = honest()[0]
    value = short(schema, block.slice(0, 10))
    lying = sealed(value[:16] + schema_hash(schema_part(other)) + value[32:])
    with pytest.raises(FormatError, match="do not fit its schema"):
        reader().read(lying)


def test_pyarrow_reads_them_by_the_lines_of_the_manual() -> None:
    pa = pytest.importorskip("pyarrow")
    text = (ROOT / "docs" / "format.md").read_text()
    found = re.search(r"```python\n(def rows_of_short\(.*?)```", text, re.DOTALL)
    assert found is not None
    space: dict[str, Any] = {}
    exec(found[1], space)
    schema, block = packets()
    part = block.slice(0, 77)
    whole = MessagePacker(shape_of(schema, "alpha", 2, 77), 500).pack(part)
    same = pa.ipc.open_stream(whole).read_all()
    arrow = pa.ipc.open_stream(schema_part(schema) + EOS).schema
    batch = space["rows_of_short"](short(schema, part), arrow)
    assert batch.equals(same.to_batches()[0])


def test_files_have_schemas_before_short_messages() -> None:
    schema, _, whole = honest()
    stream = BytesIO(schema_part(schema) + EOS + small() + whole + small())
    assert list(split(stream.read)) == [schema_part(schema) + EOS, small(), whole, small()]
    for claimed in (0, 11, 1 << 31):
        lying = BytesIO(small()[:8] + struct.pack("<I", claimed) + small()[12:])
        with pytest.raises(FormatError):
            list(split(lying.read))


def test_a_schema_that_is_not_there_is_not_looked_for_at_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(SchemaTopic, "_read", lambda self: looks.append(1))
    made = MessageReader(SchemaTopic(TopicAddress("127.0.0.1:1", "t"), {}).find)
    for _ in range(50):
        with pytest.raises(FormatError, match="schema is not known"):
            made.read(small())
    assert len(looks) == 1


# -- with a broker


@pytest.fixture(scope="module")
def filled(broker: Broker) -> str:
    """A topic with all packets of a capture in short messages."""
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"s{uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": broker.address})
    compacted = NewTopic(f"{name}.schemas", 1, config={"cleanup.policy": "compact"})
    for made in admin.create_topics([NewTopic(name, 3), compacted]).values():
        made.result(PATIENCE)
    done = run("confluo-stream", "publish", CAMPUS, "--to", broker.topic(name), "--size", "2Ki")
    assert done.returncode == 0, done.stderr
    return name


def test_a_follower_waits_for_the_broker_that_has_a_schema(
    filled: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    told: list[str] = []
    read = SchemaTopic._read

    def away(self: SchemaTopic) -> None:
        tried.append(1)
        if len(tried) < 3:
            raise UnreachableError("no broker answers")
        read(self)

    monkeypatch.setattr(SchemaTopic, "_read", away)
    with pytest.raises(UnreachableError):
        TopicReader(parse(broker.topic(filled)), {}, tell=told.append)
    with TopicReader(parse(broker.topic(filled)), {}, follow=True, tell=told.append) as reader:
        assert next(iter(reader)).rows > 0
    assert len(tried) == 3
    assert any("no broker answers; waiting for a broker" in line for line in told)


def all_values(broker: Broker, topic: str, partitions: int) -> list[bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "t", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    found, ended = [], 0
    while ended < partitions:
        message = consumer.poll(PATIENCE)
        assert message is not None
        if message.error() is None:
            found.append(message.value())
        else:
            ended += 1
    consumer.close()
    return found


def test_a_topic_of_short_messages_is_read_as_any_other(filled: str, broker: Broker, tmp_path: Path) -> None:
    messages = all_values(broker, filled, 3)
    assert all(m.startswith(MAGIC) and len(m) <= 2048 for m in messages)
    fields = "ts,src_ip,dst_ip,src_port,dst_port,tcp_seq"
    done = run("confluo-query", broker.topic(filled), "-f", fields, "-T", "--no-header")
    assert done.stderr == b""
    same = run("confluo-query", CAMPUS, "-f", fields, "-T", "--no-header")
    assert Counter(lines(done)) == Counter(lines(same))
    listed = run("confluo-stream", "topics", broker.topic(filled), "-J")
    assert {json.loads(line)["kind"] for line in lines(listed)} == {"packet"}
    schemas = all_values(broker, f"{filled}.schemas", 1)
    everything = b"".join(schemas + messages)
    unpacked = run("confluo-stream", "unpack", "--envelope", stdin=everything)
    assert unpacked.stderr == b""
    places = [json.loads(line) for line in lines(unpacked)]
    assert sum(place["records"] for place in places) == len(lines(same))
    for partition in range(3):
        seqs = [place["seq"] for place in places if place["partition"] == partition]
        assert seqs == list(range(len(seqs)))
    alone = run("confluo-stream", "unpack", stdin=messages[0])
    assert b"its schema is not known" in alone.stderr
    assert alone.returncode == 2
    (tmp_path / "m.messages").write_bytes(everything)
    assert lines(run("confluo-query", tmp_path / "m.messages", "--agg", "count", "-T", "--no-header")) == [
        str(len(lines(same)))
    ]
    (tmp_path / "m.messages").write_bytes(messages[0])
    assert b"its schema is not known" in run("confluo-query", tmp_path / "m.messages").stderr


def test_a_message_whose_schema_is_nowhere_is_reported(broker: Broker) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"s{uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, 1)])[name].result(PATIENCE)
    producer = Producer({"bootstrap.servers": broker.address})
    schema, block = packets()
    for value in (short(schema, block.slice(0, 5)), honest()[2]):
        producer.produce(name, value)
    producer.flush()
    done = run("confluo-query", broker.topic(name), "--agg", "count", "-T", "--no-header")
    assert lines(done) == ["10"]
    assert b"message 0:0 is short, and its schema is not known" in done.stderr


def test_what_has_no_room_is_dropped_and_counted() -> None:
    from confluo_tools.core.kafka import producer as core
    from confluo_tools.core.kafka.topic_sink import TopicSink
    from confluo_tools.kafka.client import library

    core.load(library())
    schema, block = packets()
    client = core.KafkaProducer(
        {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": "2000", "log_level": "0"}
    )
    shape = shape_of(schema, "alpha", 0, 1)
    name = short_shape(schema.layout, schema_hash(schema_part(schema)), "alpha", 0, 1)
    sink = TopicSink(client, client.topic("nowhere"), shape, 1, capacity=1, wait=False, short=name)
    sink.write(block)
    sink.flush()
    assert sink.rows == block.rows == sink.sent + sink.dropped
    assert 1400 <= sink.sent == client.counts["records_sent"] <= 2000
    client.purge()
    assert client.counts["records_failed"] == sink.sent
