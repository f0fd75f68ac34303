from typing import Any, final

from confluo_tools.core.block.block import Layout
from confluo_tools.core.block.result_table import Rows

OPS: dict[str, int]

@final
class Calculation:
    layout: Layout
    def __init__(self, layout: Layout, steps: tuple[tuple[Any, ...], ...]) -> None: ...
    def fill(self, rows: Rows, column: int) -> int: ...
