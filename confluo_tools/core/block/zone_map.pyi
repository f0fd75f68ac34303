from collections.abc import Mapping

from confluo_tools.core.block.block import Block

def zoned(block: Block, wider: Mapping[int, tuple[int, int]] | None = None) -> Block: ...
