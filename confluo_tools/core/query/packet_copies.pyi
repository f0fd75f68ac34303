from typing import final

from confluo_tools.core.block.block import Block, Layout, Picks

COMPARED: tuple[str, ...]
TESTED: tuple[str, ...]

@final
class PacketCopies:
    layout: Layout
    window: int
    copies: int
    unclear: int
    most: int
    needs: tuple[str, ...]
    memory: int
    def __init__(self, layout: Layout, window: int, most: int) -> None: ...
    def kept_of(self, block: Block, picks: Picks | None = None) -> Picks: ...
