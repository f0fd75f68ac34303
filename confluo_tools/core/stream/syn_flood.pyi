from typing import final

from confluo_tools.core.block.block import Block, Layout, Picks

NEEDED: tuple[str, ...]
USED: tuple[str, ...]
WIDTHS: tuple[int, ...]

@final
class SynFlood:
    layout: Layout
    def __init__(
        self,
        layout: Layout,
        window: int,
        *,
        timeout: int,
        lateness: int,
        threshold: int,
        ratio: float,
        clear: float = 0.5,
        steps: int = 10,
        attempts: int = ...,
        targets: int = ...,
    ) -> None: ...
    def take(self, block: Block, picks: Picks | None = None) -> bool: ...
    def until(self, now: int) -> None: ...
    def finish(self) -> None: ...
    def events(self) -> list[tuple[bool, int, int, int, bytes, int, int, int, int, int, int, int]]: ...
    @property
    def due(self) -> int | None: ...
    @property
    def counts(self) -> dict[str, int]: ...
