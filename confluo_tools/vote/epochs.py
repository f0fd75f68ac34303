"""Epochs: which rows belong to which, and when one is complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.vote.flow_tally import FlowTally

MAX_OPEN = 1024  # epochs that are open at a time
FIRST, LAST = -(1 << 63), (1 << 63) - 1


class Epochs:
    """Tallies of open epochs, by number.  ``length`` and ``lateness`` in ns; length 0: one epoch for all.

    ``live``: ``done`` is called with the begin and the tally of an epoch when a record after its end and the lateness
    has arrived and no earlier one is pending (``mark``), or by the clock.  Otherwise epochs stay open until `finish`,
    so that rows may come in any order, unless there are more than `MAX_OPEN`.  Rows of finished epochs are counted in
    ``late``.
    """

    def __init__(
        self,
        length: int,
        lateness: int,
        live: bool,
        make: Callable[[], FlowTally],
        done: Callable[[int, FlowTally], None],
    ) -> None:
        self.length, self.lateness, self.live = length, lateness, live
        self._make, self._done = make, done
        self.open: dict[int, FlowTally] = {}
        self.idle: Callable[[], None] = lambda: None  # called before every wait
        self.mark = LAST  # nothing that is still to come is older, as far as that is known
        self.late = 0
        self._closed = FIRST  # the last epoch that was handed over
        self._newest = FIRST
        self._begin = LAST  # of what there is, when all is one epoch

    def add(self, block: Block) -> None:
        """Take in a block of the schema `path`."""
        from confluo_tools.core.vote.flow_tally import run

        start = 0
        while start < block.rows:
            number, end, earliest, latest = run(block, start, self.length)
            if number <= self._closed:
                self.late += end - start
            else:
                tally = self.open.get(number)
                if tally is None:
                    if len(self.open) >= MAX_OPEN:
                        self._hand_over(min(self.open))
                    tally = self.open[number] = self._make()
                tally.add(block, start, end)
                self._begin = min(self._begin, earliest)
                if latest > self._newest:
                    self._newest = latest
                    if self.live:
                        self.until(min(latest, self.mark))
            start = end
        if self.live:
            self.until(min(self._newest, self.mark))

    def until(self, now: int) -> None:
        """Finish the epochs that ended at least the lateness before ``now``, ns since 1970."""
        if self.length:
            for number in sorted(n for n in self.open if (n + 1) * self.length + self.lateness <= now):
                self._hand_over(number)

    def due(self) -> int | None:
        """When the next epoch is complete by the clock; None: no epoch waits for that."""
        if not self.length or not self.open:
            return None
        return (min(self.open) + 1) * self.length + self.lateness

    def finish(self) -> None:
        """Hand over all that are open, the earliest first."""
        for number in sorted(self.open):
            self._hand_over(number)

    def _hand_over(self, number: int) -> None:
        tally = self.open.pop(number)
        self._closed = max(self._closed, number)
        self._done(max(number * self.length, FIRST) if self.length else self._begin, tally)
