"""Metrics of routes and offloads of interfaces: recorded, and set for a replay."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.replay.engine.network import EndSettings, ReplayEnd
from confluo_tools.replay.engine.settings import end_settings
from confluo_tools.replay.record.host_network import network_settings
from confluo_tools.replay.recording import ConnectionEnd, FiveTuple
from confluo_tools.replay.recording.route_metrics import METRICS, metrics_towards, well_formed
from netns import Lab


def test_the_route_with_the_longest_prefix_counts() -> None:
    routes: dict[str, int | str] = {
        "route:0.0.0.0/0": "initcwnd 3",
        "route:10.0.0.0/8": "rto_min 16ms",
        "route:10.1.0.0/16": "quickack 1 cwnd 5",
        "route:::/0": "initcwnd 7",
        "route:nowhere": "initcwnd 9",
    }
    found = [metrics_towards(a, routes) for a in ("192.0.2.1", "10.2.0.1", "10.1.2.3", "2001:db8::1")]
    assert found == ["initcwnd 3", "rto_min 16ms", "quickack 1 cwnd lock 5", "initcwnd 7"]
    end = ConnectionEnd(FiveTuple(4, "10.0.0.1", 1, "10.1.2.3", 2), 1)
    end.settings = dict(routes)
    assert end_settings(end).route == "quickack 1 cwnd lock 5"


@given(st.lists(st.one_of(st.sampled_from([*METRICS, "16ms", "1", "reno", "dev", "netns", "exec"]), st.text())))
def test_only_metrics_pass(words: list[str]) -> None:
    """ip(8) runs the lines that it reads, also with the rights of root: a recording must not write any."""
    found = well_formed(" ".join(words)).replace("lock ", "").split(" ")
    assert found == [""] or all(name in METRICS for name in found[::2])
    assert all(word.isalnum() or "_" in word for word in found if word)
    assert "\n" not in " ".join(found)


def test_lines_of_a_hostile_recording_are_left_out() -> None:
    end = ConnectionEnd(FiveTuple(4, "10.0.0.1", 1, "10.1.2.3", 2), 1)
    end.settings = {"route": "initcwnd 3\nnetns exec x touch /tmp/x", "route:0.0.0.0/0": "x"}
    assert end_settings(end).route == "initcwnd 3"


@pytest.mark.root
@pytest.mark.net
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_metrics_and_offloads_of_a_host_come_back(tmp_path: Path) -> None:
    """What ip(8) and ethtool set is recorded, and the namespace of a replay has the same metrics."""
    with Lab() as lab:
        one, _ = lab.pair()
        one.ip("route", "add", "10.9.0.0/16", "dev", "v0", "rto_min", "16ms", "initcwnd", "3", "congctl", "reno")
        one.ip("route", "add", "default", "dev", "v0")
        one.ip("link", "set", "v0", "mtu", "1400", "gso_max_segs", "7")
        with one.inside():
            found = network_settings()
    words = "rto_min 16ms initcwnd 3 congctl reno"
    assert sorted(found.pop("route:10.9.0.0/16").split()) == sorted(words.split())
    assert {name: value for name, value in found.items() if name != "gro:v0"} == {"gso:v0": "7", "mtu:v0": "1400"}
    settings = EndSettings("10.0.0.1", 1, route=well_formed(words))
    with ReplayEnd(settings, server=True) as end:
        command = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{end.namespace}", "ip", "route"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shown = shown.replace("lock ", "")
    assert all(pair in shown for pair in ("rto_min 16ms", "initcwnd 3", "congctl reno"))
