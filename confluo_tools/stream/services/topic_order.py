"""Messages of a topic by time: partitions are read at different speeds when a reader catches up."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block

MAX_ROWS = 1 << 20  # held at once; beyond them the oldest go on


class TopicOrder:
    """Holds blocks until no earlier rows can come, and releases them by their first time (column ``ts``)."""

    def __init__(self, ts: int) -> None:
        self._ts, self._number, self._rows = ts, 0, 0
        self._heap: list[tuple[int, int, Block]] = []

    def add(self, block: Block) -> None:
        if not block.rows:
            return
        self._number += 1
        self._rows += block.rows
        heapq.heappush(self._heap, (min(block.buffer(self._ts).cast("q")), self._number, block))

    def ready(self, mark: int) -> Iterator[Block]:
        """The blocks that begin by ``mark`` (ns): no row that comes later is older."""
        while self._heap and (self._heap[0][0] <= mark or self._rows > MAX_ROWS):
            _, _, block = heapq.heappop(self._heap)
            self._rows -= block.rows
            yield block
