"""Sorted rows that together do not fit into memory: runs in a temporary file, and their merge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from confluo_tools.multilog.query.group_spill import temporary_file, write

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Layout

ROWS = 8192


class RowRuns:
    """Runs of rows of ``layout``, each in the same order.  ``rows``: of each run that are in memory at once."""

    def __init__(self, layout: Layout, rows: int = ROWS) -> None:
        self._layout, self._rows, self._file = layout, rows, temporary_file()
        self._runs: list[list[tuple[int, int]]] = []  # of each: (offset, rows) of its pieces
        self._end = 0

    def add(self, blocks: Iterable[Block]) -> None:
        """A run.  Raises ConfluoError if it cannot be written."""
        pieces: list[tuple[int, int]] = []
        for block in blocks:
            columns = [bytes(block.buffer(i)) for i in range(self._layout.n)]
            widths = [len(column) // block.rows for column in columns]
            for start in range(0, block.rows, self._rows):
                rows = min(self._rows, block.rows - start)
                data = b"".join(c[start * w : (start + rows) * w] for c, w in zip(columns, widths, strict=True))
                write(self._file, data)
                pieces.append((self._end, rows))
                self._end += len(data)
        if pieces:
            self._runs.append(pieces[::-1])

    def merged(self, order: Sequence[tuple[int, ...]], first: int | None = None) -> Iterator[Block]:
        """All rows by ``order``, see `Rows.sort`; the ``first`` N if given.

        Of each run some rows are in memory: what is not after the last of any run is next.
        """
        from confluo_tools.core.block.result_table import Rows

        with self._file:
            heads: list[tuple[Block, int]] = [(self._next(run), 0) for run in self._runs]
            left = first
            while heads and left != 0:
                ends, total = [], 0
                for block, start in heads:
                    total += block.rows - start
                    ends.append(total)
                pool = Rows.of(self._layout, heads)
                pool.sort(list(order))
                counts = pool.cut(ends, [end - 1 for end, run in zip(ends, self._runs, strict=True) if run])
                for block in pool.blocks():
                    if left is not None and block.rows > left:
                        block = block.slice(0, left)
                    left = None if left is None else left - block.rows
                    yield block
                    if left == 0:
                        return
                heads = self._refill(heads, counts)

    def _refill(self, heads: list[tuple[Block, int]], counts: Sequence[int]) -> list[tuple[Block, int]]:
        out, runs = [], []
        for (block, start), count, run in zip(heads, counts, self._runs, strict=True):
            start += count
            if start == block.rows:
                if not run:
                    continue
                block, start = self._next(run), 0
            out.append((block, start))
            runs.append(run)
        self._runs = runs
        return out

    def _next(self, run: list[tuple[int, int]]) -> Block:
        from confluo_tools.core.block.block import Block

        offset, rows = run.pop()
        self._file.seek(offset)
        columns = []
        for i in range(self._layout.n):
            _, _, size, count = self._layout.describe(i)
            columns.append(self._file.read(rows * size * count))
        return Block.wrap(self._layout, rows, columns)
