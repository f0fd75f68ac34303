"""Records to a topic."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from confluo_tools.console import tell
from confluo_tools.errors import ConfluoError
from confluo_tools.kafka import client
from confluo_tools.kafka.connection_faults import plain_text
from confluo_tools.kafka.delivery_watch import DeliveryWatch, WatchedWriter
from confluo_tools.kafka.message import schema_part, shape_of
from confluo_tools.kafka.row_writer import LINGER, SIZE, WriterCounts, rows_of_message
from confluo_tools.kafka.schema_topic import publish_schema, schemas_of
from confluo_tools.kafka.short_message import short_shape
from confluo_tools.kafka.topic_state import why_stalled

if TYPE_CHECKING:
    from confluo_tools.kafka.address import TopicAddress
    from confluo_tools.schema import Schema

QUEUE = 64 << 10  # KiB that the client holds
CLIENT_LINGER = 5  # maximum ms that the client waits for more messages, after `linger`
SAY_TROUBLE = 10.0  # minimum s between two messages about brokers: they alternate
# Exactly one copy of each message, in order.  A topic is written for as long as it takes.
DEFAULTS = {
    "enable.idempotence": "true",
    "message.timeout.ms": "0",
    "linger.ms": str(CLIENT_LINGER),
    "batch.size": str(1 << 20),
    "queue.buffering.max.kbytes": str(QUEUE),
    "queue.buffering.max.messages": "1000000",
    "client.id": "confluo",
    "log_level": "0",
}


class TopicWriter(WatchedWriter):
    """Writes rows of ``schema`` to the topic, in messages of about ``size`` bytes.

    A row waits ``linger`` ns for others of its message.  ``wait``: for room in the client's queue; otherwise the rows
    of a message are dropped and counted.  ``create``: make a missing topic with this number of partitions.
    Rows with a ``flow_hash`` go to the partition of their flow.  If there is a topic for their schema (NAME.schemas),
    messages with few rows are short.  Raises ConfluoError.
    """

    def __init__(
        self,
        address: TopicAddress,
        schema: Schema,
        settings: dict[str, str],
        *,
        size: int = SIZE,
        linger: int = LINGER,
        wait: bool = True,
        create: int = 0,
        pipeline: int = 0,
    ) -> None:
        from confluo_tools.core.kafka.topic_sink import TopicSink

        super().__init__(str(address), schema, linger)
        self.address = address
        together = {"linger.ms": str(min(CLIENT_LINGER, linger / 1e6))}
        # Settings are wrong before brokers are.
        self.producer = client.producer(address, {**DEFAULTS, **together, **settings})
        topics = client.describe(address, settings)
        partitions = client.partitions(address, settings, create=create, topics=topics)
        place = os.uname().nodename, pipeline, time.time_ns()
        shape = shape_of(schema, *place)
        short = None
        if schemas_of(address).topic in topics:
            name = publish_schema(address, settings, schema_part(schema))
            short = short_shape(schema.layout, name, *place)
        rows = rows_of_message(shape, size, short)
        key = schema.layout.get("flow_hash")
        number = self.producer.topic(address.topic)
        self.sink: TopicSink = TopicSink(
            self.producer, number, shape, partitions, capacity=rows, key=key, wait=wait, short=short
        )
        self._watch = DeliveryWatch(self.name, lambda: self.counts, "messages", lambda: why_stalled(address, settings))
        self._told = ""
        self._next_tell = 0.0

    def go_on(self) -> None:
        self.producer.poll()
        self.report()

    def close(self) -> None:
        self._watch.since = time.monotonic()
        self.sink.flush()
        self.wait(self._sending, self.producer.purge)
        self.producer.poll()
        self._watch.close()
        counts = self.counts
        if counts.lost:
            why = self.producer.failure or "the client's queue was full"
            hint = "lower --size and -X batch.size, or raise max.message.bytes" if "too large" in why else ""
            what = f"{counts.lost} of {counts.rows} records were not delivered: {why}"
            raise ConfluoError(what, where=str(self.address), hint=hint)

    def _sending(self) -> bool:
        waiting = self.producer.flush(200)
        if waiting:
            self.report()
        return bool(waiting)

    @property
    def counts(self) -> WriterCounts:
        n, sink = self.producer.counts, self.sink
        lost = n["records_failed"] + sink.dropped + sink.refused
        return WriterCounts(sink.rows, n["records_acked"], n["acked"], lost, self.producer.queued)

    def report(self) -> None:
        trouble = self.producer.trouble
        what = plain_text(trouble[1]) if trouble is not None else ""
        now = time.monotonic()
        if what != self._told and now >= self._next_tell:
            self._told, self._next_tell = what, now + SAY_TROUBLE
            tell(f"{self.address}: {what}")
        if self.producer.fatal:
            raise ConfluoError(self.producer.fatal, where=str(self.address))
