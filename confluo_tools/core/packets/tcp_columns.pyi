from typing import final

from confluo_tools.core.block.block import Layout

NEEDED: tuple[str, ...]
ANALYSED: tuple[str, ...]
USED: tuple[str, ...]
WIDTHS: tuple[int, ...]

@final
class TcpColumns:
    layout: Layout
    def __init__(self, layout: Layout, names: tuple[str, ...] = ...) -> None: ...
