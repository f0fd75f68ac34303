from collections.abc import Iterator
from typing import final

from confluo_tools.core.block.block import Block, Layout

RESULT: tuple[str, ...]
RESULT_WIDTHS: tuple[int, ...]
KINDS: tuple[str, ...]

@final
class TcpSamples:
    layout: Layout
    result: Layout
    segments: int
    def __init__(self, layout: Layout, result: Layout, most: int = ...) -> None: ...
    @property
    def evicted(self) -> int: ...
    def samples(self, block: Block) -> Iterator[Block]: ...
