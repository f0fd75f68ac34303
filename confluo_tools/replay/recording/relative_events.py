"""Runs of events, each relative to the one before of the same event: a log of them is half as large.

The same event is one of the same end with equal columns but for its time, place and steps.  Of tx, rx and number it is
what differs from where the next event of that run would be; a run of one event has the steps of the run before.
Differences wrap around in 32 bits.  Every 64th row is absolute, so that the rest is understood when the oldest rows are
gone.  The recorder is record_tcp_end.h.
"""

from __future__ import annotations

from array import array

from confluo_tools.replay.recording.kinds import Note
from confluo_tools.replay.recording.listed_runs import LISTS, PLACES, is_listed, listed_events
from confluo_tools.replay.recording.runs import SortedRuns

MASK = 0xFFFFFFFF
_SAME = ("kind", "call", "timer", "bytes", "asked", "flags", "value")


class EventRuns(SortedRuns):
    """The runs of events of one end; `PLACES` and notes are as if each row had been written with absolute numbers."""

    __slots__ = ("_absolute",)
    _absolute: dict[str, array[int]]

    def __len__(self) -> int:
        return len(self["notes"])

    def __getitem__(self, name: str) -> array[int]:
        if not hasattr(self, "_absolute"):
            self._absolute = self._decoded()
        return self._absolute[name] if name in self._absolute else super().__getitem__(name)

    def _decoded(self) -> dict[str, array[int]]:
        column = super().__getitem__
        notes = column("notes")
        if is_listed(notes):
            return listed_events(column, [name for name in self.names if name not in LISTS], _SAME)
        places = {name: column(name) for name in PLACES}
        if not any(note & Note.RELATIVE for note in notes):
            return {**places, "notes": notes}
        plain = array(notes.typecode, [note & ~Note.RELATIVE for note in notes])
        found = {name: array(values.typecode, values) for name, values in places.items()}
        before: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}  # where the next is expected, and steps
        counts, steps = column("count"), [column(f"{name}_step") for name in PLACES]
        for row, key in enumerate(zip(plain, *map(column, _SAME), strict=True)):
            expected, usual = before.get(key, ([0, 0, 0], [0, 0, 0]))
            at = [places[name][row] for name in PLACES]
            if notes[row] & Note.RELATIVE:
                at = [value + start & MASK for value, start in zip(at, expected, strict=True)]
            else:
                usual = [0, 0, 0]
            if counts[row] > 1:
                usual = [step[row] for step in steps]
            for name, value in zip(PLACES, at, strict=True):
                found[name][row] = value
            before[key] = [value + counts[row] * step for value, step in zip(at, usual, strict=True)], usual
        return {**found, "notes": plain}
