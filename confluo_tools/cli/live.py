"""A live capture into a log: a thread for each lane, and one that looks after them."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from confluo_tools.cli.chosen import Chosen
from confluo_tools.cli.state import note, state
from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.core.ring import Sink
    from confluo_tools.sources.intake import Intake
    from confluo_tools.sources.nic import Nic
    from confluo_tools.store import Writer
    from confluo_tools.store.captures import Record

LOOK = 0.2  # s between two looks at interfaces, lanes and the clock
RECORD = 1.0  # s between two notes of the counters in the log
SAY_DROPS = 10.0  # s between two lines about packets that were dropped


class DropWatch:
    """Says that packets were dropped when that begins, and again when it goes on."""

    def __init__(self) -> None:
        self._said = 0
        self._next = 0.0

    def look(self, dropped: int) -> None:
        now = time.monotonic()
        if dropped > self._said and now >= self._next:
            self._next = now + SAY_DROPS
            if not state.quiet:
                hint = "--lanes, --ring, --bpf or -s help"
                note(f"{dropped - self._said} packets were dropped: their ring was full", hint=hint)
            self._said = dropped


class Lanes:
    """Runs the lanes of ``nic`` into ``writers`` until a signal, the end of the time, the limit or trouble."""

    def __init__(self, nic: Nic, writers: list[Writer], chosen: Chosen) -> None:
        from confluo_tools.core.ring import Budget, Sink

        self._nic = nic
        budget = Budget(chosen.limit) if chosen.limit is not None else None
        self._sinks: list[Sink] = []
        self._pumps: list[Intake] = []
        for number, writer in enumerate(writers):
            program = chosen.compile() if chosen.compile is not None else None
            sink = Sink(
                nic.schema.layout, writer, program=program, flows=chosen.flows, every=chosen.every, budget=budget
            )
            self._sinks.append(sink)
            self._pumps.append(nic.pump(number, sink))
        self._log = writers[0].log
        self._problem: OSError | None = None
        self._ended = threading.Event()
        chosen.tally = self

    def sums(self) -> tuple[int, int, int, int]:
        """Packets received, of them those that the expression takes, those stored, those that found no room."""
        return (
            sum(p.received for p in self._pumps), sum(s.matched for s in self._sinks),
            sum(s.kept for s in self._sinks), sum(s.lost for s in self._sinks),
        )  # fmt: skip

    def run(self, record: Record, chosen: Chosen) -> None:
        """Raises DiskFullError, StoreError, ConfluoError (all interfaces have vanished)."""
        threads = [threading.Thread(target=self._work, args=(p,), name="lane", daemon=True) for p in self._pumps]
        nic, watch, next_record = self._nic, DropWatch(), time.monotonic() + RECORD
        record.update(chosen.figures(nic))  # it may be killed at once
        for thread in threads:
            thread.start()
        while not nic.stopping:
            self._ended.wait(LOOK)
            nic.look()
            if self._ended.is_set() or nic.gone:
                break
            if time.monotonic() >= next_record:
                next_record = time.monotonic() + RECORD
                figures = chosen.figures(nic)
                watch.look(figures["dropped by the kernel"])
                record.update(figures)
        nic.stop()
        for thread in threads:
            thread.join()
        nic.hush()
        if self._problem is None:
            for pump in self._pumps:
                self._drain(pump)
        if self._problem is not None:
            raise self._log._trouble(self._problem)
        watch.look(chosen.figures(nic)["dropped by the kernel"])

    def _work(self, pump: Intake) -> None:
        try:
            while True:
                why = pump.run(1000)
                if why == "trouble":
                    self._nic.clear()
                elif why != "idle":
                    break
        except OSError as e:
            self._problem = e
        if not self._nic.stopping:
            self._ended.set()

    def _drain(self, pump: Intake) -> None:
        # Nothing comes in any more: what the rings still hold.
        pump.go()
        try:
            while (why := pump.run(self._nic.settled)) != "idle":
                if why != "trouble":
                    return
                self._nic.clear()
        except OSError as e:
            self._problem = e


def vanished(nic: Nic) -> ConfluoError:
    return ConfluoError("has vanished and did not come back", where=nic.gone, hint="the packets before are kept")


def announce(nic: Nic) -> None:
    """Say what is captured, for people and for those who wait for it."""
    if not state.quiet:
        names = ", ".join(i.name for i in nic.interfaces)
        lanes = f" in {nic.lanes} lanes" if nic.lanes > 1 else ""
        note(f"capturing from {names}{lanes}; pid {os.getpid()}")
