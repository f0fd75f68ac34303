from typing import Any, final

from confluo_tools.core.kernel.ring import Ring

@final
class HeaderReader:
    packets: int
    def __init__(self, rings: list[Ring]) -> None: ...
    def read(self, most: int = 65536) -> list[tuple[Any, ...]]: ...
