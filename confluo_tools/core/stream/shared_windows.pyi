from typing import final

from confluo_tools.core.block.block import Layout
from confluo_tools.core.stream.event_windows import WindowStage
from confluo_tools.core.stream.stage import StreamStage

SLOTS: int

@final
class WindowClock(WindowStage):
    def __init__(self, layout: Layout, time: int, every: int, late: int) -> None: ...
    def use(self, stages: list[WindowStage]) -> None: ...

@final
class WindowLane(StreamStage):
    def __init__(self, clock: WindowClock) -> None: ...

@final
class WindowPart(StreamStage):
    def __init__(self, clock: WindowClock, stage: WindowStage, last: bool) -> None: ...
