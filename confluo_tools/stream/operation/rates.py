"""Rows of the schema `stage`: the counters of runs, and how fast records came in between two looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluo_tools.schema import builtin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluo_tools.core.block.block import Block
    from confluo_tools.stream.operation.control_messages import Look

Key = tuple[str, str, int]  # stage, name, pipeline


class RateMeter:
    """Remembers the last look at each run."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[int, dict[Key, int]]] = {}

    def rates(self, look: Look) -> list[float]:
        """Million records per second of each row since the look before; nan in the first look.

        Counters of what is new, or began again, count from 0.
        """
        run = look.run, look.pid
        now = {row[:3]: row.taken for row in look.rows}
        at, before = self._last.get(run, (look.at, {}))
        self._last[run] = look.at, now
        micros = (look.at - at) / 1e3
        if micros <= 0:
            return [float("nan")] * len(look.rows)
        return [round(_more(row.taken, before.get(row[:3], 0)) / micros, 6) for row in look.rows]


def _more(now: int, before: int) -> int:
    return now - before if now >= before else now


def rows_of(look: Look, rates: Iterable[float]) -> list[dict[str, Any]]:
    """Rows of the schema `stage`, {column: value}."""
    numbers = {name: number for number, name in builtin("stage")["stage"].names.items()}
    fixed = {"ts": look.ts, "host": look.host, "run": look.run}
    return [
        {**fixed, **row._asdict(), "stage": numbers[row.stage], "rate": rate}
        for row, rate in zip(look.rows, rates, strict=True)
    ]


def blocks_of(rows: list[dict[str, Any]]) -> Iterable[Block]:
    from confluo_tools.formats.block_builder import blocks_of_rows

    return blocks_of_rows(builtin("stage"), rows)
