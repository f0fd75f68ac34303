"""Versions: how many rows of each lane a question sees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final


@final
class Version:
    """An atomic cut through a MultiLog: ``tails[i]`` rows of lane i; lanes beyond have none.

    ``a <= b``: b has every row that a has.  Versions taken one after the other never decrease.
    """

    __slots__ = ("tails",)

    def __init__(self, tails: Iterable[int] = ()) -> None:
        self.tails = tuple(tails)

    @property
    def rows(self) -> int:
        """Rows of all lanes ever published; those that retention has removed are counted."""
        return sum(self.tails)

    def __getitem__(self, lane: int) -> int:
        return self.tails[lane] if 0 <= lane < len(self.tails) else 0

    def __len__(self) -> int:
        return len(self.tails)

    def __repr__(self) -> str:
        return f"Version({list(self.tails)})"

    def _trimmed(self) -> tuple[int, ...]:
        n = len(self.tails)
        while n and not self.tails[n - 1]:
            n -= 1
        return self.tails[:n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._trimmed() == other._trimmed()

    def __hash__(self) -> int:
        return hash(self._trimmed())

    def __le__(self, other: Version) -> bool:
        return all(rows <= other[lane] for lane, rows in enumerate(self.tails))

    def __lt__(self, other: Version) -> bool:
        return self <= other and self != other

    def meet(self, other: Version) -> Version:
        """The rows that both have."""
        return Version(min(rows, other[lane]) for lane, rows in enumerate(self.tails))
