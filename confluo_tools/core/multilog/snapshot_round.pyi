from collections.abc import Sequence

from confluo_tools.core.multilog.freeze import LogFreeze

class HostReply:
    tails: list[tuple[int, ...]] | None
    firsts: list[tuple[int, ...]] | None
    held: bool
    ns: int
    frozen_at: int
    thawed_at: int
    problem: str
    frame: tuple[int, bytes] | None

class SnapshotRound:
    cut: LogFreeze | None
    freeze_ns: int
    total_ns: int
    def __init__(self, cut: LogFreeze | None, peers: Sequence[tuple[int, int]]) -> None: ...
    def snap(self, timeout_ns: int, wait_ns: int = 5_000_000_000) -> tuple[list[HostReply], bool]: ...
