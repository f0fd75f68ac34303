from typing import final

from confluo_tools.core.block.block import Block, Layout, Picks
from confluo_tools.core.kernel.ring import BlockSink
from confluo_tools.core.query.predicate import Program
from confluo_tools.core.stream.flow_worker import FlowWorker

@final
class FlowRoute:
    goes_on: bool
    taken: int
    given: int
    dropped: int
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
