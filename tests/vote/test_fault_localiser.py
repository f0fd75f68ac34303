"""The core's votes, coverage and likelihood against their definitions in vote/voting.py, which are plain Python."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import pairwise
from math import log
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.vote.fault_localiser import FaultLocaliser
from confluo_tools.core.vote.flow_tally import FlowTally
from confluo_tools.network.ecmp import Routes
from confluo_tools.network.topology import Clos, make_clos
from confluo_tools.vote import integer_programs, models, voting
from vote_rows import flow, tally

HOSTS = st.integers(100, 107)
SWITCHES = st.integers(1, 9)
PATHS = st.lists(st.one_of(SWITCHES, st.just(0)), min_size=0, max_size=6)
FLOW = st.tuples(HOSTS, PATHS, HOSTS, st.integers(0, 4), st.integers(0, 60), st.booleans())
FLOWS = st.lists(FLOW, min_size=1, max_size=40)
# No share of votes is exactly one of these: the definition computes with fractions, the core with rounded numbers.
THRESHOLDS = [0.0, 0.01 + 1e-9, 0.1 + 1e-9, 0.3 + 1e-9]


def seen(rows: list[tuple[Any, ...]], switches: bool) -> list[voting.Flow]:
    """What the paths of these rows say, by the words of the schema and nothing of the core."""
    out = []
    for src, path, dst, lost, sent, partial in rows:
        if not path:
            out.append(voting.Flow((), lost, max(sent, lost), 0))
            continue
        nodes = path if switches else [src, *path] + ([] if partial else [dst])
        parts = [(n, n) for n in nodes if n] if switches else [(a, b) for a, b in pairwise(nodes) if a and b]
        once = list(dict.fromkeys(parts))
        hops = (len(nodes) if switches else len(nodes) - 1) - (len(parts) - len(once))
        out.append(voting.Flow(tuple(once), lost, max(sent, lost), hops))
    return out


def filled(rows: list[tuple[Any, ...]], switches: bool) -> FlowTally:
    return tally(
        [flow(s, p, d, lost, sent, notes=int(partial)) for s, p, d, lost, sent, partial in rows], switches=switches
    )


def named(t: FlowTally, blamed: list[tuple[int, float]]) -> list[tuple[tuple[int, int], float]]:
    return [(t.key(n), pytest.approx(v)) for n, v in blamed]


@given(
    FLOWS, st.booleans(), st.sampled_from(THRESHOLDS), st.sampled_from([0.0, 0.3, 0.67]), st.booleans(), st.booleans()
)
def test_votes_are_those_of_the_definition(
    rows: list[tuple[Any, ...]], switches: bool, threshold: float, floor: float, adjust: bool, running: bool
) -> None:
    flows, t = seen(rows, switches), filled(rows, switches)
    judge = FaultLocaliser(t)
    want = voting.tally(flows)
    assert {t.key(n): judge.votes_of(n) for n in range(t.components) if judge.votes_of(n)} == {
        c: pytest.approx(float(v)) for c, v in want.items()
    }
    blamed = voting.vote(flows, threshold=threshold, floor=floor, adjust=adjust, running=running, order=lambda c: c)
    assert [(b.component, b.score) for b in blamed] == named(
        t, judge.vote(threshold, floor, remove=adjust, running=running)
    )


def among_peers(rows: list[tuple[Any, ...]], threshold: float, floor: float) -> list[tuple[tuple[int, int], float]]:
    """What `voting.vote_among_peers` says, counted again from all flows in each round."""
    flows = seen(rows, True)
    tier: dict[Any, int] = {}
    for (_, path, _, _, _, partial), its in zip(rows, flows, strict=True):
        for c in its.path:
            tier.setdefault(c, -1)
        if not partial and len(set(filter(None, path))) == len([n for n in path if n]):  # whole, and without loops
            for k, n in enumerate(path):
                if n:
                    near = min(k, len(path) - 1 - k)
                    tier[n, n] = near if tier[n, n] < 0 else min(tier[n, n], near)
    known = [f for f in flows if f.path]
    healthy, lossy = [f for f in flows if not f.lost], [f for f in flows if f.lost]
    located = [f for f in healthy if f in known]
    told = len(located) >= 10 * len(lossy) and 2 * len(located) > len(healthy)
    weight = {c: sum(f.sent for f in known if c in f.path) if told else 1 for c in tier}
    out: list[tuple[tuple[int, int], float]] = []
    while True:
        left = [f for f in lossy if not {c for c, _ in out} & set(f.path)]
        total = sum(float(v) for v in voting.tally(left).values())
        best = []
        for c in set(tier) - {c for c, _ in out}:
            peers = [p for p in tier if tier[p] == tier[c] and p not in {c for c, _ in out}]
            n = sum(c in f.path for f in left)
            others = sum(weight[p] for p in peers if p != c)
            mean = 1 + sum(sum(p in f.path for f in left) for p in peers if p != c)
            if not others:
                continue
            mean = max(mean * weight[c] / others, 1e-9)
            votes = sum(float(f.weight) for f in left if c in f.path)
            gain = n * log(n / mean) - (n - mean) if n else 0
            if n > 1.5 * mean and votes > floor and votes >= threshold * total and gain > log(len(tier) / 0.001):
                best.append((-gain, c, votes))
        if not best:
            return out
        _, c, votes = min(best)
        out.append((c, pytest.approx(votes)))


BUSY = st.lists(
    st.one_of(
        FLOW,
        st.builds(
            lambda bad, src, dst: (src, [1, bad, 2], dst, 1, 9, False), st.sampled_from([3, 3, 3, 4]), HOSTS, HOSTS
        ),
    ),
    min_size=1,
    max_size=80,
)


@given(BUSY, st.sampled_from([0.0, 0.01, 0.3]), st.sampled_from([0.0, 0.67]), st.integers(0, 400))
def test_votes_for_switches_are_those_of_the_definition(
    rows: list[tuple[Any, ...]], threshold: float, floor: float, healthy: int
) -> None:
    rows = rows + [(100, [1, 3 + i % 3, 2], 101, 0, i % 50, False) for i in range(healthy)]
    judgement = models.judge(filled(rows, True), "vote", models.ModelSettings(threshold=threshold, floor=floor), None)
    t = judgement.localiser.tally
    assert [(t.key(n), v) for n, v in judgement.blamed] == among_peers(rows, threshold, floor)


def test_switches_that_the_topology_has_are_peers_even_if_no_flow_crossed_them() -> None:
    net = make_clos(Clos(2, 4, 4, 2, 2))
    rows = [flow(100, [1 + i % 4, 9, 1 + (i + 1) % 4], 200 + i, 1) for i in range(5)]
    for topology, want in ((None, []), (net, [(9, 9)])):
        t = tally(rows, switches=True)
        routes = Routes(topology, True) if topology is not None else None
        assert [t.key(n) for n, _ in models.judge(t, "vote", models.ModelSettings(), routes).blamed] == want


@given(FLOWS, st.booleans())
def test_coverage_is_that_of_the_definition(rows: list[tuple[Any, ...]], switches: bool) -> None:
    t = filled(rows, switches)
    blamed = voting.cover(seen(rows, switches), order=lambda c: c)
    assert [(b.component, b.score) for b in blamed] == named(t, FaultLocaliser(t).cover())


Scores = Callable[[list[voting.Flow], set[Any]], dict[Any, float]]


def is_greedy(flows: list[voting.Flow], picks: list[tuple[Any, float]], scores: Scores) -> None:
    """Each pick is a best one when it was its turn, and none is left.  Which of equals: sums of floats decide."""
    left, taken = list(flows), set[Any]()
    for component, value in picks:
        now = scores(left, taken)
        assert now[component] == pytest.approx(value, abs=1e-6)
        assert now[component] == pytest.approx(max(now.values()), abs=1e-6)
        taken.add(component)
        left = [f for f in left if not f.lost or component not in f.path]
    assert max(scores(left, taken).values(), default=0) <= 1e-6


@given(FLOWS, st.booleans(), st.sampled_from([(0.003, 0.0002), (0.2, 0.01)]), st.sampled_from([-15.0, -3.0, 0.0]))
def test_likelihood_is_that_of_the_definition(
    rows: list[tuple[Any, ...]], switches: bool, rates: tuple[float, float], prior: float
) -> None:
    t, flows = filled(rows, switches), seen(rows, switches)

    def scores(left: list[voting.Flow], taken: set[Any]) -> dict[Any, float]:
        lossy = {c for f in left if f.lost for c in f.path} - taken
        return {c: prior + sum(voting.gain(f.lost, f.sent, *rates) for f in left if c in f.path) for c in lossy}

    got = [(t.key(n), v) for n, v in FaultLocaliser(t).mle(*rates, prior)]
    is_greedy(flows, got, scores)
    want = voting.mle(flows, p_b=rates[0], p_g=rates[1], prior=prior, order=lambda c: c)
    is_greedy(flows, [(b.component, b.score) for b in want], scores)


@given(FLOWS, st.sampled_from([-15.0, -5.0, -1.0]), st.sampled_from([1.0, 2.0]))
def test_fitted_likelihood_is_that_of_the_definition(rows: list[tuple[Any, ...]], prior: float, ratio: float) -> None:
    t, flows = filled(rows, False), seen(rows, False)
    judge = FaultLocaliser(t)
    got = [(t.key(n), v) for n, v in judge.fit(prior, ratio)]

    def best_of(left: list[voting.Flow], component: Any, p_g: float) -> float:
        """By trying drop rates."""
        mine = [f for f in left if component in f.path]
        lost, sent = sum(f.lost for f in mine), sum(f.sent for f in mine)
        rates = [min(lost / sent, 0.999999), *[0.001 * i for i in range(1, 999)]]
        worse = [p for p in rates if p > ratio * p_g]
        return prior + max([lost * log(p / p_g) + (sent - lost) * log((1 - p) / (1 - p_g)) for p in worse], default=-99)

    def scores(left: list[voting.Flow], taken: set[Any]) -> dict[Any, float]:
        lossy = {c for f in left if f.lost for c in f.path} - taken
        return {c: best_of(left, c, judge.p_g) for c in lossy}

    if ratio == 1:  # beyond it the best rate may be one that is not allowed
        is_greedy(flows, got, scores)
    want, p_g = voting.fit(flows, prior, ratio, order=lambda c: c)
    if [b.component for b in want] == [c for c, _ in got]:
        assert judge.p_g == pytest.approx(p_g)
        assert [b.score for b in want] == [pytest.approx(v) for _, v in got]


@given(FLOWS)
def test_verdicts_of_votes_are_those_of_the_definition(rows: list[tuple[Any, ...]]) -> None:
    flows, t = [f for f in seen(rows, False) if f.lost], filled(rows, False)
    judge, votes = FaultLocaliser(t), voting.tally(seen(rows, False))
    assert t.flows == len(flows)
    for number, one in enumerate(flows):
        best, most = judge.by_votes(number)
        want, count = voting.verdict(one, votes)
        assert most == pytest.approx(float(count))
        assert (best < 0) == (want is None)


def test_shares_of_healthy_flows_count_as_the_definition_has_it() -> None:
    """Two ToRs, two ways between them: 1 to 2 by 3 or 4."""
    route = {(1, 3): 0.5, (3, 2): 0.5, (1, 4): 0.5, (4, 2): 0.5}
    lossy = [flow(100, [1, 3, 2], 101, lost=2, sent=40), flow(102, [1, 3, 2], 103, lost=1, sent=50)]
    healthy = [flow(100 + i, [], 110 + i, sent=30 + i, src_tor=1, dst_tor=2) for i in range(20)]
    t = tally(lossy + healthy, healthy=2)
    got = FaultLocaliser(t, {(1, 2): [(0.5, array("Q", [a << 32 | b for a, b in route]))]}).mle(0.01, 0.0001, -3.0)

    def shares(f: voting.Flow) -> dict[Any, float]:
        return {**route, **dict.fromkeys(f.path, 1.0)}

    flows = [
        voting.Flow(((100, 1), (1, 3), (3, 2), (2, 101)), 2, 40),
        voting.Flow(((102, 1), (1, 3), (3, 2), (2, 103)), 1, 50),
    ]
    flows += [voting.Flow(((100 + i, 1), (2, 110 + i)), 0, 30 + i) for i in range(20)]
    want = voting.mle(flows, p_b=0.01, p_g=0.0001, prior=-3.0, shares=shares, order=lambda c: c)
    assert named(t, got) == [(b.component, b.score) for b in want]
    assert [c for c, _ in named(t, got)] == [(1, 3)]


def test_hosts_have_the_tors_of_the_topology() -> None:
    rows = [flow(100, [], 101, sent=7), flow(100, [], 102, sent=9), flow(100, [], 101, sent=5, src_tor=8, dst_tor=9)]
    t = tally(rows, tor_of={100: 1, 101: 2})
    assert sorted(t.healthy_pairs()) == [(1, 2, 7, 1), (8, 9, 5, 1)]
    assert t.placeless == 1


def test_fitted_rates_are_those_that_made_the_losses() -> None:
    """One link drops 2 % of the packets of 100 flows; of those of 2400 others 200 packets are lost."""
    bad = [flow(100 + i, [1, 2, 3], 400 + i, lost=20, sent=1000) for i in range(50)]
    bad += [flow(100 + i, [4, 2, 3], 400 + i, lost=20, sent=1000) for i in range(50)]
    good = [flow(700 + i, [6, 7, 8], 3000 + i, lost=int(i % 10 == 0), sent=1000) for i in range(2000)]
    good += [flow(700 + i, [1, 2, 5], 500 + i, sent=1000) for i in range(200)]
    good += [flow(700 + i, [6, 2, 9], 500 + i, sent=1000) for i in range(200)]
    t = tally(bad + good)
    judge = FaultLocaliser(t)
    assert [t.key(n) for n, _ in judge.fit(-12.0, 2.0)] == [(2, 3)]
    assert judge.p_g == pytest.approx(200 / 2_400_000, rel=0.05)


def test_nothing_lost_is_nothing_blamed() -> None:
    t = tally([flow(100, [1, 2], 101), flow(102, [1, 2], 103)])
    judge = FaultLocaliser(t)
    assert (t.flows, judge.vote(0, 0), judge.cover(), judge.mle(0.1, 0.01, 0), judge.fit(-5, 2)) == (0, [], [], [], [])


def test_an_empty_tally_judges() -> None:
    judge = FaultLocaliser(FlowTally())
    assert (judge.vote(0, 0), judge.cover(), judge.fit(-5, 2)) == ([], [], [])


@pytest.mark.parametrize("by", [False, True])
def test_odd_paths_are_counted_and_bounded(by: bool) -> None:
    rows = [
        flow(100, [1, 2, 1, 2, 3], 101, lost=1),  # a loop
        flow(100, [1], 101, lost=1),  # one hop
        flow(100, list(range(1, 17)), 101, lost=1, hops=255),  # more hops than a record has room for
        flow(100, [], 101, lost=1),  # not traced
        flow(100, [0, 0, 0], 101, lost=1),  # no hop answered
        flow(100, [1, 0, 3], 101, lost=1, notes=1),  # a gap, and not to the end
    ]
    t = tally(rows, switches=by)
    assert (t.flows, t.loops, t.cut, t.partial, t.pathless) == (6, 1, 1, 2, 2)
    parts = [[t.key(p) for p in t.flow(n)[0]] for n in range(6)]
    if by:
        assert parts[0] == [(1, 1), (2, 2), (3, 3)]
        assert parts[4] == []
    else:
        assert parts[0] == [(100, 1), (1, 2), (2, 1), (2, 3), (3, 101)]
        assert parts[1] == [(100, 1), (1, 101)]
        assert len(parts[2]) == 16
        assert (16, 101) not in parts[2]
        assert parts[4] == []
        assert parts[5] == [(100, 1)]
    assert FaultLocaliser(t).vote(0, 0)


def test_records_of_one_flow_are_one_vote() -> None:
    same = {"src_port": 5000, "dst_port": 80, "proto": 6}
    t = tally(
        [
            flow(100, [1, 2, 3], 101, lost=2, **same),
            flow(100, [1, 2, 3], 101, lost=3, **same),
            flow(100, [1, 2, 3], 101, lost=1, **same | {"src_port": 5001}),
            flow(100, [1, 2, 3], 101, lost=1),
            flow(100, [1, 2, 3], 101, lost=1),
        ]
    )
    assert (t.flows, t.repeated) == (4, 1)
    assert t.flow(0)[1:4] == (5, 200, 4)


def test_ipv6_flows_that_share_their_folds_are_two() -> None:
    more = {"src_port": 1, "dst_port": 2, "ip_version": 6, "src_ip6": bytes(15) + b"\1"}
    t = tally(
        [
            flow(7, [1, 2], 8, lost=1, dst_ip6=bytes(15) + b"\2", **more),
            flow(7, [1, 2], 8, lost=1, dst_ip6=bytes(15) + b"\3", **more),
        ]
    )
    assert (t.flows, t.repeated) == (2, 0)
    assert t.addresses()[7] == bytes(15) + b"\1"


def test_aliases_join_the_addresses_of_a_switch() -> None:
    t = tally([flow(100, [11, 21], 101, lost=1), flow(102, [12, 22], 103, lost=1)], alias={11: 1, 12: 1, 21: 2, 22: 2})
    assert {t.key(n) for n in range(t.components)} == {(100, 1), (102, 1), (1, 2), (2, 101), (2, 103)}


# ---------------------------------------------------------------- the integer programs

SETS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=10)


def fewest(paths: list[list[int]]) -> int:
    """Size of the smallest cover, by trying all."""
    return min(bin(s).count("1") for s in range(1 << 7) if all(any(s >> link & 1 for link in p) for p in paths))


@settings(deadline=None, max_examples=40)
@given(SETS)
def test_the_binary_program_finds_a_smallest_cover(paths: list[list[int]]) -> None:
    pytest.importorskip("scipy")
    found = integer_programs.binary(paths)
    assert all(set(found) & set(p) for p in paths)
    assert len(found) == fewest(paths)


@settings(deadline=None, max_examples=40)
@given(SETS, st.data())
def test_the_integer_program_explains_each_count_and_all_of_them(paths: list[list[int]], data: st.DataObject) -> None:
    pytest.importorskip("scipy")
    counts = data.draw(st.lists(st.integers(1, 5), min_size=len(paths), max_size=len(paths)))
    found = integer_programs.integer(paths, counts)
    assert sum(found.values()) == sum(counts)
    assert all(sum(found.get(link, 0) for link in set(p)) >= n for p, n in zip(paths, counts, strict=True))
    assert len(found) >= fewest(paths)


def test_a_switch_without_peers_is_not_blamed_for_noise() -> None:
    """Its like would be, with as many flows, if another one had none."""
    rows = [flow(100, [i, 30, 50 + i], 200, 1) for i in range(20)]
    for more, want in (([], []), ([flow(100, [1, 31, 50], 200, 1)], [(30, 30)])):
        t = tally(rows + more, switches=True)
        assert [t.key(n) for n, _ in models.judge(t, "vote", models.ModelSettings(), None).blamed] == want
