from collections.abc import Iterable, Iterator
from typing import final

from confluo_tools.core.block.block import Block, Layout, Picks

@final
class Unnest:
    source: Layout
    target: Layout
    lists: tuple[int, ...]
    def __init__(self, source: Layout, target: Layout, lists: Iterable[int]) -> None: ...
    def rows(
        self, block: Block, picks: Picks | None = None, columns: Iterable[int] | None = None
    ) -> Iterator[Block]: ...
