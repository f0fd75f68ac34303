"""The newest rows of a sequence of blocks, by time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from confluo_tools.formats.merge import BLOCK_ROWS, by_time

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.schema import Schema

MAX_PIECES = 1024


class NewestRows:
    """Keeps the newest ``most`` of the rows that it gets; rows of equal time count in the order in which they came.

    ``ordered``: they come in the order of time, or have none and are taken as they come.  Memory is that of twice as
    many rows and a few blocks.
    """

    def __init__(self, schema: Schema, most: int, ordered: bool = False) -> None:
        self._schema, self._most = schema, most
        self._ordered = ordered or schema.time_field is None
        self._kept: deque[Block] = deque()
        self._rows = 0

    def add(self, block: Block, picks: Picks | None = None) -> None:
        block = block if picks is None else block.take(picks)
        if self._ordered and block.rows > self._most:
            block = block.slice(block.rows - self._most, self._most)
        if block.rows:
            self._kept.append(block)
            self._rows += block.rows
        if self._ordered:
            self._trim()
        elif self._rows > 2 * self._most + BLOCK_ROWS or len(self._kept) > MAX_PIECES:
            self._sort()

    def _trim(self) -> None:
        while self._kept and self._rows - self._kept[0].rows >= self._most:
            self._rows -= self._kept.popleft().rows

    def _sort(self) -> None:
        streams = [iter([(block, None, rank)]) for rank, block in enumerate(self._kept)]
        self._kept = deque(block.take(picks) for block, picks in by_time(self._schema, streams, None))
        self._trim()

    def take(self) -> Iterator[tuple[Block, None]]:
        """The rows that are kept, in the order of time; none is kept afterwards."""
        if not self._ordered:
            self._sort()
        extra = max(self._rows - self._most, 0)
        kept, self._kept, self._rows = self._kept, deque(), 0
        for block in kept:
            yield (block.slice(extra, block.rows - extra) if extra else block), None
            extra = 0


def newest(
    pairs: Iterable[tuple[Block, Picks | None]], schema: Schema, most: int, ordered: bool
) -> Iterator[tuple[Block, None]]:
    """The newest ``most`` rows of ``pairs``, in the order of time."""
    rows = NewestRows(schema, most, ordered)
    for block, picks in pairs:
        rows.add(block, picks)
    yield from rows.take()
