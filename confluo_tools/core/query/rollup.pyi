from typing import Any, final

from confluo_tools.core.block.block import Block, Layout, Picks
from confluo_tools.core.block.result_table import Rows

FUNCS: dict[str, int]

@final
class RowCondition:
    def __init__(self, layout: Layout, tree: object, slot: int, next: RowCondition | None) -> None: ...

@final
class Rollup:
    layout: Layout
    keys: tuple[tuple[Any, ...], ...]
    aggs: tuple[tuple[Any, ...], ...]
    time: int
    spanning: bool
    rows: int
    def __init__(
        self,
        layout: Layout,
        keys: tuple[tuple[Any, ...], ...],
        aggs: tuple[tuple[Any, ...], ...],
        time: int = -1,
        span: bool = False,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def span(self) -> tuple[int, int] | None: ...
    def update(self, block: Block, picks: Picks | None = None) -> None: ...
    def merge(self, other: Rollup) -> None: ...
    def merge_share(self, other: Rollup, shares: bytes | bytearray, wanted: int) -> None: ...
    def shares(self, seed: int, level: int) -> bytearray: ...
    @property
    def ordered(self) -> bool: ...
    @property
    def memory(self) -> int: ...
    def rank(self, source: int) -> None: ...
    def finish(self, layout: Layout, seconds: float = ..., more: int = 0) -> Rows: ...
