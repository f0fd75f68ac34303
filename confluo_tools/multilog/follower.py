"""A growing MultiLog as an input that does not end by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.multilog.tails import Tails

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block

PAUSE = 0.1  # s between two checks of the log
GRACE = 1_000_000_000  # ns after the end of a time range during which its records may still arrive
LAST = (1 << 63) - 1


class LogFollower(Reader):
    """The rows of the log at ``path`` and those that come later, as they are appended; also of a log that replaces it.

    ``until``: end when the clock has passed this time (ns).  Raises StoreError.
    """

    format = "multilog"
    polled = True

    def __init__(self, path: str, *, until: int | None = None, warn: Warn | None = None) -> None:
        from confluo_tools import multilog
        from confluo_tools.multilog.views import named_filters

        super().__init__(path, warn)
        self._end = LAST if until is None else until + GRACE
        self._idle: list[Callable[[], None]] = []
        self._stopped: Callable[[], bool] = lambda: False
        with multilog.open(path, readonly=True) as log:
            self.schema, self.filters = log.schema, named_filters(log)

    def on_idle(self, call: Callable[[], None]) -> None:
        self._idle.append(call)

    def stop_when(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped

    def blocks(self) -> Iterator[Block]:
        with Tails(self.name) as tails:
            while not self._stopped():
                over = time.time_ns() >= self._end
                grown = False
                for block, self.mark in tails.take():
                    grown = True
                    yield block
                    if self._stopped():
                        break
                if over:
                    break
                if not grown and not tails.moved():
                    for call in self._idle:
                        call()
                    time.sleep(PAUSE)
            if tails.missed:
                self.warn(f"{tails.missed} records were removed before they were read")
