"""Functions of flows on rows of Python: what they give, and rules of windows in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.core.stream.stage import StreamStage, WriterStage
from confluo_tools.schema import Schema
from confluo_tools.stream.functions import FlowFunction, read

MINUTE = 60 * 10**9


class FunctionRun:
    """A function with what it has given: ``blocks``, of ``schema``."""

    def __init__(self, words: dict[str, Any], schema: Schema, flow: str = "f") -> None:
        [(word, value)] = words.items()
        self.function: FlowFunction = read(word, value, schema, f"flow '{flow}'", flow)
        self.schema = self.function.after(schema)
        self.blocks: list[Block] = []
        self.stage: Any = self.function.stage(schema)
        self.end = WriterStage(self.schema.layout, self.blocks.append)
        self.stage.then(self.end)

    def write(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            assert self.stage.write(block)

    def finish(self) -> StreamStage:
        assert self.stage.end()
        assert self.end.problem is None
        assert self.stage.given == self.end.taken == sum(b.rows for b in self.blocks)
        return self.stage

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        """The values of physical columns, of all rows given."""
        columns = [self.schema.index(name) for name in names]
        return [tuple(b.get(i, row) for i in columns) for b in self.blocks for row in range(b.rows)]


def cut(block: Block, sizes: Sequence[int]) -> list[Block]:
    """The block in pieces of these sizes, used in turn."""
    out, start, turn = [], 0, 0
    while start < block.rows:
        n = min(max(sizes[turn % len(sizes)], 1), block.rows - start)
        out.append(block.slice(start, n))
        start, turn = start + n, turn + 1
    return out


def scattered(block: Block, keep: Sequence[bool]) -> tuple[Block, Picks]:
    """Picks of the rows to keep."""
    return block, Picks.of(block.rows, [i for i in range(block.rows) if keep[i]])


class TwinWindows:
    """Row by row: which window takes a row, and when a window is given.  See pyx/stream/event_windows.pyx."""

    def __init__(self, every: int, late: int) -> None:
        self.every, self.late = every, late
        self.open: dict[int, list[int]] = {}
        self.given: list[tuple[int, list[int]]] = []
        self.refused: list[int] = []
        self.steps = 0
        self.latest: int | None = None
        self.doubted: int | None = None  # start of a window
        self.strange: tuple[int, int] | None = None  # side and time of the row before

    def give(self, start: int) -> None:
        self.given.append((start, self.open.pop(start)))

    def give_until(self, time: int | None) -> None:
        for start in sorted(self.open):
            if start != self.doubted and (time is None or start + self.every <= time):
                self.give(start)

    def row(self, number: int, t: int) -> None:
        margin, start = self.every + self.late, t // self.every * self.every
        if self.latest is None:
            self.latest = t
        if t > self.latest + margin:
            return self.far(1, number, t)
        if t > self.latest:
            self.latest = t
            self.give_until(t - self.late)
        if start not in self.open or start == self.doubted:
            if t < self.latest - margin - MINUTE:
                return self.far(-1, number, t)
            if start + margin <= self.latest:
                self.strange = None
                self.refused.append(number)
                return None
            if start == self.doubted:
                self.doubted = None
        self.strange = None
        self.open.setdefault(start, []).append(number)
        return None

    def far(self, side: int, number: int, t: int) -> None:
        margin, start = self.every + self.late, t // self.every * self.every
        if self.strange is not None and self.strange[0] == side and t >= self.strange[1] - margin:
            self.give_until(None)
            self.latest, self.strange, self.doubted = self.strange[1], None, None
            self.steps += side < 0
            return self.row(number, t)
        if start not in self.open:
            if self.doubted is not None:
                self.give(self.doubted)
            self.doubted = start
        self.open.setdefault(start, []).append(number)
        self.strange = side, t
        return None

    def finish(self) -> None:
        self.doubted = None
        self.give_until(None)
