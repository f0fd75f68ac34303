from typing import final

from confluo_tools.core.block.block import Block, Layout
from confluo_tools.core.packets.tcp_columns import ANALYSED as ANALYSED

ADDED: tuple[str, ...]
ADDED_WIDTHS: tuple[int, ...]

@final
class TcpFlows:
    layout: Layout
    result: Layout
    packets: int
    def __init__(self, layout: Layout, result: Layout, max_flows: int = 262144, segments: int = 4194304) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def evicted(self) -> int: ...
    def apply(self, block: Block) -> Block: ...
