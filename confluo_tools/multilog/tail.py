"""Follow one lane of a growing log: the rows appended since the last call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from confluo_tools.core.multilog.segment import SegmentBlock

if TYPE_CHECKING:
    from confluo_tools.core.multilog.segment import Segment
    from confluo_tools.multilog.log import Log

LAST = (1 << 63) - 1


class Tail:
    """Cursor in one lane.  Keeps the growing block open, so that polling is cheap.

    ``rows``: the next row to read; ``missed``: rows that retention removed before they were read.
    """

    __slots__ = ("lane", "rows", "segment", "base", "capacity", "mark", "missed", "previous")

    def __init__(self, lane: int, rows: int) -> None:
        self.lane, self.rows = lane, rows
        self.missed = 0
        self.mark: tuple[int, int] | None = None
        self.segment: Segment | None = None
        self.previous: Segment | None = None
        self.base = self.capacity = 0

    def more(self, log: Log, rows: int) -> Iterator[tuple[SegmentBlock, int, int]]:
        """Yield (block, start, stop) of the new rows up to row ``rows``, a tail of the lane read before this call."""
        # A new owner or a seal may have ended the known segment: later rows are in the next one.
        mark = log.control.epoch(self.lane), log.control.sealed(self.lane)
        if mark != self.mark:
            self.mark, self.segment = mark, None
        while self.rows < rows:
            segment = self.segment
            if segment is not None:
                number, inside = divmod(self.rows - self.base, self.capacity)
                last = min(rows - self.base, segment.sealed or LAST)  # later rows are in the next segment
                stop = min(last - number * self.capacity, self.capacity)
                known = number < segment.blocks_on_file and self.rows < self.base + last
                block = segment.block(number, stop) if known else None
                if block is not None and not block.check():  # readers of slices check nothing
                    block = None
                if block is not None:
                    yield block, inside, stop
                    self.rows += stop - inside
                    if stop == self.capacity:
                        self._release_behind(segment)
                    continue
            if not self._find(log, rows):
                return

    def _release_behind(self, segment: Segment) -> None:
        # Release the pages of a finished segment, and those of the previous one, which may have been read again.
        if self.previous is not None and self.previous is not segment:
            self.previous.release()
            self.previous.forget()
        segment.release()
        self.previous = segment

    def _find(self, log: Log, rows: int) -> bool:
        # Find the segment of the next row; skip rows that were removed or are damaged.
        from confluo_tools.multilog.version import Version

        version = Version([0] * self.lane + [rows])
        found = log.row_block(self.lane, self.rows, version)
        first = min(log.first(self.lane), rows)
        if first > self.rows:
            self.missed += first - self.rows
            self.rows, self.segment = first, None
            return self.rows < rows
        if found is None:
            parts = [p for p in log.segments(version) if p.base + p.rows > self.rows]
            after = [p.base for p in parts if p.base > self.rows]
            if parts and parts[0].base <= self.rows:  # a damaged block
                part = parts[0]
                number, _ = part.find(self.rows)  # the last block may have room for more rows than the segment has
                self.rows = min(part.base + min((number + 1) * part.segment.capacity, part.rows), rows)
            else:
                self.rows = min([*after, rows])
            self.segment = None
            return self.rows < rows
        self.segment = found[0].segment
        self.base, self.capacity = self.segment.base, self.segment.capacity
        return True
