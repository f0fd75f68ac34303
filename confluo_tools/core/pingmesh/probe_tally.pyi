from collections.abc import Iterable, Mapping, Sequence
from typing import final

from confluo_tools.core.block.block import Block, Layout, Picks

COUNTERS: tuple[str, ...]

@final
class ProbeTally:
    layout: Layout
    question: bytes
    window: int
    probes: int
    unknown: int
    drops_not_kept: int
    newest: int
    oldest: int
    def __init__(
        self,
        layout: Layout,
        by: Iterable[Iterable[int]],
        window: int = 0,
        *,
        classes: Mapping[int, Mapping[bytes, int]] | None = None,
        limits: Sequence[int] = (),
        signature: Sequence[tuple[int, int, int]] = (),
        max_drops: int = 1048576,
        max_windows: int = 262144,
        max_bytes: int = 1099511627776,
    ) -> None: ...
    def update(self, block: Block, picks: Picks | None = None) -> None: ...
    def memory(self) -> int: ...
    def windows(self) -> list[int]: ...
    def groups(self, start: int) -> int: ...
    def keys(self, start: int) -> list[bytes]: ...
    def counts(
        self,
        start: int,
        rtt: tuple[tuple[int, int], ...] = (),
        seen: tuple[tuple[int, int], ...] = (),
        unions: Sequence[Iterable[int]] | None = None,
    ) -> tuple[bytes, bytes]: ...
    def spans(self) -> list[tuple[int, int, int, list[int]]]: ...
    def pending(self, start: int, targets: Iterable[int]) -> list[tuple[int, int, int, int, int]]: ...
    def mark_overflow(self, start: int, numbers: Iterable[int]) -> None: ...
    def pop(self, start: int) -> None: ...
    def forget_spans(self, before: int) -> None: ...
