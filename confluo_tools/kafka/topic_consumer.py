"""The messages of a topic: partitions, offsets, consumer groups, and brokers that are away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.kafka import client
from confluo_tools.kafka.fetch_memory import FetchMemory
from confluo_tools.kafka.partition_progress import FIRST, LAST, PartitionProgress

if TYPE_CHECKING:
    from confluo_tools.kafka.address import TopicAddress

SILENCE = 30.0  # s without a message or an end, after which an input that ends is given up
REFUSAL, FAILOVER = 1.0, 10.0  # s for which a broker may refuse an offset; of a follower, which lives through failovers
REST = 0.2  # s between two tries
TOLD = 10.0  # s between two lines about the same trouble
OUTAGE = 600.0  # s between two lines about brokers that are away
COMMIT = 5.0  # s to wait for the answer to a commit
PEEK = 5.0  # s that a broker has to send one message
MAX_PEEKED = 10_000
PASSING = {"_DESTROY", "_DESTROY_BROKER", "_TRANSPORT", "_WAIT_COORD", "_WAIT_CACHE", "NOT_COORDINATOR"} | {
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
}
ALONE = "confluo"  # group.id is required, also without a group
DEFAULTS: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.message.max.bytes": 16 << 20,
    "queued.max.messages.kbytes": 64 << 10,
    "fetch.queue.backoff.ms": 10,  # by default 1 s, and what is queued lasts for a tenth of it
    "log_level": 0,
}


class PartitionClaims(Protocol):
    """Who may read a partition, and from where: the record of what is written elsewhere."""

    def claim(self, partition: int) -> bool:
        """Take the partition, if no other process has it."""

    def begin(self, partition: int) -> int | None:
        """The offset to read a claimed partition from; None: nothing is known."""

    def release(self, partitions: Iterable[int]) -> None:
        """Leave partitions to other processes."""


class TopicConsumer:
    """The messages of all partitions of a topic; in a ``group``, of those that the group gives this process.

    Without ``follow``, they end where the partitions end when they are assigned.  ``since``: ns, from the first message
    with a Kafka time of then or later.  A group goes on where it was.  ``claims`` are stronger than both.

    ``next``: {partition: offset of the next message}; ``removed``: messages that brokers removed before they were read.
    Raises ConfluoError.
    """

    def __init__(
        self,
        address: TopicAddress,
        settings: dict[str, str],
        *,
        since: int | None = None,
        follow: bool = False,
        group: str | None = None,
        warn: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        self.address, self._settings, self.since, self._follow = address, settings, since, follow
        self.group = group or settings.get("group.id")
        self._warn, self._tell = warn, tell
        if "cooperative" in settings.get("partition.assignment.strategy", ""):
            raise UsageError("is not supported", where="partition.assignment.strategy", hint="use range or roundrobin")
        self._kafka = kafka = client.python_client()
        self.count = client.partitions(address, settings)
        self._common = {"bootstrap.servers": address.brokers, **DEFAULTS, **settings}
        given = {**self._common, "group.id": self.group or ALONE}
        given |= {"error_cb": self._client_trouble, "on_commit": self._commit_done}
        try:
            self._consumer = kafka.Consumer(given)
        except kafka.KafkaException as e:
            raise UsageError(e.args[0].str(), where="-X") from None
        self._memory = FetchMemory(self._consumer, address)
        self.claims: PartitionClaims | None = None
        self.joined: Callable[[], None] = lambda: None  # called when this process has more partitions
        self.leaving: Callable[[bool], None] = lambda lost: None  # called before partitions go to another process
        self.next: dict[int, int] = {}
        self.removed = self._unsaid = 0
        self.unread = ""  # why messages that are there could not be peeked at
        self._ends: dict[int, int] = {}
        self.progress = PartitionProgress()
        self._waiting: set[int] = set()  # partitions that another process has not left yet
        self._unplaced: list[int] = []  # partitions that no broker gave an offset to begin at yet
        self._refused: dict[int, float] = {}  # partition -> since when its next message is refused
        self._assigned = self._answered = self._closing = False
        self._event = time.monotonic()
        self._trouble = ""
        self._told: dict[str, float] = {}

    # -- before the first message

    def peek(self) -> Iterator[Any]:
        """Some messages of all partitions: the last one of each, then the first ones."""
        # A consumer of its own: a fetch that is still waiting would delay the next request of this one.
        alone = {**self._common, "group.id": ALONE, "error_cb": lambda error: None}
        make, topic = self._kafka.TopicPartition, self.address.topic
        edges = client.edges(self.address, self._settings, range(self.count))
        consumer = self._kafka.Consumer(alone)
        memory = FetchMemory(consumer, self.address)
        try:
            for p, (low, high) in edges.items():
                if high > low:
                    consumer.assign([make(topic, p, high - 1)])
                    yield from self._some(memory, 1)
            consumer.assign([make(topic, p, low) for p, (low, high) in edges.items() if high > low])
            yield from self._some(memory, MAX_PEEKED)
        finally:
            memory.close()

    def _some(self, memory: FetchMemory, most: int) -> Iterator[Any]:
        """The next messages, up to the ends of the partitions.  `unread` has the reason when some do not come."""
        left, end = len(memory.consumer.assignment()), time.monotonic() + PEEK
        while left and most and time.monotonic() < end:
            message = memory.poll(0.2)
            if message is not None and message.error() is None:
                most -= 1
                yield message
            elif message is not None:
                left -= 1
                if message.error().code() != self._kafka.KafkaError._PARTITION_EOF:
                    self.unread = f"partition {message.partition()}: {message.error().str()}"
        if left and most:
            self.unread = self.unread or f"nothing arrives within {PEEK:g} s"

    def start(self) -> None:
        """Assign the partitions: `poll` returns their messages from now on."""
        self._event = time.monotonic()
        try:
            self._consumer.list_topics(self.address.topic, timeout=client.ANSWER)  # else it may look for leaders in 1 s
        except self._kafka.KafkaException as e:
            raise client.unreachable(self.address, e.args[0]) from None
        if self.group is not None:
            topics = [self.address.topic]
            self._consumer.subscribe(topics, on_assign=self._given, on_revoke=self._revoked, on_lost=self._lost)
        else:
            self._given(None, [self._kafka.TopicPartition(self.address.topic, p) for p in range(self.count)])
            if self._waiting:
                from confluo_tools.errors import BusyError

                hint = "end it first, or give both the same --group"
                raise BusyError("another process writes its rows into this log", where=str(self.address), hint=hint)

    # -- messages

    def poll(self, timeout: float) -> Any:
        """The next message; None if there is none within ``timeout`` s.  Raises ConfluoError."""
        if self._unplaced:
            self._place()
        if self._waiting:
            self._claim_waiting()
        event = self._memory.poll(timeout)
        if event is None:
            self._check_silence()
            return None
        self._event = time.monotonic()
        error = event.error()
        if error is not None:
            self._partition_trouble(event, error)
            return None
        p, offset = event.partition(), event.offset()
        if self._trouble:
            self._trouble = ""
            self._told.clear()
            self._say("brokers answer again")
        if offset < self.next.get(p, LAST):
            return None
        if offset > self.next[p]:
            self._check_jump(p, offset)
        self._refused.pop(p, None)
        self.progress.message(p, self._event)
        end = LAST if self._follow else self._ends.get(p, LAST)
        if offset + 1 >= end:
            self.progress.end(p)
        if offset >= end:
            return None
        self.next[p] = offset + 1
        return event

    def seen(self, partition: int, last: int) -> None:
        """The last record of a partition, so far, is of time ``last`` (ns)."""
        self.progress.records(partition, last)

    @property
    def mark(self) -> int:
        """No later message has a record older than this, as far as known: partitions that are behind count."""
        return self.progress.mark(time.monotonic())

    @property
    def at_end(self) -> bool:
        """Whether every partition has been read to its end."""
        known = (self._assigned or self.group is None) and not self._waiting and not self._unplaced
        return known and self.progress.at_end

    def lag(self) -> dict[int, int]:
        """{partition: messages that are there and not read}, as far as the last answers of brokers say."""
        found = {}
        for p, offset in self.next.items():
            place = self._kafka.TopicPartition(self.address.topic, p)
            _, high = self._consumer.get_watermark_offsets(place, cached=True)
            found[p] = max(0, high - offset)
        return found

    # -- the group

    def commit(self, offsets: dict[int, int], *, wait: bool = False) -> None:
        """Tell the group that the messages before these offsets are done with.  ``wait``: for the answer, for a while.

        Not to be called with ``wait`` while partitions are given or taken away: it polls.
        """
        places = [self._kafka.TopicPartition(self.address.topic, p, o) for p, o in offsets.items() if p in self.next]
        if self.group is None or not places:
            return
        self._answered = False
        try:
            self._consumer.commit(offsets=places, asynchronous=True)
        except self._kafka.KafkaException as e:
            self._say(f"offsets are not committed: {e.args[0].str()}")
            return
        end = time.monotonic() + COMMIT
        while wait and not self._answered:
            if time.monotonic() > end:
                self._say("offsets are not committed: no broker answers")
                return
            self._consumer.poll(0.02)

    def _commit_done(self, error: Any, places: list[Any]) -> None:
        self._answered = True
        if error is not None:
            self._say(f"offsets are not committed: {error.str()}")

    def _given(self, _: Any, places: list[Any]) -> None:
        # The group's answer, or all partitions.
        if self._closing:
            return  # the group answers while this process leaves it
        self._waiting = set()
        self._assigned = True
        self._unplaced = [place.partition for place in places]
        self._place()

    def _place(self) -> None:
        """Begin to read the partitions that were given last.  Without an answer, a follower asks again later."""
        try:
            begin = self._begin(self._unplaced)
        except client.UnreachableError as e:
            if not self._follow:
                raise
            self.say_outage(e.what)
            self._read_from({})
            return
        self._unplaced = []
        self._ends = {p: high for p, (_, high) in begin.items()}
        free = {p: b for p, (b, _) in begin.items()}
        if self.claims is not None:
            self._waiting = {p for p in free if not self.claims.claim(p)}
            free = {p: self._claimed(p, b) for p, b in free.items() if p not in self._waiting}
        self._read_from(free)
        self.joined()

    def _claimed(self, p: int, begin: int) -> int:
        assert self.claims is not None
        known = self.claims.begin(p)
        return begin if known is None else max(known, begin) if self.group is not None else known

    def _claim_waiting(self) -> None:
        assert self.claims is not None
        free = {p for p in self._waiting if self.claims.claim(p)}
        if free:
            self._waiting -= free
            begin = self._begin(sorted(free))
            self._read_from(self.next | {p: self._claimed(p, begin[p][0]) for p in free})
            self.joined()

    def _begin(self, partitions: list[int]) -> dict[int, tuple[int, int]]:
        """{partition: (offset to begin at, where it ends now)} by the group, `since`, or its first message."""
        topic, make = self.address.topic, self._kafka.TopicPartition
        edges = client.edges(self.address, self._settings, partitions)
        begin = {p: low for p, (low, _) in edges.items()}
        if self.since is not None and partitions:
            wanted = [make(topic, p, max(0, self.since) // 1_000_000) for p in partitions]
            for place in self._answer(self._consumer.offsets_for_times, wanted):
                begin[place.partition] = place.offset if place.offset >= 0 else edges[place.partition][1]
        if self.group is not None and partitions:
            for place in self._answer(self._consumer.committed, [make(topic, p) for p in partitions]):
                if place.offset >= 0:
                    begin[place.partition] = place.offset
        return {p: (begin[p], edges[p][1]) for p in partitions}

    def _answer(self, ask: Callable[..., list[Any]], places: list[Any]) -> list[Any]:
        """What brokers say about ``places``.  Raises UnreachableError.

        librdkafka gives up a request at once when it replaces its connection to the broker, as it does when the
        coordinator of a group becomes known: such a request is made again.
        """
        end = time.monotonic() + client.ANSWER
        while True:
            try:
                return ask(places, timeout=client.ANSWER)
            except self._kafka.KafkaException as e:
                if e.args[0].name() not in PASSING or time.monotonic() > end:
                    raise client.unreachable(self.address, e.args[0]) from None
            time.sleep(REST)

    def _revoked(self, _: Any, places: list[Any]) -> None:
        self.leaving(False)
        self._leave(places)

    def _lost(self, _: Any, places: list[Any]) -> None:
        self._say("this process took too long, and others of the group have its partitions")
        self.leaving(True)
        self._leave(places)

    def _leave(self, places: list[Any]) -> None:
        for place in places:
            self.next.pop(place.partition, None)
            self.progress.end(place.partition)
            self._waiting.discard(place.partition)
        self._unplaced = []
        if self.claims is not None:
            self.claims.release([place.partition for place in places])
        self._consumer.unassign()

    def _read_from(self, next: dict[int, int]) -> None:
        """Read these partitions from these offsets on."""
        self.next = next
        self.progress.assign((p for p in next if self._follow or next[p] < self._ends.get(p, LAST)), time.monotonic())
        self._reassign()

    def _reassign(self) -> None:
        topic, make = self.address.topic, self._kafka.TopicPartition
        self._consumer.assign([make(topic, p, offset) for p, offset in self.next.items()])

    # -- trouble

    def _client_trouble(self, error: Any) -> None:
        # All brokers are away, or refuse: librdkafka tries again.
        self._trouble = error.str()
        if error.fatal():
            raise ConfluoError(error.str(), where=str(self.address))
        if error.code() == self._kafka.KafkaError._ALL_BROKERS_DOWN:
            self._say("no broker answers; waiting for one", OUTAGE)

    def _partition_trouble(self, event: Any, error: Any) -> None:
        known, p = self._kafka.KafkaError, event.partition()
        if error.code() == known._PARTITION_EOF:
            self._end_of(p, event.offset())
        elif error.code() == known._AUTO_OFFSET_RESET:
            self._out_of_range(p)
        elif error.code() == known._MAX_POLL_EXCEEDED:
            self._say(error.str())
        elif error.code() in (known.UNKNOWN_TOPIC_OR_PART, known._UNKNOWN_TOPIC, known._UNKNOWN_PARTITION):
            raise ConfluoError("the topic does not exist any more", where=str(self.address))
        elif error.code() == known._BAD_COMPRESSION:
            what = (
                f"partition {p}: what follows message {self.next.get(p, 0) - 1} cannot be decompressed, or is too large"
            )
            raise ConfluoError(what, where=str(self.address), hint="--since begins after it")
        elif error.fatal() or not (self._follow and error.retriable()):
            raise ConfluoError(error.str(), where=str(self.address))
        else:
            self._say(error.str())

    def _end_of(self, p: int, offset: int) -> None:
        end = self._ends.get(p, FIRST)
        if not self._follow and offset < end and not self.progress.is_at_end(p) and p in self.next:
            self._warn(f"partition {p} ends at {offset}, not at {end} as the broker said: it lost messages")
        self.progress.end(p)

    def _check_jump(self, p: int, offset: int) -> None:
        """Raise ConfluoError for a message after others that did not come, if the broker says to have no such message.

        A log that took its rows would leave out all that come later with a smaller offset.
        """
        _, high = self._consumer.get_watermark_offsets(self._kafka.TopicPartition(self.address.topic, p), cached=True)
        if offset >= high >= 0:
            what = f"partition {p}: message {offset} came in place of {self.next[p]}, but the broker ends at {high}"
            raise ConfluoError(what, where=str(self.address), hint="check the broker")

    def _out_of_range(self, p: int) -> None:
        # The next message is not there: it was removed, or the partition ends before it.
        try:
            low, high = client.edges(self.address, self._settings, [p])[p]
        except client.UnreachableError:
            if not self._follow:
                raise
            self._reassign()  # the next fetch may be refused, too
            return
        at = self.next.get(p)
        if at is None:
            return
        if at < low:
            self._count_removed(p, low - at)
            self.next[p] = low
        elif at > high and self._follow and self._waits(p):
            pass  # a new leader does not know yet how far the old one was
        elif at > high:
            what = f"partition {p} ends at {high}, before the next message {at}: it lost messages, or is a new one"
            if self.claims is not None:
                raise ConfluoError(what, where=str(self.address), hint="write into another log")
            if p in self.progress.heard and not self._follow:
                raise ConfluoError(what, where=str(self.address))
            self._warn_seldom(f"shrunk {p}", what)
            self.next[p] = low
        elif not self._waits(p):
            what = f"partition {p}: the broker says to have {low} up to {high}, but refuses {at}"
            raise ConfluoError(what, where=str(self.address), hint="check the broker")
        self._reassign()

    def _waits(self, p: int) -> bool:
        """Wait a little for a partition that may be on its way from one leader to the next; False: it has been long."""
        now = time.monotonic()
        if now - self._refused.setdefault(p, now) > (FAILOVER if self._follow else REFUSAL):
            return False
        time.sleep(REST)
        return True

    def _count_removed(self, p: int, messages: int) -> None:
        self.removed += messages
        what = f"partition {p}: {messages} messages were removed before they were read; keep more of the topic"
        if not self._warn_seldom(f"removed {p}", what):
            self._unsaid += messages

    def _warn_seldom(self, name: str, what: str) -> bool:
        """Warn, unless the last one of this name was a moment ago; returns whether it did."""
        now = time.monotonic()
        if now - self._told.get(name, -TOLD) < TOLD:
            return False
        self._told[name] = now
        self._warn(what)
        return True

    def report(self) -> None:
        """At the end: what was not reported when it happened, because there was much of it."""
        if self._unsaid:
            self._warn(f"{self._unsaid} more messages were removed before they were read")
            self._unsaid = 0

    def _check_silence(self) -> None:
        joins = self.group is not None and not self._assigned and not self._trouble
        if self._follow or joins or self._waiting or time.monotonic() - self._event <= SILENCE:
            return
        if self._trouble:
            raise client.unreachable(self.address, self._trouble)
        late = {p: at for p, at in self.next.items() if not self.progress.is_at_end(p) and at < self._ends.get(p, LAST)}
        what = ", ".join(f"partition {p} ends at {self._ends[p]}, but message {at}" for p, at in list(late.items())[:1])
        raise ConfluoError(f"{what or 'nothing'} does not arrive", where=str(self.address), hint="check the broker")

    def say_outage(self, why: str) -> None:
        """Tell that brokers are away; seldom."""
        self._say(f"{why}; waiting for a broker", OUTAGE)

    def _say(self, text: str, pause: float = TOLD) -> None:
        """Tell it, but not again within ``pause`` s."""
        now = time.monotonic()
        if now - self._told.get(text, -pause) >= pause:
            self._told[text] = now
            self._tell(text)

    def close(self) -> None:
        self._closing = True
        self._tell = lambda text: None  # giving partitions back is expected
        self._memory.close()
