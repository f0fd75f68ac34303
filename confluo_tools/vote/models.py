"""Judge the flows of an epoch by any of the models of `confluo_tools.vote.registry`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from confluo_tools.vote import way_back
from confluo_tools.vote.dead_flows import DeadFlows, Expected, expected, kinds_of
from confluo_tools.vote.model import ADJUST, HEALTHY, FlowVerdict, Judgement, ModelSettings
from confluo_tools.vote.registry import NAMES, model_of

if TYPE_CHECKING:
    from confluo_tools.core.vote.fault_localiser import FaultLocaliser
    from confluo_tools.core.vote.flow_tally import FlowTally
    from confluo_tools.network.ecmp import Routes
    from confluo_tools.network.topology import Link
    from confluo_tools.vote.model import Model

__all__ = ["ADJUST", "HEALTHY", "NAMES", "FlowVerdict", "Judgement", "ModelSettings", "judge"]


def judge(tally: FlowTally, model: str, settings: ModelSettings, routes: Routes | None) -> Judgement:
    """Judge the flows of an epoch.  ``routes``: those of the topology, if there is one.

    The order of the records changes nothing, not the last digit.
    """
    from confluo_tools.core.vote.fault_localiser import FaultLocaliser
    from confluo_tools.core.vote.flow_order import settle

    if not tally.extended:
        settle(tally)
    if not tally.switches:
        _extend(tally, routes)
    pairs = tally.tor_pairs() if routes is not None and tally.healthy else set()
    localiser = FaultLocaliser(tally, routes.pairs(pairs) if routes is not None and pairs else None)
    chosen = model_of(model)
    out = Judgement(chosen, settings, localiser)
    if chosen.looks_back(settings) and not tally.switches:
        _look_back(out, chosen, routes)
    else:
        chosen.judge(out, tally, routes)
    out.finish()
    if not tally.switches:
        out.evidence = {number: evidence(out, number, routes) for number, _ in out.blamed}
        out.kinds = kinds_of(out.evidence, mapped=routes is not None)
    return out


def _extend(tally: FlowTally, routes: Routes | None) -> None:
    from confluo_tools.vote.partial_paths import PartialEnd, following, inside

    ends = [PartialEnd(*end) for end in tally.partial_ends()]
    gaps = tally.gaps()
    known: dict[int, list[Link]] = {}
    for a, b in map(tally.key, range(tally.components)) if ends or gaps else ():
        if tally.carried_by(tally.find(a, b)):
            known.setdefault(a, []).append((a, b))
    topology = routes.topology if routes is not None else None
    after = following(ends, topology, lambda node: known.get(node, []))
    tally.extend(after, {gap: inside(gap, topology, lambda node: known.get(node, [])) for gap in gaps})


def _look_back(out: Judgement, chosen: Model, routes: Routes | None) -> None:
    """After each blamed link, take out the flows that lost acknowledgements on it, and judge the others again.

    Links that drop many packets come first: the flows that cross them lose more than those that lose acknowledgements.
    """
    at = out.localiser
    settled: list[int] = []
    for share in (way_back.SEVERE, 0.0):
        at.only_severe(share)
        chosen.judge(out, at.tally, routes)
        _settle(out, chosen, routes, settled)
    at.explain([n for n, _ in out.blamed])


def _settle(out: Judgement, chosen: Model, routes: Routes | None, settled: list[int]) -> None:
    at = out.localiser
    while True:
        number = next((n for n, _ in out.blamed if n not in settled), -1)
        if number < 0:
            break
        settled.append(number)
        share = at.only_severe(0.0)
        at.explain(settled)
        found = _on_the_way_back(at, number, routes)
        at.only_severe(share)
        if found:
            at.explain_back(found, number)
            chosen.judge(out, at.tally, routes)


def _on_the_way_back(at: FaultLocaliser, number: int, routes: Routes | None) -> list[int]:
    tally, mine = at.tally, at.explained(number)
    most = way_back.expected(mine.flows, mine.lost, mine.sent)
    if most < 1 or mine.lost < way_back.HEAVY * mine.sent:
        return []
    link = tally.key(number)
    chance = _chance_back(at, link, number, routes)
    flows = []
    for n in at.unexplained():
        f = tally.flow(n)
        links = tuple([tally.key(part) for part in f.parts[: f.known]])
        flows.append(way_back.LossyFlow(n, f.src, f.dst, f.src_tor, f.dst_tor, links))
    spread = None if routes is None else lambda flow: routes.between(flow.src_tor, flow.dst_tor)
    return way_back.explained(flows, chance, most, spread, tally.components)


def _chance_back(
    at: FaultLocaliser, link: Link, number: int, routes: Routes | None
) -> Callable[[way_back.LossyFlow], float]:
    """The chance that the way back of a flow crosses a link: by ECMP, else 1 if flows between these ToRs crossed it."""
    tally = at.tally
    if routes is not None:
        t = routes.topology

        def by_routes(flow: way_back.LossyFlow) -> float:
            if flow.dst in link or flow.src in link:
                return float(link[0] == flow.dst or link[1] == flow.src)
            known = flow.src_tor in t.neighbours and flow.dst_tor in t.neighbours
            if not known or not t.on_the_way(flow.dst_tor, *link, flow.src_tor):
                return 0.0
            return routes.between(flow.dst_tor, flow.src_tor).get(link, 0.0)

        return by_routes
    crossing = [tally.flow(n) for n in at.members(number)]
    hosts = {end for f in crossing for end in (f.src, f.dst)}
    pairs = {(f.src_tor, f.dst_tor) for f in crossing if f.src_tor and f.dst_tor}

    def by_paths(flow: way_back.LossyFlow) -> float:
        if link[0] in hosts or link[1] in hosts:
            return float(link[0] == flow.dst or link[1] == flow.src)
        return float((flow.dst_tor, flow.src_tor) in pairs)

    return by_paths


def evidence(out: Judgement, number: int, routes: Routes | None) -> DeadFlows:
    """What flows that died say about a blamed link."""
    at, tally = out.localiser, out.localiser.tally
    dead = living = crossed = 0
    pairs = set()
    for n in at.members(number):
        flow = tally.flow(n)
        # A flow that died with a whole path may have died on its way back.
        crossed += number in flow.parts[: flow.known] and (not flow.dead or flow.last != 0)
        if at.by_blame(n) == number:
            if flow.dead:
                dead += 1
                pairs.add((flow.src, flow.dst))
            else:
                living += 1
    healthy = _healthy_flows(out, number, routes) if dead else Expected()
    return DeadFlows(dead, len(pairs), living, crossed, tally.carried_by(number), healthy)


def _healthy_flows(out: Judgement, number: int, routes: Routes | None) -> Expected:
    tally = out.localiser.tally
    a, b = link = tally.key(number)
    if not tally.healthy_flows or tally.healthy == HEALTHY.index("none"):
        return Expected()
    if routes is None or a not in routes.topology.neighbours or b not in routes.topology.neighbours:
        each = max(tally.healthy_sent / tally.healthy_flows, 1)  # packets; those of a link of a host are known
        return Expected(certain=out.localiser.crossing(number).healthy / each)
    t = routes.topology
    return expected(
        (routes.between(src, dst).get(link, 0.0), flows)
        for src, dst, sent, flows in tally.healthy_pairs()
        if sent and src in t.neighbours and dst in t.neighbours and t.on_the_way(src, *link, dst)
    )
