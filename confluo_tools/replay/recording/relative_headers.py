"""Headers of packets, each relative to the one before of the same end and direction: a log of them is a quarter.

A field is what differs from its prediction: of the sequence number the end of the packet before, of the packet's own
number and of the IP identification one more, of others the value before.  Differences wrap around in the bits of the
field.  Every `WHOLE`-th row is absolute, so that the rest is understood when the oldest rows are gone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any

from confluo_tools.replay.recording.absolute_runs import AbsoluteRuns
from confluo_tools.replay.recording.kinds import Kind, Note

WHOLE = 1024
FIN_OR_SYN = 3
_MASKS = dict.fromkeys(("seq", "ack", "window", "tsval", "tsecr", "tx", "rx"), 0xFFFFFFFF) | {"ip_id": 0xFFFF}


def _next_sequence(seq: int, length: int, flags: int) -> int:
    return seq + length + (flags & FIN_OR_SYN).bit_count()


class RelativeHeaders:
    """The rows of one direction of an end, with physical columns, for the recorder."""

    def __init__(self, kind: Kind) -> None:
        self._counter = "tx" if kind == Kind.SENT else "rx"
        self._before: Mapping[str, Any] = {}
        self._rows = 0

    def row(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """The row of the next header, which is absolute."""
        before = self._before
        # The order of rows in a log is that of their times.
        header = {**header, "ts": max(header["ts"], before.get("ts", header["ts"]))}
        self._before = header
        self._rows += 1
        if self._rows % WHOLE == 1:
            return header
        predicted = {name: before[name] for name in _MASKS}
        predicted["seq"] = _next_sequence(before["seq"], before["len"], before["tcp_flags"])
        predicted[self._counter] += 1
        predicted["ip_id"] += 1
        changes = {name: header[name] - predicted[name] & mask for name, mask in _MASKS.items()}
        return {**header, **changes, "notes": int(Note.RELATIVE)}


class HeaderRuns(AbsoluteRuns):
    """The headers of one direction of an end."""

    RELATIVE = _MASKS.keys()
    __slots__ = ()

    def _decoded(self, name: str) -> array[int]:
        values, notes, mask = self.stored(name), self.stored("notes"), _MASKS[name]
        if not any(note & Note.RELATIVE for note in notes):
            return values
        step = 1 if name in (self._counter, "ip_id") else 0
        following: Callable[[int, int], int] = lambda value, _: value + step  # noqa: E731
        if name == "seq":
            lengths, flags = self.stored("len"), self.stored("tcp_flags")
            following = lambda value, n: _next_sequence(value, lengths[n], flags[n])  # noqa: E731
        out, predicted = array("I"), 0
        for n, (value, note) in enumerate(zip(values, notes, strict=True)):
            value = value + predicted & mask if note & Note.RELATIVE else value
            out.append(value)
            predicted = following(value, n)
        return out
