from typing import final

from confluo_tools.core.block.block import Block, Layout

@final
class ShortShape:
    layout: Layout
    head: bytes
    size: int
    def __init__(self, layout: Layout, head: bytes) -> None: ...

def sound(value: bytes) -> bool: ...
def read_columns(layout: Layout, value: bytes) -> Block | None: ...
