"""Plans of Pingmesh against a twin written from the definition, and what must hold of any plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.network.fleet import Fleet, FleetServer, make_fleet, make_grid
from confluo_tools.pingmesh.plan.graphs import PingmeshPlan, PlanRules, ProbeSpec, partners, version_of
from confluo_tools.pingmesh.plan.pinglist_file import read_pinglist, to_arrow, to_yaml
from confluo_tools.pingmesh.plan.pinglist_parts import PinglistEncoder

Pair = tuple[str, str]


@st.composite
def fleets(draw: st.DrawFn, all_active: bool = False, regular: bool = False) -> Fleet:
    servers: list[FleetServer] = []
    size = draw(st.integers(1, 4))
    pod = podset = 0
    for dc in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 3))):
            podset += 1
            for _ in range(draw(st.integers(1, 4))):
                pod += 1
                for i in range(size if regular else draw(st.integers(1, 5))):
                    active = all_active or draw(st.integers(0, 6)) > 0
                    address = f"10.{pod}.0.{i + 1}" if draw(st.booleans()) else f"fd00::{pod:x}:{i + 1:x}"
                    place = f"p{pod}", f"ps{podset}", f"dc{dc}"
                    servers.append(FleetServer(f"s{pod}-{i}", address, 8765 + i, *place, active))
    vips = {"v": ("10.99.0.1", 443)} if draw(st.booleans()) else {}
    return make_fleet(servers, {}, vips)


def pairs_of(plan: PingmeshPlan) -> dict[Pair, str]:
    """{(prober, target): level}; nothing twice."""
    found: dict[Pair, str] = {}
    for s in plan.fleet.servers:
        for p in plan.peers(s):
            assert (s.name, p.name) not in found
            found[s.name, p.name] = p.level
    return found


def twin(fleet: Fleet, unequal: str) -> dict[Pair, str]:
    """The pairs within data centres as the definition has them: server i probes server i, both ways."""
    found = {}
    pods = list(fleet.pods.items())
    for (a, ours), (b, theirs) in product(pods, pods):
        if a == b:
            pairs = [(x, y) for x in ours for y in ours if x is not y]
        elif ours[0].dc == theirs[0].dc:
            n = (max if unequal == "wrap" else min)(len(ours), len(theirs))
            pairs = [(ours[i % len(ours)], theirs[i % len(theirs)]) for i in range(n)]
        else:
            continue
        for x, y in pairs:
            if x.active and y.active:
                found[x.name, y.name] = "pod" if a == b else "dc"
    return found


@settings(deadline=None)
@given(fleets(), st.sampled_from(["wrap", "skip"]), st.integers(0, 3))
def test_the_graphs_are_those_of_the_definition(fleet: Fleet, unequal: str, chosen: int) -> None:
    plan = PingmeshPlan(fleet, PlanRules(unequal=unequal, per_podset=chosen))
    pairs = pairs_of(plan)
    near = {pair: level for pair, level in pairs.items() if level in ("pod", "dc")}
    assert near == twin(fleet, unequal)
    assert all(a != b for a, b in pairs)
    assert all((b, a) in pairs for (a, b), level in pairs.items() if level != "vip")
    # Between data centres: the same number of each podset, if it has that many, and all of them probe each other.
    far = [pair for pair, level in pairs.items() if level == "wan"]
    speak = {a for a, _ in far}
    of = Counter(fleet.server(name).podset for name in speak)
    active = Counter(s.podset for s in fleet.servers if s.active)
    talking = {fleet.dc_of[podset] for podset in active} if chosen else set()
    if len(talking) > 1:
        assert of == {podset: min(n, chosen) for podset, n in active.items()}
    assert set(far) == {(a, b) for a in speak for b in speak if fleet.server(a).dc != fleet.server(b).dc}
    if fleet.vips and speak:
        assert {a for (a, b), level in pairs.items() if level == "vip"} == speak
    assert plan.check() == len(pairs)
    assert Counter(a for a, _ in pairs) == Counter({s.name: plan.count(s) for s in fleet.servers if plan.count(s)})


@settings(deadline=None)
@given(fleets(all_active=True), st.sampled_from(["wrap", "skip"]))
def test_every_ordered_pair_of_pods_is_covered_as_often_as_said(fleet: Fleet, unequal: str) -> None:
    between = Counter(
        (fleet.server(a).pod, fleet.server(b).pod)
        for (a, b), level in pairs_of(PingmeshPlan(fleet, PlanRules(unequal=unequal))).items()
        if level == "dc"
    )
    size = {pod: len(its) for pod, its in fleet.pods.items()}
    dc = {pod: its[0].dc for pod, its in fleet.pods.items()}
    said = {
        (a, b): (max if unequal == "wrap" else min)(size[a], size[b])
        for a in size
        for b in size
        if a != b and dc[a] == dc[b]
    }
    assert between == said


@settings(deadline=None)
@given(fleets(all_active=True, regular=True))
def test_peers_of_a_server_are_as_many_as_the_paper_says(fleet: Fleet) -> None:
    plan = PingmeshPlan(fleet, PlanRules(per_podset=0))
    for s in fleet.servers:
        pods = sum(1 for its in fleet.pods.values() if its[0].dc == s.dc)
        assert len(plan.peers(s)) == (len(fleet.pods[s.pod]) - 1) + (pods - 1)


@settings(deadline=None)
@given(fleets(), st.data())
def test_without_a_pod_exactly_its_rows_and_columns_are_gone(fleet: Fleet, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(fleet.pods)))
    rest = [s for s in fleet.servers if s.pod != gone]
    if not rest:
        return
    rules = PlanRules(per_podset=0)
    before = pairs_of(PingmeshPlan(fleet, rules))
    after = pairs_of(PingmeshPlan(make_fleet(rest, {}, fleet.vips), rules))
    names = {s.name for s in rest}
    assert after == {(a, b): level for (a, b), level in before.items() if a in names and b in names}


@settings(deadline=None)
@given(fleets(), st.data())
def test_a_server_that_goes_to_repair_changes_nobody_elses_partners(fleet: Fleet, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from([s.name for s in fleet.servers]))
    servers = [replace(s, active=s.active and s.name != gone) for s in fleet.servers]
    plan, later = (
        PingmeshPlan(fleet, PlanRules(per_podset=1)),
        PingmeshPlan(make_fleet(servers, {}, fleet.vips), PlanRules(per_podset=1)),
    )
    before, after = pairs_of(plan), pairs_of(later)
    lost = {pair for pair in before if gone in pair}
    # Within data centres nothing else changes; another one of its podset may speak for it between them.
    changed = {(a, b) for (a, b) in before.keys() ^ after.keys() if (a, b) not in lost}
    podset = fleet.server(gone).podset
    known = {s.name: s for s in fleet.servers}
    for a, b in changed:
        assert after.get((a, b), before.get((a, b))) in ("wan", "vip")
        assert podset in (known[a].podset, known[b].podset if b in known else "")
    for s in fleet.servers:
        if s.name != gone and not any(s.name in pair for pair in lost | changed):
            assert plan.pinglist(s) == later.pinglist(s)


@settings(deadline=None)
@given(fleets(), st.integers(1, 6))
def test_a_ring_is_even_and_changes_little(fleet: Fleet, n: int) -> None:
    active = [s for s in fleet.servers if s.active]
    plan = PingmeshPlan(fleet, PlanRules(graph="ring", ring=n, per_podset=0))
    pairs = pairs_of(plan)
    each = min(n, len(active) - 1)
    assert Counter(a for a, _ in pairs) == Counter({s.name: each for s in active if each > 0})
    assert Counter(b for _, b in pairs) == Counter({s.name: each for s in active if each > 0})
    assert all(a != b for a, b in pairs)
    if len(active) > n + 2:
        gone = active[0].name
        rest = [s for s in fleet.servers if s.name != gone]
        later = pairs_of(PingmeshPlan(make_fleet(rest, {}, fleet.vips), PlanRules(graph="ring", ring=n, per_podset=0)))
        moved = {a for a, b in pairs.keys() ^ later.keys()} - {gone}
        assert moved == {a for a, b in pairs if b == gone}  # only those who probed it


@settings(deadline=None)
@given(fleets())
def test_full_is_everybody(fleet: Fleet) -> None:
    names = [s.name for s in fleet.servers if s.active]
    pairs = pairs_of(PingmeshPlan(fleet, PlanRules(graph="full", per_podset=0)))
    assert set(pairs) == {(a, b) for a in names for b in names if a != b}
    for (a, b), level in pairs.items():
        x, y = fleet.server(a), fleet.server(b)
        assert level == ("pod" if x.pod == y.pod else "dc" if x.dc == y.dc else "wan")


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from(["wrap", "skip"]))
def test_partners_are_mutual_and_leave_nobody_out(a: int, b: int, unequal: str) -> None:
    there = {(i, j) for i in range(a) for j in partners(a, b, i, unequal)}
    back = {(i, j) for j in range(b) for i in partners(b, a, j, unequal)}
    assert there == back
    assert len(there) == (max(a, b) if unequal == "wrap" else min(a, b))
    if unequal == "wrap":
        assert {i for i, _ in there} == set(range(a))
        assert {j for _, j in there} == set(range(b))


# ToRs, servers, peers of a server, pairs, probes a second of one and of all: the reference's arithmetic for 40 servers
# a ToR and 10 s, within one data centre.
@pytest.mark.parametrize(
    ("podsets", "pods", "peers", "pairs", "one", "all"),
    [
        (5, 5, 63, 63_000, 6.3, 6_300),
        (5, 20, 138, 552_000, 13.8, 55_200),
        (25, 20, 538, 10_760_000, 53.8, 1.076e6),
        (25, 50, 1288, 64_400_000, 128.8, 6.44e6),
        (25, 100, 2538, 253_800_000, 253.8, 2.538e7),
    ],
)
def test_counts_of_large_fleets(podsets: int, pods: int, peers: int, pairs: int, one: float, all: float) -> None:
    plan = PingmeshPlan(make_grid(1, podsets, pods, 40))
    assert plan.check() == pairs
    for s in plan.fleet.servers[:: len(plan.fleet.servers) // 7]:
        assert plan.count(s) == peers
        assert plan.count(s) / (plan.interval(peers) / 1e9) == pytest.approx(one)
    assert len(plan.fleet.servers) * one == pytest.approx(all)


@settings(deadline=None, max_examples=40)
@given(
    fleets(),
    st.sampled_from(["mesh", "ring", "full"]),
    st.sampled_from(["yaml", "arrow"]),
    st.sampled_from([0.0, 0.3, 7.0]),
    st.integers(0, (1 << 64) - 1),
    st.booleans(),
)
def test_shared_parts_give_the_lists_that_were_meant(
    fleet: Fleet, graph: str, form: str, rate: float, token: int, two: bool
) -> None:
    probes = (ProbeSpec(), ProbeSpec("echo", 1000, 8, 8766)) if two else (ProbeSpec("udp", 64),)
    plan = PingmeshPlan(fleet, PlanRules(graph=graph, ring=3, probes=probes, max_rate=rate), token)
    lists, rows = PinglistEncoder(plan, form), PinglistEncoder(plan, "rows")
    for s in lists.servers():
        wanted = plan.pinglist(s)
        data, version = lists.document(s)
        assert read_pinglist(data) == wanted
        assert version == wanted.version == version_of(s.name, token, wanted.peers, wanted.place)
        assert read_pinglist(to_yaml(wanted)) == wanted == read_pinglist(to_arrow(wanted))
        if form == "yaml":  # no server has a line for itself
            assert f"name: {s.name}," not in data.decode()
        block = rows.block(s)
        assert (0 if block is None else block.rows) == len(wanted.peers)
    assert sorted(s.name for s in lists.servers()) == sorted(s.name for s in fleet.servers)


def test_a_rate_is_kept_by_a_longer_interval() -> None:
    fleet = make_grid(1, 2, 10, 5)  # 4 + 19 peers
    for rate, interval in ((0, 10), (2.3, 10), (2, 11.5), (1, 23), (0.7, 32.9)):
        plan = PingmeshPlan(fleet, PlanRules(max_rate=rate))
        every = {p.interval for p in plan.peers(fleet.servers[7])}
        assert every == {round(interval * 10**9)}
        assert not rate or 23 / (min(every) / 1e9) <= rate * 1.000001


def test_caps_are_refused() -> None:
    plan = PingmeshPlan(make_grid(1, 2, 10, 5), PlanRules(max_peers=22))
    with pytest.raises(ValueError, match="server 'p001s01' would have 23 peers, more than 22"):
        plan.check()
    assert PingmeshPlan(make_grid(1, 2, 10, 5), PlanRules(max_peers=23)).check() == 100 * 23
    fleet = make_fleet(make_grid(1, 9, 1, 1).servers, {}, {"v": ("10.99.0.1", 80)})
    with pytest.raises(ValueError, match="each VIP would be probed by 9 servers, more than 8"):
        PingmeshPlan(fleet, PlanRules(graph="ring", ring=1, per_podset=1, max_peers=8)).check()
