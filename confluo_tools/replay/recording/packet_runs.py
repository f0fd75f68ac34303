"""Packets of one direction as runs of consecutive IP identifications at an even rate."""

from __future__ import annotations

from collections.abc import Callable

from confluo_tools.replay.recording.kinds import Kind
from confluo_tools.replay.recording.run_writer import GRAIN, THRESHOLD
from confluo_tools.replay.sampling import RateSampler, TimeRun

NEAR = 1024  # identification 0 is one of the sequence if the expected one is so near


class PacketRunWriter:
    """Calls ``emit`` with rows of ``kind``, RX or TX, for the packets of one end.

    A run ends where an identification is missing or late, and where ``segments`` or ``notes`` change.  Packets without
    identification (IPv6) have ``segments`` 0.  ``jumps``: packets that do not have the next identification.
    """

    def __init__(self, kind: Kind, emit: Callable[[dict[str, int]], object], threshold: int = THRESHOLD) -> None:
        self._kind, self._emit = kind, emit
        self._times = RateSampler(threshold, GRAIN)
        self._row: dict[str, int] = {}
        self._next = -1  # identification that continues the run
        self._expected = -1  # after the highest so far; -1: any
        self._closed = False
        self.jumps = 0

    def add(
        self,
        ts: int,
        tx: int,
        rx: int,
        ip_id: int,
        segments: int = 1,
        notes: int = 0,
        *,
        first: bool = False,
        closed: bool = False,
    ) -> None:
        """Add a packet.  ``first``: the identification of the next one is not known (after a SYN-ACK).

        ``closed``: it is an acknowledgement after the FIN of its sender.
        """
        self._closed = closed
        row = self._row
        if not row or ip_id != self._next or segments != row["segments"] or notes != row["notes"]:
            self._emit_row(self._times.flush())
            self._begin(ts, tx, rx, ip_id, segments, notes)
            self._times.offer(ts)
        elif (done := self._times.offer(ts)) is not None:
            self._emit_row(done)
            self._begin(ts, tx, rx, ip_id, segments, notes)
        self._next = after = (ip_id + segments) & 0xFFFF
        ahead = (after - self._expected) & 0xFFFF
        if self._expected < 0 or (not ahead & 0x8000 and not self._unnumbered(ip_id)):
            self._expected = after
        if first:
            self._next = self._expected = -1

    def _unnumbered(self, ip_id: int) -> bool:
        """Whether the kernel sent it without its socket, in the state time-wait: with identification 0."""
        if ip_id or not self._expected:
            return False
        return self._closed or NEAR < self._expected < 0x10000 - NEAR

    def _begin(self, ts: int, tx: int, rx: int, ip_id: int, segments: int, notes: int) -> None:
        gap = ((ip_id - self._expected + 0x8000) & 0xFFFF) - 0x8000 if self._expected >= 0 else 0
        if self._unnumbered(ip_id):
            gap = 0
        self.jumps += gap != 0
        self._row = {"kind": self._kind, "ts": ts, "tx": tx, "rx": rx, "ip_id": ip_id, "gap": gap}
        self._row |= {"segments": segments, "notes": notes}

    def _emit_row(self, run: TimeRun | None) -> None:
        if run is not None:
            self._emit({**self._row, "ts": run.time, "count": run.packets, "step": run.step})

    def flush(self) -> None:
        self._emit_row(self._times.flush())
        self._row = {}
