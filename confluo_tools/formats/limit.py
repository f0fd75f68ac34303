"""The first rows of a sequence of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks


def limited(pairs: Iterable[tuple[Block, Picks | None]], limit: int | None) -> Iterator[tuple[Block, Picks | None]]:
    """The first ``limit`` rows; reading stops with the last of them."""
    if limit is None:
        yield from pairs
        return
    left = limit
    if left == 0:
        return
    for block, picks in pairs:
        n = block.rows if picks is None else len(picks)
        if n >= left:
            yield first_rows(block, picks, left)
            return
        left -= n
        yield block, picks


def first_rows(block: Block, picks: Picks | None, n: int) -> tuple[Block, Picks | None]:
    """The first ``n`` of the picked rows, or of all."""
    if picks is None:
        return block.slice(0, n), None
    if n >= len(picks):
        return block, picks
    from confluo_tools.core.block.block import Picks

    return block, Picks.of(block.rows, picks.tolist()[:n])
