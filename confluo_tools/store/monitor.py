"""A log under watch: its rows go into the windows in time, ticks are judged, by the clock of the records or by ours.

`Watch` feeds an `Engine` from a log up to any tick, the past as the present: rows of a stretch of time first, whatever
their order in the log, then its ticks.  `Live` lets it follow the wall clock.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from confluo_tools.core.segment import SegmentBlock
from confluo_tools.store import recover
from confluo_tools.store.alerts import KINDS
from confluo_tools.store.triggers import LAST, SECOND, Engine, Event

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.core.segment import Segment
    from confluo_tools.store.alerts import Alerts, Earlier
    from confluo_tools.store.analyze import Analysis
    from confluo_tools.store.log import Log
    from confluo_tools.store.version import Version

FIRST = -(1 << 63)
LATEST = (1 << 63) - (1 << 58)  # ticks end here, in 2253: what is added to one must not overflow
STEP = SECOND  # the wall clock and the clock of the machine part by more: somebody has set it
LEARN = 60 * SECOND  # what analyses see before the first window, following a log
MANY = 1 << 20  # runs of rows that are ahead of their time

Sink = Callable[[int, "Block"], None]


class Run:
    """Rows start .. stop of a block, of which those before ``lo`` are taken."""

    __slots__ = ("block", "start", "stop", "lo")

    def __init__(self, block: Block, start: int, stop: int, lo: int) -> None:
        self.block, self.start, self.stop, self.lo = block, start, stop, lo


class Tail:
    """The new rows of one lane, cheaply: the block that grows is asked for again and again."""

    __slots__ = ("lane", "rows", "segment", "base", "capacity", "mark", "missed", "passed")

    def __init__(self, lane: int, rows: int) -> None:
        self.lane, self.rows = lane, rows
        self.missed = 0  # rows that were removed before we came to them
        self.mark: tuple[int, int] | None = None
        self.segment: Segment | None = None
        self.passed: Segment | None = None
        self.base = self.capacity = 0

    def more(self, log: Log, rows: int) -> Iterator[tuple[SegmentBlock, int, int]]:
        """(block, start, stop) of the rows up to ``rows``, which the tail of the lane said before this call."""
        # A new owner or a seal may have ended the segment we know: rows from there on stand in the next one.
        mark = log.control.epoch(self.lane), log.control.sealed(self.lane)
        if mark != self.mark:
            self.mark, self.segment = mark, None
        while self.rows < rows:
            segment = self.segment
            if segment is not None:
                number, inside = divmod(self.rows - self.base, self.capacity)
                last = min(rows - self.base, segment.sealed or LAST)  # what comes then is in the next segment
                stop = min(last - number * self.capacity, self.capacity)
                known = number < segment.blocks_on_file and self.rows < self.base + last
                block = segment.block(number, stop) if known else None
                if block is not None:
                    yield block, inside, stop
                    self.rows += stop - inside
                    if stop == self.capacity:
                        self._pass(segment)
                    continue
            if not self._find(log, rows):
                return

    def _pass(self, segment: Segment) -> None:
        # A block is done with: its memory goes back, and that of the one before, which may have been read meanwhile.
        if self.passed is not None and self.passed is not segment:
            self.passed.release()
        segment.release()
        self.passed = segment

    def _find(self, log: Log, rows: int) -> bool:
        # The segment that holds the next row; rows that are gone are stepped over.
        from confluo_tools.store.version import Version

        version = Version([0] * self.lane + [rows])
        found = log.row_block(self.lane, self.rows, version)
        first = min(log.control.first(self.lane), rows)
        if first > self.rows:
            self.missed += first - self.rows
            self.rows, self.segment = first, None
            return self.rows < rows
        if found is None:
            parts = [p for p in log.segments(version) if p.base + p.rows > self.rows]
            after = [p.base for p in parts if p.base > self.rows]
            if parts and parts[0].base <= self.rows:  # a damaged block
                number, _ = parts[0].find(self.rows)
                self.rows = min(parts[0].base + (number + 1) * parts[0].segment.capacity, rows)
            else:
                self.rows = min([*after, rows])
            self.segment = None
            return self.rows < rows
        self.segment = found[0].segment
        self.base, self.capacity = self.segment.base, self.segment.capacity
        return True


class Watch:
    """``log`` under the triggers of ``engine``; each tick with events goes to ``sink`` as (tick, block of alerts).

    ``analyses``: rows go through them first, in the order of time as far as they are there, then as they come.
    Counts: ``ticks`` judged, ``events``, ``skipped`` ticks' time in ns.
    """

    def __init__(
        self, log: Log, engine: Engine, alerts: Alerts, sink: Sink, analyses: Sequence[Analysis] = ()
    ) -> None:
        self.log, self.engine, self.alerts, self.sink, self.analyses = log, engine, alerts, sink, list(analyses)
        self._past: Iterator[Block] | None = None  # rows of before, analysed, by time
        self._next: Block | None = None
        self.runs: list[tuple[int, int, Run]] = []
        self.tails: list[Tail] = []
        self.hi = FIRST
        self.ticks = self.events = self.damaged = self.dropped = 0
        self._late = self._lost = 0
        self._number = self._low = 0
        self._ts = engine.ts
        self._told: set[tuple[int, int, int]] = set()
        self._earlier_tick = FIRST
        self.short: int | None = None  # windows would see records of before that time, but some have been removed

    def begin(
        self, after: int, earlier: Earlier | None = None, version: Version | None = None, learn: int | None = None,
        wait: bool = True,
    ) -> None:  # fmt: skip
        """Judge the ticks later than ``after``; windows are filled from the rows that are there.

        With ``earlier``: those later than its tick, and what fires is what it says.  ``learn``: analyses see the rows
        of so many ns before the windows too (None: all).

        ``short`` is set when rows that the windows would see have been removed; unless ``wait`` is False, triggers wait
        until their windows are whole.
        """
        engine = self.engine
        done = max(-LATEST, min(after if earlier is None else earlier.tick, LATEST))
        # How long a condition has held is a matter of the records, not of when we began to look.
        version = self.log.version(pin=True) if version is None else self.log.pin(version)
        gap = self._gap(version)
        if earlier is not None and gap > done - max(t.window for t in engine.triggers):
            earlier.pass_to(max(done, earlier.told_tick))  # it cannot be judged again
            done = max(done, min(earlier.tick, LATEST))
        start = done - engine.hold - 2 * max(t.period for t in engine.triggers)
        low = start - engine.reach
        engine.start(start, whole=gap if wait and gap > low else None)
        self.short = gap if gap > done - max(t.window for t in engine.triggers) else None
        self.runs.clear()
        self.hi = start + engine.head
        bias = 1 << 63
        if self.analyses:
            self._low = low
            self._past = self._analysed(version, None if learn is None else max(low - learn, FIRST))
        for block in self.log.blocks(version) if not self.analyses else ():
            zones = block.zones(self._ts)
            if zones is not None and zones[1] - bias < low:
                continue
            self._push(Run(block, 0, block.rows, low), zones[0] - bias if zones is not None else low)
        self.tails = [Tail(lane, rows) for lane, rows in enumerate(version.tails)]
        self._take_due()
        self._judge_until(done, silent=True)
        self.ticks = 0
        if gap > low:
            engine.clock = max(engine.clock, done)  # no tick before may be judged again
        engine.restore(earlier.states if earlier is not None else ())
        if earlier is not None:
            self._told, self._earlier_tick = earlier.told, earlier.told_tick
        self._late, self._lost = engine.feed.late, engine.lost  # those are history, not late

    def _gap(self, version: Version) -> int:
        # The time from which on nothing is missing: of lanes whose first rows were removed, the first that is left.
        heads: dict[int, tuple[int, int]] = {}  # lane -> (earliest, latest time) of its first segment
        for part in self.log.segments(version):
            if part.segment.lane not in heads:
                zones = [b.zones(self._ts) for i in range(part.blocks) if (b := part.block(i)) is not None]
                known = [z for z in zones if z is not None]
                if known:
                    bias = 1 << 63
                    heads[part.segment.lane] = min(z[0] for z in known) - bias, max(z[1] for z in known) - bias
        gap = FIRST
        for lane, first in enumerate(version.firsts):
            if first and lane in heads:
                gap = max(gap, heads[lane][0])
            elif first:  # the oldest go first: what went was not newer than what is left, or than its going
                latest = [h[1] for h in heads.values()]
                with suppress(OSError):
                    latest.append(os.stat(recover.lane_folder(self.log.path, lane)).st_mtime_ns)
                gap = max(gap, min(latest, default=FIRST))
        return min(gap, LATEST)

    @property
    def late(self) -> int:
        """Rows that came after a tick that would have seen them."""
        return self.engine.feed.late - self._late

    @property
    def missed(self) -> int:
        """Rows that were removed before they were seen."""
        return sum(tail.missed for tail in self.tails)

    @property
    def lost(self) -> int:
        """Matches that came too late for any window."""
        return self.engine.lost - self._lost

    def _analysed(self, version: Version, since: int | None) -> Iterator[Block]:
        from confluo_tools.store.plan import Plan

        for block, picks in Plan(self.log, version, since=since).ordered():
            yield self._apply(block.take(picks))

    def _apply(self, block: Block) -> Block:
        for analysis in self.analyses:
            block = analysis.apply(block)
        return block

    def _pull(self) -> None:
        # Analysed rows of before, as far as they are due: they come by time.
        while self._past is not None:
            block = self._next if self._next is not None else next(self._past, None)
            self._next = block
            if block is None:
                self._past = None
            elif block.rows == 0:
                self._next = None
            else:
                first = min(memoryview(block.buffer(self._ts)).cast("q"))
                if first >= self.hi:
                    return
                self._next = None
                self._push(Run(block, 0, block.rows, self._low), first)

    def newest(self, version: Version | None = None) -> int | None:
        """The largest time of any row; None when there is none."""
        found = None
        for block in self.log.blocks(version):
            zones = block.zones(self._ts)
            if zones is None or (found is not None and zones[1] - (1 << 63) <= found) or not block.check([self._ts]):
                continue
            times = memoryview(block.buffer(self._ts)).cast("q")
            found = max(found if found is not None else FIRST, max(times, default=FIRST))
        return found

    # -- rows

    def _push(self, run: Run, first: int) -> None:
        self._number += 1
        heapq.heappush(self.runs, (first, self._number, run))

    def _take(self, run: Run) -> None:
        block = run.block
        if isinstance(block, SegmentBlock) and block.segment.sealed and not block.check(self.engine.columns):
            self.damaged += 1
            return
        self.engine.take(block, run.start, run.stop, run.lo, self.hi)
        ahead = self.engine.feed.ahead
        if ahead == LAST:
            return
        if len(self.runs) >= MANY:
            self.dropped += run.stop - run.start
            return
        run.lo = self.hi
        self._push(run, ahead)

    def _take_due(self) -> None:
        self._pull()
        while self.runs and self.runs[0][0] < self.hi:
            self._take(heapq.heappop(self.runs)[2])

    def more(self) -> int:
        """Take the rows that were published since; how many."""
        tails = self.log.control.tails()
        taken = 0
        for lane in range(len(self.tails), len(tails)):
            self.tails.append(Tail(lane, 0))
        for tail in self.tails:
            rows = tails[tail.lane]
            if rows > tail.rows:
                for block, start, stop in tail.more(self.log, rows):
                    taken += stop - start
                    if not self.analyses:
                        self._take(Run(block, start, stop, FIRST))
                    elif block.check():
                        self._take(Run(self._apply(block.slice(start, stop - start)), 0, stop - start, FIRST))
        return taken

    # -- ticks

    def advance(self, until: int, enough: Callable[[], bool] = lambda: False) -> None:
        """Judge all ticks up to ``until``; ``enough`` is asked now and then whether to stop before."""
        self._judge_until(until, enough)

    def _judge_until(self, until: int, enough: Callable[[], bool] = lambda: False, silent: bool = False) -> None:
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
                    first = self.runs[0][0] if self.runs else LAST
                    if self._next is not None:
                        first = min(first, self._next.get(self._ts, 0))
                    after = min(first, until, engine.due - 1)
                    if after - t > engine.head and first >= self.hi:
                        engine.skip(after)
                        t = engine.next
                self.hi = max(self.hi, t + engine.head)
                self._take_due()
                continue
            events = engine.tick(t)
            self.ticks += 1
            if events and not silent:
                self._tell(t, events)

    def _tell(self, t: int, events: list[Event]) -> None:
        for e in events:
            state = self.engine.states.get((e.trigger, e.hash))
            known = self.alerts.known(e)
            if state is not None:
                state.known = known
            e.known = known
        if t == self._earlier_tick:
            events = [e for e in events if (e.trigger, e.hash, KINDS[e.kind]) not in self._told]
        self.events += len(events)
        if events:
            self.sink(t, self.alerts.block(events))

    def forget_rows(self, now: int, *, keep: bool = False) -> None:
        """The clock was set: windows are empty, rows of before do not count, ticks go on from ``now``.

        ``keep``: what fires goes on firing, and is judged when its window is full.
        """
        memory = self.engine.memory() if keep else []
        tails = self.log.control.tails()
        self.runs.clear()
        self._past = self._next = None
        for lane in range(len(self.tails), len(tails)):
            self.tails.append(Tail(lane, 0))
        for tail in self.tails:
            if tails[tail.lane] > tail.rows:
                tail.rows, tail.segment = tails[tail.lane], None
        self.engine.start(now, whole=now)
        self.engine.restore(memory)
        self.hi = now + self.engine.head


class Live:
    """A `Watch` by the wall clock: tick T is judged when the clock has passed T + ``lag``.

    ``clock``: wall time in ns; ``steady``: time since boot in ns, which nobody sets.
    """

    def __init__(
        self, watch: Watch, lag: int, *, clock: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] | None = None, note: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.watch, self.lag, self.clock = watch, lag, clock
        self.steady = steady or _since_boot
        self.note = note or (lambda what: None)
        self.steps = 0
        self._anchor = clock() - self.steady()

    def step(self) -> float:
        """Judge what is due.  Seconds until there is more to do."""
        now = self.clock()
        moved = now - self.steady() - self._anchor
        if abs(moved) > STEP:
            from confluo_tools.units import format_duration

            self.steps += 1
            self._anchor += moved
            text = f"{format_duration(abs(moved) // 10**6 * 10**6)} {'ahead' if moved > 0 else 'back'}"
            self.note(f"the clock was set {text}: windows begin anew")
            self.watch.forget_rows(now - self.lag)
        elif moved:
            self._anchor += moved  # it is being slewed
        missed = self.watch.missed
        self.watch.more()
        missed = self.watch.missed - missed
        if missed:
            self.note(f"{missed} records were removed before they were seen: windows begin anew; keep more of the log")
            self.watch.forget_rows(self.clock(), keep=True)
        self.watch.advance(now - self.lag)
        return max(self.watch.engine.next + self.lag - self.clock(), 0) / SECOND


def _since_boot() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
