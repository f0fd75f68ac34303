from array import array
from collections.abc import Sequence
from typing import final

from _typeshed import ReadableBuffer

from confluo_tools.core.block.block import Block

@final
class RowSorter:
    def __init__(
        self, tables: Sequence[tuple[Sequence[int], Sequence[str], Sequence[int], int]], most: int
    ) -> None: ...
    def choose(self, version: int, src: bytes, src_port: int, dst: bytes, dst_port: int) -> None: ...
    @property
    def ends(self) -> int: ...
    def add(self, block: Block) -> list[tuple[int, int]]: ...
    def rows(self, t: int, end: int) -> int: ...
    def events(self, t: int, end: int) -> int: ...
    def column(self, t: int, end: int, c: int) -> bytes: ...

def expand_runs(values: ReadableBuffer, counts: ReadableBuffer, steps: ReadableBuffer | None = None) -> array[int]: ...
def absolute_runs(
    values: array[int],
    notes: array[int],
    counts: array[int],
    steps: array[int] | None,
    step: int,
    mask: int,
    relative: int,
) -> array[int]: ...
