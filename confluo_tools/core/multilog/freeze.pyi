from collections.abc import Sequence

from confluo_tools.core.multilog.control import Control

FREEZE: int
THAW: int
FROZEN: int
THAWED: int
HEAD_BYTES: int
MAX_FRAME: int
MAX_LOGS: int

class LogFreeze:
    controls: tuple[Control, ...]
    ns: int
    frozen: bool
    def __init__(self, controls: Sequence[Control]) -> None: ...
    def freeze(self, timeout_ns: int = 1_000_000_000) -> None: ...
    def tails(self) -> list[tuple[int, ...]]: ...
    def firsts(self) -> list[tuple[int, ...]]: ...
    def thaw(self) -> bool: ...
    def snap(self, timeout_ns: int = 1_000_000_000) -> bool: ...
    def serve(
        self, fd_in: int, fd_out: int, max_ns: int, have: bytes = b"", idle_ms: int = -1, wake: int = -1
    ) -> bytes | None: ...
