"""Two inputs, of two observation points, read side by side by the times of their packets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from confluo_tools.errors import SchemaError
from confluo_tools.inputs.follow import OpenPeriods, StopSignal

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.stream.services.source import ServiceSource
    from confluo_tools.stream.stage_counts import StageCount


class TwoPoints:
    """Blocks of two sources, from the one that is behind.  ``point``: 0 or 1, of the last block.

    ``offset``: ns that the clock of the second one is ahead.
    """

    def __init__(self, a: ServiceSource, b: ServiceSource, offset: int) -> None:
        self.name = f"{a.name},{b.name}"
        self.sources, self.point, self._offsets = (a, b), 0, (0, offset)
        self._newest: list[int | None] = [None, None]
        self._ended = [False, False]
        for source in self.sources:
            if source.schema.time_field is None:
                raise SchemaError(f"records of kind '{source.schema.kind}' have no time", where=source.name)

    def mark(self) -> int | None:
        """The time that both have reached (ns, by the clock of the first); None before both have packets."""
        times = [t for t, ended in zip(self._newest, self._ended, strict=True) if not ended]
        return None if not times or None in times else min(t for t in times if t is not None)

    def blocks(self, periods: OpenPeriods, ending: StopSignal) -> Iterator[tuple[Block, Picks | None]]:
        parts = [source.blocks(periods, ending) for source in self.sources]
        while not all(self._ended):
            self.point = self._behind()
            found = next(parts[self.point], None)
            if found is None:
                self._ended[self.point] = True
                continue
            block, picks = found
            self._reach(block, block.rows - 1 if picks is None else picks.last)
            yield block, picks

    def _behind(self) -> int:
        if any(self._ended):
            return self._ended.index(False)
        a, b = self._newest
        return 0 if a is None or (b is not None and a <= b) else 1

    def _reach(self, block: Block, row: int) -> None:
        field = self.sources[self.point].schema.time_field
        assert field is not None
        time = block.get(block.layout.index(field.name), row) - self._offsets[self.point]
        before = self._newest[self.point]
        self._newest[self.point] = time if before is None else max(before, time)

    def counts(self) -> list[StageCount]:
        """The stages of both up to the service."""
        return [*self.sources[0].counts(), *self.sources[1].counts()]

    def waiting(self) -> Iterator[tuple[Block, Picks | None]]:
        yield from ()
