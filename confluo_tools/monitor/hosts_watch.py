"""Triggers over the rows of several logs, here and on other hosts: each log answers, the answers are merged.

Paper: section 4, the coordinator.  There is none of its own here: the monitor asks over ssh, as all commands do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.monitor.engine import LAST, TriggerEngine
from confluo_tools.monitor.host_feed import HostFeed
from confluo_tools.monitor.partials import Ahead, TextQuestion, questions
from confluo_tools.monitor.ticks import FIRST, LATEST, Sink, TickWatch

if TYPE_CHECKING:
    from confluo_tools.monitor.alerts import AlertBlocks, EarlierAlerts
    from confluo_tools.monitor.host_logs import HostLogs
    from confluo_tools.multilog.query.derived_fields import Analysis

SECOND = 10**9
OFTEN = SECOND // 10  # ns from a question to the next one, at least
SELDOM = SECOND  # at most
STEPS = 1 << 16  # steps of time in one answer about the past
WAIT = 0.2  # s of one wait for answers


class HostChange(NamedTuple):
    """The log ``name`` is missing ``since`` this time (ns), for this ``reason``.

    ``reason`` "": it answers again; ``late``: its rows that came after their ticks.
    """

    name: str
    since: int
    reason: str = ""
    late: int = 0


class HostsWatch(TickWatch):
    """Evaluates the triggers of ``engine`` on the sum of ``logs``.

    ``lag``: ns that rows may be late; ``patience``: ns that ticks wait for a log that does not answer.
    ``changes``: logs that have become missing, or answer again since, in this order, until the reader empties it.
    """

    analyses: Sequence[Analysis] = ()
    damaged = 0

    def __init__(
        self,
        logs: HostLogs,
        engine: TriggerEngine,
        alerts: AlertBlocks,
        sink: Sink,
        *,
        lag: int = 0,
        patience: int = 0,
        clock: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(engine, alerts, sink)
        self.logs, self.lag, self.patience = logs, lag, patience
        self._clock, self._steady = clock, steady
        self.questions = questions(engine)
        self.ahead = Ahead(self.questions)
        self.feeds: list[HostFeed] = []
        self.changes: list[HostChange] = []
        self._arrived = threading.Event()
        self._done: int | None = None  # of the past, the rows up to this time are known
        self._first = FIRST  # the first ticks are later
        self._late = self._lost = 0
        for each in logs.partials:
            each.about(self.questions, engine.schema)

    # -- the past

    def begin(
        self, after: int, earlier: EarlierAlerts | None = None, version: object = None, wait: bool = True
    ) -> None:
        """Evaluate the ticks later than ``after``, or than those of ``earlier``; the rows are those of the past."""
        low = self._start(after, earlier)
        self._done = low
        self._warm(after, earlier)

    def _start(self, after: int, earlier: EarlierAlerts | None) -> int:
        # Empty windows; the time of the oldest row that they can see.
        engine = self.engine
        self._first = max(-LATEST, min(after if earlier is None else earlier.tick, LATEST))
        start = self._first - engine.hold - 2 * max(t.period for t in engine.triggers)
        engine.start(start)
        self.ahead.forget()
        self.hi = start + engine.head
        return max(start - engine.reach, FIRST)

    def _warm(self, after: int, earlier: EarlierAlerts | None) -> None:
        self.take_due()
        self.judge_until(self._first, silent=True)
        self.ticks = 0
        self.engine.restore(earlier.states if earlier is not None else ())
        if earlier is not None:
            self._written, self._earlier_tick = earlier.written, earlier.written_tick
        self._late, self._lost = self.engine.feed.late, self.engine.feed.lost  # those are history
        self.take_late_from()

    def newest(self, version: object = None) -> int | None:
        """The largest time of any row; None when there is none."""
        return self._extreme("max", None)

    def _extreme(self, function: str, since: int | None) -> int | None:
        schema = self.engine.schema
        assert schema.time_field is not None
        question = TextQuestion(schema, f"count, {function}({schema.time_field.name})")
        whole = question.fine.rollup()
        for each in self.logs.partials:
            for _, part in each.between([question], since, None):
                whole.merge(part)
        block = next(iter(whole.finish(question.fine.result.layout, 1.0).blocks()))
        return int(block.get(1, 0)) if block.get(0, 0) else None

    def take_due(self) -> None:
        while self._done is not None and self._done < self.hi:
            until = max(self.hi, self._done + STEPS * min(t.grain for t in self.engine.triggers))
            found = False
            for each in self.logs.partials:
                for number, part in each.between(self.questions, self._done, min(until, LAST)):
                    found = found or (number == 0 and len(part) > 0)
                    self.ahead.take(number, part, self.hi)
            self._done = until if until < LATEST else None
            if not found and self._done is not None:  # quiet years cost nothing
                first = self._extreme("min", self._done)
                self._done = None if first is None else max(first, self._done)
        self.ahead.release(self.hi)

    def first_ahead(self) -> int:
        return self.ahead.first if self._done is None else min(self.ahead.first, self._done)

    # -- now

    def follow(self, after: int, earlier: EarlierAlerts | None, away: dict[str, int]) -> None:
        """Evaluate the ticks later than ``after`` as they come; ``away``: logs that an earlier run missed, since when.

        Logs of hosts that could not be reached are missing at first.
        """
        low = self._start(after, earlier)
        for each in self.logs.partials:
            each.since = low
            self.feeds.append(HostFeed(each, self._arrived))
        steady = self._steady()
        for feed in self.feeds:
            feed.missing = away.get(feed.name)
            if feed.name in self.logs.unreached:
                feed.reason, feed.since = str(self.logs.unreached[feed.name]), steady
                self._gone(feed)
            feed.ask(self._clock() - self.lag, steady)
        while any(f.asking and f.missing is None for f in self.feeds) and self._steady() - steady < self.patience:
            self._arrived.wait(WAIT)
            self._collect()
        self._warm(after, earlier)

    def more(self) -> None:
        """Take what has arrived, and ask again if it is time."""
        self._collect()
        steady, now = self._steady(), self._clock()
        due = now >= self.engine.next + self.lag
        for feed in self.feeds:
            if feed.since is not None and feed.missing is None and steady - feed.since > self.patience:
                self._gone(feed)
            waited = steady - feed.last
            late = due and feed.mark < self.engine.next
            if feed.may_ask(steady) and (waited >= SELDOM or (late and waited >= OFTEN)):
                feed.ask(now - self.lag, steady)

    def _collect(self) -> None:
        self._arrived.clear()
        for feed in self.feeds:
            before, late, from_ = feed.since, self.engine.feed.late, self.engine.feed.late_from
            for number, part in feed.arrivals():
                self.ahead.take(number, part, self.hi)
            if feed.missing is None:
                continue
            self.engine.feed.late_from = from_  # a longer lag is not the remedy
            feed.late += self.engine.feed.late - late
            if before is not None and feed.since is None:
                self.changes.append(HostChange(feed.name, feed.missing, late=feed.late))
                feed.missing, feed.late = None, 0

    def _gone(self, feed: HostFeed) -> None:
        if feed.missing is None:
            feed.missing = self._clock()
            self.changes.append(HostChange(feed.name, feed.missing, feed.reason or "it does not answer"))

    def now(self) -> int:
        """The time by the clock, ns."""
        return self._clock()

    def last_tick(self) -> int:
        """The last tick that alerts may be about."""
        return max(self.engine.clock, self._first, self._earlier_tick)

    def complete(self, until: int) -> int:
        return min([until, *(feed.mark for feed in self.feeds if feed.missing is None)])

    def wait(self, seconds: float) -> None:
        if any(feed.asking for feed in self.feeds):
            self._arrived.wait(WAIT if seconds <= 0 else min(seconds, WAIT))
        else:
            time.sleep(min(max(seconds, 0.01), WAIT))

    @property
    def late(self) -> int:
        """Rows that arrived after a tick that should have seen them."""
        return int(self.engine.feed.late - self._late)

    @property
    def lost(self) -> int:
        """Rows that arrived too late for any window."""
        return int(self.engine.feed.lost - self._lost)

    @property
    def missed(self) -> int:
        """Rows that were removed before they were seen."""
        return sum(each.missed for each in self.logs.partials)

    def forget_rows(self, now: int, *, keep: bool = False) -> None:
        """Restart after the clock was set: windows are empty, earlier rows are ignored, ticks go on from ``now``."""
        memory = self.engine.memory() if keep else []
        self.ahead.forget()
        for feed in self.feeds:
            feed.forget_mark()
        self.engine.start(now, whole=now)
        self.engine.restore(memory)
        self.hi = now + self.engine.head

    def close(self) -> None:
        for feed in self.feeds:
            feed.source.stop()
        for feed in self.feeds:
            feed.close()
