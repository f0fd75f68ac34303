from array import array
from typing import final

from confluo_tools.core.vote.flow_tally import FlowTally

@final
class HealthyPairs:
    pairs: int
    unrouted: int
    def __init__(self, tally: FlowTally, routes: dict[tuple[int, int], list[tuple[float, array[int]]]]) -> None: ...
