from collections.abc import Callable
from typing import final

from confluo_tools.core.block.block import Block, Layout, Picks
from confluo_tools.core.kafka.message_sink import RowSink

class StreamStage:
    layout: Layout
    taken: int
    given: int
    dropped: int
    def __init__(self, layout: Layout) -> None: ...
    def then(self, after: StreamStage) -> StreamStage: ...
    def write(self, block: Block, picks: Picks | None = None, *, now: int = 1) -> bool: ...
    def pass_time(self, now: int) -> bool: ...
    def end(self) -> bool: ...
    def end_alone(self) -> bool: ...

@final
class RelayStage(StreamStage):
    def __init__(self, after: StreamStage) -> None: ...

@final
class SinkStage(StreamStage):
    sink: RowSink
    def __init__(self, sink: RowSink, linger: int) -> None: ...

@final
class WriterStage(StreamStage):
    problem: Exception | None
    def __init__(self, layout: Layout, write: Callable[[Block], object]) -> None: ...
