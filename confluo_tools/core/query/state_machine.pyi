from collections.abc import Iterator, Sequence
from typing import Any, final

from confluo_tools.core.block.block import Block, Layout, Picks

@final
class StateMachine:
    layout: Layout
    result: Layout
    states: Layout
    def __init__(
        self,
        layout: Layout,
        result: Layout,
        states: Layout,
        *,
        key: Sequence[tuple[Any, ...]],
        half: int,
        inputs: Sequence[int],
        zero: Sequence[int],
        derive: bytes,
        update: bytes,
        merge: bytes,
        pool: bytes,
        max_keys: int = 262144,
    ) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def evicted(self) -> int: ...
    def apply(self, block: Block, picks: Picks | None = None) -> Block: ...
    def update(self, block: Block, picks: Picks | None = None) -> None: ...
    def blocks(self) -> Iterator[Block]: ...
    def load(self, block: Block) -> None: ...
    def merge(self, block: Block) -> None: ...
