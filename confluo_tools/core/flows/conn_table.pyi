from collections.abc import Iterator
from typing import final

from confluo_tools.core.block.block import Block, Layout, Picks

NEEDED: tuple[str, ...]
USED: tuple[str, ...]
USED_WIDTHS: tuple[int, ...]
RESULT: tuple[str, ...]
RESULT_WIDTHS: tuple[int, ...]
ENTRY_BYTES: int

@final
class ConnTable:
    layout: Layout
    result: Layout
    packets: int
    skipped: int
    evicted: int
    def __init__(self, layout: Layout, result: Layout, max_flows: int, idle: int = 0, active: int = 0) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def now(self) -> int | None: ...
    @property
    def late(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    def process(self, block: Block, picks: Picks | None = None) -> Iterator[Block]: ...
    def advance(self, now: int) -> Iterator[Block]: ...
    def finish(self) -> Iterator[Block]: ...
    def take(self) -> Block: ...
