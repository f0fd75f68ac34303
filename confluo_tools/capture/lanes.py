"""A live capture into a log: one thread per lane, and one that monitors them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from confluo_tools.capture.selection import PacketSelection
from confluo_tools.cli.nic_notes import DropWatch

if TYPE_CHECKING:
    from confluo_tools.core.kernel.ring import LaneSink
    from confluo_tools.kernel.lane_rings import LanePump
    from confluo_tools.kernel.nic import Nic
    from confluo_tools.multilog import LogWriter
    from confluo_tools.multilog.capture_statistics import CaptureRecord

LOOK = 0.2  # s between two checks of interfaces, lanes and the clock
RECORD = 1.0  # s between two records of the counters in the log


class Lanes:
    """Runs the lanes of ``nic`` into ``writers`` until a signal, the end of --duration, the limit or an error."""

    def __init__(self, nic: Nic, writers: list[LogWriter], selection: PacketSelection) -> None:
        from confluo_tools.core.kernel.ring import Budget, LaneSink

        self._nic = nic
        budget = Budget(selection.limit) if selection.limit is not None else None
        self._sinks: list[LaneSink] = []
        self._pumps: list[LanePump] = []
        for number, writer in enumerate(writers):
            program = selection.compile() if selection.compile is not None else None
            sink = LaneSink(
                nic.schema.layout, writer, program=program, flows=selection.flows, every=selection.every, budget=budget
            )
            self._sinks.append(sink)
            self._pumps.append(nic.pump(number, sink))
        self._log = writers[0].log
        self._problem: Exception | None = None
        self._ended = threading.Event()
        selection.totals = self

    def sums(self) -> tuple[int, int, int, int]:
        """Packets (received, matched by the expression, stored, not stored because the disk was full)."""
        return (
            sum(p.received for p in self._pumps),
            sum(s.matched for s in self._sinks),
            sum(s.kept for s in self._sinks),
            sum(s.lost for s in self._sinks),
        )

    def run(self, record: CaptureRecord, selection: PacketSelection) -> None:
        """Run the lanes until the end.  Raises DiskFullError or StoreError when rows cannot be stored."""
        threads = [threading.Thread(target=self._work, args=(p,), name="lane", daemon=True) for p in self._pumps]
        nic, watch, next_record = self._nic, DropWatch(), time.monotonic() + RECORD
        selection.latest = selection.figures(nic)
        record.update(selection.latest)  # first record, in case of an early kill
        for thread in threads:
            thread.start()
        while not nic.stopping:
            self._ended.wait(LOOK)
            nic.look()
            if self._ended.is_set() or nic.gone:
                break
            if time.monotonic() >= next_record:
                next_record = time.monotonic() + RECORD
                figures = selection.latest = selection.figures(nic)
                watch.look(figures["dropped by the kernel"])
                record.update(figures)
        nic.stop()
        for thread in threads:
            thread.join()
        nic.stop_input()
        if self._problem is None:
            for pump in self._pumps:
                self._drain(pump)
        if self._problem is not None:
            raise self._log.write_error(self._problem) if isinstance(self._problem, OSError) else self._problem
        watch.look(selection.figures(nic)["dropped by the kernel"])

    def _work(self, pump: LanePump) -> None:
        try:
            pump.until_stopped(self._nic.clear)
        except Exception as e:  # `run` raises it in the main thread
            self._problem = e
        if not self._nic.stopping:
            self._ended.set()

    def _drain(self, pump: LanePump) -> None:
        try:
            pump.drain(self._nic.settled, self._nic.clear)
        except OSError as e:
            self._problem = e
