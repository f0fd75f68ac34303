"""Flows that die, paths that are cut, acknowledgements that are lost, black holes: what confluo-vote makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from confluo_tools.core.vote.flow_tally import FlowTally
from confluo_tools.network.ecmp import Routes
from confluo_tools.network.topology import Clos, make_clos
from confluo_tools.vote import models, voting, way_back
from confluo_tools.vote.dead_flows import BAD, BLACK_HOLE, UNSURE, DeadFlows, Expected, expected, kind_of, kinds_of
from confluo_tools.vote.models import Judgement, ModelSettings
from confluo_tools.vote.simulator import HOLES, ClosSettings, ClosSimulation, probability
from vote_rows import flow, tally

PARTIAL, UNCONNECTED, STALLED, PROBE = 1, 32, 64, 128
SMALL = Clos(2, 2, 2, 2, 2)
ROUTES = Routes(make_clos(SMALL))
# ToRs 1 2 | 3 4, T1s 5 6 | 7 8, T2s 9 10, hosts 10000 10001 below 1, 10002 10003 below 2, ...


def judged(t: FlowTally, model: str = "vote", routes: Routes | None = ROUTES) -> Judgement:
    return models.judge(t, model, ModelSettings(), routes)


def bad(out: Judgement) -> list[tuple[int, int]]:
    return [out.localiser.tally.key(n) for n in out.accused()]


def died(src: int, path: list[int], dst: int, port: int, notes: int = PARTIAL | UNCONNECTED) -> dict[str, Any]:
    return flow(src, path, dst, 6, 6, notes=notes, src_port=port, dst_port=80)


def probe(src: int, path: list[int], dst: int, port: int) -> dict[str, Any]:
    return flow(src, path, dst, 0, 0, notes=PROBE, src_port=port, dst_port=80)


def small(rows: list[dict[str, Any]]) -> FlowTally:
    return tally(rows, tor_of=ROUTES.topology.tor_of)


CUT = [died(10000 + i % 4, [1 + i % 4 // 2, 5], 10004 + i % 3, 2000 + i) for i in range(12)]


@pytest.mark.parametrize("model", ["vote", "mle"])
def test_the_link_after_the_last_answer_is_blamed(model: str) -> None:
    """T1 5 sends to 9 and 10; traces of other ports cross 5 -> 9, none crosses 5 -> 10."""
    others = [probe(10000, [1, 5, 9, 7, 3], 10004, 3000 + i) for i in range(3)]
    assert bad(judged(small([*CUT, *others]), model)) == [(5, 10)]


@pytest.mark.parametrize("model", ["vote", "mle"])
def test_without_a_topology_the_far_end_is_not_known(model: str) -> None:
    assert bad(judged(tally(CUT), model, None)) == [(5, 0)]


def test_no_answer_at_all_is_the_link_of_the_host() -> None:
    there = [died(10005, [], 10000 + i % 4, 2000 + i) for i in range(6)]
    back = [died(10000 + i % 4, [1 + i % 4 // 2, 5, 9, 7, 3], 10005, 3000 + i, UNCONNECTED) for i in range(9)]
    assert bad(judged(small([*there, *back]))) == [(10005, 3)]


def test_a_host_that_is_off_is_the_link_to_it() -> None:
    rows = [died(10000 + i % 4, [1 + i % 4 // 2, 5 + i % 2, 9, 7, 3], 10005, 3000 + i, UNCONNECTED) for i in range(9)]
    assert bad(judged(small(rows))) == [(3, 10005)]


def test_few_flows_that_died_blame_nothing() -> None:
    others = [probe(10000, [1, 5, 9, 7, 3], 10004, 3000)]
    for model in ("vote", "mle"):
        assert bad(judged(small([*CUT[:1], *others]), model)) == []
    out = judged(small([*CUT[:3], *others]))
    assert (bad(out), set(out.kinds.values())) == ([], {UNSURE})


def test_a_lossy_link_explains_paths_that_end_behind_it_and_gaps_around_it() -> None:
    """8 -> 10 drops three packets in ten: of some traces all probes are lost there, too."""
    whole = [
        flow(10004 + i % 4, [3 + i % 4 // 2, 8, 10, 5 + i % 2, 1], 10000, 12, 47, src_port=i, dst_port=80)
        for i in range(1, 9)
    ]
    gap = [flow(10006, [4, 8, 0, 5, 1], 10001, 15, 50, src_port=90, dst_port=80)]
    short = [died(10006, [4, 8, 10], 10001, 91), died(10006, [4, 8], 10001, 92)]
    for model in ("vote", "mle"):
        out = judged(small([*whole, *gap, *short]), model)
        assert bad(out) == [(8, 10)]
        assert out.localiser.explained(out.blamed[0][0]).flows == 11


def test_acknowledgements_lost_on_a_link_accuse_no_other_link() -> None:
    """10006 -> 4 drops: flows to 10006 retransmit, too, and all of them cross 4 -> 10006."""
    there = [
        flow(
            10006,
            [4, 7 + i % 2, 9 + i // 2 % 2, 5 + i // 4 % 2, 1 + i // 8],
            10000 + 2 * (i // 8),
            25,
            60,
            src_port=1 + i,
        )
        for i in range(16)
    ]
    back = [
        flow(10000 + i % 4, [1 + i % 4 // 2, 5 + i % 3 // 2, 9, 7 + i % 2, 4], 10006, 2, 37, src_port=i, dst_port=80)
        for i in range(1, 13)
    ]
    for routes in (ROUTES, None):
        t = small([*there, *back]) if routes else tally([*there, *back])
        assert bad(judged(t, "vote", routes)) == [(10006, 4)]
    out = judged(small([*there, *back]))
    numbers = [n for n in range(out.localiser.tally.flows) if out.localiser.tally.flow(n).dst == 10006]
    tally_of = out.localiser.tally
    assert {tally_of.key(out.verdict(n).component) for n in numbers} == {(10006, 4)}


def test_a_second_bad_link_is_not_taken_for_lost_acknowledgements() -> None:
    """Flows over 7 -> 9 could lose their acknowledgements on 5 -> 9, but more of them cross 7 -> 9 than by chance."""
    flows = [
        way_back.LossyFlow(i, 10004 + i % 4, 10000, 3 + i % 4 // 2, 1, ((3 + i % 4 // 2, 7), (7, 9))) for i in range(60)
    ]
    spread = lambda one: ROUTES.between(one.src_tor, one.dst_tor)  # noqa: E731
    assert way_back.explained(flows, lambda one: 0.25, 100, spread, 40) == []
    assert len(way_back.explained(flows, lambda one: 0.25, 100, None, 40)) == 60
    assert way_back.explained(flows, lambda one: 0.25, 5, None, 40) == []  # one link does not cause that many
    assert way_back.explained(flows, lambda one: 0.0, 100, None, 40) == []


def test_how_many_flows_lose_acknowledgements() -> None:
    assert way_back.expected(0, 0, 0) == 0
    assert way_back.expected(10, 60, 60) == pytest.approx(10)  # nothing gets through
    assert way_back.expected(10, 10, 1000) < 2


NOTHING = Expected()


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (DeadFlows(0, 0, 20, 20, 20, NOTHING), BAD),
        (DeadFlows(20, 9, 0, 0, 0, NOTHING), BAD),  # cut: nothing crosses it
        (DeadFlows(20, 9, 8, 8, 30, NOTHING), BAD),  # three in five packets: some live
        (DeadFlows(2, 2, 0, 0, 0, NOTHING), UNSURE),
        (DeadFlows(9, 3, 0, 0, 12, NOTHING), BLACK_HOLE),  # probes of other ports cross it
        (DeadFlows(9, 3, 0, 9, 12, NOTHING), BAD),
        (DeadFlows(20, 9, 0, 0, 0, expected([(0.5, 20)])), BAD),  # as many died as ECMP sends there
        (DeadFlows(4, 1, 0, 0, 0, expected([(0.5, 100)])), BLACK_HOLE),
        (DeadFlows(4, 1, 0, 0, 0, expected([(0.5, 9)])), UNSURE),
        (DeadFlows(4, 1, 0, 0, 0, expected([(1.0, 9)])), BLACK_HOLE),  # all of the healthy flows cross it
    ],
)
def test_cut_or_black_hole(seen: DeadFlows, kind: str) -> None:
    assert kind_of(seen) == kind


def test_several_cut_links_need_a_topology() -> None:
    one = DeadFlows(20, 9, 0, 0, 0, NOTHING)
    assert set(kinds_of({1: one, 2: one}, mapped=True).values()) == {BAD}
    assert set(kinds_of({1: one, 2: one}, mapped=False).values()) == {UNSURE}
    assert kinds_of({1: one}, mapped=False) == {1: BAD}


def epoch(seed: int, share: float, holes: str = "none", healthy: bool = True) -> FlowTally:
    """30 flows of 35 packets of each host, one link or (black holes) one switch that fails."""
    what: dict[str, Any] = {"failures": 1, "where": [seed % 6]} if holes == "none" else {"failures": 0, "devices": 1}
    made = ClosSettings(
        seed=seed,
        deaths=True,
        holes=HOLES.index(holes),
        rates=[(probability(share),) * 2],
        noise=0,
        healthy=1,
        connections=(30, 30),
        packets=(35, 35),
        **what,
    )
    out = FlowTally(healthy=int(healthy), tor_of=ROUTES.topology.tor_of)
    for block in ClosSimulation(SMALL, made).blocks():
        out.add(block, 0, block.rows)
    return out


@pytest.mark.parametrize("model", ["vote", "mle"])
@pytest.mark.parametrize(
    ("share", "right", "false"), [(0.02, 23, 0), (0.1, 24, 0), (0.3, 24, 0), (0.6, 22, 2), (1, 24, 0)]
)
def test_one_link_at_any_drop_rate(model: str, share: float, right: int, false: int) -> None:
    """Of 24 simulated epochs: those that blame the failed link first, and those that blame others."""
    first = others = 0
    for seed in range(2000, 2024):
        t = epoch(seed, share, healthy=model == "mle")
        found = bad(judged(t, model))
        first += found[:1] == t.truth()
        others += bool(set(found) - set(t.truth()))
    assert (first >= right, others <= false) == (True, True), (first, others)


@pytest.mark.parametrize("model", ["vote", "mle"])
@pytest.mark.parametrize("holes", ["pairs", "flows"])
def test_black_holes_are_suspected_and_no_link_is_blamed(model: str, holes: str) -> None:
    suspected = 0
    for seed in range(2000, 2024):
        t = epoch(seed, 0.125, holes)
        out = judged(t, model)
        suspected += BLACK_HOLE in out.kinds.values()
        assert voting.compare(bad(out), t.truth()).right == len(bad(out))  # else a link of the switch itself
    assert suspected >= 18
