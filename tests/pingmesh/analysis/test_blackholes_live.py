"""Black holes that nftables makes between namespaces: real connections, and the very ports that it dropped."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import netns
from running import BIN, environment, run

pytestmark = [
    pytest.mark.root,
    pytest.mark.net,
    pytest.mark.slow,
    pytest.mark.skipif(netns.missing() != "", reason=netns.missing()),
]

PORT = 8765
PROBES = 300
A, B, C = (f"10.66.0.{n}" for n in (1, 2, 3))
# One of 16 equal paths from A to B is a hole; between A and C the switch eats all that goes one way.
HOLES = f"""
table bridge holes {{
    set dead {{ type ipv4_addr . inet_service . ipv4_addr . inet_service; size 65535; flags dynamic; }}
    chain forward {{
        type filter hook forward priority 0;
        ip saddr {A} ip daddr {B} jhash ip saddr . tcp sport . ip daddr . tcp dport mod 16 seed 0x5eed 3 jump path
        ip saddr {A} ip daddr {C} drop
    }}
    chain path {{
        add @dead {{ ip saddr . tcp sport . ip daddr . tcp dport }}
        drop
    }}
}}
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Probes of three servers behind one switch, each of the others; and the five-tuples that it dropped."""
    folder = tmp_path_factory.mktemp("holes")
    with netns.Lab() as lab:
        switch = lab.space("switch")
        switch.ip("link", "add", "br0", "type", "bridge")
        switch.ip("link", "set", "br0", "up")
        spaces = {}
        for n, address in enumerate((A, B, C)):
            spaces[address] = space = lab.space("abc"[n])
            switch.ip("link", "add", f"p{n}", "type", "veth", "peer", "name", "v0", "netns", space.name)
            switch.ip("link", "set", f"p{n}", "master", "br0", "up")
            space.ip("addr", "add", f"{address}/24", "dev", "v0")
            space.ip("link", "set", "v0", "up")
        done = switch.run("nft", "-f", "-", stdin=None, input=HOLES.encode(), check=False)
        if done.returncode:
            pytest.skip(f"nftables cannot do that here: {done.stderr.decode().strip()}")
        command = BIN / "confluo-pingmesh"
        servers, clients = [], []
        for address, space in spaces.items():
            servers.append(
                space.popen(
                    command,
                    "respond",
                    "-q",
                    "--listen",
                    f"{address}:{PORT}",
                    env=environment(),
                    stdout=subprocess.DEVNULL,
                )
            )
        for space in spaces.values():
            until = time.monotonic() + 20
            while str(PORT) not in space.run("ss", "-Hltn").stdout.decode():
                assert time.monotonic() < until, "it does not listen"
                time.sleep(0.05)
        for n, (address, space) in enumerate(spaces.items()):
            others = [other for other in spaces if other != address]
            clients.append(
                space.popen(
                    command,
                    "probe",
                    "-q",
                    "--lab",
                    "-i",
                    "15ms",
                    "-c",
                    PROBES,
                    "--no-counters",
                    "-w",
                    folder / f"{'abc'[n]}.ml",
                    *others,
                    env=environment(),
                )
            )
        assert [client.wait(60) for client in clients] == [0, 0, 0]
        listed = json.loads(switch.run("nft", "-j", "list", "set", "bridge", "holes", "dead").stdout)
        elements = next(one["set"]["elem"] for one in listed["nftables"] if "set" in one)
        dropped = {tuple(e["elem"]["val"]["concat"] if "elem" in e else e["concat"]) for e in elements}
        for server in servers:
            server.terminate()
            server.wait(20)
    return [folder / f"{name}.ml" for name in "abc"], dropped


def rows(logs: list[Path], *words: str) -> dict[tuple[str, str], dict[str, Any]]:
    done = run("confluo-pingmesh", "blackholes", *logs, "-J", *words)
    assert done.returncode == 0, done.stderr
    return {(row["src_ip"], row["dst_ip"]): row for row in map(json.loads, done.stdout.splitlines())}


def test_a_hole_on_one_of_sixteen_paths_and_its_ports(logs: Any) -> None:
    """Also where it eats the answers: then the port that dies is the destination's of what was dropped."""
    found = rows(logs[0])
    assert {pair: row["type"] for pair, row in found.items()} == {
        (A, B): "type2",
        (B, A): "type2",
        (A, C): "type1",
        (C, A): "type1",
    }
    forward = sorted(sport for _, sport, _, dport in logs[1] if dport == PORT)
    reverse = sorted(dport for _, sport, _, dport in logs[1] if sport == PORT)
    for pair, ports in (((A, B), forward), ((B, A), reverse)):
        row = found[pair]
        assert row["port_count"] == row["lost"] == len(ports) > 2
        assert row["ports"] == ports[:32]
        assert row["sent"] == PROBES
        assert row["retried"] == 0
        assert 8 < row["paths"] < 40
        assert row["paths_seen"] >= 64
    assert found[A, C]["lost"] == found[A, C]["sent"] == PROBES


def test_a_few_probes_are_not_enough_and_say_so(logs: Any) -> None:
    done = run(
        "confluo-query",
        *[word for log in logs[0] for word in ("-r", log)],
        f"src_ip == {A} && dst_ip == {B}",
        "-c",
        "12",
        "-o",
        "stream",
    )
    done = run("confluo-pingmesh", "blackholes", "-J", "--least", "5,3", stdin=done.stdout)
    assert done.returncode == 1
    assert b"(12 ports) may miss a hole on one of more than 3 equal paths" in done.stderr


def test_a_hole_is_where_a_traceroute_would_start(logs: Any) -> None:
    """What is printed is a flow for confluo-trace: the five-tuple of a probe that failed."""
    done = run("confluo-pingmesh", "blackholes", *logs[0], "-q", "-o", "stream")
    told = run(
        "confluo-query",
        "-",
        "proto == tcp && lost > 0",
        "-T",
        "--no-header",
        "-f",
        "src_ip,src_port,dst_ip,dst_port,lost",
        stdin=done.stdout,
    )
    flows = {tuple(line.split("\t")[:4]) for line in told.stdout.decode().splitlines()}
    assert len(flows) == 4
    dropped = {(a, str(p), b, str(q)) for a, p, b, q in logs[1]}
    assert {flow for flow in flows if flow[0] == A and flow[2] == B} <= dropped
