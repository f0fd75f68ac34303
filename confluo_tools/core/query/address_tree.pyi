from typing import Any, final

from confluo_tools.core.block.block import Block, Picks

@final
class AddressTree:
    offsets: list[int]
    def __init__(self, data: bytes, nodes: int, bits: int, wide: bool, data_size: int) -> None: ...
    def numbers(self, block: Block, column: int, column6: int = -1, picks: Picks | None = None) -> bytearray: ...

def fill(out: Any, numbers: Any, table: Any, width: int) -> None: ...
