from collections.abc import Mapping
from typing import final

from confluo_tools.core.block.block import Layout
from confluo_tools.core.stream.event_windows import WindowStage

@final
class Bins:
    code: int
    n: int
    def __init__(self, code: int, low: float = 0, high: float = 0, step: float | None = None) -> None: ...
    def find(self, *values: float) -> list[int | None]: ...

@final
class HistogramStage(WindowStage):
    bins: Bins
    nans: int
    def __init__(
        self,
        layout: Layout,
        time: int,
        every: int,
        late: int,
        value: tuple[int, ...],
        bins: Bins,
        out: Layout,
        names: Mapping[str, bytes],
        slots: int = 0,
    ) -> None: ...
