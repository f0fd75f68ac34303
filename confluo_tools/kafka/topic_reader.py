"""Records from a topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, FormatError
from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.kafka import client
from confluo_tools.kafka.message import MAX_MESSAGE, MessageReader, rows_as
from confluo_tools.kafka.sequences import SequenceCheck
from confluo_tools.kafka.unreadable import UnreadableMessages

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.kafka.address import TopicAddress

DEFAULTS: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.message.max.bytes": 16 << 20,
    "queued.max.messages.kbytes": 64 << 10,
    "group.id": "confluo",  # a name is required, also without a group
    "log_level": 0,
}


class TopicReader(Reader):
    """The rows that a topic has now, as its partitions send them; with ``follow`` those that come later, too.

    ``since``: ns, from the first message with a Kafka time of then or later.  Each message is checked; those that are
    missing between two others are counted and reported, repeated ones are skipped.  Raises ConfluoError.
    """

    format = "kafka"

    def __init__(
        self,
        address: TopicAddress,
        settings: dict[str, str],
        *,
        since: int | None = None,
        follow: bool = False,
        warn: Warn | None = None,
    ) -> None:
        super().__init__(str(address), warn)
        self.address, self._follow = address, follow
        self._kafka = kafka = client.python_client()
        count = client.partitions(address, settings)
        self._errors: list[Any] = []
        try:
            self._consumer = kafka.Consumer(
                {"bootstrap.servers": address.brokers, **DEFAULTS, **settings, "error_cb": self._errors.append}
            )
            self._ends = self._assign(count, since)
        except kafka.KafkaException as e:
            raise client.unreachable(address, e.args[0]) from None
        self._messages = MessageReader()
        self.sequences = SequenceCheck()
        self.unreadable = UnreadableMessages(self.warn)
        self._first: list[Block] = []
        self._rest = self._blocks()
        first = next(self._rest, None)
        if first is None:
            raise FormatError("the topic has no records", where=self.name)
        self._first.append(first)

    def _assign(self, count: int, since: int | None) -> dict[int, int]:
        """Begin at ``since``, or at the beginning; returns where each partition ends now: {partition: offset}."""
        kafka, topic = self._kafka, self.address.topic
        begin = [kafka.TopicPartition(topic, p, kafka.OFFSET_BEGINNING) for p in range(count)]
        if since is not None:
            wanted = [kafka.TopicPartition(topic, p, since // 1_000_000) for p in range(count)]
            begin = self._consumer.offsets_for_times(wanted, timeout=client.ANSWER)
        ends = {}
        for p in range(count):
            low, high = self._consumer.get_watermark_offsets(begin[p], timeout=client.ANSWER)
            if high > low and begin[p].offset != kafka.OFFSET_END and begin[p].offset < high:
                ends[p] = high
        self._consumer.assign([b for b in begin if self._follow or b.partition in ends])
        return ends

    def blocks(self) -> Iterator[Block]:
        yield from self._first
        self._first.clear()
        yield from self._rest

    def _blocks(self) -> Iterator[Block]:
        while self._ends or self._follow:
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() != self._kafka.KafkaError._PARTITION_EOF:
                    raise ConfluoError(error.str(), where=self.name)
                if not self._follow:
                    self._ends.pop(message.partition(), None)
                continue
            block = self._rows(message)
            if not self._follow and message.offset() + 1 >= self._ends.get(message.partition(), 0):
                self._ends.pop(message.partition(), None)
            if block is not None:
                yield block
        self._report()

    def _rows(self, message: Any) -> Block | None:
        value = message.value()
        if value is None:  # a tombstone
            return None
        which = f"{message.partition()}:{message.offset()}"
        try:
            if len(value) > MAX_MESSAGE:
                raise FormatError(f"has {len(value)} bytes, more than {MAX_MESSAGE}")
            schema, block, envelope = self._messages.read(value)
            if not hasattr(self, "schema"):
                self.schema = schema
                self.metadata = {"confluo:kind": schema.kind, "confluo:host": envelope.host}
            block = rows_as(schema, block, self.schema)
        except FormatError as e:
            self.unreadable.add(which, e)
            return None
        return block if self.sequences.is_new(envelope) else None

    def _report(self) -> None:
        if self.sequences.missing:
            self.warn(f"messages that are missing: {self.sequences.missing}")
        self.unreadable.report()

    def close(self) -> None:
        self._consumer.close()
