"""What is in the topics of a cluster: offsets, and the last message of each partition."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from confluo_tools.errors import ConfluoError, FormatError
from confluo_tools.kafka import client
from confluo_tools.kafka.address import TopicAddress
from confluo_tools.kafka.message import MessageReader
from confluo_tools.kafka.schema_topic import SchemaTopic

WAIT = 10  # ms that a broker waits for more: a request for the next topic waits behind one for this
MESSAGE = 5.0  # s that brokers have to send the last messages of a topic


def partitions_of(
    address: TopicAddress, settings: dict[str, str], group: str | None = None
) -> Iterator[dict[str, Any]]:
    """A row of the schema `topic` for each partition of the topic, or of all topics.

    ``group``: how far this consumer group is.  Raises ConfluoError.
    """
    kafka = client.python_client()
    topics = client.describe(address, settings)
    if address.topic and address.topic not in topics:
        raise ConfluoError("the topic does not exist", where=str(address))
    consumer = kafka.Consumer(
        {
            **client.admin_settings(address, settings),
            "group.id": group or "confluo",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": WAIT,
        }
    )
    try:
        for topic, count in sorted(topics.items()):
            if topic != address.topic and (address.topic or topic.startswith("__")):  # those are Kafka's own
                continue
            places = [kafka.TopicPartition(topic, number) for number in range(count)]
            edges = client.edges(TopicAddress(address.brokers, topic), settings, range(count))
            done = [p.offset for p in consumer.committed(places, timeout=client.ANSWER)] if group else []
            reader = MessageReader(SchemaTopic(replace(address, topic=topic), settings).find)
            last = _last_messages(consumer, topic, edges)
            for number in range(count):
                low, high = edges[number]
                row = {"topic": topic, "partition": number, "partitions": count, "begin": low, "end": high}
                row["committed"] = -1
                if group:
                    row |= {"committed": max(done[number], -1), "lag": high - min(max(done[number], low), high)}
                yield row | {"messages": high - low} | _fields(reader, last.get(number))
    except kafka.KafkaException as e:
        raise client.unreachable(address, e.args[0]) from None
    finally:
        consumer.close()


def _last_messages(consumer: Any, topic: str, edges: dict[int, tuple[int, int]]) -> dict[int, Any]:
    """The last message of each partition that sends one in time: one request for all, as each may wait."""
    kafka = client.python_client()
    wanted = {p for p, (low, high) in edges.items() if high > low}
    found: dict[int, Any] = {}
    if not wanted:
        return found
    consumer.assign([kafka.TopicPartition(topic, p, edges[p][1] - 1) for p in sorted(wanted)])
    end = time.monotonic() + MESSAGE
    while wanted and (left := end - time.monotonic()) > 0:
        message = consumer.poll(left)
        if message is None:
            break
        p = message.partition()
        if message.topic() != topic or p not in wanted:  # a later one, or an error of the client
            continue
        wanted.remove(p)
        if message.error() is None:
            found[p] = message
    consumer.unassign()
    return found


def _fields(reader: MessageReader, message: Any) -> dict[str, Any]:
    """Fields of the last message of a partition."""
    if message is None:
        return {}
    row = {"ts": max(0, message.timestamp()[1]) * 1_000_000, "bytes": len(message.value() or b"")}
    try:
        schema, _, envelope = reader.read(message.value() or b"")
    except FormatError:
        return row
    row |= {"kind": schema.kind, "records": envelope.records, "first": envelope.first, "last": envelope.last}
    return row | {"host": envelope.host, "seq": envelope.seq, "dropped": envelope.dropped}


def whole_topics(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each topic: its messages, and the latest last message."""
    whole: dict[str, dict[str, Any]] = {}
    for row in rows:
        before = whole.get(row["topic"], {"messages": 0, "lag": 0})
        later = row if row.get("ts", 0) >= before.get("ts", 0) else before
        whole[row["topic"]] = later | {
            "topic": row["topic"],
            "partition": -1,
            "partitions": row["partitions"],
            "messages": before["messages"] + row["messages"],
            "begin": 0,
            "end": 0,
            "committed": -1,
            "lag": before["lag"] + row.get("lag", 0),
        }
    yield from whole.values()
