from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from confluo_tools.core.block.block import Block

@final
class TextColumn:
    rows: int
    nulls: int
    @staticmethod
    def of_lines(lines: bytes, rows: int) -> TextColumn: ...
    @staticmethod
    def of_texts(block: Block, column: int) -> TextColumn: ...

@final
class ArrowShape:
    def __init__(self, columns: Sequence[tuple[str, str, int, int]], metadata: Mapping[str, str]) -> None: ...
    def schema(self) -> Any: ...
    def array(self, block: Block, texts: Mapping[int, TextColumn]) -> Any: ...

@final
class ArrowStream:
    error: BaseException | None
    def __init__(self, shape: ArrowShape, batches: Iterator[tuple[Block, Mapping[int, TextColumn]]]) -> None: ...
    def capsule(self) -> Any: ...
