from typing import final

from confluo_tools.core.block.block import Layout
from confluo_tools.core.stream.stage import StreamStage

def use_wide(wanted: bool) -> None: ...

@final
class RateSampleStage(StreamStage):
    threshold: int
    longest: int
    evicted: int
    def __init__(self, layout: Layout, out: Layout, time: int, threshold: int, longest: int, most: int) -> None: ...
