"""Ticks of triggers, by the time of the records, wherever the records come from."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from confluo_tools.monitor.alerts import KINDS
from confluo_tools.monitor.engine import LAST, Event, TriggerEngine

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.monitor.alerts import AlertBlocks

FIRST = -(1 << 63)
LATEST = (1 << 63) - (1 << 58)  # ticks end here, in 2253, so that additions to a tick do not overflow

Sink = Callable[[int, "Block"], None]


class TickWatch:
    """Evaluates the ticks of ``engine``; a tick with events goes to ``sink`` as (tick, block of alerts).

    For each period first its records go into windows, then its ticks are evaluated.  Counts: ``ticks`` evaluated,
    ``events``.  ``short``: windows need records older than that (ns), but some have been removed.
    """

    short: int | None = None

    def __init__(self, engine: TriggerEngine, alerts: AlertBlocks, sink: Sink) -> None:
        self.engine, self.alerts, self.sink = engine, alerts, sink
        self.hi = FIRST
        self.ticks = self.events = 0
        self._written: set[tuple[int, int, int]] = set()
        self._earlier_tick = FIRST

    def take_due(self) -> None:
        """Put the records that are known and older than ``hi`` into the windows."""
        raise NotImplementedError

    def first_ahead(self) -> int:
        """No record that is not in a window yet is older than this; `LAST` if there is none."""
        raise NotImplementedError

    def complete(self, until: int) -> int:
        """The ticks up to this one, at most ``until``, may be evaluated now."""
        return until

    def wait(self, seconds: float) -> None:
        """Wait this long, or until records come."""
        if seconds > 0:
            time.sleep(seconds)

    def take_late_from(self) -> int:
        """The earliest time of the rows that were late since the last call; `LAST` if none was."""
        feed = self.engine.feed
        found, feed.late_from = feed.late_from, LAST
        return int(found)

    def advance(self, until: int, enough: Callable[[], bool] = lambda: False) -> None:
        """Evaluate all ticks up to ``until``; ``enough`` is called regularly and stops it by returning True."""
        self.judge_until(until, enough)

    def judge_until(self, until: int, enough: Callable[[], bool] = lambda: False, silent: bool = False) -> None:
        """As `advance`; ``silent``: without alerts."""
        engine = self.engine
        until = min(until, LATEST)
        while True:
            t = engine.next
            if t > until:
                return
            if t > self.hi - engine.head // 2:
                if enough():
                    return
                if engine.quiet():
                    first = self.first_ahead()
                    after = min(first, until, engine.due - 1)
                    if after - t > engine.head and first >= self.hi:
                        engine.skip(after)
                        t = engine.next
                self.hi = max(self.hi, t + engine.head)
                self.take_due()
                continue
            events = engine.tick(t)
            self.ticks += 1
            if events and not silent:
                self._deliver(t, events)

    def _deliver(self, t: int, events: list[Event]) -> None:
        for e in events:
            state = self.engine.states.get((e.trigger, e.hash))
            known = self.alerts.known(e)
            if state is not None:
                state.known = known
            e.known = known
        if t == self._earlier_tick:
            events = [e for e in events if (e.trigger, e.hash, KINDS[e.kind]) not in self._written]
        self.events += len(events)
        if events:
            self.sink(t, self.alerts.block(events))
