from typing import final

from confluo_tools.core.block.block import Layout
from confluo_tools.core.query.predicate import Program
from confluo_tools.core.stream.stage import StreamStage

@final
class FilterStage(StreamStage):
    def __init__(self, program: Program) -> None: ...

@final
class SampleStage(StreamStage):
    def __init__(self, layout: Layout, x: int) -> None: ...

@final
class FlowSampleStage(StreamStage):
    def __init__(self, layout: Layout, x: int, hash_column: int) -> None: ...

@final
class FieldStage(StreamStage):
    def __init__(self, layout: Layout, to: Layout) -> None: ...
