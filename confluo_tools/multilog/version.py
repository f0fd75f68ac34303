"""Versions: the number of rows of each lane that a query reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from confluo_tools.core.multilog.segment import SegmentPart
    from confluo_tools.multilog.log import Log


@final
class Version:
    """An atomic cut through a MultiLog: ``tails[i]`` rows of lane i, 0 for further lanes.

    ``a <= b``: no tail of a is after that of b.  Successive versions never decrease.

    ``firsts``: number of rows that retention had removed from the start of each lane when the version was taken;
    () if unknown: removed rows are then not reported.  ``pinned``: the log and the open segments of a version taken
    with ``pin=True``; retention cannot remove these.
    """

    __slots__ = ("firsts", "pinned", "tails")

    def __init__(self, tails: Iterable[int] = (), firsts: Iterable[int] = ()) -> None:
        self.tails, self.firsts = tuple(tails), tuple(firsts)
        self.pinned: tuple[Log, list[SegmentPart]] | None = None

    @property
    def log(self) -> Log | None:
        """The open log with the segments of a pinned version."""
        return None if self.pinned is None else self.pinned[0]

    @property
    def rows(self) -> int:
        """Rows ever published in all lanes, including those that retention has removed."""
        return sum(self.tails)

    @property
    def kept(self) -> int:
        """Rows that existed when the version was taken, without those that retention had removed."""
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
        """The rows that both versions contain."""
        tails = [min(rows, other[lane]) for lane, rows in enumerate(self.tails)]
        firsts = [min(first, rows) for first, rows in zip(self.firsts, tails, strict=False)]
        return Version(tails, firsts)
