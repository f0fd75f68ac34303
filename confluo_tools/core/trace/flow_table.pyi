from collections.abc import Mapping, Sequence
from typing import final

from confluo_tools.core.block.block import Block, Layout, Staging

FIELDS: tuple[str, ...]
NEEDED: tuple[str, ...]
NOTES: dict[str, int]
OUT_WIDTHS: tuple[int, ...]
USED: tuple[str, ...]

@final
class NumberMap:
    def __init__(self, numbers: Mapping[int, int] | None = None) -> None: ...
    def find(self, key: int) -> int: ...

@final
class FlowTable:
    queued: int
    popped: int
    records: int
    skipped: int
    overflow: int
    overflow_lost: int
    before_since: int
    def __init__(
        self,
        layout: Layout,
        *,
        max_flows: int = 262144,
        healthy: bool = False,
        before: FlowTable | None = None,
        fresh: int = 0,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    def take(self, block: Block, start: int = 0, *, begin: int = ..., until: int = ..., since: int = ...) -> int: ...
    def pop(self) -> tuple[int, int, bytes, bytes, int, int, int] | None: ...
    def refuse(self, number: int, notes: int = 0) -> None: ...
    def store(
        self, number: int, dst: bytes, dport: int, notes: int, nodes: Sequence[int], addresses: bytes, now: int
    ) -> None: ...
    def failed(self, number: int) -> bool: ...
    def add_probe(self, number: int, sport: int) -> int | None: ...
    def add_notes(self, number: int, notes: int) -> None: ...
    def emit(self, out: Staging, start: int, capped: int, tors: NumberMap | None = None) -> int: ...
