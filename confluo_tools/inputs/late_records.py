"""Remarks about records that came after the end of their window: results may differ from those of a replay."""

from __future__ import annotations

from collections.abc import Callable

from confluo_tools.units import format_duration

SECOND = 1_000_000_000
PAUSE = 10 * SECOND  # from one remark to the next
MAX_LAG = 10 * SECOND  # a longer lag is not the remedy: clocks differ, or the writer was stopped


class LateRecords:
    """Reports late records: the first at once, later ones at most every ten seconds, all of them at the end.

    ``say`` gets the remarks.  ``effect``: what follows from late records.
    ``latest``: the largest lateness, in ns from the time of a record until it was seen.
    """

    def __init__(self, say: Callable[[str], None], effect: str = "alerts may differ") -> None:
        self._say, self._effect = say, effect
        self.latest = 0
        self._count = self._said = 0
        self._due: int | None = None

    def add(self, count: int, lateness: int, now: int) -> None:
        """``count``: of late records so far; ``lateness``: the largest of the new ones; ``now``: a steady clock."""
        self._count, self.latest = count, max(self.latest, lateness)
        if self._due is None or now >= self._due:
            new = self._count - self._said
            self._say(f"{_records(new)} came late, by up to {_rounded(self.latest)}: {self._effect}; {self._remedy()}")
            self._said, self._due = self._count, now + PAUSE

    def end(self) -> None:
        """Report the total, if there is more to say than before."""
        if self._count > self._said:
            self._say(f"{_records(self._count)} came late in all, by up to {_rounded(self.latest)}; {self._remedy()}")
            self._said = self._count

    def _remedy(self) -> str:
        if self.latest > MAX_LAG:
            return "compare the clocks of the writers with this one"
        return f"use --lag {format_duration(_above(self.latest))}"


def _records(n: int) -> str:
    return f"{n} record" if n == 1 else f"{n} records"


def _rounded(ns: int) -> str:
    unit = 10**9 if ns >= 10**10 else 10**6 if ns >= 10**6 else 1
    return format_duration(-(-ns // unit) * unit)


def _above(ns: int) -> int:
    """The next of 1, 2, 5, 10, 20 ... ms."""
    step = 10**6
    while True:
        for factor in (1, 2, 5):
            if step * factor >= ns:
                return step * factor
        step *= 10
