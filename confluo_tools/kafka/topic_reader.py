"""Records from a topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, FormatError
from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.kafka.client import UnreachableError, topic_number
from confluo_tools.kafka.message import MAX_MESSAGE, MessageReader, rows_as
from confluo_tools.kafka.schema_topic import SchemaTopic
from confluo_tools.kafka.sequences import SequenceCheck
from confluo_tools.kafka.topic_consumer import TopicConsumer
from confluo_tools.kafka.unreadable import UnreadableMessages

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.kafka.address import TopicAddress
    from confluo_tools.kafka.log_offsets import LogOffsets
    from confluo_tools.kafka.message import Envelope
    from confluo_tools.schema import Schema

WAIT = 0.1  # s of one wait for messages
SETTLE = 1.0  # s between two commits of offsets while messages arrive
PUBLISH = 70.0  # s that rows may wait for a freeze of their log
GRACE = 1_000_000_000  # ns after the end of a time range during which its records may still arrive
LAST = (1 << 63) - 1
TOLD = 10.0  # s between two lines about missing messages


class _StoppedError(Exception):
    """The reader was stopped before it had what a message needs: the message is not taken."""


class TopicReader(Reader):
    """The rows that a topic has now, as its partitions send them; with ``follow`` those that come later, too.

    Each message is checked; those that are missing between two others are counted and reported, repeated ones are
    skipped.  ``until``: end when the clock, or the records of all partitions, have passed this time (ns).
    ``offsets``: of the log that the rows are written to; they get the fields of their place in the topic.
    The other arguments are those of `TopicConsumer`.  Raises ConfluoError.

    ``fetched``: {partition: records that came}.  ``lags``: {partition: messages that waited there a moment ago}; both
    are replaced, not changed, so other threads may read them.
    """

    format = "kafka"
    host = ""  # that sent the last block
    polled = True

    def __init__(
        self,
        address: TopicAddress,
        settings: dict[str, str],
        *,
        since: int | None = None,
        until: int | None = None,
        follow: bool = False,
        group: str | None = None,
        offsets: LogOffsets | None = None,
        warn: Warn | None = None,
        tell: Warn | None = None,
    ) -> None:
        super().__init__(str(address), warn)
        self._follow, self._offsets = follow, offsets
        self._tell, self._end = tell, LAST if until is None else until + GRACE
        self.consumer = TopicConsumer(
            address, settings, since=since, follow=follow, group=group, warn=self.warn, tell=self.tell
        )
        self._schemas = SchemaTopic(address, settings)
        self._messages = MessageReader(self._find)
        self.sequences = SequenceCheck()
        self.unreadable = UnreadableMessages(self.warn)
        self._count: dict[int, int] = {}  # partition -> records that came
        self._idle: list[Callable[[], None]] = []
        self._stopped: Callable[[], bool] = lambda: False
        self._out: Callable[[], bool] = lambda: False
        self.fetched: dict[int, int] = {}
        self.lags: dict[int, int] = {}
        self._asked = address, settings
        self._identity: str | None = None
        self._start: dict[int, int] = {}
        self._taken: dict[int, int] = {}  # partition -> offset after the last message that was taken
        self._unsettled = False
        self._settled = self._told = time.monotonic()
        self._missing_told = 0
        try:
            self.schema, self.metadata = self._learn()
        except BaseException:
            self.close()
            raise
        self._packed = self.schema
        if offsets is not None:
            self.schema = offsets.with_place(self.schema)
            self.consumer.claims = offsets

    def tell(self, what: str) -> None:
        if self._tell is not None:
            self._tell(f"{self.name}: {what}")

    def _learn(self) -> tuple[Schema, dict[str, str]]:
        """The schema of a message that is there; with ``follow``, waits for one."""
        while True:
            some = False
            for message in self.consumer.peek():
                some = True
                try:
                    schema, _, envelope = self._read(message)
                except FormatError:
                    continue
                return schema, {"confluo:kind": schema.kind, "confluo:host": envelope.host}
            if not self._follow:
                if self.consumer.unread and not some:
                    what = f"its messages cannot be read: {self.consumer.unread}"
                    raise ConfluoError(what, where=self.name, hint="check the broker")
                if not some:
                    raise FormatError("the topic has no records", where=self.name)
                hint = "-i ndjson, csv or tsv reads lines of other programs"
                raise FormatError("no message is of these tools", where=self.name, hint=hint)
            time.sleep(WAIT)

    def _read(self, message: Any) -> tuple[Schema, Block, Envelope]:
        value = message.value() or b""
        if len(value) > MAX_MESSAGE:
            raise FormatError(f"has {len(value)} bytes, more than {MAX_MESSAGE}")
        return self._messages.read(value)

    def _find(self, name: bytes) -> bytes | None:
        """The schema of short messages; with ``follow``, waits for a broker that has it."""
        while True:
            try:
                return self._schemas.find(name)
            except UnreachableError as e:
                if not self._follow:
                    raise
                self.consumer.say_outage(e.what)
            self._wait()
            if self._stopped():
                raise _StoppedError
            time.sleep(WAIT)

    # -- rows

    def blocks(self) -> Iterator[Block]:
        self.consumer.leaving = self._leave
        self.consumer.joined = self._join
        self.consumer.start()
        self._look()
        while not self._stopped() and not self._over():
            message = self.consumer.poll(0)
            if message is None:
                self._wait()
                message = self.consumer.poll(WAIT)
            if message is not None:
                try:
                    block = self._rows(message)
                except _StoppedError:
                    break
                if block is not None:
                    yield block
                self._taken[message.partition()] = message.offset() + 1
                self._unsettled = True
            if time.monotonic() - self._settled >= SETTLE:
                self.settle()
        self.settle()
        self._report(final=True)

    def _over(self) -> bool:
        if self.consumer.at_end and (not self._follow or time.time_ns() >= self._end):
            return True
        return self._end < self.mark < LAST

    def _wait(self) -> None:
        for call in self._idle:
            call()

    def _rows(self, message: Any) -> Block | None:
        if message.value() is None:  # a tombstone
            return None
        partition, offset = message.partition(), message.offset()
        try:
            schema, block, envelope = self._read(message)
            block = rows_as(schema, block, self._packed)
        except FormatError as e:
            self.unreadable.add(f"{partition}:{offset}", e)
            return None
        if not self._in_sequence(envelope, partition):
            return None
        self.host = envelope.host
        self._count[partition] = self._count.get(partition, 0) + block.rows
        return block if self._offsets is None else self._offsets.placed(block, partition, offset)

    def _in_sequence(self, envelope: Envelope, partition: int) -> bool:
        self.consumer.seen(partition, envelope.last)
        self.mark = self.consumer.mark
        return self.sequences.is_new(envelope)

    def _report(self, *, final: bool = False) -> None:
        missing = self.sequences.missing
        now = time.monotonic()
        if missing > self._missing_told and (final or now - self._told >= TOLD):
            self.warn(f"messages that are missing: {missing}")
            self._missing_told, self._told = missing, now
        if final:
            self.consumer.report()
            self.unreadable.report()
            if self.sequences.dropped:
                self.tell(f"records that their senders dropped: {self.sequences.dropped}")

    def _look(self) -> None:
        # Only this thread may ask the consumer.
        self.lags = self.consumer.lag()
        self.fetched = {**dict.fromkeys(self.lags, 0), **self._count}

    # -- where to go on

    def start_at(self, offsets: Mapping[int, int]) -> None:
        """Of the first messages to read, those that are known: they are places, too."""
        self._start = dict(offsets)

    @property
    def identity(self) -> str:
        """The number of the topic, "" if the brokers do not say it."""
        if self._identity is None:
            self._identity = topic_number(*self._asked)
        return self._identity

    def offsets(self) -> dict[int, int]:
        """{partition: offset after the last message with rows that were given}."""
        return {**self._start, **self._taken}

    # -- the end, and what happens between messages

    def on_idle(self, call: Callable[[], None]) -> None:
        self._idle.append(call)

    def skip_before(self, time: int) -> None:
        known = self.consumer.since
        self.consumer.since = time if known is None else max(time, known)

    def stop_when(self, stopped: Callable[[], bool]) -> None:
        """End when ``stopped()`` holds, after the rows that were given last."""
        self._stopped = stopped

    def delivered(self, out: Callable[[], bool]) -> None:
        """``out()``: send all rows given so far on, and return whether they are out; then their offsets are committed.

        Without it, offsets are committed by `finish` only.
        """
        self._out = out

    def settle(self) -> bool:
        """Commit the offsets of rows that are out; returns whether all are."""
        self._settled = time.monotonic()
        self._report()
        self._look()
        if self._unsettled and self._out():
            if self._offsets is not None:
                self._offsets.save(self._taken, self.sequences.saved())
            self.consumer.commit(self._taken)
            self._unsettled = False
        return not self._unsettled

    def _join(self) -> None:
        if self._offsets is not None:
            self.sequences.restore(self._offsets.sequences())

    def _leave(self, lost: bool) -> None:
        # Partitions go to another process, which must see all rows of this one.
        end = time.monotonic() + PUBLISH
        while not lost and not self.settle() and self._offsets is not None:
            if time.monotonic() > end:
                raise ConfluoError("its rows are not published: it is frozen", where=self._offsets.path)
            time.sleep(0.01)
        self._taken.clear()

    def finish(self) -> None:
        """All rows are out, and the output is closed."""
        self.consumer.commit(self._taken, wait=True)

    def close(self) -> None:
        self.consumer.close()
