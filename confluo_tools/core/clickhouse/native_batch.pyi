from collections.abc import Sequence
from typing import final

from confluo_tools.core.block.block import Block, Layout, Picks
from confluo_tools.core.text.text_writer import Item

# name, type, cast, column, column of the 16 address bytes, column of the version, bytes, unit, nullable, members
Column = tuple[bytes, bytes, str, int, int, int, int, int, bool, bytes]

CASTS: dict[str, int]

@final
class NativeShape:
    layout: Layout
    row_bytes: int
    heads: list[bytes]
    def __init__(self, layout: Layout, columns: Sequence[Column], plan: Sequence[Item]) -> None: ...

@final
class NativeBatch:
    shape: NativeShape
    capacity: int
    rows: int
    def __init__(self, shape: NativeShape, capacity: int) -> None: ...
    def add_rows(self, block: Block, picks: Picks | None = None) -> int: ...
    def pieces(self) -> list[bytes | memoryview]: ...
    def clear(self) -> None: ...
