"""Rates in steps of time of different lengths, such as months and days of 23 to 25 hours."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.core.block.result_table import Rows

if TYPE_CHECKING:
    from confluo_tools.multilog.query.time_steps import TimeSteps

NS = 1_000_000_000


def by_length(rows: Rows, time: int, steps: TimeSteps, rates: Sequence[int]) -> Iterator[tuple[float, Rows]]:
    """(length in seconds, the rows of steps of this length), with the columns ``rates`` divided by it."""
    found: dict[int, list[tuple[Block, int]]] = defaultdict(list)
    lengths: dict[int, int] = {}
    for block in rows.blocks():
        picks: dict[int, list[int]] = defaultdict(list)
        for row, start in enumerate(memoryview(block.buffer(time)).cast("q")[: block.rows]):
            if start not in lengths:
                lengths[start] = steps.after(start) - start
            picks[lengths[start]].append(row)
        for length, numbers in picks.items():
            found[length].append((_divided(block.take(Picks.of(block.rows, numbers)), rates, length / NS), 0))
    for length, pieces in found.items():
        yield length / NS, Rows.of(rows.layout, pieces)


def _divided(block: Block, rates: Sequence[int], seconds: float) -> Block:
    columns: list[Any] = [block.buffer(i) for i in range(block.layout.n)]
    for i in rates:
        columns[i] = array("d", [v / seconds for v in memoryview(block.buffer(i)).cast("d")[: block.rows]])
    return Block.wrap(block.layout, block.rows, columns)
