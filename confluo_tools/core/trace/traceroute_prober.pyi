from typing import final

from confluo_tools.core.trace.flow_table import NumberMap

COUNTS: tuple[str, ...]
ENDS: tuple[str, ...]

@final
class TracerouteProber:
    def __init__(
        self,
        send4: int,
        send6: int,
        icmp4: int,
        icmp6: int,
        wake: int = -1,
        *,
        aliases: NumberMap | None = None,
        capacity: int = 8192,
        tries: int = 2,
        gap: int = 3,
        least: int = 50000000,
        first: int = 300000000,
        most: int = 1000000000,
    ) -> None: ...
    @property
    def room(self) -> int: ...
    @property
    def flying_now(self) -> int: ...
    @property
    def holding(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]: ...
    def reach(self, address: bytes) -> int: ...
    def forget(self) -> None: ...
    def start(
        self, number: int, version: int, src: bytes, dst: bytes, sport: int, dport: int, rtt: int = 0, tor: int = 0
    ) -> bool: ...
    def again(self, n: int) -> int: ...
    def give_up(self) -> None: ...
    def run(self, milliseconds: int) -> None: ...
    def finished(self) -> list[tuple[int, int, list[int], bytes, str, int, int]]: ...
