from typing import Any

from confluo_tools.core.block.block import Block
from confluo_tools.core.multilog.control import Control
from confluo_tools.core.multilog.segment import SegmentShape

class LaneWriter:
    control: Control
    shape: SegmentShape
    number: int
    def __init__(
        self,
        control: Control,
        shape: SegmentShape,
        number: int,
        *,
        directory: int,
        lock: int,
        message: bytes,
        footer: bytes,
        sync: int = 0,
        ahead: int = 1,
        owner: tuple[int, int] | None = None,
        **ignored: Any,
    ) -> None: ...
    def stop(self) -> None: ...
    def join(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def base(self) -> int: ...
    @property
    def published(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def sync(self) -> int: ...
    def append(self, block: Block) -> None: ...
    def poll(self) -> bool: ...
    def flush(self) -> None: ...
    def prefault(self, blocks: int = 0) -> None: ...

def append_repeatedly(
    writer: LaneWriter, block: Block, times: int, batch: int, timed: bool = False
) -> tuple[int, dict[int, int]]: ...
