"""The topic NAME.schemas: the schemas of the short messages in the topic NAME.

A message of it is an Arrow stream without records; its key is the name of the schema in short messages, as hexadecimal
digits.  Kafka keeps the last message of each key (cleanup.policy=compact), so a schema is there as long as the topic.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from confluo_tools.errors import ConfluoError
from confluo_tools.formats.arrow_meta import EOS
from confluo_tools.kafka import client
from confluo_tools.kafka.message import MAX_HEAD, MAX_HEADS, is_schema
from confluo_tools.kafka.short_message import schema_hash

if TYPE_CHECKING:
    from confluo_tools.kafka.address import TopicAddress

SUFFIX = ".schemas"
AGAIN = 10.0  # s until a schema that is not there is looked for again
MAX_MISSING = 1024
WAIT = 10.0  # s that a broker has to take a schema, or to send the next one


def schemas_of(address: TopicAddress) -> TopicAddress:
    """The topic with the schemas of a topic."""
    return replace(address, topic=address.topic + SUFFIX)


def publish_schema(address: TopicAddress, settings: dict[str, str], message: bytes) -> bytes:
    """Put a schema into the topic of schemas of ``address``, and wait until it is there; returns its name.

    ``message``: an Arrow schema message.  Raises ConfluoError.
    """
    place, name = schemas_of(address), schema_hash(message)
    producer = client.producer(place, {**client.admin_settings(address, settings), "log_level": "0", "acks": "all"})
    producer.put(producer.topic(place.topic), message + EOS, partition=0, key=name.hex().encode())
    producer.flush(int(1000 * WAIT))
    if producer.counts["acked"] != 1:
        why = producer.failure or "no broker takes it"
        raise ConfluoError(f"the schema is not delivered: {why}", where=str(place))
    return name


class SchemaTopic:
    """The schemas of the short messages of ``address``, read when the first one is wanted."""

    def __init__(self, address: TopicAddress, settings: dict[str, str]) -> None:
        self._address, self._settings = schemas_of(address), settings
        self._found: dict[bytes, bytes] = {}
        self._missing: dict[bytes, float] = {}  # names that are not there -> when to look again
        self._next: dict[int, int] = {}  # partition -> offset after the last message that was read

    def find(self, name: bytes) -> bytes | None:
        """The schema message with this hash, or None.  Raises ConfluoError, UnreachableError when no broker answers."""
        if name not in self._found and time.monotonic() >= self._missing.get(name, 0.0):
            self._read()
            if len(self._missing) >= MAX_MISSING:
                self._missing.clear()
            self._missing[name] = time.monotonic() + AGAIN
        return self._found.get(name)

    def _read(self) -> None:
        """Read the new messages of the topic.  A schema is there before the first message that needs it."""
        topics = client.describe(self._address, self._settings)
        edges = client.edges(self._address, self._settings, range(topics.get(self._address.topic, 0)))
        begin = {p: max(low, self._next.get(p, low)) for p, (low, _) in edges.items()}
        ends = {p: high for p, (_, high) in edges.items() if high > begin[p]}
        if not ends:
            return
        kafka = client.python_client()
        given = {**client.admin_settings(self._address, self._settings), "group.id": "confluo"}
        consumer = kafka.Consumer({**given, "enable.auto.commit": False, "enable.partition.eof": True})
        try:
            consumer.assign([kafka.TopicPartition(self._address.topic, p, begin[p]) for p in ends])
            while ends:
                message = consumer.poll(WAIT)
                if message is None:
                    raise client.UnreachableError("no broker sends its messages", where=str(self._address))
                p, error = message.partition(), message.error()
                if error is None:
                    self._keep(message.value() or b"")
                    self._next[p] = message.offset() + 1
                elif error.code() == kafka.KafkaError._PARTITION_EOF:
                    self._next[p] = ends[p]
                elif not error.retriable():
                    raise ConfluoError(error.str(), where=str(self._address))
                if self._next.get(p, 0) >= ends.get(p, 0):
                    ends.pop(p, None)
        finally:
            consumer.close()

    def _keep(self, value: bytes) -> None:
        if len(value) > MAX_HEAD + 16 or not is_schema(value):
            return
        message = value[: -len(EOS)]
        name = schema_hash(message)
        self._found.pop(name, None)
        self._found[name] = message
        while sum(map(len, self._found.values())) > MAX_HEADS:
            del self._found[next(iter(self._found))]
