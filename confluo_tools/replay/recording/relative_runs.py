"""Runs of packets, each relative to the one before of the same end and direction: a log of them is half as large.

Of the IP identification and of the packet's own number (tx of sent, rx of received packets) it is what differs from
the end of the run before, of the other number from its value there.  Differences wrap around in the bits of the
field.  Every `WHOLE`-th row is absolute, so that the rest is understood when the oldest rows are gone.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from confluo_tools.core.replay.recording_rows import absolute_runs
from confluo_tools.replay.recording.absolute_runs import AbsoluteRuns
from confluo_tools.replay.recording.kinds import Kind, Note
from confluo_tools.replay.recording.listed_runs import LISTS, Columns, is_listed, listed_packets

WHOLE = 64  # as in record_tcp_end.h
MASKS = {"ip_id": 0xFFFF, "tx": 0xFFFFFFFF, "rx": 0xFFFFFFFF}


class RelativeRuns:
    """The rows of one direction of an end, for the recorder."""

    def __init__(self, kind: Kind) -> None:
        self._counter = "tx" if kind == Kind.TX else "rx"
        self._expected: dict[str, int] = {}
        self._rows = 0

    def row(self, run: Mapping[str, int]) -> dict[str, int]:
        """The row of the next run, which is absolute."""
        row = dict(run)
        if self._rows % WHOLE:
            row |= {name: run[name] - self._expected[name] & mask for name, mask in MASKS.items()}
            row["notes"] |= Note.RELATIVE
        self._rows += 1
        self._expected = {name: run[name] for name in MASKS}
        self._expected[self._counter] += run["count"]
        self._expected["ip_id"] += run["count"] * run["segments"]
        return row


class PacketRuns(AbsoluteRuns):
    """The runs of packets of one direction of an end."""

    RELATIVE = frozenset([*MASKS, "notes"])
    __slots__ = ("_listed",)

    _listed: Columns | None

    def __len__(self) -> int:
        return len(self["notes"])

    def __getitem__(self, name: str) -> array[int]:
        if not hasattr(self, "_listed"):
            self._listed = None
            if is_listed(self.stored("notes")):
                names = [name for name in self.names if name not in LISTS]
                self._listed = listed_packets(self.stored, names, self._counter)
        return self._listed[name] if self._listed is not None else super().__getitem__(name)

    def _decoded(self, name: str) -> array[int]:
        column, notes = self.stored(name), self.stored("notes")
        if name == "notes":
            return array(column.typecode, [note & ~Note.RELATIVE for note in notes])
        steps = self.stored("segments") if name == "ip_id" else None
        counts = self.stored("count")
        found = absolute_runs(column, notes, counts, steps, name == self._counter, MASKS[name], Note.RELATIVE)
        return array(column.typecode, found)
