from collections.abc import Sequence
from typing import final

from confluo_tools.core.block.block import Block, Layout, Picks

# key, op, column, column of the 16 address bytes, column of the version, always, names
Item = tuple[bytes, str, int, int, int, bool, Sequence[tuple[int, bytes]]]

OPS: dict[str, int]
UNITS: dict[str, int]
STYLES: dict[str, int]

class TextPlan:
    layout: Layout
    n: int
    def __init__(self, layout: Layout, plan: Sequence[Item], style: str) -> None: ...

@final
class Printer(TextPlan):
    def __init__(self, layout: Layout, plan: Sequence[Item], style: str, terminal: bool = False) -> None: ...
    def lines(self, block: Block, picks: Picks | None = None, start: int = 0, count: int = 65536) -> bytes: ...
