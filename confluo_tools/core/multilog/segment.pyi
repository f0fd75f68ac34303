from collections.abc import Iterable, Mapping
from typing import Any, final

from confluo_tools.core.block.block import Block, Layout, Picks

MAX_HEADER: int

class SegmentShape:
    layout: Layout
    header: bytes
    uuid: bytes
    message: int
    segment_blocks: int
    schema: Any
    log_layout: Layout
    def __init__(
        self,
        layout: Layout,
        header: bytes,
        uuid: bytes,
        message: int,
        segment_blocks: int,
        log_layout: Layout,
        schema: Any = None,
    ) -> None: ...
    def geometry(self, capacity: int = 65536) -> tuple[int, list[tuple[int, int]]]: ...
    def blocks(self, rows: int, capacity: int = 65536) -> list[tuple[int, int, int]]: ...

class Segment:
    path: str
    lane: int
    base: int
    sealed: int
    shape: SegmentShape
    blocks_on_file: int
    damage: list[tuple[str, int | None, str]]
    def __init__(
        self,
        path: str,
        lane: int,
        base: int,
        shapes: Mapping[bytes, SegmentShape],
        shape: SegmentShape,
        damage: list[tuple[str, int | None, str]],
        rows: int = 0,
    ) -> None: ...
    @property
    def uuid(self) -> bytes: ...
    @property
    def capacity(self) -> int: ...
    def note_damage(self, number: int | None, reason: str) -> None: ...
    def block(self, number: int, rows: int) -> SegmentBlock | None: ...
    def condemn(self, number: int, reason: str) -> None: ...
    def release(self) -> None: ...
    def forget(self) -> None: ...
    def bad_pages(self) -> list[int]: ...
    def name_page(self, page: int) -> tuple[int | None, list[str]]: ...
    def check_trailer(self) -> list[str]: ...

class SegmentBlock(Block):
    segment: Segment
    number: int
    def check(self, columns: Iterable[int] | None = None, picks: Picks | None = None) -> bool: ...

@final
class SegmentPart:
    segment: Segment
    rows: int
    blocks: int
    def __init__(self, segment: Segment, rows: int) -> None: ...
    @property
    def lane(self) -> int: ...
    @property
    def base(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def sealed(self) -> bool: ...
    @property
    def uuid(self) -> bytes: ...
    def block(self, number: int) -> SegmentBlock | None: ...
    def find(self, row: int) -> tuple[int, int]: ...
    def release(self) -> None: ...

def find_seal(path: str, shape: SegmentShape, lane: int, base: int) -> int: ...
