"""The theorems of 007: numbers worked out by others, enumeration of every path, exact binomials, the simulator."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from confluo_tools.network import traceroute_rate
from confluo_tools.network.topology import T1, T2, TOR, Clos, make_clos
from confluo_tools.vote import theorems
from confluo_tools.vote.simulator import ClosSettings, ClosSimulation, probability
from sessions import Shell

PAPER = Clos(2, 20, 8, 10, 40)
small = st.builds(Clos, st.integers(2, 4), *(st.integers(1, 4) for _ in range(3)), st.integers(1, 3))


def flows(clos: Clos) -> dict[tuple[int, ...], Fraction]:
    """Every path of switches between two ToRs, with the chance that a uniform flow takes it."""
    topology, tors = make_clos(clos), clos.pods * clos.tors
    chance = {}
    for src, dst in itertools.permutations(range(1, tors + 1), 2):
        paths = list(topology.paths(src, dst))
        for path in paths:
            chance[path] = Fraction(1, tors * (tors - 1) * len(paths))
    assert sum(chance.values()) == 1
    return chance


# ---------------------------------------------------------------- Theorem 1


@pytest.mark.parametrize(
    ("clos", "paper", "full"),
    [
        (Clos(2, 20, 8, 10, 40), 1.000000, 0.661),
        (Clos(4, 16, 8, 8, 20), 2.500000, 0.820),
        (Clos(6, 24, 4, 12, 10), 1.666667, 0.906),
        (Clos(8, 48, 16, 16, 40), 0.833333, None),
    ],
)
def test_values_of_theorem_1(clos: Clos, paper: float, full: float | None) -> None:
    assert round(traceroute_rate.trace_rate_paper(clos, 100), 6) == paper
    if full is not None:
        assert round(traceroute_rate.trace_rate_full(clos, 100), 3) == full


def test_the_paper_s_bound_does_not_keep_switches_below_t_max() -> None:
    clos = Clos(4, 16, 8, 8, 20)
    load = traceroute_rate.answers(clos, traceroute_rate.trace_rate_paper(clos))
    assert (round(load[T1]), round(load[T2])) == (176, 305)
    first, second = traceroute_rate.link_rates(clos, traceroute_rate.trace_rate_paper(clos))
    assert max(clos.tors * first, clos.t1s * second) == pytest.approx(100)  # what the paper counts


@given(small)
@settings(max_examples=60, deadline=None)
def test_answers_are_those_of_all_paths(clos: Clos) -> None:
    topology = make_clos(clos)
    count: Counter[int] = Counter()
    for path, chance in flows(clos).items():
        for switch in path:
            count[switch] += chance  # type: ignore[assignment]
    per_level = traceroute_rate.answers(clos, 1.0)
    counted = traceroute_rate.answers_at(topology, 1.0)
    for switch in topology.switches:
        expected = float(count[switch] * clos.all_hosts)
        assert per_level[topology.level[switch]] == pytest.approx(expected)
        assert counted[switch] == pytest.approx(expected)
    rate = traceroute_rate.trace_rate(topology, 100.0)
    assert max(traceroute_rate.answers(clos, rate).values()) == pytest.approx(100.0)
    topology.clos = None
    assert traceroute_rate.trace_rate(topology, 100.0) == pytest.approx(rate)
    assert traceroute_rate.trace_rate(topology, 100.0, "paper") == traceroute_rate.trace_rate_paper(clos, 100.0)


def test_a_leaf_spine_network_has_no_t2() -> None:
    clos = Clos(1, 4, 2, 0, 3)
    topology = make_clos(clos)
    rate = traceroute_rate.trace_rate(topology, 100.0)
    topology.clos = None  # the same network, by all its paths
    assert rate == pytest.approx(traceroute_rate.trace_rate(topology, 100.0))


def test_answers_in_the_simulator() -> None:
    clos = Clos(4, 16, 8, 8, 20)
    sim = ClosSimulation(clos, ClosSettings(failures=0, healthy=2, connections=(100, 100)))
    seen: Counter[int] = Counter()
    for block in sim.blocks():
        path = block.layout.index("path")
        for row in range(0, block.rows, 7):
            seen.update(block.get(path, row))
    del seen[0]
    level, total = make_clos(clos).level, sum(seen[tor] for tor in range(1, 65)) / 2  # each flow has two ToRs
    per_level: Counter[int] = Counter()
    for switch, n in seen.items():
        per_level[level[switch]] += n
    expected = traceroute_rate.answers(clos, 1.0)
    for its, switches in ((TOR, 64), (T1, 32), (T2, 8)):
        assert per_level[its] / switches / total * clos.all_hosts == pytest.approx(expected[its], rel=0.02)


# ---------------------------------------------------------------- Lemma 2


def votes(clos: Clos, chance: dict[tuple[int, int], float]) -> Counter[tuple[int, int]]:
    """The chance of each link of a vote of a connection, when links make connections through them retransmit."""
    got: Counter[tuple[int, int]] = Counter()
    for path, its in flows(clos).items():
        links = list(pairwise(path))
        some = 1 - math.prod(1 - chance[link] for link in links)
        for link in links:
            got[link] += float(its) * some  # type: ignore[assignment]
    return got


@given(small, st.data())
@settings(max_examples=150, deadline=None)
def test_lemma_2_holds_where_every_path_is_counted(clos: Clos, data: st.DataObject) -> None:
    assume(clos.tors >= clos.t2s and clos.pods >= theorems.pods_needed(clos))
    links = [(a, b) for a, b in make_clos(clos).links() if max(a, b) <= clos.switches]
    bad = data.draw(st.lists(st.sampled_from(links), min_size=1, max_size=clos.t2s, unique=True))
    r_b = data.draw(st.sampled_from([0.001, 0.05, 0.5, 1.0]))
    r_g = r_b * data.draw(st.sampled_from([0.0, 0.001, 0.1, 0.9]))
    assume(len(bad) < theorems.max_bad_links(clos) and len(bad) < len(links))
    got = votes(clos, dict.fromkeys(links, r_g) | dict.fromkeys(bad, r_b))
    assert min(got[link] for link in bad) >= theorems.bad_votes(clos, r_b) * (1 - 1e-12)
    worst = max(got[link] for link in links if link not in bad)
    assert worst <= theorems.good_votes(clos, len(bad), r_b, r_g) * (1 + 1e-12)


@given(small)
@settings(max_examples=40, deadline=None)
def test_how_often_links_are_used(clos: Clos) -> None:
    count: Counter[tuple[int, int]] = Counter()
    for path, chance in flows(clos).items():
        for link in pairwise(path):
            count[link] += chance  # type: ignore[assignment]
    level = make_clos(clos).level
    for (a, b), chance in count.items():
        which = 1 if TOR in (level[a], level[b]) else 2
        if which == 2 or clos.pods * clos.tors > 1:
            assert theorems.used(clos, which) == pytest.approx(float(chance))


@pytest.mark.parametrize(
    ("clos", "k"), [(Clos(4, 20, 8, 10, 10), 1), (Clos(6, 10, 4, 5, 10), 3), (Clos(4, 12, 6, 6, 10), 5)]
)
def test_lemma_2_in_the_simulator(clos: Clos, k: int) -> None:
    """Monte Carlo: flows of one packet, so that the chance to retransmit is the drop rate."""
    assert clos.pods >= theorems.pods_needed(clos)
    r_b, r_g, flows = 0.4, 0.01, 200
    sim = ClosSimulation(
        clos,
        ClosSettings(
            seed=k, failures=k, rates=[(probability(r_b),) * 2], noise=0, packets=(1, 1), connections=(flows, flows)
        ),
    )
    for kind in range(6):
        for i in range(sim.core.count(kind)):
            if not sim.core.rate_of(kind, i)[1] and kind in (1, 2, 3, 4):
                sim.core.fail(kind, i, probability(r_g))
    got: Counter[tuple[int, int]] = Counter()
    for block in sim.epoch(0):
        path, hops = block.layout.index("path"), block.layout.index("hops")
        for row in range(block.rows):
            got.update(pairwise(block.get(path, row)[: block.get(hops, row)]))
    n = clos.all_hosts * flows
    bad = {(a, b) for a, b, _ in sim.failed}
    for link, count in got.items():
        slack = 5 * math.sqrt(count)
        if link in bad:
            assert count + slack >= n * theorems.bad_votes(clos, r_b)
        else:
            assert count - slack <= n * theorems.good_votes(clos, k, r_b, r_g)


def test_conditions_of_lemma_2() -> None:
    assert theorems.pods_needed(PAPER) == 3.5  # the simulator's network has 2
    assert theorems.pods_needed(Clos(2, 4, 4, 2, 1)) == 2
    assert theorems.pods_needed(Clos(2, 4, 4, 5, 1)) == math.inf
    assert theorems.pods_needed(Clos(2, 4, 4, 4, 1)) == math.inf
    assert theorems.pods_needed(Clos(2, 10, 10, 9, 1)) == 1 + 9 * 9 / 10


# ---------------------------------------------------------------- Theorems 2 and 3


def test_values_of_alpha() -> None:
    assert [round(theorems.alpha(PAPER, k), 6) for k in (1, 5, 10)] == [4.270270, 5.172414, 7.368421]
    assert theorems.alpha(PAPER, 19) == 122.0
    assert theorems.alpha(PAPER, 20) == math.inf
    four = Clos(4, 20, 8, 10, 40)
    assert [round(theorems.alpha(four, k), 6) for k in (1, 5)] == [6.493151, 9.183673]


def test_values_of_k_max_and_of_good_links() -> None:
    assert theorems.max_bad_links(PAPER) == 19.5
    assert round(theorems.max_bad_links(Clos(4, 20, 8, 10, 40)), 2) == 13.17
    bounds = [f"{theorems.good_drops(PAPER, k, 0.0005, 10, 90):.6e}" for k in (1, 5)]
    assert bounds == ["1.298061e-05", "1.071661e-05"]


@given(small, st.integers(1, 5), st.floats(1e-6, 1), st.floats(0, 1))
def test_alpha_makes_lemma_2_s_bounds_meet(clos: Clos, k: int, r_b: float, part: float) -> None:
    times = theorems.alpha(clos, k)
    if k >= theorems.max_bad_links(clos):
        assert times == math.inf
        return
    assert theorems.good_votes(clos, k, r_b, r_b / times) == pytest.approx(theorems.bad_votes(clos, r_b))
    assert theorems.good_votes(clos, k, r_b, part * r_b / times) <= theorems.bad_votes(clos, r_b) * (1 + 1e-9)


def test_value_of_eps() -> None:
    v_b, v_g = 3e-4, 8e-5
    assert round((v_b - v_g) / (v_b + v_g), 6) == 0.578947
    assert round(theorems.misranked(v_b, v_g, 100_000), 6) == 0.322015
    assert theorems.misranked(v_g, v_b, 100_000) == 1.0
    truth = exactly_misranked(v_b, v_g, 100_000)
    assert truth == pytest.approx(1.15e-4, rel=0.15)  # theirs is a Monte Carlo
    assert truth < theorems.misranked_best(v_b, v_g, 100_000) < 0.06


def exactly_misranked(v_b: float, v_g: float, n: int) -> float:
    """The chance that a binomial with v_g is not below one with v_b."""

    def mass(p: float) -> list[float]:
        most = int(n * p + 12 * math.sqrt(n * p) + 40)
        logs = (
            math.lgamma(n + 1)
            - math.lgamma(i + 1)
            - math.lgamma(n - i + 1)
            + i * math.log(p)
            + (n - i) * math.log1p(-p)
            for i in range(min(most, n) + 1)
        )
        return [math.exp(x) for x in logs]

    good, bad = mass(v_g), mass(v_b)
    below = list(itertools.accumulate(bad))
    return sum(m * below[min(i, len(below) - 1)] for i, m in enumerate(good))


@given(st.floats(1e-5, 0.3), st.floats(0.01, 0.99), st.integers(1, 20_000))
@settings(max_examples=150, deadline=None)
def test_bounds_of_a_wrong_ranking(v_b: float, part: float, n: int) -> None:
    v_g = v_b * part
    best = theorems.misranked_best(v_b, v_g, n)
    assert exactly_misranked(v_b, v_g, n) <= best * (1 + 1e-6) + 1e-12
    assert best <= theorems.misranked(v_b, v_g, n) * 2 + 1e-12  # equal tails are at most twice the smallest sum
    needed = theorems.connections_needed(v_b, v_g, 0.05)
    assert theorems.misranked_best(v_b, v_g, int(needed)) <= 0.05 * (1 + 1e-9)
    assert needed == 1 or theorems.misranked_best(v_b, v_g, int(needed) - 1) > 0.05 * (1 - 1e-9)


# ---------------------------------------------------------------- confluo-vote bound


def cells(lines: list[str]) -> dict[tuple[str, str, str], tuple[str, str]]:
    return {
        (of, quantity, k): (value, holds)
        for of, quantity, k, value, _, holds in (line.split("\t") for line in lines if not line.startswith("#"))
    }


def test_bound_prints_the_theorems(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.run("echo 'clos: {pods: 2, tors: 20, t1s: 8, t2s: 10, hosts: 40}' > clos.yaml")
    status, lines = shell.run("confluo-vote bound --topology clos.yaml --failures 1,5,19")
    assert status == 0
    got = cells(lines)
    assert got["theorem1", "traceroutes, as in the paper", "0"] == ("1.0", "-")
    assert got["theorem1", "traceroutes, all answers counted", "0"][0].startswith("0.66101694915")
    assert got["theorem1", "answers of a T1, paper's bound", "0"][1] == "no"
    assert got["lemma2", "pods", "0"] == ("3.5", "no")
    assert got["theorem2", "bad links, fewer than", "0"] == ("19.5", "-")
    assert got["theorem2", "alpha", "19"] == ("122.0", "yes")
    assert float(got["theorem2", "good links drop at most", "5"][0]) == pytest.approx(1.071661e-5, abs=5e-12)
    assert shell.run("confluo-vote bound --failures 1,5,19") == (0, lines)


def test_bound_of_a_network_that_is_no_clos(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.run("printf '1 3\\n2 3\\n1 4\\n10->1\\n11->2\\n' > edges")
    status, lines = shell.run("confluo-vote bound --topology edges 2>/dev/null")
    assert status == 0
    # Each switch on 1-3-2 answers for both directions: one host each, so 2 C_t.
    assert cells(lines)["theorem1", "traceroutes, all answers counted", "0"] == ("50.0", "-")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--failures 0", "--failures: '0' is not a possible number of bad links here"),
        ("--failures 961", "--failures: '961' is not a possible number of bad links"),
        ("--bad 2", "--bad: '2' is not a chance; write e.g. 0.05%"),
        ("--bad x", "--bad: 'x' is not a chance"),
        ("--t-max 0", "--t-max: '0' is not a number above 0"),
        ("--packets 9..3", "--packets: '9..3' is not a number of packets"),
        ("--topology none.yaml", "none.yaml: No such file"),
        ("--pods 1 --tors 1", "one ToR or no hosts: there is nothing to trace"),
    ],
)
def test_bound_refuses_nonsense(tmp_path: Path, words: str, complaint: str) -> None:
    status, lines = Shell(tmp_path).run(f"confluo-vote bound {words}")
    assert (status, len(lines)) == (2, 1)
    assert lines[0].startswith(f"confluo-vote bound: {complaint}")
