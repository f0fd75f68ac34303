"""Hosts that are off, and agents that are stopped, are not the network's fault; ToRs and cables that drop are."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import small_fleet as fleet
from confluo_tools.pingmesh.analysis.silent_servers import LostProbe, SilentServer, silent_servers
from running import run

HOSTS: dict[str, dict[str, Any]] = {
    "stopped": {"lost": fleet.stopped("p3a"), "sends": fleet.runs("p3a")},
    "stopped for moments": {"lost": fleet.stopped("p3a", 6), "sends": fleet.runs("p3a", 6)},
    "stopped once": {"lost": fleet.stopped("p3a", 60, 0, 60), "sends": fleet.runs("p3a", 60, 0, 60)},
    "off": {"lost": fleet.off("p3a", 50, 100)},
}


def judged(seed: int, lost: fleet.Lost, sends: fleet.Lost | None = None) -> list[SilentServer]:
    rows = list(fleet.rows(lost, 120, seed, sends=sends))
    ends: Counter[tuple[str, str, bool]] = Counter((r["src"], r["dst"], r["outcome"] == 1) for r in rows)
    pairs = {(a, b): (ends[a, b, True], ends[a, b, False]) for a, b, _ in ends}
    drops = [LostProbe(r["ts"], r["src"], r["dst"]) for r in rows if r["outcome"] == 1 and r["retries"]]
    pods = {name: pod for name, pod, _ in fleet.SERVERS}
    return silent_servers(pairs, drops, pods, fleet.START, fleet.START + 120 * fleet.SECOND)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", HOSTS)
def test_a_server_that_does_not_answer_for_a_while(name: str, seed: int) -> None:
    [found] = judged(seed, **HOSTS[name])
    assert found.server == "p3a"
    assert found.own.lost > 10 > found.neighbours.dropped
    assert len(found.drops) == found.own.dropped


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "lost",
    [
        fleet.either(),
        fleet.tor("p3", 0.02),
        fleet.tor("p3", 0.3),
        fleet.link("p3a", 0.02),  # random losses: its cable, at most
        fleet.link("p3a", 0.2),
        fleet.either(fleet.off("p3a", 50, 70), fleet.off("p3b", 50, 70)),  # the whole pod
        lambda t, src, dst, _: src[0] == "p1a" and dst[0] == "p3a" and t % 20 > 10,  # a pair
    ],
)
def test_not_the_fault_of_a_server(lost: fleet.Lost, seed: int) -> None:
    assert judged(seed, lost) == []


def test_without_neighbours_nothing_is_judged() -> None:
    drops = [LostProbe(i, f"s{i % 5}", "x") for i in range(1000, 1030)]
    pairs = {(f"s{i}", "x"): (1000, 0) for i in range(5)} | {(f"s{i}", f"s{i + 1}"): (1000, 0) for i in range(5)}
    pods = {"x": "p1"} | {f"s{i}": "p2" for i in range(6)}
    assert silent_servers(pairs, drops, pods, 0, 5000) == []
    assert silent_servers(pairs, drops, {}, 0, 5000) == []
    near = pairs | {(f"s{i}", "y"): (1000, 0) for i in range(5)}
    [found] = silent_servers(near, drops, pods | {"y": "p1"}, 0, 5000)
    assert (found.server, found.runs) == ("x", 1)


def rows(verb: str, *words: Any) -> list[dict[str, Any]]:
    done = run("confluo-pingmesh", verb, *words, "-J")
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_commands_name_the_server_before_the_network(tmp_path: Path) -> None:
    path = fleet.write(tmp_path / "p.arrows", **HOSTS["stopped"], seconds=120)
    [place] = rows("drops", path, "--top", "0")
    assert (place["layer"], place["src"], place["state"], place["rest"]) == ("server", "p3a", "silent", 0)
    own = rows("verdict", path, "--servers", "p3a,p3b")[0]
    assert (own["verdict"], own["servers"]) == ("hosts", "p3a")
    assert own["why"].startswith("p3a did not answer for a while (lost ")
    other = rows("verdict", path, "--servers", "p1a,p2a")[0]
    assert other["verdict"] != "network"
    assert "but p3a did not answer for a while" in other["why"]


def test_a_tor_that_drops_while_an_agent_is_stopped(tmp_path: Path) -> None:
    lost = fleet.either(fleet.tor("p6", 0.03), HOSTS["stopped"]["lost"])
    path = fleet.write(tmp_path / "p.arrows", lost, sends=HOSTS["stopped"]["sends"])
    found = {(r["layer"], r["src"] or r["pod"]) for r in rows("drops", path, "--top", "0")}
    assert found == {("server", "p3a"), ("tor", "p6")}
    network = rows("verdict", path, "--servers", "p6a,p6b")[0]
    assert network["verdict"] == "network"
    assert "and p3a did not answer for a while" in network["why"]
