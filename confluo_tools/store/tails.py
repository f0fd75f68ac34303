"""A MultiLog as it grows: what comes into any of its lanes, and into the log that takes its name."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from confluo_tools.errors import ConfluoError, StoreError
from confluo_tools.store.monitor import Tail

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.core.segment import SegmentBlock
    from confluo_tools.store.log import Log

FIRST, LAST = -(1 << 63), (1 << 63) - 1
MOVED = 1.0  # s after which it is seen that another log has the name


class Tails:
    """The rows of the log at ``path`` from the first one on; a context.

    ``after``: parts that are all older (ns) are left out.  Counts: ``missed`` rows were removed before they were seen.
    Raises StoreError.
    """

    def __init__(self, path: str, after: int = FIRST) -> None:
        self.path, self._after = path, after
        self._tails: list[Tail] = []
        self._missed = 0
        self._looked = time.monotonic()
        self._log, self._folder = _open(path)
        field = self._log.schema.time_field
        self._ts = self._log.schema.index(field.name) if field is not None else -1

    @property
    def missed(self) -> int:
        return self._missed + sum(tail.missed for tail in self._tails)

    def take(self) -> Iterator[tuple[Block, int]]:
        """(rows, mark): what has come since, the earliest part of all lanes first, so that a lane that is behind is
        not late: nothing that is still to come of this is older than ``mark``.
        """
        version = self._log.version()
        self._tails += [Tail(lane, version.firsts[lane] if lane < len(version.firsts) else 0)
                        for lane in range(len(self._tails), len(version))]  # fmt: skip
        heap: list[tuple[int, int, Block]] = []
        coming = [tail.more(self._log, end) for tail, end in zip(self._tails, version.tails, strict=False)]

        def next_of(lane: int) -> None:
            for block, start, stop in coming[lane]:
                low, high = self._times(block, start, stop)
                if high >= self._after:
                    heappush(heap, (low, lane, block.slice(start, stop - start)))
                    return

        for lane in range(len(coming)):
            next_of(lane)
        while heap:
            _, lane, part = heappop(heap)
            next_of(lane)
            yield part, heap[0][0] if heap else LAST

    def _times(self, block: SegmentBlock, start: int, stop: int) -> tuple[int, int]:
        # Bounds of the times in these rows; without a time, lanes come one after the other.
        if self._ts < 0:
            return LAST, LAST
        zones = block.zones(self._ts)
        if zones is not None:
            return zones[0] + FIRST, zones[1] + FIRST
        times = memoryview(block.buffer(self._ts)).cast("q")[start:stop]
        return min(times), max(times)

    def moved(self) -> bool:
        """Whether the log was moved away and another one of the same fields has its name: `take` gives that one's rows
        from now on.  To be asked when nothing came; what had come to the old one meanwhile is for the next `take`.
        """
        if time.monotonic() - self._looked < MOVED:
            return False
        self._looked = time.monotonic()
        try:
            other, folder = _open(self.path)
        except (ConfluoError, OSError):
            return False  # none yet
        same = other.uuid == self._log.uuid or other.schema.layout.names != self._log.schema.layout.names
        if same or sum(self._log.version().tails) > sum(tail.rows for tail in self._tails):
            other.close()
            os.close(folder)
            return False
        self.close()
        self._log, self._folder = other, folder
        return True

    def close(self) -> None:
        self._missed, self._tails = self.missed, []
        self._log.close()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def __enter__(self) -> Tails:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _open(path: str) -> tuple[Log, int]:
    # By its folder, whatever its name: what came last to a log that was moved away is read all the same.
    from confluo_tools import store

    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise StoreError(f"cannot be read: {e.strerror}", where=path) from None
    try:
        return store.open(f"/proc/self/fd/{folder}", readonly=True), folder
    except BaseException:
        os.close(folder)
        raise
