from typing import final

from confluo_tools.core.block.block import Block, Layout, Picks

@final
class TimeGuard:
    layout: Layout
    strange: int
    steps: int
    def __init__(self, layout: Layout, time: int, far: int) -> None: ...
    def sift(self, block: Block, picks: Picks | None = None) -> list[tuple[Block, Picks | None, bool]]: ...
    @property
    def due(self) -> int | None: ...
    def release(self) -> Block | None: ...
