"""Black holes: the arithmetic against tables and scipy, the rules on small fleets, runs against simulated truth."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import scipy  # loads scipy.stats at its first use
from hypothesis import given, settings
from hypothesis import strategies as st

import small_fleet
from confluo_tools.pingmesh.analysis import blackholes as algo
from confluo_tools.pingmesh.analysis.blackholes import BlackholeVerdict, NetworkPlace, ServerPair
from confluo_tools.pingmesh.analysis.blackholes_command import ACTION, WHAT, BlackholeReport
from confluo_tools.pingmesh.analysis.pair_tally import blackhole_windows
from confluo_tools.pingmesh.simulate.simulation import Fault
from confluo_tools.schema import builtin
from probe_records import Simulated, fault, stream
from running import run, shell

SECOND = 10**9
MINUTE = 60 * SECOND

# ---------------------------------------------------------------- arithmetic

# Of the coupon collector: paths, ports until all are seen with 90 % and 99 %, until a given one is with 99 %.
COUPONS = [(4, 13, 21, 17), (8, 33, 51, 35), (16, 79, 115, 72), (32, 181, 255, 146), (64, 408, 557, 293)]


@pytest.mark.parametrize(("paths", "all90", "all99", "one99"), COUPONS)
def test_ports_that_cover_equal_paths(paths: int, all90: int, all99: int, one99: int) -> None:
    assert algo.probes_for_all(paths, 0.9) == all90
    assert algo.probes_for_all(paths, 0.99) == all99
    assert algo.probes_for_one(paths, 0.99) == one99
    assert algo.paths_seen(one99) == paths
    assert algo.paths_seen(one99 - 1) == paths - 1


@settings(deadline=None)
@given(st.integers(0, 3000))
def test_paths_seen_is_the_most_that_are(ports: int) -> None:
    seen = algo.paths_seen(ports)
    if ports:
        assert (1 - 1 / seen) ** ports <= 0.01 + 1e-12
        assert (1 - 1 / (seen + 1)) ** ports > 0.01
    else:
        assert seen == 0


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(0, 200), st.floats(0, 1))
def test_the_binomial_tail_is_that_of_scipy(k: int, n: int, p: float) -> None:
    assert algo.binomial_tail(k, n, p) == pytest.approx(float(scipy.stats.binom.sf(k - 1, n, p)), rel=1e-6, abs=1e-12)


@settings(deadline=None)
@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_is_wilsons(kn: tuple[int, int]) -> None:
    low, high = algo.wilson(*kn, z=1.959963984540054)
    its = scipy.stats.binomtest(*kn).proportion_ci(0.95, method="wilson")
    assert (low, high) == pytest.approx((its.low, its.high), abs=1e-9)


# ---------------------------------------------------------------- one pair


def pair(failed: list[int], answered: list[int], retried: int = 0, unclear: int = 0) -> ServerPair:
    """Failures and answers at these seconds, each from a port of its own."""
    return ServerPair(
        "a",
        "b",
        len(answered),
        retried,
        min(answered, default=0) * SECOND,
        max(answered, default=0) * SECOND,
        [(t * SECOND, 40000 + t) for t in failed],
        unclear,
    )


TIMES = list(range(0, 600, 10))


@pytest.mark.parametrize(
    ("failed", "retried", "kind", "why"),
    [
        (TIMES, 0, algo.TYPE1, "nothing gets through"),
        (TIMES[:4], 0, 0, "too few"),
        (TIMES[30:], 0, algo.TYPE1, "the hole opened in between"),
        (TIMES[:30], 0, algo.TYPE1, "it was closed"),
        (TIMES[10:16], 0, 0, "an outage of a minute"),
        (TIMES[10:13], 0, 0, "one of half a minute"),
        ([*TIMES[6:9], *TIMES[30:33], *TIMES[50:53]], 0, 0, "a link that is down three times"),
        ([*TIMES[6:8], *TIMES[30:33], *TIMES[50:52]], 1, 0, "and that"),
        ([TIMES[n] for n in (3, 4, 17, 29, 30, 44, 52)], 0, algo.TYPE2, "one of eight ways, two together by chance"),
        (TIMES[:20:1][::2] + TIMES[21:60:2], 0, algo.TYPE2, "one of two ways, all the time"),
        (TIMES[3::16], 0, algo.TYPE2, "one of sixteen ways"),
        (TIMES[3::16], 30, 0, "half of all probes lose a packet: some lose them all"),
        (TIMES[::2], 0, algo.TYPE2, "one of two ways"),
        ([TIMES[5], TIMES[50]], 0, 0, "two are too few"),
        ([], 0, 0, "nothing failed"),
    ],
)
def test_the_symptom_of_a_pair(failed: list[int], retried: int, kind: int, why: str) -> None:
    assert (
        algo.type_of(pair(failed, [] if failed == TIMES[:4] else [t for t in TIMES if t not in failed], retried))
        == kind
    ), why


def test_where_nearly_all_is_lost_a_pair_may_lose_it_all() -> None:
    dead = pair(TIMES, [])
    assert algo.type_of(dead, loss=0.94) == 0  # one pair in forty does
    assert algo.type_of(dead, loss=0.5) == algo.TYPE1
    assert algo.type_of(pair(TIMES[:6], []), loss=0.5) == 0


def test_a_port_that_worked_at_another_time_is_no_hole() -> None:
    one = pair(TIMES[3::16], [t for t in TIMES if t not in TIMES[3::16]])
    assert one.ports == [40030, 40190, 40350, 40510]
    one.answered = frozenset({40030, 40190})
    assert one.ports == [40350, 40510]
    assert algo.type_of(one) == 0


@settings(deadline=None, max_examples=30)
@given(st.floats(0.001, 0.2), st.integers(0, 1 << 32))
def test_random_loss_is_hardly_ever_taken_for_a_hole(rate: float, seed: int) -> None:
    """400 pairs with nothing but loss of SYNs, three tries each."""
    random, holes = Random(seed), 0
    for _ in range(400):
        lost = [next((i for i in range(3) if random.random() >= rate), 3) for _ in TIMES]
        failed = [t for t, n in zip(TIMES, lost, strict=True) if n == 3]
        answered = [t for t, n in zip(TIMES, lost, strict=True) if n < 3]
        holes += algo.type_of(pair(failed, answered, sum(0 < n < 3 for n in lost))) != 0
    assert holes <= 2


# ---------------------------------------------------------------- places that explain the symptoms


def fleet(podsets: int = 3, pods: int = 4, servers: int = 6) -> dict[str, NetworkPlace]:
    return {
        f"s{p}.{t}.{i}": NetworkPlace(f"t{p}.{t}", f"p{p}", "dc")
        for p in range(podsets)
        for t in range(pods)
        for i in range(servers)
    }


def mesh(places: dict[str, NetworkPlace]) -> list[tuple[str, str]]:
    """Who probes whom: all of a pod, and the same position in other pods."""
    return [
        (a, b)
        for a, x in places.items()
        for b, y in places.items()
        if a != b and (x == y or a.rsplit(".", 1)[1] == b.rsplit(".", 1)[1])
    ]


def judged(dead: list[tuple[str, str]], places: dict[str, NetworkPlace], **more: Any) -> list[BlackholeVerdict]:
    return algo.judge([(ServerPair(a, b), 1) for a, b in dead], places, places, **more)


def at(name: str, places: dict[str, NetworkPlace]) -> list[tuple[str, str]]:
    """Pairs with one server in this pod."""
    return [(a, b) for a, b in mesh(places) if name in (places[a].pod, places[b].pod)]


def test_a_tor_is_proposed_and_its_victims_are_not() -> None:
    places = fleet()
    [verdict] = judged(at("t1.2", places)[::2], places)
    assert (verdict.what, verdict.place, verdict.action) == ("tor", NetworkPlace("t1.2", "p1", "dc"), "propose")
    assert (verdict.score, verdict.servers, verdict.shown) == (1.0, 6, 6)


def test_as_in_the_paper_victims_are_blamed_as_well() -> None:
    """Half of the pairs of one ToR: other ToRs have servers with the symptom, too."""
    places = fleet()
    verdicts = judged(at("t1.2", places), places, literal=True)
    assert {v.what for v in verdicts} == {"leaf", "spine"}
    assert [v.what for v in judged(at("t1.2", places), places)] == ["tor"]


@pytest.mark.parametrize("blamed", [["t0.1", "t0.3"], ["t0.1", "t1.1", "t2.3"]])
def test_part_of_the_tors_of_a_podset(blamed: list[str]) -> None:
    places = fleet()
    dead = sorted({p for name in blamed for p in at(name, places)[::3]})
    verdicts = judged(dead, places)
    assert {(v.what, v.place.pod, v.action) for v in verdicts} == {("tor", name, "propose") for name in blamed}


def test_all_tors_of_a_podset_are_leaf_trouble() -> None:
    places = fleet()
    dead = [(a, b) for a, b in mesh(places) if "p1" in (places[a].podset, places[b].podset) and places[a] != places[b]][
        ::3
    ]
    [verdict] = judged(dead, places)
    assert (verdict.what, verdict.place, verdict.action) == ("leaf", NetworkPlace("", "p1", "dc"), "notify")
    assert verdict.pairs == len(dead)


def test_between_podsets_only_it_is_the_spine() -> None:
    places = fleet()
    dead = [(a, b) for a, b in mesh(places) if places[a].podset != places[b].podset][::3]
    [verdict] = judged(dead, places)
    assert (verdict.what, verdict.place, verdict.action) == ("spine", NetworkPlace("", "", "dc"), "notify")


def test_two_podsets_cannot_tell_leaf_from_spine() -> None:
    places = fleet(2)
    dead = [(a, b) for a, b in mesh(places) if places[a].podset != places[b].podset][::3]
    assert {(v.what, v.action) for v in judged(dead, places)} == {("upper", "notify")}


def test_one_server_is_not_laid_at_its_tors_door() -> None:
    """All of its pod fail with it, as all of a pod probe each other."""
    places = fleet()
    dead = [(a, b) for a, b in mesh(places) if "s1.2.3" in (a, b)]
    [verdict] = judged(dead, places)
    assert (verdict.what, verdict.server, verdict.action) == ("server", "s1.2.3", "notify")
    assert verdict.pairs == len(dead)
    assert algo.explains(verdict, ServerPair("s1.2.3", "s0.0.3"), places)
    assert not algo.explains(verdict, ServerPair("s1.2.1", "s0.0.1"), places)


def test_small_groups_get_no_verdict() -> None:
    places = fleet(servers=2)
    [verdict] = judged(at("t1.2", places), places)
    assert (verdict.what, verdict.action, verdict.servers) == ("tor", "few", 2)
    assert judged(at("t1.2", places), places, group=2)[0].action == "propose"


def test_the_only_tor_of_a_podset_is_not_proposed() -> None:
    places = fleet(pods=1)
    assert {v.action for v in judged(at("t1.0", places)[::2], places)} == {"notify"}


def test_what_reaches_nobody_outside_is_cut_off() -> None:
    places = fleet()
    tor, podset = NetworkPlace("t1.2", "p1", "dc"), NetworkPlace("", "p1", "dc")
    dead = [(a, b) for a, b in at("t1.2", places) if places[a] != places[b]]
    [verdict] = judged(dead, places, crossing={tor: (0, 4000), podset: (9000, 1000)})
    assert (verdict.what, verdict.action) == ("pod_cut", "notify")
    [verdict] = judged(dead, places, crossing={tor: (400, 3600), podset: (9000, 1000)})
    assert (verdict.what, verdict.action) == ("tor", "propose")


def test_what_fails_at_times_is_told_and_not_proposed() -> None:
    """A ToR with a flapping link is not proposed: a reload does not help."""
    places = fleet()

    def verdict(when: list[int], apart: int = 0) -> BlackholeVerdict:
        pairs = [
            ServerPair(a, b, 50, 0, 0, 600 * SECOND, [((t + apart * i) % 600 * SECOND + i, 1) for t in when])
            for i, (a, b) in enumerate(at("t1.2", places))
        ]
        [found] = algo.judge([(pair, 2) for pair in pairs], places, places)
        return found

    for when, apart in ((TIMES, 0), (TIMES[::7], 10), (TIMES[40:], 0), (TIMES[:20], 0)):
        found = verdict(when, apart)
        assert (found.what, found.action, found.steady > 0.9) == ("tor", "propose", True), when
    for when in (TIMES[20:26], [*TIMES[12:16], *TIMES[30:34], *TIMES[48:52]]):
        assert (verdict(when).what, verdict(when).action) == ("tor", "notify"), when


def test_nothing_is_concluded_from_nothing() -> None:
    assert judged([], fleet()) == []
    assert algo.judge([(ServerPair("x", "y"), 1)], ["x", "y"], {}) == []  # their places are unknown


def test_the_budget_of_a_day() -> None:
    places = [NetworkPlace(f"t{i}", "p", "dc") for i in range(30)]
    verdicts = [BlackholeVerdict("tor", place, action="propose") for place in places]
    assert algo.ration(verdicts, before=places[5:10]) == 0
    assert Counter(v.action for v in verdicts) == {"propose": 15, "done": 5, "later": 10}
    assert [v.action for v in verdicts[:11]] == ["propose"] * 5 + ["done"] * 5 + ["propose"]
    fresh = [BlackholeVerdict("tor", place, action="propose") for place in places[:3]]
    assert algo.ration(fresh) == 17
    fresh = [BlackholeVerdict("tor", place, action="propose") for place in places[:3]]
    assert algo.ration(fresh, budget=0) == 0
    assert {v.action for v in fresh} == {"later"}


# ---------------------------------------------------------------- against the truth of simulations


def found(*faults: Fault, **more: Any) -> set[tuple[str, str, str]]:
    """(what, action, place) of all rows."""
    report = BlackholeReport(
        builtin("blackhole"),
        threshold=0.5,
        group=3,
        min_failures=(5, 3),
        tries=3,
        literal=False,
        budget=20,
        pairs=False,
        top=1000,
        length=0,
        pieces=MINUTE,
    )
    pairs, _ = blackhole_windows(Simulated(*faults, **more), "", 0, MINUTE)
    what, action = ({v: k for k, v in names.items()} for names in (WHAT, ACTION))
    return {
        (what[row["what"]], action[row["action"]], row.get("pod") or row.get("podset") or row.get("dc") or "")
        for window in pairs.windows
        for row in report.judge_window(window, pairs.servers)
    }


SEEDS = (7001, 7002)
HOLES = [
    ("blackhole1", "p003", None, ("tor", "propose", "p003")),
    ("blackhole1", "p003", 0.5, ("tor", "propose", "p003")),
    ("blackhole2", "p006", None, ("tor", "propose", "p006")),
    ("blackhole2", "p006", 0.02, ("tor", "propose", "p006")),
    ("blackhole1", "ps02", None, ("leaf", "notify", "ps02")),
    ("blackhole2", "ps03", None, ("leaf", "notify", "ps03")),
    ("blackhole1", "dc1", None, ("spine", "notify", "dc1")),
    ("blackhole2", "dc1", None, ("spine", "notify", "dc1")),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "place", "rate", "expected"), HOLES)
def test_a_hole_is_found_where_it_is(
    kind: str, place: str, rate: float | None, expected: tuple[str, ...], seed: int
) -> None:
    assert found(fault(kind, place, rate), seed=seed) == {expected}


def test_two_holes_at_once() -> None:
    assert found(fault("blackhole1", "p003"), fault("blackhole2", "p014"), seed=7003) == {
        ("tor", "propose", "p003"),
        ("tor", "propose", "p014"),
    }


def test_a_hole_that_opened_in_the_middle() -> None:
    assert found(fault("blackhole1", "p003", start=4 * MINUTE), seed=7004) == {("tor", "propose", "p003")}


@pytest.mark.parametrize(
    ("kind", "place", "more"),
    [
        ("", "", {}),
        ("podset_down", "ps02", {}),
        ("podset_failure", "ps02", {}),
        ("server_down", "", {}),
        ("server_down", "p003s01", {"start": 2 * MINUTE, "length": 90 * SECOND}),
        ("host_slow", "p003", {}),
        ("congestion", "ps02", {}),
        ("spine_drops", "dc1", {"rate": 0.3}),
        ("tor_drops", "p003", {"rate": 0.3}),
        ("spine_drops", "dc1/all", {"rate": 0.9}),
        ("leaf_drops", "ps02/all", {"rate": 0.9}),
        ("leaf_drops", "ps02/all", {"rate": 0.8}),
        ("tor_drops", "p003", {"rate": 0.8}),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_other_trouble_is_no_hole(kind: str, place: str, more: dict[str, Any], seed: int) -> None:
    assert found(*([fault(kind, place, **more)] if kind else []), seed=seed) == set()


def test_classic_retries_too() -> None:
    """Three SYNs and no more: random loss fails more often."""
    assert found(fault("tor_drops", "p003", 0.2), seed=7005, linear=False) == set()
    assert found(fault("blackhole2", "p003"), seed=7005, linear=False) == {("tor", "propose", "p003")}


# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("holes") / "probes.arrows"
    return stream(path, fault("blackhole1", "p003"), fault("blackhole2", "p006s02>p001s02", 0.1), seed=11)


def rows(*words: Any, status: int = 0, **more: Any) -> list[dict[str, Any]]:
    done = run("confluo-pingmesh", "blackholes", *words, "-J", **more)
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_places_first_then_pairs_that_none_explains(probes: Path) -> None:
    place, *pairs = rows(probes)
    assert (place["what"], place["action"], place["pod"], place["type"]) == ("tor", "propose", "p003", "type1")
    assert place["servers"] == 8
    # SYNs of the one way, answers of the other
    assert {(one["src"], one["dst"]) for one in pairs} == {("p006s02", "p001s02"), ("p001s02", "p006s02")}
    for one in pairs:
        assert (one["what"], one["type"], one["sent"], one["paths_seen"]) == ("pair", "type2", 60, 13)
        assert one["port_count"] == one["lost"] == len(one["ports"])


def test_the_ports_of_a_pair_are_those_that_failed(probes: Path) -> None:
    for one in rows(probes)[1:]:
        text = f"src == {one['src']} && dst == {one['dst']} && outcome == timeout"
        done = run("confluo-query", probes, text, "-T", "--no-header", "-f", "src_port")
        assert sorted(map(int, done.stdout.split())) == one["ports"]


def test_every_pair(probes: Path) -> None:
    pairs = rows(probes, "--pairs", "--top", "1000")
    done = run(
        "confluo-query",
        probes,
        "kind == tcp && outcome == timeout",
        "-T",
        "--no-header",
        "--agg",
        "count",
        "--by",
        "src_ip,dst_ip",
    )
    truth = {tuple(line.split()[:2]): int(line.split()[2]) for line in done.stdout.decode().splitlines()}
    assert {(p["src_ip"], p["dst_ip"]): p["lost"] for p in pairs} == truth
    assert all(p["sent"] == p["lost"] == 60 for p in pairs if p["type"] == "type1")


def test_windows_are_judged_alone(probes: Path) -> None:
    places = [row for row in rows(probes, "--window", "5m") if row["what"] == "tor"]
    assert [(row["pod"], row["action"]) for row in places] == [("p003", "propose"), ("p003", "done")]
    assert [row["ts"] for row in places] == ["2026-01-01T00:00:00.000000000Z", "2026-01-01T00:05:00.000000000Z"]


def test_proposals_of_earlier_runs_count(probes: Path, tmp_path: Path) -> None:
    log = tmp_path / "holes.ml"
    for action in ("propose", "done"):
        done = run("confluo-pingmesh", "blackholes", probes, "-w", log, "--append")
        assert done.returncode == 0, done.stderr
        said = run("confluo-query", log, "what == tor", "-T", "--no-header", "-f", "action").stdout.split()
        assert said[-1].decode() == action
    assert rows(probes, "--budget", "0")[0]["action"] == "later"
    done = run("confluo-pingmesh", "blackholes", probes, "-w", log)
    assert done.returncode == 2
    assert b"--append adds to it" in done.stderr


def test_from_a_pipe_and_for_a_part(probes: Path) -> None:
    assert rows("-", stdin=probes.read_bytes())[0]["pod"] == "p003"
    assert rows(probes, "--where", "src_pod != p003 && dst_pod != p003")[0]["what"] == "pair"
    assert rows(probes, "--until", "2026-01-01T00:00:30Z", status=1) == []


def test_it_reads_what_it_wrote(probes: Path) -> None:
    done = shell('confluo-pingmesh blackholes "$1" --pairs -o stream | confluo-query - "type == type2" --count', probes)
    assert done.stdout.strip() == b"2"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--threshold", "2"], "is not a share"),
        (["--least", "0"], "numbers of failures"),
        (["--window", "0s"], "more than 0"),
        (["--append"], "--append is for a MultiLog"),
        (["--where", "nonsense == 1"], "no field 'nonsense'"),
    ],
)
def test_mistakes_are_told_in_a_line(probes: Path, words: list[str], what: str) -> None:
    done = run("confluo-pingmesh", "blackholes", probes, *words)
    assert done.returncode == 2
    assert what in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_records_that_are_no_probes(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("#fields\tts\tsrc_ip\n1\t10.0.0.1\n")
    done = run("confluo-pingmesh", "blackholes", path)
    assert done.returncode == 2
    assert b"not probes" in done.stderr


def test_records_without_places_and_a_topology_that_has_them(probes: Path, tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("grid: {dcs: 1, podsets: 4, pods: 4, servers: 8}\n")
    few = "ts,kind,outcome,notes,retries,hint,elapsed,src_ip,dst_ip,src_port,dst_port"
    bare = run("confluo-query", probes, "-f", few, "-o", "stream").stdout
    assert {row["what"] for row in rows("-", stdin=bare)} == {"pair"}
    place = rows("-", "--topology", tmp_path / "fleet.yaml", stdin=bare)[0]
    assert (place["what"], place["pod"], place["podset"]) == ("tor", "p003", "ps01")
    less = run("confluo-query", probes, "-f", few.replace(",notes", ""), "-o", "stream").stdout
    done = run("confluo-pingmesh", "blackholes", stdin=less)
    assert done.returncode == 2
    assert b"standard input: has no field 'notes'" in done.stderr


def test_over_ipv6(tmp_path: Path) -> None:
    """And a pod with both; IPv6 probes of simulations say that retries may go another way."""
    pods = {
        f"r{p}": {f"s{p}.{i}": f"fd00::{p}:{i}" if (p, i) != (3, 4) else "10.0.0.4" for i in range(1, 5)}
        for p in range(1, 6)
    }
    podsets = {"ps1": {r: pods[r] for r in ("r1", "r2", "r3")}, "ps2": {r: pods[r] for r in ("r4", "r5")}}
    (tmp_path / "six.yaml").write_text(json.dumps({"dcs": {"dc1": podsets}}))
    made = shell(
        'confluo-pingmesh simulate -q --topology "$1" --fault blackhole1:r2,rate=30% -w "$2"',
        tmp_path / "six.yaml",
        tmp_path / "six.arrows",
    )
    assert made.returncode == 0, made.stderr
    [place] = rows(tmp_path / "six.arrows")
    assert (place["what"], place["pod"], place["servers"]) == ("tor", "r2", 4)
    pairs = rows(tmp_path / "six.arrows", "--pairs")
    assert {row["ip_version"] for row in pairs} == {6}
    assert all(row["src_ip"] == pods[row["src"].split(".")[0].replace("s", "r")][row["src"]] for row in pairs)


@pytest.mark.parametrize(("every", "pairs"), [(1.0, 2), (20.0, 0)])
def test_a_pair_behind_one_tor_is_reported_or_undecided(tmp_path: Path, every: float, pairs: int) -> None:
    """One pair of six, for 75 s: with few probes it is no verdict, and the command says so."""
    path = small_fleet.write(tmp_path / "p.arrows", small_fleet.hole(("p3a", "p5a")), seconds=75, every=every)
    done = run("confluo-pingmesh", "blackholes", path, "-J")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["what"], row["type"]) for row in rows] == [("pair", "type1")] * pairs
    short = b"2 pairs of servers never answered, but their probes are too few to decide"
    assert (short in done.stderr) == (pairs == 0)
