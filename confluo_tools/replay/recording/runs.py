"""Rows that are runs of equal events, and the single events of them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from confluo_tools.errors import FormatError

MAX_EVENTS = 1 << 26  # of one kind at one end: more is damage
STEPS = {"ts": "step", "tx": "tx_step", "rx": "rx_step", "number": "number_step", "ip_id": "segments"}
_CODES = {"ts": "q", "step": "q", "bytes": "q", "value": "q", "gap": "i", "number": "Q", "asked": "Q", "cookie": "Q"}


class Runs:
    """Rows of one end as columns: one array per field, all of the same length.

    ``events``: the number of events in all of them.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.columns = {name: array(_CODES.get(name, "I")) for name in names}
        self.events = 0

    def __len__(self) -> int:
        return len(self.columns["count"])

    def __getitem__(self, name: str) -> array[int]:
        return self.columns[name]

    def append(self, row: Mapping[str, int]) -> None:
        """Add a row.  Raises FormatError for a number of events that cannot be."""
        count = row["count"]
        if not 0 < count <= MAX_EVENTS - self.events:
            raise FormatError(f"a run of {count} events after {self.events}: the recording is damaged")
        self.events += count
        for name, column in self.columns.items():
            column.append(row.get(name, 0))

    def expanded(self, name: str) -> array[int]:
        """The values of a field, one for each event: times, counts and numbers in their steps, others repeated."""
        first, counts = self.columns[name], self.columns["count"]
        out = array(first.typecode)
        step_name = STEPS.get(name)
        if step_name is None or step_name not in self.columns:
            for value, count in zip(first, counts, strict=True):
                out.extend(array(first.typecode, (value,)) * count)
            return out
        wrap = 0xFFFF if name == "ip_id" else None
        for value, count, step in zip(first, counts, self.columns[step_name], strict=True):
            try:
                if wrap is not None:
                    out.extend([(value + step * i) & wrap for i in range(count)])
                elif step == 0 or count == 1:
                    out.extend(array(first.typecode, (value,)) * count)
                else:
                    out.extend(range(value, value + step * count, step))
            except OverflowError:
                raise FormatError(f"{name} of a run does not fit: the recording is damaged") from None
        return out

    def order(self) -> list[int]:
        """Places of the expanded events in the order of their numbers."""
        numbers = self.expanded("number")
        return sorted(range(len(numbers)), key=numbers.__getitem__)

    def in_order(self, *names: str) -> Any:
        """Expanded fields, one array each, all in the order of the events' numbers."""
        order = self.order()
        for name in names:
            values = self.expanded(name)
            yield array(values.typecode, [values[i] for i in order])
