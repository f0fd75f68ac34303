from confluo_tools.core.block.block import Layout
from confluo_tools.core.stream.stage import StreamStage

class WindowStage(StreamStage):
    every: int
    late: int
    silence: int
    late_rows: int
    steps: int
    def __init__(self, layout: Layout, time: int, every: int, late: int, slots: int = 0) -> None: ...
    @property
    def open_windows(self) -> int: ...
