"""Follow a growing MultiLog: the new rows of all lanes, also after another log has replaced it under its path."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from confluo_tools.errors import ConfluoError, StoreError
from confluo_tools.multilog.tail import Tail

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.multilog.segment import SegmentBlock
    from confluo_tools.multilog.log import Log

FIRST, LAST = -(1 << 63), (1 << 63) - 1
MOVED = 1.0  # s between two checks whether another log has the path


class Tails:
    """The rows of the log at ``path``; a context manager.

    ``rows``: how many rows of each lane were read already.  ``after``: skip blocks in which all rows are older (ns).
    ``missed``: rows removed before they were read.  ``uuid``: of the log.  ``warn``: called for damaged parts; their
    rows are left out.  Raises StoreError.
    """

    def __init__(
        self, path: str, after: int = FIRST, rows: Sequence[int] = (), warn: Callable[[str], None] | None = None
    ) -> None:
        self.path, self.after, self._warn = path, after, warn
        self._reported = 0  # damaged parts of the log
        self.go_on(rows)
        self._missed = 0
        self._looked = time.monotonic()
        self._log, self._folder = _open(path)
        field = self._log.schema.time_field
        self._ts = self._log.schema.index(field.name) if field is not None else -1

    @property
    def log(self) -> Log:
        return self._log

    def go_on(self, rows: Sequence[int]) -> None:
        """Begin after ``rows`` of each lane.  To be called before the first row is read."""
        self._tails, self._given = [Tail(lane, n) for lane, n in enumerate(rows)], list(rows)

    @property
    def uuid(self) -> str:
        return self._log.uuid.hex()

    @property
    def rows(self) -> list[int]:
        """How many rows of each lane `streams` has given, with those that it skipped or that were removed."""
        return list(self._given)

    @property
    def missed(self) -> int:
        return self._missed + sum(tail.missed for tail in self._tails)

    def take(self) -> Iterator[tuple[Block, int]]:
        """Yield (block, mark) of the rows appended since the last call, the earliest block of all lanes first.

        No later block of this call contains a row older than ``mark``, so that a slow lane does not count as late.
        """
        heap: list[tuple[int, int, Block]] = []
        coming = [tail.more(self._log, end) for tail, end in zip(self._tails, self._ends(), strict=False)]

        def next_of(lane: int) -> None:
            for block, start, stop in coming[lane]:
                low, high = self._times(block, start, stop)
                if high >= self.after:
                    heappush(heap, (low, lane, block.slice(start, stop - start)))
                    return

        for lane in range(len(coming)):
            next_of(lane)
        while heap:
            _, lane, part = heappop(heap)
            next_of(lane)
            self._report()
            yield part, heap[0][0] if heap else LAST
        self._report()

    def _ends(self) -> tuple[int, ...]:
        version = self._log.version()
        self._tails += [
            Tail(lane, version.firsts[lane] if lane < len(version.firsts) else 0)
            for lane in range(len(self._tails), len(version))
        ]
        return version.tails

    def streams(self, most: int = LAST) -> list[Iterator[Block]]:
        """The rows appended since the last call, at most ``most`` of each lane: one iterator for each lane with rows.

        Read them to their ends before the next call.  Iterating them counts in `rows`.
        """
        ends = self._ends()
        self._given += [tail.rows for tail in self._tails[len(self._given) :]]
        return [
            self._lane(tail, min(end, tail.rows + most))
            for tail, end in zip(self._tails, ends, strict=False)
            if end > tail.rows
        ]

    def _lane(self, tail: Tail, end: int) -> Iterator[Block]:
        for block, start, stop in tail.more(self._log, end):
            self._report()
            self._given[tail.lane] = tail.rows + stop - start
            if self._times(block, start, stop)[1] >= self.after:
                yield block.slice(start, stop - start)
        self._given[tail.lane] = tail.rows
        self._report()

    def _report(self) -> None:
        # The damage found since the last report, with the name of the log: it was opened by file descriptor.
        log = self._log
        if len(log.damage) == self._reported:
            return
        from confluo_tools.multilog.query.plan import problems
        from confluo_tools.multilog.reader import LEFT_OUT, report_some

        found = problems(log, self._reported, len(log.removed))
        self._reported = len(log.damage)
        named = [(path.replace(log.path, self.path, 1), what) for path, what in found]
        report_some(self._warn, self.path, named, LEFT_OUT)

    @property
    def behind(self) -> bool:
        """Whether there are rows that were not read yet."""
        return any(end > tail.rows for tail, end in zip(self._tails, self._ends(), strict=False))

    def _times(self, block: SegmentBlock, start: int, stop: int) -> tuple[int, int]:
        # (min, max) time of these rows; without a time field the lanes follow one another.
        if self._ts < 0:
            return LAST, LAST
        zones = block.zones(self._ts)
        if zones is not None:
            return zones[0] + FIRST, zones[1] + FIRST
        times = memoryview(block.buffer(self._ts)).cast("q")[start:stop]
        return min(times), max(times)

    def moved(self) -> bool:
        """Whether another log with the same fields has replaced this one; if so, `take` reads the new log from now on.

        Call it when `take` returned nothing.  While the old log has unread rows, the answer is False.
        """
        if time.monotonic() - self._looked < MOVED:
            return False
        self._looked = time.monotonic()
        try:
            other, folder = _open(self.path)
        except (ConfluoError, OSError):
            return False  # no log at the path yet
        same = other.uuid == self._log.uuid or other.schema.layout.names != self._log.schema.layout.names
        if same or sum(self._log.version().tails) > sum(tail.rows for tail in self._tails):
            other.close()
            os.close(folder)
            return False
        self.close()
        self._log, self._folder, self._reported = other, folder, 0
        return True

    def close(self) -> None:
        self._missed, self._tails, self._given = self.missed, [], []
        self._log.close()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def __enter__(self) -> Tails:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _open(path: str) -> tuple[Log, int]:
    # Open by file descriptor, so that the last rows can be read after the log was moved away.
    from confluo_tools import multilog

    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise StoreError(f"cannot be read: {e.strerror}", where=path) from None
    try:
        return multilog.open(f"/proc/self/fd/{folder}", readonly=True), folder
    except BaseException:
        os.close(folder)
        raise
