"""Votes (007, section 5.1 and Algorithm 1): each flow with loss gives 1/h of a vote to the h components of its path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.network.topology import TOR
from confluo_tools.vote import voting
from confluo_tools.vote.model import Judgement, Model, ModelSettings, located_flows

if TYPE_CHECKING:
    from confluo_tools.core.vote.flow_tally import FlowTally
    from confluo_tools.network.ecmp import Routes
    from confluo_tools.network.topology import Topology

MIN_HEALTHY = 10  # flows without loss for each flow with loss, before their paths say how traffic is spread


class VoteModel(Model):
    """Options: ``--adjust``, ``--total``, ``--threshold``, ``--floor``."""

    name = "vote"

    def needs_routes(self, settings: ModelSettings, healthy: str) -> str | None:
        return "--adjust ecmp" if settings.adjust == "ecmp" else None

    def looks_back(self, settings: ModelSettings) -> bool:
        return settings.adjust == "flows" and settings.floor > 0  # the paper has neither

    def judge(self, out: Judgement, tally: FlowTally, routes: Routes | None) -> None:
        s = out.settings
        if s.adjust == "ecmp":
            assert routes is not None
            _by_shares(out, tally, routes)
        elif tally.switches and s.adjust == "flows":
            _among_peers(out, tally, routes.topology if routes is not None else None)
        else:
            out.blamed = out.localiser.vote(s.threshold, s.floor, remove=s.adjust == "flows", running=s.running)

    def blamed_by(self, out: Judgement, parts: tuple[int, ...], hops: int, number: int) -> int:
        best = out.localiser.by_blame(number)
        if best < 0 and not out.peers:  # which component do other unexplained flows complain about?
            likely = max(parts, key=lambda p: (out.left[p], -p))
            lone = 1 / max(hops, 1) if out.settings.noise < 0 else out.settings.noise
            best = likely if out.left[likely] > lone + 1e-9 else -1
        return best


def _among_peers(out: Judgement, tally: FlowTally, topology: Topology | None) -> None:
    s, at = out.settings, out.localiser
    switches = range(tally.components)
    tier = {n: tally.tier(n) for n in switches}
    located = located_flows(out, tally) if tally.healthy else 0
    spread_known = located >= MIN_HEALTHY * tally.flows and located * 2 > tally.healthy_flows
    weight = dict.fromkeys(switches, 1.0)
    if spread_known:
        for n in switches:
            crossing = at.crossing(n)
            weight[n] = crossing.sent + crossing.healthy
    if topology is not None:  # it also knows switches that no flow was seen to cross: numbers below 0
        for i, node in enumerate(topology.switches):
            number = tally.find(node, node)
            if number >= 0 or not spread_known:
                tier[number if number >= 0 else -1 - i] = topology.level[node] - TOR
                weight.setdefault(-1 - i, 1.0)
        weight = {n: weight[n] for n in tier}
    names: list[int] = []

    def explain(number: int) -> None:
        names.append(number)
        at.explain(names)

    out.blamed = voting.vote_among_peers(
        tier,
        weight,
        lambda n: at.waiting(n) if n >= 0 else (0, 0.0),
        explain,
        threshold=s.threshold,
        floor=s.floor,
        running=s.running,
        order=tally.key,
    )
    out.peers = True
    out.left = [0.0 if n in names else at.waiting(n).votes for n in switches]


def _by_shares(out: Judgement, tally: FlowTally, routes: Routes) -> None:
    s = out.settings
    keys = {tally.key(n): n for n in range(tally.components)}
    votes = {key: out.localiser.votes_of(n) for key, n in keys.items()}
    hosts = [k for k in votes if k[0] in routes.topology.tor_of or k[1] in routes.topology.tor_of]
    blamed, left = voting.vote_by_shares(
        {k: v for k, v in votes.items() if v},
        lambda k: routes.given(k, hosts),
        threshold=s.threshold,
        floor=s.floor,
        running=s.running,
        order=lambda k: k,
    )
    out.blamed = [(keys[k], v) for k, v in blamed]
    out.localiser.explain([n for n, _ in out.blamed])
    out.left = [left.get(tally.key(n), 0.0) for n in range(tally.components)]
