from collections.abc import Mapping
from typing import NamedTuple, final

from confluo_tools.core.block.block import Block

def run(block: Block, start: int, epoch: int) -> tuple[int, int, int, int]: ...

class TalliedFlow(NamedTuple):
    parts: tuple[int, ...]
    lost: int
    sent: int
    hops: int
    truth: tuple[int, int] | None
    noise: bool

@final
class FlowTally:
    switches: bool
    healthy: int
    keep: bool
    flows: int
    failures: int
    kept_rows: int
    kept: list[Block]
    records: int
    sent: int
    lost: int
    healthy_flows: int
    repeated: int
    partial: int
    loops: int
    cut: int
    pathless: int
    placeless: int
    def __init__(
        self,
        *,
        switches: bool = False,
        healthy: int = 1,
        keep: bool = False,
        alias: Mapping[int, int] | None = None,
        tor_of: Mapping[int, int] | None = None,
    ) -> None: ...
    @property
    def components(self) -> int: ...
    def add(self, block: Block, start: int, end: int) -> None: ...
    def key(self, number: int) -> tuple[int, int]: ...
    def find(self, a: int, b: int) -> int: ...
    def tier(self, number: int) -> int: ...
    def truth(self) -> list[tuple[int, int]]: ...
    def addresses(self) -> dict[int, bytes]: ...
    def flow_of(self, row: int) -> int: ...
    def flow(self, number: int) -> TalliedFlow: ...
    def tor_pairs(self) -> set[tuple[int, int]]: ...
    def healthy_pairs(self) -> list[tuple[int, int, int, int]]: ...
