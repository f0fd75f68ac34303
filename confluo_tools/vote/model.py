"""What a model of confluo-vote is: it blames components (links or switches) for the losses of an epoch."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.vote import voting
from confluo_tools.vote.dead_flows import BAD, DeadFlows

if TYPE_CHECKING:
    from confluo_tools.core.vote.fault_localiser import FaultLocaliser
    from confluo_tools.core.vote.flow_tally import FlowTally
    from confluo_tools.network.ecmp import Routes

ADJUST = ("flows", "ecmp", "none")
HEALTHY = ("none", "path", "ecmp")  # in the order of the core's numbers
NOISE, UNKNOWN = -1, -2  # instead of a component


class ModelSettings(NamedTuple):
    """The options of the models, with their defaults."""

    adjust: str = "flows"
    running: bool = True
    threshold: float = voting.THRESHOLD
    floor: float = voting.FLOOR
    noise: float = -1.0  # votes; below 0: those of the flow itself
    literal: bool = False  # a flow blames the component with most votes, even one that is not blamed
    p_bad: float | None = None
    p_good: float | None = None
    prior: float | None = None
    ratio: float = 2.0
    seconds: float = 60.0


class FlowVerdict(NamedTuple):
    """The component that a flow with loss blames, `NOISE`, or `UNKNOWN` (it has no path)."""

    component: int
    confidence: float


class Model:
    """A model: a class in a file of its own, and a row in `confluo_tools.vote.registry`.

    A subclass defines `judge`; the other methods have defaults for models that give votes.
    """

    name = ""
    min_score = 1e-9  # components that are not blamed are printed above this score

    def needs_routes(self, settings: ModelSettings, healthy: str) -> str | None:
        """The option that makes this model need a topology, as ``--adjust ecmp``; None when it needs none."""
        return None

    def looks_back(self, settings: ModelSettings) -> bool:
        """Whether flows that lost only acknowledgements, on the way back, are taken out."""
        return False

    def judge(self, out: Judgement, tally: FlowTally, routes: Routes | None) -> None:
        """Set ``out.blamed``; also ``out.left``, unless the votes of unexplained flows are right."""
        raise NotImplementedError

    def confidence(self, out: Judgement, number: int, score: float) -> float:
        """Confidence in a blamed component, from 0 to 1."""
        explained = out.localiser.explained(number).flows
        return voting.confidence(explained, out.strongest_left(), max(out.localiser.tally.records, 1))

    def verdict(self, out: Judgement, parts: tuple[int, ...], hops: int, number: int) -> FlowVerdict:
        """The component that flow ``number`` blames; it crossed ``parts``, which are not empty."""
        localiser = out.localiser
        if out.settings.literal:
            best = localiser.by_votes(number, out.settings.noise).component
        else:
            best = self.blamed_by(out, parts, hops, number)
        if best < 0:
            return FlowVerdict(NOISE, 0.0)
        votes = sum(localiser.votes_of(p) for p in parts)
        return FlowVerdict(best, localiser.votes_of(best) / votes if votes else 0.0)

    def blamed_by(self, out: Judgement, parts: tuple[int, ...], hops: int, number: int) -> int:
        """The blamed component that explains a flow; negative when there is none."""
        return out.localiser.by_blame(number)


class Judgement:
    """The result for an epoch.

    ``blamed``: (component, score) in the order they were found; ``left``: scores of all, after the last of them.
    ``p_bad``, ``p_good``: drop rates that mle used, nan for other models.  ``blind``: they could not be fitted.
    """

    def __init__(self, model: Model, settings: ModelSettings, localiser: FaultLocaliser) -> None:
        self.model, self.settings, self.localiser = model, settings, localiser
        self.blamed: list[tuple[int, float]] = []
        self.left: list[float] = []
        self.p_bad = self.p_good = float("nan")
        self.blind = False
        self.rate: dict[int, float] = {}
        self.kinds: dict[int, str] = {}  # of the blamed: see `dead_flows`
        self.evidence: dict[int, DeadFlows] = {}
        self.peers = False  # switches were compared with their peers: the votes left of one say nothing

    def finish(self) -> None:
        if not self.left:
            self.left = self.localiser.left()
        for number, _ in self.blamed:
            self.rate[number] = self._rate(number)

    def _rate(self, number: int) -> float:
        # Losses that it explains, per packet that crossed it; nan when flows without loss are not known.
        explained = self.localiser.explained(number)
        healthy = self.localiser.crossing(number).healthy
        return explained.lost / (explained.sent + healthy) if explained.lost and healthy > 0 else float("nan")

    def accused(self) -> list[int]:
        """The components that are blamed as bad, not only suspected."""
        return [number for number, _ in self.blamed if self.kinds.get(number, BAD) == BAD]

    def confidence(self, number: int, score: float) -> float:
        """Confidence in a blamed component, from 0 to 1."""
        return self.model.confidence(self, number, score)

    def strongest_left(self) -> int:
        """Unexplained flows with loss of the strongest component that is not blamed."""
        taken = {number for number, _ in self.blamed}
        best = max((n for n in range(len(self.left)) if n not in taken), key=lambda n: self.left[n], default=-1)
        return self.localiser.waiting(best).flows if best >= 0 else 0

    def verdict(self, number: int) -> FlowVerdict:
        """The component that a flow with loss blames."""
        flow = self.localiser.tally.flow(number)
        if not flow.parts:
            return FlowVerdict(UNKNOWN, 0.0)
        return self.model.verdict(self, flow.parts, flow.hops, number)


def located_flows(out: Judgement, tally: FlowTally) -> int:
    """Flows without loss with known links, from their paths or from the routes between their ToRs."""
    return tally.healthy_flows - tally.placeless - out.localiser.healthy.unrouted


def finite(rates: list[float]) -> list[float]:
    """The rates that are known."""
    return [rate for rate in rates if isfinite(rate)]
