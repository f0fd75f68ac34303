"""Rows of a block by windows of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks


def by_window(block: Block, picks: Picks | None, column: int, length: int) -> list[tuple[int, Picks]]:
    """[(start, rows)] of the windows of ``length`` ns that the picked rows are in, by the time in ``column``."""
    from confluo_tools.core.block.block import Picks

    times = block.buffer(column).cast("q")
    if not block.rows:
        return []
    first, last = min(times) // length, max(times) // length
    if first == last:
        return [(first * length, Picks.of(block.rows) if picks is None else picks)]
    rows: dict[int, list[int]] = {}
    for row in range(block.rows) if picks is None else picks.tolist():
        rows.setdefault(times[row] // length, []).append(row)
    return [(number * length, Picks.of(block.rows, rows[number])) for number in sorted(rows)]
