"""The agent as a process: plain sockets count what reaches its targets, confluo-query reads what it wrote."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import random
import re
import shutil
import signal
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

import agent_lab as lab
from running import ROOT, resize, run

for package in ("starlette", "uvicorn", "prometheus_client", "cryptography"):
    pytest.importorskip(package)
SECOND = 10**9
DISK = "2m"  # of small_disk: enough for a log, not for its first rows


def answers(pid: int) -> bool:
    """Whether its responder does, as one would expect of a host that is probed."""
    ports = lab.listening(pid)
    with socket.create_connection(("127.0.0.1", ports[0]), timeout=5) as s:
        s.sendall(b"are you there?")
        return s.recv(100) == b"are you there?"


def test_the_controller_is_killed(tmp_path: Path) -> None:
    """Probing stops after the third question in vain, the responder still answers, the last record says why."""
    with lab.Targets(3) as targets:
        lab.write_list(tmp_path / "lists", "a1", lab.peers_at(*targets.ports))
        with lab.controller(tmp_path / "lists") as (controller, url), lab.agent(tmp_path, url) as agent:
            agent.says("list: 3 peers")
            while targets.count < 12:
                time.sleep(0.05)
            controller.end(signal.SIGKILL)
            killed = time.monotonic()
            agent.says(r"stopped \(controller_lost\): no answer 3 times")
            time.sleep(0.2)
            assert any(t > killed + 0.5 for t, _ in targets.seen)  # one answer that does not come is nothing yet
            assert targets.quiet_for(1.5)
            assert answers(agent.pid)
            assert lab.events(tmp_path / "a1.ml")[-1] == "stopped controller_lost"
            assert agent.end() == 143
        probes = lab.rows(tmp_path / "a1.ml", "kind < 16", "--count")
        assert probes == [[str(targets.count)]]
    assert lab.events(tmp_path / "a1.ml") == ["started -", "list -", "stopped controller_lost", "ended signal"]


def test_it_begins_again_when_there_is_a_list(tmp_path: Path) -> None:
    folder = tmp_path / "lists"
    with lab.Targets(1) as targets, lab.agent(tmp_path, str(folder)) as agent:
        agent.says(r"stopped \(controller_lost\)")  # there is not even a folder
        folder.mkdir()
        agent.says(r"stopped \(no_list\)")
        assert targets.count == 0
        path = lab.write_list(folder, "a1", lab.peers_at(*targets.ports))
        agent.says("list: 1 peers")
        path.write_bytes(path.read_bytes()[:50])
        agent.says(r"stopped \(bad_list\)")
        assert targets.quiet_for(1.2)
        lab.write_list(folder, "a1", lab.peers_at(*targets.ports))
        agent.says("resumed: 1 peers")
        lab.write_list(folder, "a1", ())
        agent.says(r"stopped \(empty_list\)")
        assert targets.count > 0
        assert targets.quiet_for(1.2)
        assert answers(agent.pid)
        agent.end(signal.SIGINT)
    assert lab.events(tmp_path / "a1.ml") == [
        "started -",
        "stopped controller_lost",
        "stopped no_list",
        "list -",
        "stopped bad_list",
        "resumed -",
        "stopped empty_list",
        "ended signal",
    ]


def test_a_list_never_leads_outside(tmp_path: Path) -> None:
    """Two targets that are allowed and one that is not: none is probed."""
    with lab.Targets(2) as targets:
        inside = lab.peers_at(*targets.ports)
        stranger = lab.peers_at(9)[0]
        for address, allow in (
            ("192.0.2.1", []),
            ("127.0.0.2", ["--allow", "127.0.0.1/32"]),
            ("fd00::1", ["--allow", "127.0.0.0/8"]),
        ):
            peers = (*inside, replace(stranger, name="away", address=address))
            lab.write_list(tmp_path / "lists", "a1", peers)
            with lab.agent(tmp_path, str(tmp_path / "lists"), *allow, "--append") as agent:
                said = agent.says(r"stopped \(bad_list\): (.*)")
                assert said[1] == f"away at {address} is not in --allow"
                assert targets.quiet_for(0.7)
        lab.write_list(tmp_path / "lists", "a1", inside)
        with lab.agent(tmp_path, str(tmp_path / "lists"), "--allow", "127.0.0.1/32", "--append") as agent:
            agent.says("list: 2 peers")
            while targets.count < 4:
                time.sleep(0.05)


def test_a_forged_list_stops_it(tmp_path: Path, pki: lab.Pki) -> None:
    with lab.Targets(1) as targets:
        path = lab.write_list(tmp_path / "lists", "a1", lab.peers_at(*targets.ports))
        pki.sign(path)
        with (
            lab.controller(tmp_path / "lists") as (_, url),
            lab.agent(tmp_path, url, "--trust", pki("plan.pub")) as agent,
        ):
            agent.says("list: 1 peers")
            pki.sign(lab.write_list(tmp_path / "lists", "a1", lab.peers_at(*targets.ports, 9)), "forger")
            agent.says(r"stopped \(bad_list\): the signature")
            assert targets.quiet_for(1.2)


@pytest.mark.slow
def test_killed_at_any_instant(tmp_path: Path) -> None:
    """What was written is whole, and without a controller nothing is probed after the restart."""
    chance = random.Random(5)
    folder = tmp_path / "lists"
    with lab.Targets(4) as targets:
        path = lab.write_list(folder, "a1", lab.peers_at(*targets.ports, interval=SECOND // 20))
        before = 0
        for _ in range(6):
            with lab.agent(tmp_path, str(folder), "--append") as agent:
                agent.says("list: 4 peers")
                time.sleep(chance.random() * 1.5)
                os.kill(agent.pid, signal.SIGKILL)
                assert agent.end() == -signal.SIGKILL
            time.sleep(0.1)
            kept = int(lab.rows(tmp_path / "a1.ml", "kind < 16", "--count")[0][0])
            assert before <= kept <= targets.count
            before = kept
        assert before > 0
        path.rename(tmp_path / "away")
        reached = targets.count
        with lab.agent(tmp_path, str(folder), "--append") as agent:
            agent.says(r"stopped \(no_list\)")
            assert targets.quiet_for(0.5)
        assert targets.count == reached
    verified = run("confluo-info", tmp_path / "a1.ml", "--verify")
    assert verified.returncode == 0, verified.stderr


def test_probes_are_spread_and_each_from_another_port(tmp_path: Path) -> None:
    with lab.Targets(8) as targets:
        lab.write_list(tmp_path / "lists", "a1", lab.peers_at(*targets.ports, interval=SECOND))
        with lab.agent(tmp_path, str(tmp_path / "lists")) as agent:
            agent.says("list: 8 peers")
            time.sleep(4)
            agent.end()
        counts = [sum(1 for _, port in targets.seen if port == p) for p in targets.ports]
        assert min(counts) >= max(counts) - 1 >= 2
    log = tmp_path / "a1.ml"
    probes = lab.rows(log, "kind == tcp", "-f", "ts,src_port,dst,src,src_pod,dst_pod,level,outcome,notes")
    assert len({(row[1], row[2]) for row in probes}) == len(probes)
    assert {tuple(row[3:]) for row in probes} == {("a1", "p1", "p1", "pod", "ok", "lab")}
    tenths = {row[0][:21] for row in probes}
    assert len(tenths) > len(probes) // 3  # not all at once


def test_records_reach_the_controller_and_the_log_alike(tmp_path: Path) -> None:
    with lab.Targets(2) as targets:
        lab.write_list(tmp_path / "lists", "a1", lab.peers_at(*targets.ports))
        with (
            lab.controller(tmp_path / "lists", "--records", tmp_path / "all.ml") as (_, url),
            lab.agent(tmp_path, url, "--send", "1s") as agent,
        ):
            agent.says("list: 2 peers")
            time.sleep(3)
            assert agent.end() == 143
            assert " 0 not sent" in agent.said
    words = ("-f", "ts,kind,src,dst,src_port,rtt,event,probes,detail")
    assert sorted(lab.rows(tmp_path / "all.ml", *words)) == sorted(lab.rows(tmp_path / "a1.ml", *words))
    assert len(lab.rows(tmp_path / "a1.ml", "kind == tcp")) >= 6


def test_what_prometheus_gets_is_what_is_in_the_log(tmp_path: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families as parse

    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    with lab.Targets(2) as targets:
        lab.write_list(tmp_path / "lists", "a1", lab.peers_at(*targets.ports, 1))  # port 1 is closed
        with lab.agent(tmp_path, str(tmp_path / "lists"), "--metrics", f"127.0.0.1:{port}") as agent:
            agent.says("list: 3 peers")
            time.sleep(2)
            (tmp_path / "lists" / "a1.yaml").unlink()
            agent.says(r"stopped \(no_list\)")
            time.sleep(0.3)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            connection.close()
            agent.end()
    families = {f.name: f for f in parse(text)}
    samples = [s for s in families["pingmesh_probes"].samples if s.name.endswith("_total")]
    probes = {s.labels["outcome"]: int(s.value) for s in samples}
    assert set(probes) == {"ok", "refused"}
    logged = {
        row[0]: int(row[1]) for row in lab.rows(tmp_path / "a1.ml", "kind == tcp", "--agg", "count", "--by", "outcome")
    }
    assert probes == logged
    rtt = {
        s.name.removeprefix("pingmesh_rtt_seconds_"): s.value
        for s in families["pingmesh_rtt_seconds"].samples
        if s.labels.get("le") in (None, "+Inf")
    }
    total = lab.rows(tmp_path / "a1.ml", "kind == tcp && rtt > 0", "--agg", "count, sum(rtt)")[0]
    assert (rtt["count"], rtt["bucket"]) == (int(total[0]), int(total[0]))
    assert rtt["sum"] == pytest.approx(int(total[1]) / 1e9)
    assert families["pingmesh_probing"].samples[0].value == 0
    assert families["pingmesh_agent_info"].samples[0].labels["reason"] == "no_list"
    board = json.loads((ROOT / "examples/pingmesh/grafana.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"(?:pingmesh|process)_\w+", target["expr"])
    }
    given = {sample.name for family in families.values() for sample in family.samples}
    assert asked <= given
    assert len(asked) > 10
    assert len(board["panels"]) > 10
    assert {s.value for s in families["pingmesh_dropped_probes"].samples if s.name.endswith("_total")} == {0}


def test_a_hangup_asks_at_once(tmp_path: Path) -> None:
    with lab.Targets(1) as targets:
        lab.write_list(tmp_path / "lists", "a1", lab.peers_at(*targets.ports))
        with lab.agent(tmp_path, str(tmp_path / "lists"), "--every", "1h") as agent:
            agent.says("started")
            assert targets.quiet_for(0.5)
            os.kill(agent.pid, signal.SIGHUP)
            agent.says("list: 1 peers")
            (tmp_path / "lists" / "a1.yaml").unlink()
            os.kill(agent.pid, signal.SIGHUP)
            agent.says(r"stopped \(no_list\)")


def test_http_peers_are_probed_too(tmp_path: Path) -> None:
    from confluo_tools.pingmesh.probe.responder import ListenAddress, Responder

    with Responder([ListenAddress("127.0.0.1", 0)]) as responder:
        peer = replace(lab.peers_at(responder.port)[0], kind="http", timeout=2 * SECOND)
        lab.write_list(tmp_path / "lists", "a1", (peer, replace(peer, kind="echo", payload=1000)))
        with lab.agent(tmp_path, str(tmp_path / "lists")) as agent:
            agent.says("list: 2 peers")
            time.sleep(2.5)
            agent.end()
        seen = responder.counts
    web = lab.rows(tmp_path / "a1.ml", "kind == http", "-f", "outcome,status,dst,src,level,notes")
    assert {tuple(row) for row in web} == {("ok", "204", "t0", "a1", "pod", "lab")}
    echoed = lab.rows(tmp_path / "a1.ml", "kind == echo && outcome == ok && echo > 0 && payload == 1000", "--count")
    # A probe that was on its way when the agent ended has no record.
    assert 0 <= seen["requests"] - len(web) <= 1
    assert 0 <= seen["echoed"] - int(echoed[0][0]) <= 1
    assert min(len(web), seen["echoed"]) > 1


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_it_probes_itself_by_datagrams_too(tmp_path: Path, address: str) -> None:
    """Client and responder in one process; the token of datagrams is that of the list."""
    six = ":" in address
    try:
        with socket.create_server((address, 0), family=socket.AF_INET6 if six else socket.AF_INET) as s:
            port = s.getsockname()[1]
    except OSError as e:
        pytest.skip(f"no {address} here: {e}")
    peer = replace(lab.peers_at(port)[0], address=address)
    both = (peer, replace(peer, kind="udp", payload=100, timeout=SECOND))
    lab.write_list(tmp_path / "lists", "a1", both, token=99)
    with lab.agent(
        tmp_path, str(tmp_path / "lists"), "--listen", f"[{address}]:{port}" if six else f"{address}:{port}"
    ) as agent:
        agent.says("list: 2 peers")
        time.sleep(2)
        agent.end()
    assert {row[0] for row in lab.rows(tmp_path / "a1.ml", "kind < 16", "-f", "dst_ip")} == {address}
    found = {
        row[0]: row[1:]
        for row in lab.rows(
            tmp_path / "a1.ml", "kind < 16 && outcome == ok && rtt > 0", "--agg", "count", "--by", "kind"
        )
    }
    assert set(found) == {"tcp", "udp"}
    assert lab.rows(tmp_path / "a1.ml", "kind < 16 && outcome != ok", "--count") == [["0"]]


@pytest.mark.root
def test_as_nobody_it_does_all_the_same() -> None:
    """Also the children that ask, which are made when nothing is left of root: where that cannot be, it is said."""
    if os.geteuid():
        pytest.skip("needs root")
    base = Path(tempfile.mkdtemp(prefix="confluo-agent-"))
    try:
        base.chmod(0o755)
        with lab.Targets(1) as targets:
            lab.write_list(base / "lists", "a1", lab.peers_at(*targets.ports))
            with (
                lab.controller(base / "lists", "--records", base / "all.ml", "-Z", "nobody") as (served, url),
                lab.agent(base, url, "-Z", "nobody", "--send", "1s") as agent,
            ):
                if "cannot run it" in agent.says("list: 1 peers|cannot run it")[0]:  # Python is in root's own folder
                    assert agent.process.wait(20) == 2
                    assert os.stat("/root").st_mode & 0o1 == 0
                    assert lab.rows(base / "all.ml", "--count") == [["0"]]
                    return
                time.sleep(2)
                for pid in (agent.pid, served.pid):
                    status = Path(f"/proc/{pid}/status").read_text()
                    nobody = pwd.getpwnam("nobody").pw_uid
                    assert re.search(rf"^Uid:\t{nobody}\t{nobody}\t{nobody}\t{nobody}$", status, re.M)
                    assert re.search(r"^CapPrm:\t0+$", status, re.M)
                assert agent.end() == 143
                assert " 0 not sent" in agent.said
        assert int(lab.rows(base / "all.ml", "kind == tcp", "--count")[0][0]) > 2
    finally:
        shutil.rmtree(base)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--controller is needed"),
        (["--controller", "http://10.0.0.1"], "plain http to an unsigned controller is refused"),
        (["--controller", "x", "--allow", "10.0.0.1/8"], "--allow: 10.0.0.1/8 has host bits set"),
        (
            ["--controller", "x", "--bind", "127.0.0.1", "--bind", "127.0.0.2"],
            "--bind: more than one address of an IP version",
        ),
        (["--controller", "x", "--name", "../etc"], "invalid server name '../etc'"),
        (["--controller", "x", "--every", "10ms"], "--every: '10ms' is too short; 1s or more"),
        (["--controller", "x", "--every", "often"], "--every"),
        (["--controller", "x", "--trust", "/dev/null"], "/dev/null: not an Ed25519 public key"),
        (["--controller", "x", "--trust", "/nonexistent"], "/nonexistent"),
        (["--controller", "x", "--ca", "/nonexistent"], "/nonexistent"),
        (["--controller", "x", "--key", "k"], "--key needs --cert"),
        (["--controller", "x", "--send", "1m"], "--send: a folder does not accept records"),
        (["--controller", "x", "--keep", "1h"], "--keep is for a MultiLog"),
        (["--controller", "x", "--memory", "1M"], "--memory: 1M is too small"),
        (["--controller", "x", "--cpu", "200%"], "--cpu: '200%' is not a share of a core"),
        (["--controller", "x", "--place", "rack1"], "--place: invalid place 'rack1'"),
        (["--controller", "x", "--bind", "eth0"], "--bind: 'eth0' is not an address"),
        (["--controller", "x", "--listen", "127.0.0.1:0/64"], "--listen: '64' is not a class of service"),
        (["--controller", "x", "--listen", "127.0.0.1:0", "--no-respond"], "exclude each other"),
        (["--controller", "x", "--listen", "192.0.2.1:0"], "192.0.2.1:0: this host has no such address"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    done = run("confluo-pingmesh", "agent", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert said in done.stderr.decode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.root
def test_a_disk_without_room_and_then_with(small_disk: Path, tmp_path: Path) -> None:
    with lab.Targets(4) as targets:
        lab.write_list(tmp_path / "lists", "a1", lab.peers_at(*targets.ports, interval=SECOND // 20))
        with lab.agent(tmp_path, str(tmp_path / "lists"), "-w", small_disk / "a1.ml") as agent:
            agent.says("list: 4 peers")
            agent.says("no room|disk is full")
            before = targets.count
            time.sleep(1.5)
            assert targets.count > before + 20  # it goes on probing
            assert answers(agent.pid)
            resize(small_disk, "200m")
            end = time.monotonic() + 25
            while "resumed disk" not in lab.events(small_disk / "a1.ml"):
                assert time.monotonic() < end
                time.sleep(0.5)
            assert agent.end() == 143
            discarded = re.search(r"(\d+) records discarded", agent.said)
    assert discarded
    kept = int(lab.rows(small_disk / "a1.ml", "--count")[0][0])
    assert kept + int(discarded[1]) >= targets.count
    assert run("confluo-info", small_disk / "a1.ml", "--verify").returncode == 0
