"""Records to a topic."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from confluo_tools.console import tell
from confluo_tools.errors import ConfluoError
from confluo_tools.kafka import client
from confluo_tools.kafka.connection_faults import plain_text
from confluo_tools.kafka.delivery_watch import DeliveryWatch
from confluo_tools.kafka.message import MAX_ROWS, shape_of

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.kafka.address import TopicAddress
    from confluo_tools.schema import Schema

SIZE = 64 << 10  # bytes of a message
LINGER = 20_000_000  # ns that a row waits for others
QUEUE = 64 << 10  # KiB that the client holds
SAY_TROUBLE = 10.0  # minimum s between two messages about brokers: they alternate
PATIENCE = 10.0  # s for what is queued, after a signal
# Exactly one copy of each message, in order.  A topic is written for as long as it takes.
DEFAULTS = {
    "enable.idempotence": "true",
    "message.timeout.ms": "0",
    "linger.ms": "5",
    "batch.size": str(1 << 20),
    "queue.buffering.max.kbytes": str(QUEUE),
    "queue.buffering.max.messages": "1000000",
    "client.id": "confluo",
    "log_level": "0",
}


class TopicWriter:
    """Writes rows of ``schema`` to the topic, in messages of about ``size`` bytes.

    A row waits ``linger`` ns for others of its message.  ``wait``: for room in the client's queue; otherwise the rows
    of a message are dropped and counted.  ``create``: make a missing topic with this number of partitions.
    Rows with a ``flow_hash`` go to the partition of their flow.  Raises ConfluoError.
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

        self.address, self.schema, self.linger = address, schema, linger
        self.producer = client.producer(address, {**DEFAULTS, **settings})  # settings are wrong before brokers are
        partitions = client.partitions(address, settings, create=create)
        shape = shape_of(schema, os.uname().nodename, pipeline, time.time_ns())
        rows = max(1, min((size - len(shape.head)) // schema.layout.row_bytes, MAX_ROWS))
        key = schema.layout.get("flow_hash")
        number = self.producer.topic(address.topic)
        self.sink = TopicSink(self.producer, number, shape, partitions, capacity=rows, key=key, wait=wait)
        self.stopped = False
        self._watch = DeliveryWatch(address, settings, self.producer)
        self._told = ""
        self._next_tell = 0.0

    def write(self, block: Block, picks: Picks | None = None) -> None:
        if block.layout is not self.sink.shape.layout:
            block = block.project(self.sink.shape.layout)
        now = time.monotonic_ns()
        self._watch.since = now / 1e9
        if not self.sink.write(block, picks, now=now):
            self.stopped = True
        self._watch.since = 0.0
        self.idle(now)

    def idle(self, now: int | None = None) -> None:
        """Send rows that have waited long enough, and take delivery reports."""
        self.sink.flush((time.monotonic_ns() if now is None else now) - self.linger)
        self.producer.poll()
        self.report()

    def stop(self, number: int = 0) -> None:
        """After a signal: do not wait for a full queue any more."""
        self.stopped = True
        self.sink.stop()

    def close(self) -> None:
        """Send all rows, and wait until brokers have them; after `stop` only for a while.

        Raises ConfluoError for records that no broker has.
        """
        self._watch.since = time.monotonic()
        self.sink.flush()
        end = None
        while self.producer.flush(200):
            self.report()
            if self.stopped:
                end = time.monotonic() + PATIENCE if end is None else end
                if time.monotonic() > end:
                    self.producer.purge()
                    break
        self.producer.poll()
        self._watch.close()
        lost = self.lost
        if lost:
            why = self.producer.failure or "the client's queue was full"
            hint = "lower --size and -X batch.size, or raise max.message.bytes" if "too large" in why else ""
            what = f"{lost} of {self.sink.rows} records were not delivered: {why}"
            raise ConfluoError(what, where=str(self.address), hint=hint)

    @property
    def lost(self) -> int:
        """Records that no broker has, and that are not queued any more."""
        return self.producer.counts["records_failed"] + self.sink.dropped + self.sink.refused

    def report(self) -> None:
        """Report trouble with brokers.  Raises ConfluoError when this client will send no more."""
        trouble = self.producer.trouble
        what = plain_text(trouble[1]) if trouble is not None else ""
        now = time.monotonic()
        if what != self._told and now >= self._next_tell:
            self._told, self._next_tell = what, now + SAY_TROUBLE
            tell(f"{self.address}: {what}")
        if self.producer.fatal:
            raise ConfluoError(self.producer.fatal, where=str(self.address))
