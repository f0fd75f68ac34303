"""The simulator: its random numbers against published vectors, its flows against the network, its drops against the
binomial distribution.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.base.random import Random
from confluo_tools.core.block.block import Staging
from confluo_tools.core.vote.clos_simulator import ClosSimulator
from confluo_tools.errors import UsageError
from confluo_tools.network.topology import Clos, make_clos
from confluo_tools.schema import builtin
from confluo_tools.vote.simulator import CERTAIN, KINDS, ClosSettings, ClosSimulation, probability

PAPER = Clos(2, 20, 8, 10, 40)
SMALL = Clos(2, 4, 3, 2, 5)
FLOW, FAILED = 1, 2
PARTIAL, CAPPED, NOISE = 1, 8, 16
MASK = (1 << 64) - 1
DTYPES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "i64": "<i8", "f64": "<f8"}

Table = dict[str, Any]


def table(sim: ClosSimulation, *, truth: bool = False) -> Table:
    """The columns of all its records as numpy arrays."""
    parts: dict[str, list[Any]] = {}
    for block in sim.blocks():
        for i, column in enumerate(sim.schema.columns):
            t = column.field.type
            if column.name.endswith("6"):
                continue
            values = np.frombuffer(bytes(block.buffer(i)), DTYPES[t.base])
            parts.setdefault(column.name, []).append(values.reshape(block.rows, -1) if t.is_list else values)
    whole = {name: np.concatenate(values) for name, values in parts.items()}
    kept = whole["kind"] == (FAILED if truth else FLOW)
    return {name: values[kept] for name, values in whole.items()}


def simulate(clos: Clos = SMALL, **more: Any) -> ClosSimulation:
    return ClosSimulation(clos, ClosSettings(**more))


# ---------------------------------------------------------------- random numbers


class Twin:
    """splitmix64 and xoshiro256** (Blackman, Vigna) in plain Python."""

    def __init__(self, state: list[int]) -> None:
        self.s = state

    @staticmethod
    def splitmix(state: int) -> tuple[int, int]:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
        return state, z ^ z >> 31

    def draw(self) -> int:
        s = self.s

        def rotl(x: int, k: int) -> int:
            return (x << k | x >> 64 - k) & MASK

        result = rotl(s[1] * 5 & MASK, 7) * 9 & MASK
        t = s[1] << 17 & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotl(s[3], 45)
        return result


def test_the_twin_gives_the_published_numbers() -> None:
    state, found = 1234567, []
    for _ in range(3):
        state, z = Twin.splitmix(state)
        found.append(z)
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    twin = Twin([1, 2, 3, 4])
    assert [twin.draw() for _ in range(4)] == [11520, 0, 1509978240, 1215971899390074240]


@given(st.integers(0, MASK), st.integers(0, MASK), st.integers(1, MASK))
@settings(max_examples=100)
def test_random_numbers_are_those_of_the_twin(seed: int, stream: int, n: int) -> None:
    state = Twin.splitmix(seed)[1] ^ stream * 0xD1342543DE82EF95 & MASK
    words = []
    for _ in range(4):
        state, z = Twin.splitmix(state)
        words.append(z)
    twin, random = Twin(words), Random(seed, stream)
    assert [random.below(n) for _ in range(20)] == [twin.draw() * n >> 64 for _ in range(20)]


def test_nothing_is_below_0() -> None:
    with pytest.raises(ValueError, match="below 0"):
        Random(1, 1).below(0)


def test_the_same_seed_gives_the_same_bytes() -> None:
    """On every machine: these digests were computed once, on x86-64."""
    digests = []
    for more in (
        {"failures": 5, "seed": 7},
        {"failures": 5, "seed": 8},
        {
            "pareto": True,
            "packets": (7, 70000),
            "healthy": 1,
            "hot_tors": 2,
            "skew": CERTAIN // 2,
            "seed": 7,
            "connections": (1, 9),
            "epochs": 2,
            "quirks": 7,
            "cap": 1,
            "devices": 1,
        },
    ):
        sim, digest = simulate(PAPER, **more), hashlib.sha256()
        for block in sim.blocks():
            for name in ("ts", "src_ip", "dst_ip", "sent", "lost", "path", "link_a", "link_b", "rate", "notes", "hops"):
                digest.update(block.buffer(block.layout.index(name)))
        digests.append(digest.hexdigest()[:16])
    assert digests == DIGESTS


DIGESTS = ["8d1bf782aa3cb347", "a5b874088532e4c7", "1a44c05a1de900ab"]


def test_failures_do_not_change_the_flows() -> None:
    few, many = (table(simulate(failures=n, healthy=2)) for n in (0, 5))
    for name in ("src_ip", "dst_ip", "path", "sent", "ts"):
        assert np.array_equal(few[name], many[name]), name


# ---------------------------------------------------------------- the network


@pytest.mark.parametrize("clos", [SMALL, PAPER, Clos(3, 2, 1, 4, 1), Clos(1, 3, 2, 1, 2)], ids=str)
def test_links_are_those_of_the_topology(clos: Clos) -> None:
    core = simulate(clos, failures=0).core
    topology = make_clos(clos)
    level = ("host", "tor", "t1", "t2")
    found = []
    for kind, name in enumerate(KINDS):
        for i in range(core.count(kind)):
            a, b = core.link(kind, i)
            assert name == f"{level[topology.level[a]]}-{level[topology.level[b]]}"
            found.append((a, b))
        for beyond in (core.count(kind), MASK >> 40):
            with pytest.raises(IndexError):
                core.link(kind, beyond)
    assert len(found) == core.links
    assert sorted(found) == sorted(topology.links())


@pytest.mark.parametrize(
    "sizes",
    [
        (0, 1, 1, 1, 1),
        (1, 1, 1, 1, 1),
        (1 << 20, 1 << 20, 1, 1, 1),
        (2, 2, 1, 1, 1 << 22),
        (2, 1000, 1000, 1 << 20, 1),
        (2**32 - 1,) * 5,
    ],
)
def test_impossible_networks_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"network|ToR|more than"):
        ClosSimulator(*sizes, 10000, 1)


def test_a_block_of_other_columns_is_refused() -> None:
    core = simulate().core
    core.begin(0, 0, 10**9)
    with pytest.raises(ValueError, match="no column notes"):
        core.fill(Staging(builtin("path").project(["ts", "kind"]).layout, 10))


@pytest.mark.parametrize("clos", [SMALL, Clos(3, 2, 1, 4, 1), Clos(1, 3, 2, 1, 2)], ids=str)
@pytest.mark.parametrize("quirks", [0, 7])
def test_every_record_fits_the_network(clos: Clos, quirks: int) -> None:
    sim = simulate(
        clos, healthy=2, failures=3, rates=[(CERTAIN // 20, CERTAIN // 2)], noise=CERTAIN // 1000, quirks=quirks
    )
    t, topology = table(sim), make_clos(clos)
    known = {(s, d): set(topology.paths(s, d)) for s in topology.tors for d in topology.tors}
    failed = {(a, b) for a, b, _ in sim.failed}
    assert len(t["ts"]) == clos.all_hosts * 60 == sim.core.flows
    assert (np.diff(t["ts"]) >= 0).all()
    assert t["ts"][0] == sim.settings.start
    assert t["ts"][-1] < sim.settings.start + sim.settings.length
    for i in range(len(t["ts"])):
        src, dst = int(t["src_ip"][i]), int(t["dst_ip"][i])
        hops = int(t["hops"][i])
        path = tuple(map(int, t["path"][i][:hops]))
        tors = topology.tor_of[src], topology.tor_of[dst]
        assert tors[0] != tors[1]
        assert (int(t["src_tor"][i]), int(t["dst_tor"][i])) == tors
        assert path in known[tors]
        assert not t["path"][i][hops:].any()
        lost, notes = int(t["lost"][i]), int(t["notes"][i])
        assert lost == t["retrans"][i]
        assert lost >= 0
        assert 1 <= t["sent"][i] <= 100
        if not quirks:
            assert lost <= t["sent"][i]
        assert bool(notes & PARTIAL) == bool(quirks)
        links = list(pairwise((src, *path, dst)))
        link = int(t["link_a"][i]), int(t["link_b"][i])
        if lost:
            assert link in links[:-1] if quirks else link in links
            assert bool(notes & NOISE) == (link not in failed)
        else:
            assert link == (0, 0)
            assert not notes & NOISE


def test_sources_destinations_and_paths_are_even() -> None:
    t = table(simulate(PAPER, healthy=2, connections=(100, 100)))
    n = len(t["ts"])
    assert set(np.bincount(t["src_ip"])[10000:]) == {100}

    def even(values: Any, kinds: int) -> None:
        counts = np.unique(values, return_counts=True)[1]
        assert len(counts) == kinds
        chi2 = ((counts - len(values) / kinds) ** 2 / (len(values) / kinds)).sum()
        assert abs(chi2 - kinds) < 6 * math.sqrt(2 * kinds)

    even(t["dst_ip"], 1600)
    even(t["path"][:, 1], 16)
    far = t["hops"] == 5
    assert far.sum() / n == pytest.approx(20 / 39, abs=0.005)  # q
    even(t["path"][far, 2], 10)
    even(t["path"][far, 3] * 100 + t["path"][far, 2], 160)
    even(t["sent"], 100)
    even((t["ts"] - t["ts"][0]) // 10**9, 30)


def test_connections_of_a_host_are_drawn() -> None:
    t = table(simulate(PAPER, healthy=1, connections=(10, 60)))
    counts = np.bincount(t["src_ip"])[10000:]
    assert (counts.min(), counts.max()) == (10, 60)
    assert counts.mean() == pytest.approx(35, abs=1.5)
    well = t["lost"] == 0
    assert not t["hops"][well].any()
    assert not t["path"][well].any()
    assert t["hops"][~well].all()
    assert t["src_tor"].all()
    assert t["dst_tor"].all()


def test_hot_tors_draw_their_share() -> None:
    t = table(simulate(PAPER, healthy=1, hot_tors=10, skew=CERTAIN // 10 * 8))
    counts = np.sort(np.bincount(t["dst_tor"])[1:])[::-1]
    assert counts[:10].sum() / counts.sum() == pytest.approx(0.8, abs=0.005)
    assert counts[9] > 4 * counts[10]
    assert (t["src_tor"] != t["dst_tor"]).all()
    one = table(simulate(PAPER, healthy=1, hot_tors=1, skew=CERTAIN // 2))
    hot = int(np.bincount(one["dst_tor"]).argmax())
    others = one["src_tor"] != hot  # the hot ToR's own hosts send to all others
    assert (one["dst_tor"][others] == hot).mean() == pytest.approx(0.5, abs=0.005)
    all_hot = table(simulate(SMALL, healthy=1, hot_tors=8, skew=CERTAIN // 2))
    assert len(set(all_hot["dst_tor"])) == 8


def test_pareto_sizes() -> None:
    sent = table(simulate(PAPER, healthy=1, packets=(7, 70000), pareto=True))["sent"].astype(float)
    assert 7 == sent.min() <= sent.max() <= 70000
    for x in (10, 50, 500, 5000):
        expected = (1 / x - 1 / 70000) / (1 / 7 - 1 / 70000)
        assert (sent >= x).mean() == pytest.approx(expected, rel=0.1), x
    assert (table(simulate(packets=(9, 9), pareto=True, healthy=1))["sent"] == 9).all()


# ---------------------------------------------------------------- drops


def goodness(counts: Any, expected: list[float]) -> float:
    """How many standard deviations chi-squared is above what it should be; classes below 10 are put together."""
    total, chi2, classes, rest, seen = float(sum(counts)), 0.0, 0, 0.0, 0.0
    for i, p in enumerate(expected):
        rest, seen = rest + p * total, seen + (counts[i] if i < len(counts) else 0)
        if rest >= 10:
            chi2, classes = chi2 + (seen - rest) ** 2 / rest, classes + 1
            rest = seen = 0.0
    return (chi2 - classes) / math.sqrt(2 * max(classes, 1))


@pytest.mark.parametrize(("rate", "packets"), [(0.5, 1), (0.01, 100), (0.1, 37), (0.9, 20), (1e-4, 100), (0.3, 64)])
def test_losses_are_binomial(rate: float, packets: int) -> None:
    """One bad link, no noise: the flows through it lose as many packets as the textbook says."""
    sim = simulate(
        SMALL,
        noise=0,
        failures=1,
        where=[1],
        rates=[(probability(rate),) * 2],
        healthy=2,
        packets=(packets, packets),
        connections=(3000, 3000),
    )
    t = table(sim)
    ((a, b, given),) = sim.failed
    assert given == pytest.approx(rate)
    through = (t["path"][:, 0] == a) & (t["path"][:, 1] == b)
    assert not t["lost"][~through].any()
    lost = t["lost"][through]
    assert through.sum() > 4000
    expected = [math.comb(packets, i) * rate**i * (1 - rate) ** (packets - i) for i in range(packets + 1)]
    assert abs(goodness(np.bincount(lost), expected)) < 5
    assert (t["link_a"][through][lost > 0] == a).all()


def test_a_link_that_drops_all() -> None:
    sim = simulate(SMALL, noise=0, failures=1, where=[3], rates=[(CERTAIN, CERTAIN)], healthy=2)
    t = table(sim)
    a, b, rate = sim.failed[0]
    assert rate == 1.0
    through = [(a, b) in set(pairwise(map(int, path))) for path in t["path"]]
    assert np.array_equal(t["lost"], np.where(through, t["sent"], 0))


@pytest.mark.parametrize("quirks", [0, 2])
def test_each_link_takes_what_comes_to_it(quirks: int) -> None:
    """Rates of every link, measured from the records of many flows of one packet each."""
    sim = simulate(
        SMALL, noise=CERTAIN // 5, failures=0, healthy=2, packets=(1, 1), connections=(2000, 2000), quirks=quirks
    )
    t = table(sim)
    came: Counter[tuple[int, int]] = Counter()
    took: Counter[tuple[int, int]] = Counter()
    for src, dst, hops, path, lost, a, b in zip(
        *(t[n].tolist() for n in ("src_ip", "dst_ip", "hops", "path", "lost", "link_a", "link_b")), strict=True
    ):
        for link in pairwise((src, *path[:hops], dst)):
            came[link] += 1
            if lost and link == (a, b):
                took[link] += 1
                if not quirks:
                    break  # it came no further
    checked = 0
    for kind in range(6):
        for i in range(sim.core.count(kind)):
            link, rate = sim.core.link(kind, i), sim.core.rate_of(kind, i)[0] / CERTAIN
            if came[link] and not quirks:
                slack = 5 * math.sqrt(came[link] * rate * (1 - rate)) + 3
                assert abs(took[link] - came[link] * rate) < slack, link
                checked += 1
    total = sum(took.values()) / len(t["ts"])
    whole = []
    rates = {
        sim.core.link(k, i): sim.core.rate_of(k, i)[0] / CERTAIN for k in range(6) for i in range(sim.core.count(k))
    }
    for src, dst, hops, path in zip(*(t[n].tolist() for n in ("src_ip", "dst_ip", "hops", "path")), strict=True):
        whole.append(1 - math.prod(1 - rates[link] for link in pairwise((src, *path[:hops], dst))))
    assert total == pytest.approx(sum(whole) / len(whole), abs=0.01)
    assert checked or quirks


def test_the_culprit_took_most() -> None:
    sim = simulate(SMALL, noise=0, failures=0, fail=[(1, 9, probability(0.2)), (9, 3, None), (9, 2, probability(0.5))])
    t = table(sim)
    both = (t["path"][:, 0] == 1) & (t["path"][:, 1] == 9) & (t["path"][:, 2] == 2)
    assert both.sum() > 20
    blamed = Counter(zip(t["link_a"][both].tolist(), t["link_b"][both].tolist(), strict=True))
    assert set(blamed) == {(1, 9), (9, 2)}
    assert blamed[9, 2] > 2 * blamed[1, 9]


# ---------------------------------------------------------------- quirks and options


def test_quirk_last_hop() -> None:
    t = table(simulate(PAPER, noise=probability(0.01), quirks=1))
    assert (t["notes"] & PARTIAL).all()
    assert not (t["link_b"] >= 10000).any()
    plain = table(simulate(PAPER, noise=probability(0.01)))
    assert (plain["link_b"] >= 10000).any()
    assert not (plain["notes"] & PARTIAL).any()


def test_quirk_two_draws() -> None:
    """More flows with one lost packet than possible: those without one in the second draw."""
    more = {
        "noise": 0,
        "where": [1],
        "rates": [(probability(0.002),) * 2],
        "packets": (50, 50),
        "connections": (20000, 20000),
    }
    one, two = (table(simulate(SMALL, quirks=q, **more)) for q in (0, 2))
    assert len(two["ts"]) == pytest.approx(len(one["ts"]), rel=0.1)  # whether it drops is the same chance
    p = 1 - 0.998**50
    assert (one["lost"] == 1).mean() == pytest.approx(50 * 0.002 * 0.998**49 / p, abs=0.02)
    assert (two["lost"] == 1).mean() == pytest.approx(0.998**50 + 50 * 0.002 * 0.998**49, abs=0.02)


def test_quirk_culprit() -> None:
    """A flow that lost on a good link is charged to a failed one on its path, even if that dropped nothing."""
    sim = simulate(SMALL, noise=probability(0.01), failures=0, fail=[(1, 9, 1)], quirks=4)
    t = table(sim)
    through = (t["path"][:, 0] == 1) & (t["path"][:, 1] == 9)
    assert through.sum() > 20
    assert ((t["link_a"] == 1) & (t["link_b"] == 9) == through).all()


def test_a_cap_of_traces() -> None:
    t = table(simulate(SMALL, noise=probability(0.01), cap=5))
    capped = t["notes"] & CAPPED != 0
    assert (np.bincount(t["src_ip"][~capped])[10000:] == 5).all()
    assert not t["hops"][capped].any()
    assert t["hops"][~capped].all()
    assert t["link_a"].all()


def test_switches_that_do_not_answer() -> None:
    plain, quiet = (table(simulate(PAPER, healthy=2, silence=silence)) for silence in (0, CERTAIN // 4))
    for name in ("src_ip", "dst_ip", "sent", "lost", "link_a"):
        assert np.array_equal(plain[name], quiet[name]), name
    same = (quiet["path"] == plain["path"]) | (quiet["path"] == 0)
    assert same.all()
    answered = (quiet["path"] > 0).sum() / (plain["path"] > 0).sum()
    assert answered == pytest.approx(0.75, abs=0.005)
    last = np.where(quiet["hops"] > 0, quiet["path"][np.arange(len(quiet["ts"])), quiet["hops"].astype(int) - 1], 1)
    assert last.all()  # who did not answer at the end is not counted
    partial = quiet["notes"] & PARTIAL != 0
    assert np.array_equal(partial, quiet["hops"] < plain["hops"])
    assert partial.mean() == pytest.approx(0.25, abs=0.01)
    nobody = table(simulate(SMALL, healthy=2, silence=CERTAIN))
    assert not nobody["path"].any()
    assert not nobody["hops"].any()


def test_failures_are_of_all_kinds_and_sometimes_near() -> None:
    counts: Counter[str] = Counter()
    same = more = 0
    level = make_clos(PAPER).level
    for seed in range(300):
        sim = simulate(PAPER, seed=seed, failures=8)
        links = [(a, b) for a, b, _ in sim.failed]
        assert len(set(links)) == 8
        assert all(1e-4 <= rate <= 1e-2 for _, _, rate in sim.failed)
        counts.update(f"{level[a]}{level[b]}" for a, b in links)
        for kind in ("12", "23", "32", "21"):
            of = [a for a, b in links if f"{level[a]}{level[b]}" == kind]
            same += sum(a == b for a, b in pairwise(of))
            more += max(len(of) - 1, 0)
    assert set(counts) == {"12", "23", "32", "21"}
    assert all(abs(n - 600) < 5 * math.sqrt(600) for n in counts.values())
    by_chance = 0.9 * (1 / 40 + 1 / 16 + 1 / 10 + 1 / 16) / 4  # already on the same switch without trying
    assert same / more == pytest.approx(0.1 + by_chance, abs=0.025)


def test_every_link_can_fail_and_no_more() -> None:
    sim = simulate(SMALL, failures=20, where=[4, 2], fail=[(9, 3, None)], devices=1)
    assert len(sim.failed) == 22
    everything = simulate(SMALL, failures=36, where=[2, 1])
    assert len(set(everything.failed)) == 36
    with pytest.raises(UsageError, match="37 links cannot fail: there are 36"):
        simulate(SMALL, failures=37, where=[2, 1])
    with pytest.raises(UsageError, match="17 switches cannot fail: there are 16"):
        simulate(SMALL, failures=0, devices=17)
    with pytest.raises(UsageError, match="no link from 1 to 2"):
        simulate(SMALL, fail=[(1, 2, None)])
    with pytest.raises(UsageError, match="no switch 10000"):
        simulate(SMALL, fail=[(10000, 10000, None)])
    with pytest.raises(UsageError, match="one ToR"):
        simulate(Clos(1, 1, 1, 1, 1))
    with pytest.raises(UsageError, match="9 hot ToRs of 8"):
        simulate(SMALL, hot_tors=9)


def test_a_switch_that_fails_as_a_whole() -> None:
    sim = simulate(SMALL, noise=0, failures=0, devices=1, rates=[(CERTAIN // 4,) * 2], healthy=2)
    ((a, b, rate),) = sim.failed
    assert a == b
    assert rate == 0.25
    t = table(sim)
    passes = (t["path"] == a).any(axis=1)
    assert not t["lost"][~passes].any()
    assert t["lost"][passes].sum() / t["sent"][passes].sum() == pytest.approx(0.25, abs=0.02)
    lossy = t["lost"] > 0
    assert (t["link_a"][lossy] == a).all()
    assert (t["link_b"][lossy] == a).all()


def test_the_truth_comes_first() -> None:
    sim = simulate(SMALL, failures=4, epochs=3)
    first = next(iter(sim.blocks()))
    assert first.rows == 4
    t = table(sim, truth=True)
    assert list(zip(t["link_a"].tolist(), t["link_b"].tolist(), t["rate"].tolist(), strict=True)) == sim.failed
    assert len(t["ts"]) == 4


def test_epochs_follow_each_other() -> None:
    ts = table(simulate(SMALL, healthy=1, epochs=3))["ts"] - ClosSettings.start
    assert (np.bincount(ts // ClosSettings.length) == 40 * 60).all()
    assert (np.diff(ts) >= 0).all()
