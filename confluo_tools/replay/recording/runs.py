"""Rows that are runs of equal events, and the single events of them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from confluo_tools.core.replay.recording_rows import expand_runs
from confluo_tools.errors import FormatError

if TYPE_CHECKING:
    from confluo_tools.core.replay.recording_rows import RowSorter

MAX_EVENTS = 1 << 26  # of one kind at one end: more is damage
STEPS = {"ts": "step", "tx": "tx_step", "rx": "rx_step", "number": "number_step", "ip_id": "segments"}
_CODES = {"ts": "q", "step": "q", "bytes": "q", "value": "q", "gap": "i", "number": "Q", "asked": "Q", "cookie": "Q"}


class Runs:
    """Rows of one end as columns: one array per field, all of the same length.

    ``events``: the number of events in all of them.
    """

    __slots__ = ("_columns", "events", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.events = 0
        self._columns: dict[str, array[int]] = {}

    def __len__(self) -> int:
        return len(self._columns["count"]) if self._columns else 0

    def __getitem__(self, name: str) -> array[int]:
        column = self._columns.get(name)
        return column if column is not None else array(_code(self.names, name))

    def append(self, row: Mapping[str, int]) -> None:
        """Add a row.  Raises FormatError for a number of events that cannot be."""
        if not self._columns:
            self._columns = {name: array(_code(self.names, name)) for name in self.names}
        count = row["count"]
        if not 0 < count <= MAX_EVENTS - self.events:
            raise FormatError(f"a run of {count} events after {self.events}: the recording is damaged")
        self.events += count
        for name, column in self._columns.items():
            column.append(row.get(name, 0))

    def expanded(self, name: str) -> array[int]:
        """The values of a field, one for each event: times, counts and numbers in their steps, others repeated."""
        first, counts = self[name], self["count"]
        step_name = STEPS.get(name)
        steps = array("q", self[step_name]) if step_name in self.names else None
        try:
            out = expand_runs(array("q", first), array("q", counts), steps)
            if name == "ip_id":
                return array("I", [value & 0xFFFF for value in out])
            return out if first.typecode == "q" else array(first.typecode, out)
        except OverflowError:
            raise FormatError(f"{name} of a run does not fit: the recording is damaged") from None

    def order(self) -> list[int] | range:
        """Places of the expanded events in the order of their numbers."""
        numbers = self.expanded("number")
        return sorted(range(len(numbers)), key=numbers.__getitem__)

    def in_order(self, *names: str) -> Any:
        """Expanded fields, one array each, all in the order of the events' numbers."""
        order = self.order()
        for name in names:
            values = self.expanded(name)
            yield array(values.typecode, [values[i] for i in order])


class SortedRuns(Runs):
    """The rows of one end in a table of a `RowSorter`: an array is made when its column is read."""

    __slots__ = ("_codes", "_end", "_sorter", "_table")

    def __init__(self, names: tuple[str, ...], codes: tuple[str, ...], sorter: RowSorter, table: int, end: int) -> None:
        super().__init__(names)
        self._codes, self._sorter, self._table, self._end = codes, sorter, table, end
        self.events = sorter.events(table, end)

    def __len__(self) -> int:
        return self._sorter.rows(self._table, self._end)

    def __getitem__(self, name: str) -> array[int]:
        column = self._columns.get(name)
        if column is None:
            place = self.names.index(name)
            values = self._sorter.column(self._table, self._end, place)
            column = self._columns[name] = array(self._codes[place], values)
        return column

    def append(self, row: Mapping[str, int]) -> None:
        raise TypeError("rows come from the sorter")


def _code(names: tuple[str, ...], name: str) -> str:
    if name not in names:
        raise KeyError(name)
    return _CODES.get(name, "I")
