"""Triggers on a log: its rows go into windows, and ticks are evaluated by the time of the records or by the clock.

`LogWatch` feeds a `TriggerEngine` from a log up to any tick, past or present: for each period first the rows of that
time, in whatever order they are in the log, then its ticks.  `LiveWatch` makes it follow the wall clock.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from confluo_tools.core.multilog.segment import SegmentBlock
from confluo_tools.inputs.late_records import LateRecords
from confluo_tools.monitor.engine import LAST, TriggerEngine
from confluo_tools.monitor.ticks import FIRST, LATEST, Sink, TickWatch
from confluo_tools.monitor.windows import SECOND
from confluo_tools.multilog import lane_claim
from confluo_tools.multilog.tail import Tail

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.monitor.alerts import AlertBlocks, EarlierAlerts
    from confluo_tools.monitor.hosts_watch import HostsWatch
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.query.derived_fields import Analysis
    from confluo_tools.multilog.version import Version

STEP = SECOND  # if the wall clock moves by more against the monotonic clock, it was set
LEARN = 60 * SECOND  # ns that analyses see before the first window when following a log
MAX_RUNS = 1 << 20  # ranges of rows that are ahead of their time


class RowRange:
    """Rows start .. stop of a block; those before time ``lo`` are taken already."""

    __slots__ = ("block", "start", "stop", "lo")

    def __init__(self, block: Block, start: int, stop: int, lo: int) -> None:
        self.block, self.start, self.stop, self.lo = block, start, stop, lo


class LogWatch(TickWatch):
    """Evaluates the triggers of ``engine`` on ``log``; a tick with events goes to ``sink`` as (tick, block of alerts).

    ``analyses``: they see the rows first, rows that exist already in the order of time, later ones as they arrive.
    Counts: ``ticks`` evaluated, ``events``, ``skipped`` (ns of skipped ticks).
    """

    def __init__(
        self, log: Log, engine: TriggerEngine, alerts: AlertBlocks, sink: Sink, analyses: Sequence[Analysis] = ()
    ) -> None:
        super().__init__(engine, alerts, sink)
        self.log, self.analyses = log, list(analyses)
        self._past: Iterator[Block] | None = None  # earlier rows, analysed, by time
        self._next: Block | None = None
        self.runs: list[tuple[int, int, RowRange]] = []
        self.tails: list[Tail] = []
        self.damaged = self.dropped = 0
        self._late = self._lost = 0
        self._number = self._low = 0
        self._ts = engine.ts

    def begin(
        self,
        after: int,
        earlier: EarlierAlerts | None = None,
        version: Version | None = None,
        learn: int | None = None,
        wait: bool = True,
    ) -> None:
        """Evaluate the ticks later than ``after``; windows are filled from the existing rows.

        With ``earlier``: the ticks later than its own, with its states.  ``learn``: analyses see the rows
        of that many ns before the windows, too (None: all).

        ``short`` is set when rows that the windows would see have been removed; unless ``wait`` is False, triggers wait
        until their windows are complete.
        """
        engine = self.engine
        done = max(-LATEST, min(after if earlier is None else earlier.tick, LATEST))
        # How long a condition has held depends on the records, not on the start of the monitor.
        version = self.log.version(pin=True) if version is None else self.log.pin(version)
        gap = self._gap(version)
        if earlier is not None and gap > done - max(t.window for t in engine.triggers):
            earlier.pass_to(max(done, earlier.written_tick))  # it cannot be evaluated again
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
            self._push(RowRange(block, 0, block.rows, low), zones[0] - bias if zones is not None else low)
        self.tails = [Tail(lane, rows) for lane, rows in enumerate(version.tails)]
        self.take_due()
        self.judge_until(done, silent=True)
        self.ticks = 0
        if gap > low:
            engine.clock = max(engine.clock, done)  # no earlier tick may be evaluated again
        engine.restore(earlier.states if earlier is not None else ())
        if earlier is not None:
            self._written, self._earlier_tick = earlier.written, earlier.written_tick
        self._late, self._lost = engine.feed.late, engine.lost  # those are history, not late rows
        self.take_late_from()

    def _gap(self, version: Version) -> int:
        # The time from which no row is missing: in lanes with removed rows, that of the first remaining row.
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
            elif (
                first
            ):  # the oldest are removed first: removed rows are not newer than remaining ones, or than their removal
                latest = [h[1] for h in heads.values()]
                with suppress(OSError):
                    latest.append(os.stat(lane_claim.lane_folder(self.log.path, lane)).st_mtime_ns)
                gap = max(gap, min(latest, default=FIRST))
        return min(gap, LATEST)

    @property
    def late(self) -> int:
        """Rows that arrived after a tick that should have seen them."""
        return self.engine.feed.late - self._late

    @property
    def missed(self) -> int:
        """Rows that were removed before they were seen."""
        return sum(tail.missed for tail in self.tails)

    @property
    def lost(self) -> int:
        """Matches that arrived too late for any window."""
        return self.engine.lost - self._lost

    def _analysed(self, version: Version, since: int | None) -> Iterator[Block]:
        from confluo_tools.multilog.query.plan import QueryPlan

        for block, picks in QueryPlan(self.log, version, since=since).ordered():
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
                self._push(RowRange(block, 0, block.rows, self._low), first)

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

    def _push(self, run: RowRange, first: int) -> None:
        self._number += 1
        heapq.heappush(self.runs, (first, self._number, run))

    def _take(self, run: RowRange) -> None:
        block = run.block
        if isinstance(block, SegmentBlock) and block.segment.sealed and not block.check(self.engine.columns):
            self.damaged += 1
            return
        self.engine.take(block, run.start, run.stop, run.lo, self.hi)
        ahead = self.engine.rows.ahead
        if ahead == LAST:
            return
        if len(self.runs) >= MAX_RUNS:
            self.dropped += run.stop - run.start
            return
        run.lo = self.hi
        self._push(run, ahead)

    def take_due(self) -> None:
        self._pull()
        while self.runs and self.runs[0][0] < self.hi:
            self._take(heapq.heappop(self.runs)[2])

    def first_ahead(self) -> int:
        first = self.runs[0][0] if self.runs else LAST
        return first if self._next is None else min(first, self._next.get(self._ts, 0))

    def more(self) -> int:
        """Take newly published rows; returns their number."""
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
                        self._take(RowRange(block, start, stop, FIRST))
                    elif block.check():
                        self._take(RowRange(self._apply(block.slice(start, stop - start)), 0, stop - start, FIRST))
        return taken

    def forget_rows(self, now: int, *, keep: bool = False) -> None:
        """Restart after the clock was set: windows are empty, earlier rows are ignored, ticks go on from ``now``.

        ``keep``: triggers that fire go on firing, and are evaluated when their windows are full.
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


class LiveWatch:
    """A `LogWatch`, or a `HostsWatch`, by the wall clock: tick T is evaluated when the clock has passed T + ``lag``.

    ``clock``: wall time in ns; ``steady``: time since boot in ns, which cannot be set.  ``note`` gets messages;
    ``late`` reports records that came after their ticks.
    """

    def __init__(
        self,
        watch: LogWatch | HostsWatch,
        lag: int,
        *,
        clock: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] | None = None,
        note: Callable[[str], None] | None = None,
        late: LateRecords | None = None,
    ) -> None:
        self.watch, self.lag, self.clock = watch, lag, clock
        self.steady = steady or _since_boot
        self.note = note or (lambda what: None)
        self.late = late or LateRecords(self.note)
        self.steps = 0
        self._anchor = clock() - self.steady()

    def step(self) -> float:
        """Evaluate the ticks that are due; returns the seconds until the next one."""
        now = self.clock()
        moved = now - self.steady() - self._anchor
        if abs(moved) > STEP:
            from confluo_tools.units import format_duration

            self.steps += 1
            self._anchor += moved
            text = f"{format_duration(abs(moved) // 10**6 * 10**6)} {'ahead' if moved > 0 else 'back'}"
            self.note(f"the clock was set {text}: windows start again")
            self.watch.forget_rows(now - self.lag)
        elif moved:
            self._anchor += moved  # the clock is being slewed
        missed = self.watch.missed
        self.watch.more()
        missed = self.watch.missed - missed
        if missed:
            self.note(f"{missed} records were removed before they were seen: windows start again; keep more of the log")
            self.watch.forget_rows(self.clock(), keep=True)
        self._report_late()
        self.watch.advance(self.watch.complete(now - self.lag))
        return max(self.watch.engine.next + self.lag - self.clock(), 0) / SECOND

    def _report_late(self) -> None:
        oldest = self.watch.take_late_from()
        if oldest != LAST:
            # After the clock was set back a little, ticks are ahead of it.
            latest = max(self.clock(), self.watch.engine.clock + self.lag) - oldest
            self.late.add(self.watch.late, latest, self.steady())


def _since_boot() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
