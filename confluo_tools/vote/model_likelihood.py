"""Greedy maximum likelihood (as Flock, CoNEXT 2023): the components that make the losses, and all arrivals, likely."""

from __future__ import annotations

from math import exp, isfinite, log
from typing import TYPE_CHECKING

from confluo_tools.vote import voting
from confluo_tools.vote.model import FlowVerdict, Judgement, Model, ModelSettings, finite, located_flows

if TYPE_CHECKING:
    from confluo_tools.core.vote.flow_tally import FlowTally
    from confluo_tools.network.ecmp import Routes

BLIND = (0.007, 0.0003, -35.0)  # p_b, p_g, prior when the links of flows without loss are not known


class LikelihoodModel(Model):
    """Options: ``--p-bad``, ``--p-good``, ``--prior``, ``--ratio``; without rates it fits them."""

    name = "mle"
    min_score = -1e299

    def needs_routes(self, settings: ModelSettings, healthy: str) -> str | None:
        return "--healthy ecmp" if healthy == "ecmp" else None

    def looks_back(self, settings: ModelSettings) -> bool:
        return True

    def judge(self, out: Judgement, tally: FlowTally, routes: Routes | None) -> None:
        s, at = out.settings, out.localiser
        if s.p_bad is not None and s.p_good is not None:
            p_bad, p_good, prior = s.p_bad, s.p_good, -15.0 if s.prior is None else s.prior
        elif tally.healthy == 0 or 2 * located_flows(out, tally) <= tally.healthy_flows:
            p_bad, p_good, prior = BLIND[0], BLIND[1], BLIND[2] if s.prior is None else s.prior
            out.blind = True
        else:
            prior = log(voting.CHANCE / max(tally.components, 1)) if s.prior is None else s.prior
            out.blamed = at.fit(prior, s.ratio)
            out.p_bad, out.p_good = 0.0, at.p_g
            return
        out.blamed = at.mle(p_bad, p_good, prior)
        out.p_bad, out.p_good = p_bad, p_good

    def confidence(self, out: Judgement, number: int, score: float) -> float:
        return 1 / (1 + exp(-score)) if score < 700 else 1.0

    def verdict(self, out: Judgement, parts: tuple[int, ...], hops: int, number: int) -> FlowVerdict:
        best = out.localiser.by_blame(number)
        mine = out.rate.get(best, 0.0)
        all_of = sum(finite([out.rate.get(p, 0.0) for p in parts])) + out.p_good
        return FlowVerdict(best, mine / all_of if best >= 0 and isfinite(mine) and all_of > 0 else 0.0)
