from collections.abc import Iterable
from typing import final

from confluo_tools.core.block.block import Staging

@final
class ClosSimulator:
    pods: int
    tors: int
    t1s: int
    t2s: int
    hosts: int
    all_tors: int
    all_hosts: int
    links: int
    flows: int
    affected: int
    packets: int
    lost: int
    def __init__(self, pods: int, tors: int, t1s: int, t2s: int, hosts: int, first_host: int, seed: int) -> None: ...
    def count(self, kind: int) -> int: ...
    def link(self, kind: int, number: int) -> tuple[int, int]: ...
    def set_noise(self, most: int) -> None: ...
    def fail(self, kind: int, number: int, rate: int, device: int = 0) -> None: ...
    def rate_of(self, kind: int, number: int) -> tuple[int, bool]: ...
    def set_hot(self, tors: Iterable[int], skew: int) -> None: ...
    def set_flows(
        self,
        least_connections: int,
        most_connections: int,
        least_packets: int,
        most_packets: int,
        pareto: bool,
        healthy: int,
        quirks: int,
        cap: int,
    ) -> None: ...
    def set_silence(self, chance: int) -> None: ...
    def begin(self, epoch: int, start: int, length: int) -> None: ...
    @property
    def more(self) -> bool: ...
    def fill(self, block: Staging) -> int: ...
