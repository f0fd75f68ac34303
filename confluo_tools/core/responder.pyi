from collections.abc import Callable, Iterable
from typing import final

COUNTS: tuple[str, ...]

@final
class Answerer:
    def __init__(
        self,
        *,
        capacity: int = 4096,
        idle: int = 5000000000,
        life: int = 20000000000,
        rate: int = 0,
        document: Callable[[], bytes] | None = None,
    ) -> None: ...
    def add(self, fd: int, udp: bool) -> None: ...
    @property
    def tokens(self) -> list[int]: ...
    @tokens.setter
    def tokens(self, tokens: Iterable[int]) -> None: ...
    @property
    def counts(self) -> dict[str, int]: ...
    def wake(self) -> None: ...
    def run(self, milliseconds: int = -1) -> None: ...
