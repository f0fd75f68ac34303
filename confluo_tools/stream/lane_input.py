"""Where the lanes of a collector get their records: interfaces, or one input that is read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluo_tools.cli.nic_notes import DropWatch
from confluo_tools.console import note, state
from confluo_tools.errors import ConfluoError
from confluo_tools.stream.stage_counts import StageCount

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.kernel.lane_rings import LanePump
    from confluo_tools.kernel.nic import Nic
    from confluo_tools.stream.collector import StreamCollector
    from confluo_tools.stream.fetch_stages import FetchStages

LOOK = 0.2  # s between two checks of interfaces, places and the clock
SAY_DROPS = 10.0  # minimum s between two messages about dropped records
PAUSE = 10.0  # s until a lane must have paused


class NicLanes:
    """The lanes of ``nic``: a thread each, which parses and classifies."""

    def __init__(self, nic: Nic, collector: StreamCollector) -> None:
        self._nic, self._collector = nic, collector
        self._pumps: list[LanePump] = [nic.pump(n, c) for n, c in enumerate(collector.classifiers)]
        self._threads: list[threading.Thread] = []
        self._gate = threading.RLock()  # lanes run, or are changed
        self._problem: Exception | None = None
        self._ended = threading.Event()
        collector.paused, collector.receive = self.paused, self.counts

    def run(self) -> None:
        """Read packets until a signal, the end of --duration or the loss of all interfaces."""
        nic, collector = self._nic, self._collector
        rings, watch = DropWatch(), FlowDropWatch()
        self._start()
        try:
            while not nic.stopping and not nic.gone and not self._ended.wait(LOOK):
                with self._gate:
                    nic.look()
                collector.report()
                rings.look(self._lost())
                watch.look(collector)
        finally:  # also when a place takes no more: what was captured goes to the others
            nic.stop()
            with self._gate:
                self._join()
                nic.stop_input()
                for pump in self._pumps:
                    pump.drain(self._nic.settled, self._nic.clear)
        self._lost()
        watch.look(collector)
        if self._problem is not None:
            raise self._problem

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Meanwhile no lane runs; packets wait in the rings."""
        with self._gate:
            for pump in self._pumps:
                pump.stop()
            os.eventfd_write(self._nic.wake, 1)
            self._join()
            try:
                yield
            finally:
                if not self._nic.stopping:
                    os.eventfd_read(self._nic.wake)
                    for pump in self._pumps:
                        pump.go()
                if self._nic.stopping:  # perhaps only since then
                    self._nic.stop()
                self._start()

    def counts(self) -> list[StageCount]:
        """The counters of each lane: packets that the kernel had for it, what its ring dropped, what its ring holds."""
        nic, found = self._nic, []
        names = ",".join(i.name for i in nic.interfaces)
        with self._gate:
            dropped = nic.drops().dropped
            for number, (pump, taps) in enumerate(zip(self._pumps, nic.taps, strict=True)):
                lost = sum(tap.dropped for tap in taps)
                if number == 0:
                    lost += dropped - sum(tap.dropped for lane in nic.taps for tap in lane)  # of replaced rings
                waiting, size = sum(t.ring.waiting for t in taps), sum(t.ring.bytes for t in taps)
                taken = pump.received
                found.append(
                    StageCount("receive", names, number, taken + lost, taken, 0, lost, waiting, size - waiting)
                )
        return found

    def _lost(self) -> int:
        """Packets that the rings dropped; messages from now on say it, too."""
        lost = sum(c.dropped for c in self.counts())
        self._collector.tell_lost(lost)
        return lost

    def _start(self) -> None:
        self._threads = [threading.Thread(target=self._work, args=(p,), name="lane", daemon=True) for p in self._pumps]
        for thread in self._threads:
            thread.start()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _work(self, pump: LanePump) -> None:
        try:
            pump.until_stopped(self._nic.clear)
        except Exception as e:  # `run` raises it in the main thread
            self._problem = e
            self._ended.set()


class InputLane:
    """The one lane of an input that is read: `write` waits for room.  ``fetched``: of a topic, its first stage."""

    linger = 0

    def __init__(self, name: str, collector: StreamCollector, fetched: FetchStages | None = None) -> None:
        self._name, self._collector, self._fetched = name, collector, fetched
        self._gate = threading.Lock()
        self._next = 0.0
        collector.paused, collector.receive = self.paused, self.counts

    def write(self, block: Block, picks: Picks | None = None) -> bool:
        """False: the run was stopped."""
        classifier = self._collector.classifiers[0]
        with self._gate:
            if block.layout is not classifier.layout:
                block = block.project(classifier.layout)
            going_on = classifier.write(block, picks)
        self.idle()
        return going_on

    def idle(self) -> None:
        """Look at the places from time to time."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LOOK
            self._collector.report()

    @contextmanager
    def paused(self) -> Iterator[None]:
        if not self._gate.acquire(timeout=PAUSE):
            raise ConfluoError("the input waits for a place that takes no records", where="set", hint="try again later")
        try:
            yield
        finally:
            self._gate.release()

    def counts(self) -> list[StageCount]:
        if self._fetched is not None:
            return self._fetched()
        taken = self._collector.classifiers[0].taken
        return [StageCount("receive", self._name, 0, taken, taken)]


class FlowDropWatch:
    """Reports dropped records by flow at the first drop, then every `SAY_DROPS` seconds while drops continue."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], int] = {}
        self._next = 0.0

    def look(self, collector: StreamCollector) -> None:
        now = time.monotonic()
        if now < self._next or state.quiet:
            return
        lines = []
        for (stage, name), dropped in collector.drops().items():
            new = dropped - self._said.get((stage, name), 0)
            if new > 0:
                self._said[stage, name] = dropped
                lines.append(f"flow '{name}': {new} records were dropped: {REASONS[stage]}")
        for line in lines:
            note(line)
        if lines:
            self._next = now + SAY_DROPS


REASONS = {
    "queue": "the queue to its worker was full",
    "function": "a function had no room",
    "send": "its place takes no more: the queue to it was full",
}
