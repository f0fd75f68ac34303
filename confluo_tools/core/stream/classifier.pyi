from typing import final

from confluo_tools.core.block.block import Block, Layout, Picks
from confluo_tools.core.kernel.ring import BlockSink
from confluo_tools.core.query.predicate import Program
from confluo_tools.core.stream.flow_worker import FlowWorker
from confluo_tools.core.stream.shared_windows import WindowClock
from confluo_tools.core.stream.stage import StreamStage

@final
class FlowRoute(StreamStage):
    goes_on: bool
    def __init__(
        self,
        layout: Layout,
        batch: Layout,
        number: int,
        workers: list[FlowWorker],
        lane: int,
        *,
        program: Program | None = None,
        goes_on: bool = False,
        hash_column: int = -1,
        first: StreamStage | None = None,
        clock: WindowClock | None = None,
    ) -> None: ...

@final
class Classifier(BlockSink):
    layout: Layout
    taken: int
    unmatched: int
    routes: list[FlowRoute]
    def __init__(self, layout: Layout, *, wait: bool) -> None: ...
    def use(self, routes: list[FlowRoute]) -> None: ...
    def write(self, block: Block, picks: Picks | None = None) -> bool: ...
    def stop(self) -> None: ...
