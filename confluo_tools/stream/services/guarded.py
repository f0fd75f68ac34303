"""A service that one wrong time stamp does not harm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from confluo_tools.stream.services.run import StreamService

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.schema import Schema


class WindowedService(StreamService, Protocol):
    """A service with windows that end when a later row comes."""

    reach: int  # ns that a row may be later than those before; 0: windows do not end

    def restart(self) -> None:
        """The clock of the rows stepped back: end all windows, and begin again."""


class GuardedService:
    """Gives ``service`` the rows of ``packets`` with a time near that of the others (core.stream.time_guard)."""

    def __init__(self, service: WindowedService, packets: Schema) -> None:
        from confluo_tools.core.stream.time_guard import TimeGuard

        self.service, self.name, self.schema = service, service.name, service.schema
        time = packets.time_field
        assert time is not None
        self._guard = TimeGuard(packets.layout, packets.index(time.name), service.reach) if service.reach else None

    def take(self, block: Block, picks: Picks | None) -> None:
        if self._guard is None:
            self.service.take(block, picks)
            return
        if block.layout is not self._guard.layout:
            block = block.project(self._guard.layout)
        for part, rows, stepped in self._guard.sift(block, picks):
            if stepped:
                self.service.restart()
            self.service.take(part, rows)

    def due(self) -> int | None:
        times = [self.service.due(), self._guard.due if self._guard is not None else None]
        return min((t for t in times if t is not None), default=None)

    def until(self, now: int) -> None:
        if self._guard is not None and self._guard.due is not None and self._guard.due <= now:
            self._release()
        self.service.until(now)

    def _release(self) -> None:
        held = self._guard.release() if self._guard is not None else None
        if held is not None:
            self.service.take(held, None)

    def finish(self, ended: bool) -> None:
        if ended:
            self._release()
        self.service.finish(ended)

    def results(self) -> Iterator[Block]:
        return self.service.results()

    @property
    def late(self) -> int:
        return self.service.late + (self._guard.strange if self._guard is not None else 0)

    def counts(self) -> str:
        return self.service.counts()

    def notes(self) -> Iterator[str]:
        yield from self.service.notes()
        if self._guard is not None and self._guard.strange:
            yield f"packets that were left out, with a time far from that of the others: {self._guard.strange}"
        if self._guard is not None and self._guard.steps:
            yield f"the times of packets stepped back {self._guard.steps} times; windows began again"
