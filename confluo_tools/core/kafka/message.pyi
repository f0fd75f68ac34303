from collections.abc import Sequence
from typing import final

from confluo_tools.core.block.block import Block, Layout
from confluo_tools.core.kafka.short_message import ShortShape

@final
class MessageShape:
    layout: Layout
    head: bytes
    time: int
    def __init__(
        self,
        layout: Layout,
        head: bytes,
        columns: Sequence[tuple[int, int, int]],
        places: Sequence[int],
        nodes: int,
        buffers: int,
        time: int,
    ) -> None: ...
    def read(self, value: bytes) -> tuple[Block, tuple[int, int, int, int, int, int, bool]] | None: ...

@final
class MessagePacker:
    shape: MessageShape
    capacity: int
    rows: int
    def __init__(self, shape: MessageShape, capacity: int) -> None: ...
    def pack(self, block: Block, *, partition: int = 0, seq: int = 0, dropped: int = 0) -> bytes: ...
    def pack_short(
        self, short: ShortShape, block: Block, *, partition: int = 0, seq: int = 0, dropped: int = 0
    ) -> bytes: ...
