from collections.abc import Callable, Iterable
from typing import final

from confluo_tools.core.block.block import Block, Layout
from confluo_tools.core.query.rollup import Rollup
from confluo_tools.core.stream.event_windows import WindowStage

@final
class AggregateStage(WindowStage):
    problem: Exception | None
    groups: int
    parts: int
    def __init__(
        self,
        layout: Layout,
        time: int,
        every: int,
        late: int,
        make: Callable[[], Rollup],
        answer: Callable[[Rollup, int], Iterable[Block]],
        groups: int,
        slots: int = 0,
    ) -> None: ...
