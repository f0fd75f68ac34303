from typing import final

from confluo_tools.core.block.block import Layout

@final
class RunRows:
    def __init__(self, layout: Layout, out: Layout, most: int) -> None: ...

def use_marked(wanted: bool) -> None: ...
