"""Deliveries that stop: a sender waits without limit, and says so, with the reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from confluo_tools.console import tell
from confluo_tools.kafka.row_writer import PlaceWriter

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.kafka.row_writer import WriterCounts

STALL = 5.0  # s without a delivery, while messages wait
PAUSE = 0.5  # s between two looks
END = 6.0  # s for the last look


class DeliveryWatch:
    """Reports when the place ``name`` takes nothing more, and when it goes on.

    ``counts``: what became of the rows.  ``what``: in which they go, "messages".  ``why``: the reason; "": nothing to
    report.
    It looks, in a thread of its own, while ``since`` is not 0: the time (CLOCK_MONOTONIC, s) when the sender began to
    write, or to wait for the last deliveries.  (A sender that waits for input takes no delivery reports.)
    """

    def __init__(self, name: str, counts: Callable[[], WriterCounts], what: str, why: Callable[[], str]) -> None:
        self.since = 0.0
        self._name, self._counts, self._what, self._why = name, counts, what, why
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="delivery-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """After a last look."""
        self.since = 0.0
        self._ended.set()
        self._thread.join(END)

    def _run(self) -> None:
        done, moved, stalled = 0, 0.0, False
        ended = False
        while not ended:
            ended = self._ended.wait(PAUSE)
            began, now, counts = self.since, time.monotonic(), self._counts()
            if counts.messages != done:
                done, moved = counts.messages, now
                if stalled:
                    tell(f"{self._name}: {self._what} are delivered again")
                stalled = False
            elif began and now - max(began, moved) > STALL and not stalled:
                why = self._why()
                stalled = bool(why)
                if why:
                    tell(f"{self._name}: waits: {counts.queued} {self._what}, none delivered for 5 s: {why}")


class WatchedWriter(PlaceWriter):
    """A writer with a watch, which looks while rows are written, or the last ones are waited for."""

    _watch: DeliveryWatch

    def write(self, block: Block, picks: Picks | None = None) -> None:
        self._watch.since = time.monotonic()
        try:
            super().write(block, picks)
        finally:
            self._watch.since = 0.0
