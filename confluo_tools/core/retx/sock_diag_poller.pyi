from collections.abc import Sequence
from typing import final

from confluo_tools.core.block.block import Block, Layout

NAMES: tuple[str, ...]
WIDTHS: tuple[int, ...]
COUNTS: tuple[str, ...]

@final
class SockDiagPoller:
    layout: Layout
    more: bool
    def __init__(
        self,
        layout: Layout,
        *,
        ends: int,
        ask: int,
        dump: int,
        traces: Sequence[int] = (),
        header: int = 16,
        page: int = 4096,
        formats: Sequence[tuple[int, ...]] = (),
        all: bool = False,
        flows: int = 65536,
        settle: int = 100_000_000,
        foreign: int = 10_000_000_000,
    ) -> None: ...
    def begin(self) -> None: ...
    def poll(self) -> None: ...
    def last(self) -> None: ...
    def step(self) -> Block | None: ...
    @property
    def busy(self) -> bool: ...
    @property
    def following(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]: ...
