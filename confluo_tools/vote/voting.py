"""Which links dropped packets, from what flows lost and the links that they crossed: 007 (NSDI 2018) and its peers.

These are the definitions, to be read next to the paper.  `core.vote.flow_tally` computes the same over millions of
flows; tests compare the two.  A *component* is whatever may be at fault: a directed link, or a switch.

============ ===================================================================================== ==================
model        idea                                                                                  from
============ ===================================================================================== ==================
`vote`       each flow with loss gives 1/h of a vote to the h components of its path               section 5.1
`cover`      as few components as possible explain all flows with loss, greedily                   Algorithm 2
`mle`        the components that make the losses, and the packets that arrived, most likely         Flock, CoNEXT 2023
============ ===================================================================================== ==================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from math import exp, log, log1p
from typing import NamedTuple, TypeVar

C = TypeVar("C", bound=Hashable)

CHANCE = 0.001  # probability that something is blamed in a good network
PEERS = 1.5  # a switch is blamed when it has more than this many times the flows of its peers
THRESHOLD = 0.01  # minimum share of all votes to blame a component (Algorithm 1)
FLOOR = 0.67  # minimum votes in any case: more than three flows of five hops, two of three


class Flow(NamedTuple):
    """A flow of an epoch: the components it crossed, packets sent and lost; ``hops`` counts those not known, too."""

    path: tuple[Hashable, ...]
    lost: int
    sent: int = 0
    hops: int = 0

    @property
    def weight(self) -> Fraction:
        """Its vote for each component, 1/h."""
        return Fraction(1, max(self.hops, len(self.path), 1))


class Blame(NamedTuple):
    """A blamed component, and its votes, flows or log-likelihood ratio at that time."""

    component: Hashable
    score: float


def tally(flows: Iterable[Flow]) -> dict[Hashable, Fraction]:
    """Votes of the flows with loss, by component (section 5.1)."""
    votes: dict[Hashable, Fraction] = {}
    for flow in flows:
        if flow.lost:
            for component in set(flow.path):
                votes[component] = votes.get(component, Fraction(0)) + flow.weight
    return votes


def strongest(votes: Mapping[C, float | Fraction], order: Callable[[C], object]) -> C:
    """The component with most votes; of equals the first in ``order``."""
    return min(votes, key=lambda c: (-votes[c], order(c)))


def vote(
    flows: Sequence[Flow],
    *,
    threshold: float = THRESHOLD,
    floor: float = FLOOR,
    adjust: bool = True,
    running: bool = True,
    order: Callable[[Hashable], object] = repr,
) -> list[Blame]:
    """Algorithm 1: blame the component with most votes, take back the votes of the flows it explains, repeat.

    It ends when the most votes are not more than ``floor``, or fewer than ``threshold`` of all: of those that are left
    (``running``) or of those at the beginning.  ``adjust``: false takes nothing back.
    """
    left = [flow for flow in flows if flow.lost]
    votes = tally(left)
    total = first = sum(votes.values())
    blamed: list[Blame] = []
    while votes:
        best = strongest(votes, order)
        top = votes.pop(best)
        if top <= floor or top < threshold * (total if running and adjust else first):
            break
        blamed.append(Blame(best, float(top)))
        if adjust:
            left = [flow for flow in left if best not in flow.path]
            names = {b.component for b in blamed}
            votes = {c: v for c, v in tally(left).items() if c not in names}
            total = sum(votes.values())
    return blamed


def vote_by_shares(
    votes: Mapping[C, float],
    given: Callable[[C], Mapping[C, float]],
    *,
    threshold: float = THRESHOLD,
    floor: float = FLOOR,
    running: bool = True,
    order: Callable[[C], object] = repr,
) -> tuple[list[tuple[C, float]], dict[C, float]]:
    """Algorithm 1 with the paper's adjustment, from the votes alone: (blamed with their votes, votes of the others).

    Each flow with loss through the blamed is taken to have lost there; the share ``given(blamed)[k]`` of these flows
    also crosses k (by ECMP) and gave it as many votes as the blamed: k loses that share of the votes of the blamed.
    The ``running`` total is over all components, those that were blamed with the votes they had then.
    """
    left = dict(votes)
    first = sum(left.values())
    blamed: list[tuple[C, float]] = []
    while left:
        best = strongest(left, order)
        total = sum([v for v in left.values() if v > 0]) + sum([v for _, v in blamed]) if running else first
        if left[best] <= floor or left[best] < threshold * total:
            break
        top = left.pop(best)
        blamed.append((best, top))
        for other, share in given(best).items():
            if other in left:
                left[other] -= top * share
    return blamed, left


def vote_among_peers(
    tier: Mapping[C, int],
    weight: Mapping[C, float],
    waiting: Callable[[C], tuple[int, float]],
    explain: Callable[[C], None],
    *,
    threshold: float = THRESHOLD,
    floor: float = FLOOR,
    running: bool = True,
    order: Callable[[C], object] = repr,
) -> list[tuple[C, float]]:
    """Algorithm 1 for switches, which are few: each has a good share of the votes by chance alone.

    A switch is compared with its peers, those of its ``tier``: if its n flows with loss in ``waiting`` came from noise,
    it would have its share m of those of its tier, by ``weight`` (traffic; equal when that is unknown).  Of those with
    more than `PEERS` times m, the one with the largest log-likelihood ratio n ln(n / m) - (n - m) is blamed, and
    `explain` is called; the ratio must exceed ln(switches / `CHANCE`).  A switch is never blamed if all its peers are.
    ``threshold``, ``floor`` and
    ``running`` are as in `vote`.
    """
    left = set(tier)
    blamed: list[tuple[C, float]] = []
    first = None
    while True:
        now = {c: waiting(c) for c in left}
        total = sum([votes for _, votes in now.values()])
        first = total if first is None else first
        flows, weights = dict.fromkeys(tier.values(), 0), dict.fromkeys(tier.values(), 0.0)
        for c, (n, _) in now.items():
            flows[tier[c]] += n
            weights[tier[c]] += weight[c]
        best: tuple[float, object, C] | None = None
        for c, (n, votes) in now.items():
            others = weights[tier[c]] - weight[c]
            if others <= 0:
                continue  # no peer is left for comparison: it may be noise
            # One more flow than seen: that none was seen does not mean that there is none.
            mean = max((flows[tier[c]] - n + 1) * weight[c] / others, 1e-9)
            if n <= PEERS * mean or votes <= floor or votes < threshold * (total if running else first):
                continue
            gain = n * log(n / mean) - (n - mean)
            if gain > log(len(tier) / CHANCE) and (best is None or (-gain, order(c)) < best[:2]):
                best = -gain, order(c), c
        if best is None:
            return blamed
        blamed.append((best[2], now[best[2]][1]))
        left.remove(best[2])
        explain(best[2])


def cover(flows: Sequence[Flow], *, order: Callable[[Hashable], object] = repr) -> list[Blame]:
    """Algorithm 2, greedy maximum coverage: the component on most unexplained flows, until all are explained."""
    left = [flow for flow in flows if flow.lost and flow.path]
    blamed: list[Blame] = []
    while left:
        counts: dict[Hashable, int] = {}
        for flow in left:
            for component in set(flow.path):
                counts[component] = counts.get(component, 0) + 1
        best = strongest(counts, order)
        blamed.append(Blame(best, counts[best]))
        left = [flow for flow in left if best not in flow.path]
    return blamed


def gain(lost: int, sent: int, p_b: float, p_g: float) -> float:
    """Logarithm of how much likelier a flow's losses are over a bad component than over good ones only."""
    return lost * log(p_b / p_g) + max(sent - lost, 0) * (log1p(-p_b) - log1p(-p_g))


def mle(
    flows: Sequence[Flow],
    *,
    p_b: float,
    p_g: float,
    prior: float,
    shares: Callable[[Flow], Mapping[Hashable, float]] | None = None,
    order: Callable[[Hashable], object] = repr,
) -> list[Blame]:
    """Greedy maximum likelihood: flows with loss by their paths, those without by path or by ECMP shares.

    score(l) = sum of gains of the unexplained flows with loss over l + sum of ln(1 - f + f exp(gain)) of the others,
    f their chance to cross l (1 on a path that is known) + ``prior``, the logarithm of the odds that l is bad.
    The best component is blamed while its score is positive and it explains a flow.
    """
    left = [flow for flow in flows if flow.lost and flow.path]
    healthy: dict[Hashable, float] = {}
    for flow in flows:
        if not flow.lost:
            w = gain(0, flow.sent, p_b, p_g)
            crossed: Mapping[Hashable, float] = dict.fromkeys(flow.path, 1.0) if shares is None else shares(flow)
            for component, f in crossed.items():
                healthy[component] = healthy.get(component, 0.0) + (w if f >= 1 else log(1 - f + f * exp(w)))
    blamed: list[Blame] = []
    while left:
        score: dict[Hashable, float] = {}
        for flow in left:
            w = gain(flow.lost, flow.sent, p_b, p_g)
            for component in set(flow.path):
                score[component] = score.get(component, prior + healthy.get(component, 0.0)) + w
        best = strongest(score, order)
        if score[best] <= 0:
            break
        blamed.append(Blame(best, score[best]))
        left = [flow for flow in left if best not in flow.path]
    return blamed


def fit(
    flows: Sequence[Flow], prior: float, ratio: float, *, order: Callable[[Hashable], object] = repr
) -> tuple[list[Blame], float]:
    """`mle` with fitted drop rates, from flows with known paths: (blamed, drop rate of good paths).

    A component's own rate is what it lost of what crossed it, of flows that nothing explains yet; that of good paths
    begins as that of all flows and follows what is left, then stays what it has come to, and all is done again until
    nothing changes.  Bad is more than ``ratio`` times worse than good paths.
    """
    p_g = (sum(f.lost for f in flows) + 0.5) / (sum(f.sent for f in flows) + 1)
    blamed, p_g = _fitted(flows, prior, 1.0, min(p_g, 0.5), True, order)
    last: list[Hashable] | None = None
    for _ in range(5):
        used = p_g
        blamed, p_g = _fitted(flows, prior, ratio, used, False, order)
        found = [b.component for b in blamed]
        if found == last:
            break
        last = found
    return blamed, used


def _fitted(
    flows: Sequence[Flow], prior: float, ratio: float, p_g: float, moving: bool, order: Callable[[Hashable], object]
) -> tuple[list[Blame], float]:
    left = list(flows)
    lost, sent = sum(f.lost for f in flows), sum(f.sent for f in flows)
    blamed: list[Blame] = []
    rest = p_g
    while True:
        counts: dict[Hashable, tuple[int, int]] = {}
        for flow in left:
            for component in set(flow.path):
                b, n = counts.get(component, (0, 0))
                counts[component] = b + flow.lost, n + flow.sent
        score: dict[Hashable, float] = {}
        for component, (b, n) in counts.items():
            p = min(b / n, 0.999999) if n else 0.0
            if b and p > ratio * p_g and component not in {a.component for a in blamed}:
                score[component] = prior + b * log(p / p_g) + (n - b) * (log1p(-p) - log1p(-p_g))
        best = strongest(score, order) if score else None
        if best is not None and score[best] > 0:
            blamed.append(Blame(best, score[best]))
            lost -= counts[best][0]
            sent = max(sent - counts[best][1], lost)
            left = [f for f in left if not f.lost or best not in f.path]
        rest = min((lost + 0.5) / (sent + 1), 0.5)
        if best is None or score[best] <= 0:
            return blamed, rest
        p_g = rest if moving else p_g


def verdict(flow: Flow, votes: Mapping[Hashable, Fraction]) -> tuple[Hashable | None, Fraction]:
    """The component of the flow's path with most votes, and these; None, *noise*, when only the flow itself voted."""
    if not flow.path:
        return None, Fraction(0)
    best = strongest({c: votes.get(c, Fraction(0)) for c in flow.path}, repr)
    most = votes.get(best, Fraction(0))
    return (None if most <= flow.weight else best), most


def confidence(explained: int, others: int, flows: int) -> float:
    """Confidence that a component is above the noise: 1 - eps of Theorem 3, with observed counts.

    ``explained``: flows with loss that it explains; ``others``: those of the strongest component that is not blamed
    (at least 1 is taken, a lone drop); ``flows``: all.
    """
    from confluo_tools.vote.theorems import misranked_best

    others = max(others, 1)
    if explained <= others:
        return 0.0
    flows = max(flows, explained + 1)
    return max(0.0, 1 - misranked_best(explained / flows, others / flows, flows))


class Score(NamedTuple):
    """Comparison of the blamed components with the failed ones."""

    right: int
    blamed: int
    failed: int
    found: int

    @property
    def precision(self) -> float:
        """Of the blamed, the share that had failed; 1 when nothing was blamed."""
        return self.right / self.blamed if self.blamed else 1.0

    @property
    def recall(self) -> float:
        """Of the failed, the share that was found; 1 when nothing had failed."""
        return self.found / self.failed if self.failed else 1.0

    @property
    def f1(self) -> float:
        """Harmonic mean of the two."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def compare(blamed: Sequence[tuple[int, int]], failed: Collection[tuple[int, int]]) -> Score:
    """Compare the blamed components, (a, b) a link and (a, a) a switch, with the failed ones.

    A link is right when it failed, or when the switch at one end did; a switch when it failed or a link of it did.
    """

    def same(it: tuple[int, int], bad: tuple[int, int]) -> bool:
        if it[0] == it[1]:
            return it[0] in bad
        return it == bad or (bad[0] == bad[1] and bad[0] in it)

    right = sum(any(same(it, bad) for bad in failed) for it in blamed)
    found = sum(any(same(it, bad) for it in blamed) for bad in failed)
    return Score(right, len(blamed), len(failed), found)
