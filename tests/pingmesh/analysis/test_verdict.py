"""confluo-pingmesh verdict and pingmesh.analysis.verdict: faults of simulated networks and of hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import pytest

from confluo_tools.cli import RecordOutput
from confluo_tools.pingmesh.analysis import verdict as algo
from confluo_tools.pingmesh.analysis.sla import make_rule
from confluo_tools.pingmesh.simulate.simulation import CERTAIN
from probe_records import fault, stream
from running import run
from twin_probe_tally import SCHEMA, block, probe

MINUTE = 60_000_000_000
RULES = [make_rule("drop", 1e-3), make_rule("p99", 5e6, limit=0)]
# web: a server in each of three podsets' first pods, and a neighbour of the first; db: all of p006
TOPOLOGY = """
grid: {dcs: 1, podsets: 4, pods: 4, servers: 8}
services: {web: [p001s01, p001s02, p005s03, p009s04], db: [p006]}
"""


def verdict(path: Path, *words: Any) -> dict[str, Any]:
    """The first row, and the status."""
    done = run("confluo-pingmesh", "verdict", path, *map(str, words), "-J")
    assert done.returncode in (0, 1), done.stderr.decode()
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({(r["verdict"], r["why"], r["reach"], r["servers"]) for r in rows}) == 1
    assert (rows[0]["verdict"] in ("network", "one_server")) == (done.returncode == 0)
    told = {name: rows[0][name] or "" for name in ("why", "reach", "servers")}
    return {**rows[0], **told, "rows": {(r["what"], r["metric"]): r for r in rows}}


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(TOPOLOGY)
    return path


@pytest.mark.parametrize("seed", [101, 102, 103])
@pytest.mark.parametrize(
    ("faults", "service", "expected"),
    [
        ((), "web", ("not_network", "")),
        ((fault("spine_drops", "dc1", 0.04),), "web", ("network", "other pods, too")),
        ((fault("tor_drops", "p006", 0.02),), "db", ("network", "its servers only")),
        ((fault("tor_drops", "p006", 0.004),), "web", ("not_network", "")),
        ((fault("podset_failure", "ps01"),), "web", ("network", "other pods, too")),
        ((fault("tor_drops", "p001", 0.03),), "web", ("network", "its pods")),
        ((fault("host_slow", "p006"),), "db", ("hosts", "")),
        ((fault("host_slow", "p006"),), "web", ("not_network", "")),
        ((fault("server_down", "p005s03"),), "web", ("hosts", "")),
        ((fault("blackhole1", "p006", 0.2),), "db", ("unreachable", "")),
        ((fault("podset_down", "ps02"),), "db", ("unreachable", "its pods")),
        ((fault("podset_down", "ps02"),), "web", ("unreachable", "its pods")),
        ((fault("tor_drops", "p006", 1.0),), "db", ("network", "its pods")),
        ((fault("tor_drops", "p005", 1.0),), "web", ("network", "its pods")),
    ],
)
def test_faults_are_told_apart(
    tmp_path: Path, topology: Path, faults: Any, service: str, expected: tuple[str, str], seed: int
) -> None:
    path = stream(tmp_path / "p.arrows", *faults, seed=seed, span=20 * MINUTE)
    found = verdict(path, "--service", service, "--topology", topology)
    assert (found["verdict"], found["reach"]) == expected
    down = {"web": "p005s03", "db": ",".join(f"p006s0{i}" for i in range(1, 9))}[service]
    dead = any(f.kind in ("server_down", "podset_down") or f.rate == CERTAIN for f in faults)
    if not faults or faults[0].kind != "blackhole1":  # which may show at some of them
        assert found["servers"] == (down if dead else "")


def test_what_befalls_all_is_not_one_servers(tmp_path: Path) -> None:
    """A spine switch that drops: chance made one server of five the worst, and the others not bad enough."""
    path = stream(
        tmp_path / "p.arrows",
        fault("spine_drops", "dc1", 0.01, start=15 * MINUTE),
        seed=3,
        span=30 * MINUTE,
        grid=(1, 3, 4, 8),
    )
    found = verdict(
        path,
        "--servers",
        "p001s01,p001s02,p002s03,p005s01,p005s02",
        "--since",
        "2026-01-01T00:15",
        "--until",
        "2026-01-01T00:29",
    )
    assert (found["verdict"], found["reach"]) == ("network", "others, too")


def test_the_time_before(tmp_path: Path, topology: Path) -> None:
    start, length = 20 * MINUTE, 10 * MINUTE
    bad = fault("spine_drops", "dc1", 0.05, start=start, length=length)
    path = stream(tmp_path / "p.arrows", bad, span=40 * MINUTE)
    ask = ["--service", "web", "--topology", topology, "--since", "2026-01-01T00:20", "--until", "2026-01-01T00:29"]
    found = verdict(path, *ask)
    assert found["verdict"] == "network"
    assert (found["ts"][11:16], found["span"]) == ("00:20", length)
    one = found["rows"][algo.SOURCE, "drop"]
    assert one["value"] > 1e-3 > one["before"]
    # the same before as in the span before that: counts are those of sla
    [row] = [
        json.loads(line)
        for line in run(
            "confluo-pingmesh",
            "sla",
            path,
            "--by",
            "all",
            "--since",
            "2026-01-01T00:10",
            "--until",
            "2026-01-01T00:19",
            "-e",
            "src in (p001s01, p001s02, p005s03, p009s04)",
            "-J",
        ).stdout.splitlines()
    ]
    assert one["before"] == pytest.approx(row["dropped"] / row["ok"])
    alone = verdict(path, *ask, "--before", "0s")
    assert alone["rows"][algo.SOURCE, "drop"]["before"] is None
    early = verdict(path, *ask[:4], "--since", "2026-01-01T00:00", "--until", "2026-01-01T00:19")
    assert early["verdict"] == "not_network"


def test_what_is_between_data_centres_is_told(tmp_path: Path) -> None:
    """It changes no verdict, but is reported."""
    grid = "grid: {dcs: 3, podsets: 2, pods: 3, servers: 6}"
    (tmp_path / "fleet.yaml").write_text(f"{grid}\nservices: {{web: [p001, p005]}}")
    bad = fault("congestion", "dc1>dc3", 0.05, start=15 * MINUTE, delay=30_000_000)
    other = fault("congestion", "dc3>dc2", 0.05, start=15 * MINUTE, delay=30_000_000)
    path = stream(tmp_path / "p.arrows", bad, other, grid=(3, 2, 3, 6), span=30 * MINUTE)
    ask = ["--service", "web", "--topology", tmp_path / "fleet.yaml"]
    found = verdict(path, *ask, "--since", "2026-01-01T00:15", "--until", "2026-01-01T00:29")
    assert found["verdict"] == "not_network"
    assert found["why"].endswith(
        "; but between data centres: too many drops dc1 > dc3, dc3 > dc1; P50 too high dc1 > dc3, dc3 > dc1"
    )
    assert {key for key, row in found["rows"].items() if row["state"] == "bad"} == {
        (f"dc{a} > dc{b}", metric) for a, b in ((1, 3), (3, 1)) for metric in ("drop", "p50")
    }  # and nothing of dc2 and dc3, where it has no servers
    late = found["rows"]["dc1 > dc3", "p50"]
    assert late["value"] > late["limit"] == late["before"] + 5e6
    # counts are those of sla
    done = run(
        "confluo-pingmesh",
        "sla",
        path,
        "--by",
        "dc_pair",
        "--since",
        "2026-01-01T00:15",
        "--until",
        "2026-01-01T00:29",
        "-e",
        "src_dc == dc1 and dst_dc == dc3",
        "-J",
    )
    [row] = [json.loads(line) for line in done.stdout.splitlines()]
    assert found["rows"]["dc1 > dc3", "drop"]["value"] == pytest.approx(row["dropped"] / row["ok"])
    quiet = verdict(path, *ask, "--since", "2026-01-01T00:00", "--until", "2026-01-01T00:14")
    assert "between data centres" not in quiet["why"]
    alone = verdict(path, "--servers", "p001s01,p001s02,p001s03,p005s01,p005s02", "--since", "2026-01-01T00:15")
    assert "between data centres" not in alone["why"]  # without a topology their places are unknown


def link(bad: str, servers: Sequence[str], n: int, every: int) -> list[dict[str, Any]]:
    """Servers of two pods probe each other; every n-th probe from and to ``bad`` is dropped."""
    rows = []
    for i in range(n):
        for a in servers:
            for b in servers:
                if a != b:
                    lost = bad in (a, b) and i % every == 0
                    rows.append(
                        probe(
                            ts=i * 1000,
                            src=a,
                            dst=b,
                            src_pod=a[:2],
                            dst_pod=b[:2],
                            rtt=0 if lost else 9999,
                            retries=int(lost),
                        )
                    )
    return rows


def test_one_server(tmp_path: Path) -> None:
    servers = ["p1a", "p1b", "p1c", "p1d", "p2a", "p2b", "p2c", "p2d"]
    rows = link("p1b", servers, 1000, 10)
    path = tmp_path / "p.arrows"
    with RecordOutput(SCHEMA, "stream", path=str(path)) as out:
        for i in range(0, len(rows), 60000):
            out.write(block(rows[i : i + 60000]))
    found = verdict(path, "--servers", "p1a,p1b,p2a")
    assert (found["verdict"], found["servers"]) == ("one_server", "p1b")
    assert "without p1b all is within the limits" in found["why"]
    # of the others, it is not known that it is only one
    assert verdict(path, "--servers", "p1a,p2a")["verdict"] == "network"


def test_few_probes_or_none(tmp_path: Path) -> None:
    path = tmp_path / "p.arrows"
    with RecordOutput(SCHEMA, "stream", path=str(path)) as out:
        out.write(block(link("x", ["p1a", "p1b", "p2a"], 60, 60)))
    few = verdict(path, "--servers", "p1a")
    assert few["verdict"] == "not_enough_probes"
    assert few["why"] == "120 probes from its servers are too few to decide; 5,884 are needed"
    assert verdict(path, "--servers", "nobody")["verdict"] == "no_probes"
    assert verdict(path, "--servers", "p1a", "--since", "2020-01-01")["verdict"] == "no_probes"


def test_what_people_see(tmp_path: Path, topology: Path) -> None:
    path = stream(tmp_path / "p.arrows", fault("spine_drops", "dc1", 0.04), span=20 * MINUTE)
    done = run("confluo-pingmesh", "verdict", path, "--service", "web", "--topology", topology, "-o", "table")
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "web: It is the network: too many drops from its servers, too many drops to its servers."
    assert lines[1] == "It reaches: other pods, too."
    assert lines[3].split()[:3] == ["what", "metric", "now"]
    assert done.stderr == b""


class GroupCounts:
    """A group as `pingmesh.analysis.verdict` looks at it."""

    def __init__(
        self,
        ok: int = 100_000,
        dropped: int = 0,
        failed: int = 0,
        above: int = 0,
        overflow: int = 0,
        p99: float = 1e6,
        seen99: float = 2e6,
    ) -> None:
        self.ok, self.dropped, self.failed, self.probes, self.overflow = ok, dropped, failed, ok + failed, overflow
        self.samples, self.p50, self.p99, self.p999, self.seen99 = ok, 1e5, p99 if ok else nan, 1e7, seen99
        self.above: tuple[int, ...] = (above,)
        self.p50_low = self.p50_high = self.p50
        self.host_share = 0.1


def assess(
    groups: Mapping[str, GroupCounts], before: Mapping[str, GroupCounts] | None = None, **more: Any
) -> algo.NetworkVerdict:
    each = {"a": (GroupCounts(), GroupCounts()), "b": (GroupCounts(), GroupCounts())} | more.pop("servers", {})
    return algo.assess(groups, before or {}, each, RULES, **more)


def test_what_rises_below_the_limit() -> None:
    found = assess({algo.SOURCE: GroupCounts(dropped=60)}, {algo.SOURCE: GroupCounts(dropped=3)})
    assert found.verdict == algo.NOT_NETWORK
    assert "higher than before: drop from its servers" in found.why
    assert [e.state for e in found.evidence if e.metric == "drop"] == ["risen"]
    same = assess({algo.SOURCE: GroupCounts(dropped=60)}, {algo.SOURCE: GroupCounts(dropped=50)})
    assert [e.state for e in same.evidence if e.metric == "drop"] == ["ok"]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({algo.SOURCE: GroupCounts(), algo.TARGET: GroupCounts()}, algo.NOT_NETWORK),
        ({algo.SOURCE: GroupCounts(dropped=500), algo.TARGET: GroupCounts()}, algo.NETWORK),
        ({algo.SOURCE: GroupCounts(), algo.TARGET: GroupCounts(above=5000, p99=9e6)}, algo.NETWORK),
        ({algo.SOURCE: GroupCounts(), algo.TARGET: GroupCounts(failed=5000)}, algo.UNREACHABLE),
        ({algo.SOURCE: GroupCounts(), algo.TARGET: GroupCounts(overflow=5000)}, algo.HOSTS),
        ({algo.SOURCE: GroupCounts(seen99=9e6), algo.TARGET: GroupCounts()}, algo.HOSTS),
        ({algo.SOURCE: GroupCounts(ok=60), algo.TARGET: GroupCounts()}, algo.NOT_ENOUGH),
        (
            {algo.SOURCE: GroupCounts(), algo.TARGET: GroupCounts(), algo.REST: GroupCounts(dropped=5000)},
            algo.NOT_NETWORK,
        ),
    ],
)
def test_what_it_is(groups: dict[str, GroupCounts], expected: str) -> None:
    assert assess(groups).verdict == expected


def test_servers_that_answer_nobody() -> None:
    dead = (None, GroupCounts(ok=0, failed=500))
    found = assess({algo.SOURCE: GroupCounts(), algo.TARGET: GroupCounts(failed=500)}, servers={"b": dead})
    assert (found.verdict, found.servers) == (algo.HOSTS, ("b",))
    assert found.why == "1 of 2 servers answer no probe: b"


def test_servers_that_are_cut_off() -> None:
    """They probe, so that they are alive."""
    cut, groups = (
        (GroupCounts(ok=0, failed=500), GroupCounts(ok=0, failed=500)),
        {algo.SOURCE: GroupCounts(), algo.TARGET: GroupCounts()},
    )
    one = assess(groups, servers={"b": cut})
    assert (one.verdict, one.servers, one.where) == (algo.SERVER, ("b",), "one server")
    both = assess(groups, servers={"a": cut, "b": cut})
    assert (both.verdict, both.servers) == (algo.NETWORK, ("a", "b"))
    assert both.why == "2 of 2 servers sent probes, but none from or to them was answered: a, b; they are cut off"
    pod = assess(groups, servers={"b": cut}, pods={"p": (["b"], GroupCounts(ok=0, failed=500))})
    assert (pod.verdict, pod.where) == (algo.NETWORK, "its pods")
    assert pod.why.endswith("b; all of p is cut off")


def test_pods_that_are_silent() -> None:
    dead, groups = (None, GroupCounts(ok=0, failed=500)), {algo.SOURCE: GroupCounts(), algo.TARGET: GroupCounts()}
    pod = assess(groups, servers={"b": dead}, pods={"p": (["b"], GroupCounts(ok=0, failed=500))})
    assert (pod.verdict, pod.where) == (algo.UNREACHABLE, "its pods")
    assert pod.why.endswith("b; all of p is silent: its power or its ToR switch is down")
    beside = assess(groups, servers={"b": dead}, pods={"p": (["b"], GroupCounts(failed=50))})
    assert beside.verdict == algo.HOSTS
    alone = assess(groups, servers={"b": dead}, pods={"p": (["b"], None)})  # no other server is known there
    assert alone.verdict == algo.HOSTS


def test_one_server_among_others_that_are_bad() -> None:
    """It is one server's only if it has more of it than all others have."""
    groups = {
        algo.SOURCE: GroupCounts(dropped=500),
        algo.TARGET: GroupCounts(),
        algo.REST: GroupCounts(ok=1_000_000, dropped=5000),
    }
    alike = assess(
        groups, servers={"b": (GroupCounts(dropped=500), GroupCounts())}, without=lambda name: [GroupCounts()]
    )
    assert (alike.verdict, alike.where) == (algo.NETWORK, "others, too")
    worse = assess(
        groups, servers={"b": (GroupCounts(dropped=5000), GroupCounts())}, without=lambda name: [GroupCounts()]
    )
    assert (worse.verdict, worse.servers) == (algo.SERVER, ("b",))


def test_failures_of_others_are_told() -> None:
    found = assess({algo.SOURCE: GroupCounts(failed=20_000), algo.TARGET: GroupCounts()})
    assert found.verdict == algo.NOT_NETWORK
    assert found.why.endswith("; but 17 % of the probes from its servers failed: other servers do not answer")


def test_who_cannot_be_reached_by_some_is_named() -> None:
    groups = {algo.SOURCE: GroupCounts(), algo.TARGET: GroupCounts(failed=5000)}
    found = assess(groups, servers={"b": (GroupCounts(), GroupCounts(failed=5000))})
    assert (found.verdict, found.servers) == (algo.UNREACHABLE, ("b",))
    assert found.why.startswith("some servers cannot reach b, others can")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "needs servers to judge; --service NAME with --topology FILE, or --servers NAMES"),
        (["--service", "web", "--servers", "a"], "needs servers to judge"),
        (["--service", "web"], "--service: needs --topology FILE"),
        (["--servers", ","], "--servers: names no server"),
        (["--servers", "a", "--rule", "failed > 1%"], "--rule: failures are always judged"),
        (["--servers", "a", "--before", "1h"], "--before: needs --since TIME"),
        (["--servers", "a", "--since", "2026-01-02", "--until", "2026-01-01"], "--until 2026-01-01 is not after"),
        (["--servers", "a", "--signature", "x"], "--signature: not 'x'"),
        (["--servers", "a", "--at", "x.yaml"], "--at: the snapshot names the logs"),
    ],
)
def test_refusals(tmp_path: Path, words: list[str], what: str) -> None:
    path = stream(tmp_path / "p.arrows", span=MINUTE)
    done = run("confluo-pingmesh", "verdict", path, *words)
    assert (done.returncode, done.stdout) == (2, b"")
    [line] = done.stderr.decode().splitlines()
    assert line.startswith(f"confluo-pingmesh verdict: {what}")


def test_names_that_nobody_knows(tmp_path: Path, topology: Path) -> None:
    path = stream(tmp_path / "p.arrows", span=MINUTE)
    done = run("confluo-pingmesh", "verdict", path, "--topology", topology, "--service", "mail")
    assert done.stderr.decode().endswith("fleet.yaml: unknown service 'mail'; services are web, db\n")
    done = run("confluo-pingmesh", "verdict", path, "--topology", topology, "--servers", "p001s01,x")
    assert done.stderr.decode().endswith("fleet.yaml: unknown server 'x'\n")
