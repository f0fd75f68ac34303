"""Silent drops: the layer of a loss in small fleets, against simulated truth, and what the command hands on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import scipy  # loads scipy.stats at its first use
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools import units
from confluo_tools.pingmesh.analysis import silent_drops
from confluo_tools.pingmesh.analysis.blackholes import NetworkPlace
from confluo_tools.pingmesh.analysis.drop_tally import drop_windows
from confluo_tools.pingmesh.analysis.silent_drops import Count
from confluo_tools.pingmesh.simulate.simulation import Fault
from probe_records import Simulated, fault, stream
from running import run, shell

PODS = [NetworkPlace(f"t{d}.{p}.{t}", f"p{d}.{p}", f"d{d}") for d in range(2) for p in range(3) for t in range(3)]
PAIRS = [(a, b) for a in PODS for b in PODS]
OK = 2400
SECOND = 10**9
START = units.time("2026-01-01T00:00:00Z")


def cells(*drops: tuple[str, NetworkPlace, str]) -> dict[tuple[NetworkPlace, NetworkPlace], Count]:
    """1 % of what goes through these places is lost, one in 10,000 of all else."""
    rate = {pair: 1e-2 if set(drops) & set(silent_drops.crossed(*pair)) else 1e-4 for pair in PAIRS}
    return {pair: Count(OK, round(OK * rate[pair])) for pair in PAIRS}


EVERY = sorted({key for pair in PAIRS for key in silent_drops.crossed(*pair)}, key=str)


@pytest.mark.parametrize("key", EVERY, ids=lambda key: f"{key[0]}-{key[1].pod or key[1].podset or key[1].dc}")
def test_a_place_that_drops_is_named(key: silent_drops.Key) -> None:
    [found] = silent_drops.locate(cells(key))
    assert (found.layer, found.place, found.other) == key
    inside = sum(key in silent_drops.crossed(*pair) for pair in PAIRS)
    assert found.inside.ok == inside * OK
    assert found.outside.ok == (len(PAIRS) - inside) * OK


@pytest.mark.parametrize(
    "keys",
    [
        (("tor", PODS[4], ""), ("spine", NetworkPlace("", "", "d1"), "")),
        (("tor", PODS[4], ""), ("tor", PODS[5], "")),
        (("leaf", NetworkPlace("", "p0.1", "d0"), ""), ("podset", NetworkPlace("", "p0.2", "d0"), "")),
        (("spine", NetworkPlace("", "", "d0"), ""), ("tor", PODS[-1], "")),
    ],
)
def test_two_places_are_named(keys: tuple[silent_drops.Key, ...]) -> None:
    assert {(f.layer, f.place, f.other) for f in silent_drops.locate(cells(*keys))} == set(keys)


def test_everywhere_alike_is_no_place() -> None:
    [found] = silent_drops.locate({pair: Count(OK, 24) for pair in PAIRS})
    assert (found.layer, found.place) == ("all", NetworkPlace())
    assert silent_drops.locate({pair: Count(OK, 0) for pair in PAIRS}) == []
    assert silent_drops.locate({}) == []
    [found] = silent_drops.locate(
        {(NetworkPlace(), NetworkPlace()): Count(1000, 10)}
    )  # the places of servers are unknown
    assert found.layer == "all"


def test_few_probes_say_nothing() -> None:
    """One drop among 60 probes is 1.7 % and no fault."""
    here = {pair: Count(60, int(pair == PAIRS[1])) for pair in PAIRS}
    assert silent_drops.locate(here) == []


@settings(deadline=None)
@given(*[st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))] * 2)
def test_the_gain_is_a_ratio_of_likelihoods(a: tuple[int, int], b: tuple[int, int]) -> None:
    both = (a[0] + b[0]) / (a[1] + b[1])
    apart = sum(float(scipy.stats.binom.logpmf(k, n, k / n)) for k, n in (a, b))
    together = sum(float(scipy.stats.binom.logpmf(k, n, both)) for k, n in (a, b))
    assert silent_drops.likelihood_gain(Count(a[1], a[0]), Count(b[1], b[0])) == pytest.approx(
        apart - together, abs=1e-6
    )


def test_worst_pairs_are_judged_by_what_is_sure() -> None:
    pairs = [("a", "b", Count(60, 3)), ("a", "c", Count(6000, 250)), ("a", "d", Count(60, 0)), ("a", "e", Count(2, 1))]
    found = silent_drops.worst(pairs, 10)
    assert [pair.dst for pair in found] == ["e", "c", "b"]
    assert [pair.dst for pair in silent_drops.worst(pairs, 1)] == ["e"]
    assert all(0 < pair.min_rate < pair.probes.rate for pair in found)


def test_how_far_probes_go() -> None:
    found = silent_drops.by_distance(cells())
    assert {name: count.ok // OK for name, count in found.items()} == {
        "pod": 18,
        "podset": 36,
        "dc": 2 * 3 * 2 * 9,
        "wan": 2 * 81,
    }


# ---------------------------------------------------------------- against the truth of simulations


def located(*faults: Fault, **more: Any) -> list[tuple[str, str]]:
    pairs, _ = drop_windows(Simulated(*faults, **more), "", 0)
    found = []
    for window in pairs.windows:
        cells = {(NetworkPlace(*a), NetworkPlace(*b)): Count(*n) for (a, b), n in window.cells.items()}
        found += [(f.layer, f.place.pod or f.place.podset or f.place.dc) for f in silent_drops.locate(cells)]
    return found


@pytest.mark.parametrize("seed", [8001, 8002])
@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([("tor_drops", "p003", None)], [("tor", "p003")]),
        ([("tor_drops", "p003", 0.002)], [("tor", "p003")]),
        ([("leaf_drops", "ps02", None)], [("leaf", "ps02")]),
        ([("spine_drops", "dc1", None)], [("spine", "dc1")]),
        ([("spine_drops", "dc1", 0.05), ("tor_drops", "p007", 0.1)], [("tor", "p007"), ("spine", "dc1")]),
        ([], []),
        ([("blackhole1", "p003", None)], []),
        ([("blackhole2", "p003", None)], []),
        ([("podset_down", "ps02", None)], []),
        ([("podset_failure", "ps02", None)], []),
        ([("server_down", "", None)], []),
        ([("host_slow", "p003", None)], []),
    ],
)
def test_the_layer_of_a_fault(
    faults: list[tuple[str, str, float | None]], expected: list[tuple[str, str]], seed: int
) -> None:
    assert sorted(located(*[fault(*one) for one in faults], seed=seed)) == sorted(expected)


def test_between_data_centres() -> None:
    grid = (2, 2, 2, 4)
    assert located(fault("spine_drops", "dc2/all", 0.02), seed=8003, grid=grid, per_podset=4) == [("spine", "dc2")]


def test_counts_are_those_of_a_query(tmp_path: Path) -> None:
    """duckdb is not needed: another command of ours that knows nothing of pairs."""
    path = stream(tmp_path / "p.arrows", fault("tor_drops", "p003"), seed=8004)
    pairs, run_ = drop_windows(Simulated(fault("tor_drops", "p003"), seed=8004), "", 0)
    done = run(
        "confluo-query",
        path,
        "outcome == ok && retries > 0",
        "-T",
        "--no-header",
        "--agg",
        "count",
        "--by",
        "src_pod,dst_pod",
    )
    truth = {tuple(line.split()[:2]): int(line.split()[2]) for line in done.stdout.decode().splitlines()}
    assert {(a[0], b[0]): n[1] for (a, b), n in pairs.windows[0].cells.items() if n[1]} == truth
    assert len(pairs.servers) == 128
    assert run_.rows == sum(n[0] + n[2] for n in pairs.windows[0].cells.values())


# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stream(tmp_path_factory.mktemp("drops") / "probes.arrows", fault("spine_drops", "dc1/2", 0.03), seed=12)


def rows(*words: Any, status: int = 0, **more: Any) -> list[dict[str, Any]]:
    done = run("confluo-pingmesh", "drops", *words, "-J", **more)
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_place_then_flows(probes: Path) -> None:
    place, *flows = rows(probes)
    assert (place["what"], place["layer"], place["dc"]) == ("layer", "spine", "dc1")
    assert place["low"] < place["rate"] < place["high"]
    assert {flow["what"] for flow in flows} == {"flow"}
    assert len({flow["rank"] for flow in flows}) == 100
    assert all(flow["src_pod"] != flow["dst_pod"] for flow in flows)


BURSTS = [fault("spine_drops", "dc1/all", 0.2, start=start * SECOND, length=3 * SECOND) for start in (60, 200, 470)]


def test_bursts_are_told_from_a_broken_switch(probes: Path, tmp_path: Path) -> None:
    [place] = rows(probes, "--top", "0")
    assert (place["state"], place["steady"] > 0.9) == ("steady", True)
    assert place["lasted"] > 590 * SECOND
    path = stream(tmp_path / "b.arrows", *BURSTS, seed=14)
    [place] = rows(path, status=1)  # and no flows: there is nothing to trace any more
    assert (place["what"], place["layer"], place["state"], place["steady"] < 0.5) == ("layer", "spine", "burst", True)
    assert 2 * SECOND < place["lasted"] < 5 * SECOND
    assert (
        abs(
            units.time(place["began"])
            - START
            - min((60, 200, 470), key=lambda start: abs(units.time(place["began"]) - START - start * SECOND)) * SECOND
        )
        < 2 * SECOND
    )
    everything = rows(path, "--lasting", "0s")
    assert (everything[0]["state"], {row["what"] for row in everything[1:]}) == ("steady", {"flow"})


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([("tor_drops", "p003", 0.5, 100, 20)], [("tor", "burst")]),
        ([("tor_drops", "p003", 0.01, 300, 400)], [("tor", "steady")]),
        ([("tor_drops", "p003", 0.05, 540, 100)], [("tor", "new")]),
        ([("leaf_drops", "ps02/all", 0.3, 0, 10), ("leaf_drops", "ps02/all", 0.3, 400, 10)], [("leaf", "burst")]),
        (
            [
                *[("spine_drops", "dc1/all", 0.3, start, 5) for start in (50, 300, 480)],
                ("tor_drops", "p007", 0.01, 0, 600),
            ],
            [("tor", "steady"), ("spine", "burst")],
        ),
        ([("spine_drops", "dc1/2", 0.02, 0, 600), ("spine_drops", "dc1/all", 0.5, 300, 5)], [("spine", "steady")]),
    ],
)
@pytest.mark.parametrize("seed", [8101, 8102])
def test_what_goes_on_and_what_is_over(
    faults: list[tuple[str, str, float, int, int]], expected: list[tuple[str, str]], seed: int, tmp_path: Path
) -> None:
    """A burst hides no place that drops all the time, be it the same one."""
    made = [
        fault(kind, place, rate, start=start * SECOND, length=length * SECOND)
        for kind, place, rate, start, length in faults
    ]
    path = stream(tmp_path / "p.arrows", *made, seed=seed)
    steady = "steady" in {state for _, state in expected}
    found = rows(path, "--top", "0", status=0 if steady else 1)
    assert [(row["layer"], row["state"]) for row in found] == expected


def test_flows_are_the_probes_that_lost_packets(probes: Path) -> None:
    """Each with its ports; where the answer was lost, the answer's."""
    done = run(
        "confluo-query",
        probes,
        "outcome == ok && retries > 0",
        "-J",
        "-f",
        "ts,src_ip,src_port,dst_ip,dst_port,retries,hint",
    )
    truth = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        ends = [(row["src_ip"], row["src_port"]), (row["dst_ip"], row["dst_port"])]
        if row["hint"] == "reverse":
            ends.reverse()
        truth[row["ts"]] = (*ends, row["retries"] + 1, row["retries"])
    flows = rows(probes, "--all", "--top", "100000", "--flows", "100000")[1:]
    assert {
        f["ts"]: ((f["src_ip"], f["src_port"]), (f["dst_ip"], f["dst_port"]), f["sent"], f["lost"]) for f in flows
    } == truth
    sent = rows(probes, "--all", "--top", "100000", "--flows", "100000", "--as-sent")[1:]
    assert {f["dst_port"] for f in sent} == {8765}
    assert {f["src_port"] for f in flows if f["way"] == "reverse"} == {8765}


def test_nothing_is_nothing(tmp_path: Path) -> None:
    path = stream(tmp_path / "p.arrows", seed=13)
    assert rows(path, status=1) == []
    assert {row["what"] for row in rows(path, "--all")} == {"flow"}


def test_in_windows(probes: Path) -> None:
    found = rows(probes, "--window", "5m", "--top", "0")
    assert [(row["layer"], row["ts"][11:16], row["window"]) for row in found] == [
        ("spine", "00:00", 300 * 10**9),
        ("spine", "00:05", 300 * 10**9),
    ]


def test_a_stream_can_be_read_again(probes: Path) -> None:
    done = shell('confluo-pingmesh drops -o stream <"$1" | confluo-query - "lost > 0" --count', probes)
    assert int(done.stdout) > 100


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--above", "x"], "is not a share"),
        (["--window", "1"], "duration"),
        (["--lasting", "-5m"], "--lasting: '-5m' is too short; 0s or more"),
    ],
)
def test_mistakes_are_told_in_a_line(probes: Path, words: list[str], what: str) -> None:
    done = run("confluo-pingmesh", "drops", probes, *words)
    assert done.returncode == 2
    assert what in done.stderr.decode()


def test_traces_take_probes_of_every_kind(tmp_path: Path) -> None:
    """Records of probes may go to confluo-trace by themselves: an echo has the number that a failed link has there."""
    from confluo_tools.core.trace.flow_table import FlowTable

    reader = Simulated(fault("tor_drops", "p003"), seed=8005, payload=1000)
    path = stream(tmp_path / "p.arrows", fault("tor_drops", "p003"), seed=8005, payload=1000)
    done = run("confluo-query", path, "kind == echo && retries > 0", "--count")
    book = FlowTable(reader.schema.layout)
    retried = run("confluo-query", path, "kind == echo && retries > 0", "-o", "stream").stdout
    (tmp_path / "r.arrows").write_bytes(retried)
    from confluo_tools.cli import open_records

    with open_records([str(tmp_path / "r.arrows")]) as reader_:
        for block in reader_:
            book.take(block.project(reader.schema.layout))
    assert book.waiting == int(done.stdout) > 100
