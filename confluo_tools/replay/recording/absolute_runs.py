"""Rows of one direction of an end, read as if each had been written with absolute numbers."""

from __future__ import annotations

from array import array
from collections.abc import Set
from typing import Any

from confluo_tools.replay.recording.runs import SortedRuns


class AbsoluteRuns(SortedRuns):
    """Rows with columns, `RELATIVE`, that may be relative to the row before; here they are absolute.

    ``counter``: tx or rx, the number of the packet itself.
    """

    RELATIVE: Set[str] = frozenset()
    __slots__ = ("_absolute", "_counter")

    def __init__(
        self, names: tuple[str, ...], codes: tuple[str, ...], place: tuple[Any, int, int], counter: str
    ) -> None:
        super().__init__(names, codes, *place)
        self._counter = counter
        self._absolute: dict[str, array[int]] = {}

    def __getitem__(self, name: str) -> array[int]:
        if name not in self.RELATIVE:
            return self.stored(name)
        if name not in self._absolute:
            self._absolute[name] = self._decoded(name)
        return self._absolute[name]

    def stored(self, name: str) -> array[int]:
        """The column as it was written."""
        return super().__getitem__(name)

    def _decoded(self, name: str) -> array[int]:
        raise NotImplementedError
