from collections.abc import Sequence

from confluo_tools.core.freeze import Cut

class Answer:
    tails: list[tuple[int, ...]] | None
    firsts: list[tuple[int, ...]] | None
    held: bool
    ns: int
    frozen_at: int
    thawed_at: int
    problem: str
    frame: tuple[int, bytes] | None

class Round:
    cut: Cut | None
    freeze_ns: int
    total_ns: int
    def __init__(self, cut: Cut | None, peers: Sequence[tuple[int, int]]) -> None: ...
    def snap(self, timeout_ns: int, wait_ns: int = 5_000_000_000) -> tuple[list[Answer], bool]: ...
