"""Versions: how many rows of each lane a question sees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from confluo_tools.core.segment import Part


@final
class Version:
    """An atomic cut through a MultiLog: ``tails[i]`` rows of lane i; lanes beyond have none.

    ``a <= b``: b's tails are at or after a's.  Versions taken one after the other never decrease.

    ``firsts``: rows that retention had removed from the beginning of each lane when the version was taken; () when
    that is not known, and then rows that are gone are not missed.  ``pinned``: the log and the open segments of
    this version, when it was taken with ``pin=True``: retention cannot take these away.
    """

    __slots__ = ("firsts", "pinned", "tails")

    def __init__(self, tails: Iterable[int] = (), firsts: Iterable[int] = ()) -> None:
        self.tails, self.firsts = tuple(tails), tuple(firsts)
        self.pinned: tuple[object, list[Part]] | None = None

    @property
    def rows(self) -> int:
        """Rows of all lanes ever published; those that retention has removed are counted."""
        return sum(self.tails)

    @property
    def kept(self) -> int:
        """Rows that were there when the version was taken: without those that retention had removed."""
        return sum(self.tails) - sum(self.firsts)

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
        tails = [min(rows, other[lane]) for lane, rows in enumerate(self.tails)]
        firsts = [min(first, rows) for first, rows in zip(self.firsts, tails, strict=False)]
        return Version(tails, firsts)
