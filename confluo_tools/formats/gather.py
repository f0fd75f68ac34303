"""Small pieces of rows put together: many small batches cost more than their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Layout

BLOCK_ROWS = 65536
GATHER = 8192  # small pieces are gathered to this many rows,
GATHER_BYTES = 16 << 20  # and to this many bytes


class Gatherer:
    """Blocks of ``layout`` in, the same rows in the same order out, with pieces of few rows put together.

    ``copy``: the memory of a block is used for other rows after `add`.
    """

    def __init__(self, layout: Layout, *, copy: bool = False) -> None:
        self._layout, self._copy = layout, copy
        self._waiting: list[Block] = []
        self._rows = 0

    def add(self, block: Block) -> Iterator[Block]:
        """Take a block; yields those that are ready.  Iterate to the end."""
        if not block.rows:
            return
        if block.rows >= GATHER or self._rows + block.rows > BLOCK_ROWS:
            yield from self.rest()
        if block.rows >= GATHER:
            yield block
            return
        self._waiting.append(self._joined([block]) if self._copy else block)
        self._rows += block.rows
        if self._rows >= GATHER or self._rows * self._layout.row_bytes >= GATHER_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[Block]:
        """Yields what is left, if there is something."""
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if waiting:
            yield waiting[0] if len(waiting) == 1 else self._joined(waiting)

    def _joined(self, blocks: list[Block]) -> Block:
        from confluo_tools.core.block.block import Block

        columns = [b"".join([block.buffer(i) for block in blocks]) for i in range(self._layout.n)]
        return Block.wrap(self._layout, sum([block.rows for block in blocks]), columns)
