from collections.abc import Iterator
from typing import final

from confluo_tools.core.block.block import Block, Layout, Picks

NEEDED: tuple[str, ...]
USED: tuple[str, ...]
WIDTHS: tuple[int, ...]
RESULT: tuple[str, ...]
RESULT_WIDTHS: tuple[int, ...]

@final
class PacketPairs:
    layout: Layout
    result: Layout
    forgotten: int
    paired: int
    late: int
    waiting: int
    def __init__(
        self, layout: Layout, result: Layout, *, timeout: int, lateness: int, offset: int = 0, most: int = ...
    ) -> None: ...
    def take(self, block: Block, point: int, picks: Picks | None = None) -> None: ...
    def newest_at(self, point: int) -> int | None: ...
    @property
    def mark(self) -> int | None: ...
    def until(self, now: int | None = None) -> Iterator[Block]: ...
