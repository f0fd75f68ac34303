from typing import Any, final

from confluo_tools.core.block.block import Staging

NAMES: tuple[str, ...]
WIDTHS: tuple[int, ...]

@final
class TraceText:
    line: int
    problem: bool
    def __init__(self, zero: int) -> None: ...
    @property
    def bad(self) -> tuple[int, int]: ...
    def feed(self, data: Any, start: int, out: Staging, final: bool) -> int: ...
    def finish(self, out: Staging) -> bool: ...
    def spoil(self) -> None: ...
