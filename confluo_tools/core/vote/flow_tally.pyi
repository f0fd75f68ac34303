from collections.abc import Mapping, Sequence
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
    dead: bool
    known: int
    src: int
    dst: int
    src_tor: int
    dst_tor: int
    last: int

@final
class FlowTally:
    extended: bool
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
    probes: int
    healthy_sent: int
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
    def question(self) -> bytes: ...
    @property
    def components(self) -> int: ...
    def add(self, block: Block, start: int, end: int) -> None: ...
    def key(self, number: int) -> tuple[int, int]: ...
    def find(self, a: int, b: int) -> int: ...
    def carried_by(self, number: int) -> int: ...
    def partial_ends(self) -> set[tuple[int, int, int]]: ...
    def gaps(self) -> set[tuple[int, int]]: ...
    def extend(
        self,
        following: Mapping[tuple[int, int, int], Sequence[tuple[int, int]]],
        between: Mapping[tuple[int, int], Sequence[tuple[int, int]]],
    ) -> None: ...
    def tier(self, number: int) -> int: ...
    def truth(self) -> list[tuple[int, int]]: ...
    def addresses(self) -> dict[int, bytes]: ...
    def flow_of(self, row: int) -> int: ...
    def flow(self, number: int) -> TalliedFlow: ...
    def tor_pairs(self) -> set[tuple[int, int]]: ...
    def healthy_pairs(self) -> list[tuple[int, int, int, int]]: ...
