from array import array
from typing import NamedTuple, final

from confluo_tools.core.vote.flow_tally import FlowTally

class Crossing(NamedTuple):
    flows: int
    lost: int
    sent: int
    healthy: float

class Explained(NamedTuple):
    flows: int
    lost: int
    sent: int

class Waiting(NamedTuple):
    flows: int
    votes: float

class Choice(NamedTuple):
    component: int
    votes: float

@final
class FaultLocaliser:
    tally: FlowTally
    unrouted: int
    p_g: float
    p_b: float
    prior: float
    def __init__(
        self, tally: FlowTally, routes: dict[tuple[int, int], list[tuple[float, array[int]]]] | None = None
    ) -> None: ...
    def vote(
        self, threshold: float, floor: float, *, remove: bool = True, running: bool = True
    ) -> list[tuple[int, float]]: ...
    def explain(self, blamed: list[int]) -> None: ...
    def cover(self) -> list[tuple[int, float]]: ...
    def mle(self, p_b: float, p_g: float, prior: float) -> list[tuple[int, float]]: ...
    def fit(self, prior: float, ratio: float) -> list[tuple[int, float]]: ...
    def votes_of(self, number: int) -> float: ...
    def waiting(self, number: int) -> Waiting: ...
    def left(self) -> list[float]: ...
    def crossing(self, number: int) -> Crossing: ...
    def explained(self, number: int) -> Explained: ...
    def by_votes(self, number: int, lone: float = -1.0) -> Choice: ...
    def by_blame(self, number: int) -> int: ...
