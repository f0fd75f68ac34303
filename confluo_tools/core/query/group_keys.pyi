from typing import Any, final

from confluo_tools.core.block.block import Layout

@final
class GroupTable:
    layout: Layout
    keys: tuple[tuple[Any, ...], ...]
    parts: int
    def __init__(self, layout: Layout, keys: tuple[tuple[Any, ...], ...], seed: bytes) -> None: ...
    def __len__(self) -> int: ...
