"""What is in the topics of a cluster: offsets, and the last message of each partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from confluo_tools.errors import ConfluoError, FormatError
from confluo_tools.kafka import client
from confluo_tools.kafka.address import TopicAddress
from confluo_tools.kafka.message import MessageReader
from confluo_tools.kafka.schema_topic import SchemaTopic

MESSAGE = 5.0  # s that a broker has to send a last message


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
        {**client.admin_settings(address, settings), "group.id": group or "confluo", "enable.auto.commit": False}
    )
    try:
        for topic, count in sorted(topics.items()):
            if topic != address.topic and (address.topic or topic.startswith("__")):  # those are Kafka's own
                continue
            places = [kafka.TopicPartition(topic, number) for number in range(count)]
            edges = client.edges(TopicAddress(address.brokers, topic), settings, range(count))
            done = [p.offset for p in consumer.committed(places, timeout=client.ANSWER)] if group else []
            for number, place in enumerate(places):
                low, high = edges[number]
                row = {"topic": topic, "partition": number, "partitions": count, "begin": low, "end": high}
                if group:
                    row |= {"committed": max(done[number], -1), "lag": high - min(max(done[number], low), high)}
                reader = MessageReader(SchemaTopic(replace(address, topic=topic), settings).find)
                yield row | {"messages": high - low} | _last(consumer, reader, place, low, high)
    except kafka.KafkaException as e:
        raise client.unreachable(address, e.args[0]) from None
    finally:
        consumer.close()


def _last(consumer: Any, reader: MessageReader, place: Any, low: int, high: int) -> dict[str, Any]:
    """Fields of the last message of a partition."""
    if high <= low:
        return {}
    place.offset = high - 1
    consumer.assign([place])
    message = consumer.poll(MESSAGE)
    consumer.unassign()
    if message is None or message.error() is not None:
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
