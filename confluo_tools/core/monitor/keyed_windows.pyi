from collections.abc import Iterable, Sequence
from typing import final

from confluo_tools.core.block.block import Block, Layout

_Program = Sequence[tuple[int, float]]

@final
class KeyedWindows:
    window: int
    period: int
    grain: int
    next: int
    units: int
    tests: int
    lost: int
    dropped: int
    keys: int
    most: int
    def __init__(
        self,
        window: int,
        period: int,
        head: int,
        kinds: Iterable[str],
        tests: Iterable[tuple[_Program, _Program]],
        seed: int,
        most: int = ...,
    ) -> None: ...
    def add_source(self, layout: Layout, keys: int, values: Iterable[tuple[int, int]]) -> int: ...
    def start(self, after: int) -> None: ...
    def skip(self, after: int) -> None: ...
    def add(self, source: int, block: Block) -> None: ...
    def tick(self) -> int: ...
    def changed_tests(self) -> list[tuple[int, int, int, int]]: ...
    def values(self, id: int) -> list[float]: ...
    def key_of(self, id: int) -> bytes: ...
    def pin(self, id: int, on: bool) -> None: ...
    def adopt(self, hash: int) -> int: ...
