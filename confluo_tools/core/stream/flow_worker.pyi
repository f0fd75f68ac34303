from typing import final

from confluo_tools.core.block.block import Layout
from confluo_tools.core.stream.batch_queue import BatchQueue, Bell
from confluo_tools.core.stream.stage import StreamStage

@final
class FlowEnd:
    head: StreamStage
    taken: int
    def __init__(self, layout: Layout, head: StreamStage) -> None: ...

@final
class FlowWorker:
    bell: Bell
    queues: list[BatchQueue]
    batches: int
    sleeps: int
    def __init__(self, lanes: int, size: int) -> None: ...
    def use(self, ends: list[FlowEnd | None]) -> None: ...
    def run(self) -> None: ...
    def drain(self) -> None: ...
    def go(self) -> None: ...
