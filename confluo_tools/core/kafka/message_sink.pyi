from confluo_tools.core.block.block import Block, Layout, Picks
from confluo_tools.core.kafka.message import MessageShape

class RowSink:
    layout: Layout
    rows: int
    sent: int
    dropped: int
    refused: int
    before: int
    def write(self, block: Block, picks: Picks | None = None, *, now: int = 1) -> bool: ...
    def flush(self, before: int = ...) -> bool: ...
    def stop(self) -> None: ...

class MessageSink(RowSink):
    shape: MessageShape
    partitions: int
