"""The lab of the diagnosis examples: what the commands find is what the kernel and the switches counted.

Real TCP through the switch program, over IPv6 (the narrated examples have IPv4); and the switch program's own pieces.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

import netns
from make_telemetry import UDP, ethernet, ip4, ip6, parse
from sessions import Shell

LAB = ROOT / "examples" / "lab"
sys.path.insert(0, str(LAB))
try:
    import fabric
    import topology
    import wire
finally:
    sys.path.remove(str(LAB))

needs_root = pytest.mark.skipif(netns.missing() != "", reason=netns.missing())


# ---------------------------------------------------------------- pieces


@pytest.mark.parametrize("version", [4, 6])
def test_what_a_switch_writes_is_read(version: int) -> None:
    frame = plain = ethernet(ip4(b"", 17, UDP)) if version == 4 else without_options(UDP)
    for k in range(1, 6):
        frame = wire.stamp(frame, 10 * k, k - 1, room=3)
        row = parse(frame)
        shown = [10 * i for i in range(1, min(k, 3) + 1)]  # there is room for three; the others only say so
        assert [n for n in row["switch_path"] if n] == shown
        assert [n for n in row.get("queue_depth", ()) if n] == list(range(1, min(k, 3)))
        assert (row["dst_port"], row["payload_len"], row["notes"]) == (2000, 4, 16)
        assert row["len"] == len(plain) + (36 if version == 4 else 40)
    if version == 4:
        header = frame[14 : 14 + (frame[14] & 15) * 4]
        assert wire.checksum(header[:10] + b"\0\0" + header[12:]) == int.from_bytes(header[10:12], "big")


def without_options(body: bytes) -> bytes:
    """An IPv6 frame without the hop-by-hop header that ip6 puts in."""
    packet = ip6(b"", 17, body)
    return ethernet(packet[:4] + len(body).to_bytes(2, "big") + bytes([17]) + packet[7:40] + body)


def test_what_is_not_ip_or_has_other_options_stays() -> None:
    for frame in (
        ethernet(bytes(28), 0x0806),
        ethernet(ip4(b"\x94\4\0\0", 17, UDP)),
        b"",
        bytes(14),
        ethernet(ip6(b"\x05\2\0\0", 17, UDP)),
    ):
        assert wire.stamp(frame, 1, 1, 3) == frame


@pytest.mark.parametrize(("dscp", "level"), [(0, 0), (7, 0), (8, 1), (40, 5), (46, 5), (63, 7)])
def test_priorities_of_both_versions(dscp: int, level: int) -> None:
    four, six = bytearray(ethernet(ip4(b"", 17, UDP))), bytearray(without_options(UDP))
    four[15] = dscp << 2
    six[14:16] = (0x6000 | dscp << 6).to_bytes(2, "big")
    assert wire.priority(bytes(four)) == wire.priority(bytes(six)) == level


def frame_of(dscp: int, size: int = 976) -> bytes:
    out = bytearray(ethernet(ip4(b"", 17, bytes(size - 34))))
    out[15] = dscp << 2
    return bytes(out)


def test_a_port_is_a_queue_with_a_rate_and_priorities() -> None:
    """1000 bytes with their overhead, at 8 Mbit/s: a packet each millisecond."""
    clock = fabric.Clock()
    out: list[tuple[float, int]] = []
    port = fabric.Port(clock, 8e6, 3, 0.5, lambda now, frame: out.append((now, wire.priority(frame))))
    for _ in range(6):  # one is sent at once, three wait, two find the queue full
        port.offer(10.0, frame_of(0))
    clock.run(10.0)
    port.offer(10.0005, frame_of(40))
    clock.run(99.0)
    assert [level for _, level in out] == [0, 5, 0, 0, 0]
    assert [round(now - 10.5, 6) for now, _ in out] == [0.001, 0.002, 0.003, 0.004, 0.005]
    assert (port.sent, port.dropped, port.deepest) == (5, 2, 3)


def test_faults_strike_as_they_are_told() -> None:
    to, source = b"\2" * 6, b"\3" * 6
    data = to + source + frame_of(0)[12:]
    every = fabric.Fault(topology.Rule("s1", "d", every=0.1, packets=2), 0.0, to, b"")
    struck = [k / 1000 for k in range(1000) if every.strikes(k / 1000, data)]
    assert len(struck) == every.hits == 20
    assert all(abs(b - a - 0.1) < 0.0015 for a, b in zip(struck[::2], struck[2::2], strict=False))
    share = fabric.Fault(topology.Rule("s1", "d", source="a", one_in=10, after=0.5), 0.0, to, source)
    hits = Counter(k >= 500 for k in range(1000) if share.strikes(k / 1000, data))
    assert set(hits) == {True}
    assert 20 <= hits[True] <= 90
    assert not any(share.strikes(1.0, to + to + data[12:]) for _ in range(100))  # from another host
    assert not any(every.strikes(k / 10, data[:90]) for k in range(100))  # an acknowledgement


GOOD: dict[str, Any] = {
    "hosts": ["a", "d"],
    "switches": {"s1": 1, "s2": 2, "s3": 3},
    "links": [
        {"ends": ["a", "s1"], "rate": "10Mbit"},
        {"ends": ["s1", "s2"]},
        {"ends": ["s2", "s3"]},
        {"ends": ["s1", "s3"], "delay": "1ms"},
        {"ends": ["d", "s3"], "queue": 5},
    ],
}


def test_packets_go_the_shortest_way() -> None:
    plan = topology.parse(GOOD)
    assert plan.next_hops("s1") == {"a": "a", "d": "s3"}
    assert plan.next_hops("s2")["d"] == "s3"
    assert (plan.links[0].rate, plan.links[3].delay, plan.links[4].queue) == (1e7, 0.001, 5)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"hosts": ["a", "d", "e"]}, "host 'e' needs one link"),
        ({"hosts": ["a", "D"]}, "'D' is not a name"),
        ({"links": [{"ends": ["a", "x"]}]}, "there is no 'x'"),
        ({"links": [{"ends": ["a", "s1"], "speed": 1}]}, "a link has no 'speed'"),
        ({"faults": [{"at": "s1", "to": "d"}]}, "'every' so often"),
        ({"flows": [{"from": "a", "to": "d", "port": 1, "rate": "much"}]}, "'much' is not a rate"),
        ({"duration": "long"}, "'long' is not a time"),
        ({"colour": "red"}, "a lab has no 'colour'"),
    ],
)
def test_mistakes_are_told(change: dict[str, Any], what: str) -> None:
    with pytest.raises(topology.Mistake, match=what):
        topology.parse({**GOOD, **change})


# ---------------------------------------------------------------- with real TCP


def run_lab(shell: Shell, file: Path, *more: str) -> dict[str, Any]:
    status, printed = shell.run(f"python3 examples/lab run {file} --report report.json {' '.join(more)}")
    assert status == 0, "\n".join(printed)
    report: dict[str, Any] = json.loads((shell.folder / "report.json").read_text())
    return report


def answer(shell: Shell, command: str) -> list[list[str]]:
    status, printed = shell.run(command)
    assert status in (0, 1), "\n".join(printed)
    return [line.split("\t") for line in printed]


def over_ipv6(folder: Path, name: str, seconds: int) -> Path:
    """A lab of the examples, its flows over IPv6."""
    import yaml

    plan = yaml.safe_load((LAB / name).read_text())
    for flow in plan["flows"]:
        flow["ip"] = 6
    plan |= {"duration": f"{seconds}s", "room": 5}
    (folder / name).write_text(yaml.safe_dump(plan))
    return folder / name


@needs_root
@pytest.mark.root
@pytest.mark.net
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("losses-equal", "verdict: congestion, equal priorities"),
        ("losses-priority", "verdict: congestion, lower priority loses"),
        ("losses-bug", "verdict: bug, drops every"),
    ],
)
def test_the_verdict_is_right_and_the_numbers_are_those_of_the_kernel(tmp_path: Path, name: str, verdict: str) -> None:
    shell = Shell(tmp_path)
    capture = "confluo-capture -q -i eth0 -w d.ml --telemetry tcp"
    report = run_lab(shell, over_ipv6(tmp_path, f"{name}.yaml", 3), f"--on 'd: {capture}'")
    status, printed = shell.run("examples/diagnose-losses d.ml fd00:99::3")
    assert (status, printed[-1][: len(verdict)]) == (0, verdict), "\n".join(printed)

    sent = "dst_ip == fd00:99::3 && payload_len > 0"
    dropped = report["ports"]["s1 to d"]["dropped"] + sum(fault["packets"] for fault in report["faults"])
    assert dropped > 5
    for flow in report["flows"]:  # TCP sends again what was lost, now and then a segment more, and the last may be left
        mine = f"{sent} && src_port == {flow['source_port']}"
        again = answer(shell, f"confluo-query d.ml --analyze tcp '{mine} && (retransmission || out_of_order)' --count")
        assert abs(int(again[0][0]) - flow["retransmits"]) <= 3 + flow["retransmits"] // 4
        sums = f"confluo-query d.ml '{mine}' --agg 'count, sum(payload_len)' -T --no-header"
        packets, received = answer(shell, sums)[0]
        assert int(received) >= flow["received"]
        assert int(packets) * 1448 >= flow["received"]
    if name == "losses-priority":
        assert report["flows"][1]["retransmits"] * 5 <= report["flows"][0]["retransmits"]

    deepest = answer(shell, f"confluo-query d.ml '{sent}' --agg 'max(queue_depth)' -T --no-header")[0][0]
    assert int(deepest) == report["ports"]["s1 to d"]["deepest"] - 1  # what a packet found before it, and it
    passed = answer(shell, "confluo-query d.ml 'switch_path has 1 && dst_ip == fd00:99::3' --count")[0][0]
    assert abs(int(passed) - report["ports"]["s1 to d"]["sent"]) <= 2  # what was under way when the capture began
    assert not [name for name in os.listdir("/run/netns") if name.startswith(f"lab-{name}")]


@needs_root
@pytest.mark.root
@pytest.mark.net
@pytest.mark.slow
def test_no_losses_no_verdict_and_tshark_sees_the_telemetry(tmp_path: Path) -> None:
    """A lab without faults and with a slow flow; tcpdump's capture has the path that tshark reads, and so have we."""
    (tmp_path / "calm.yaml").write_text("""
        lab: calm
        hosts: [a, d]
        switches: {s1: 7, s2: 300}
        links: [{ends: [a, s1], rate: 50Mbit}, {ends: [s1, s2], delay: 1ms}, {ends: [d, s2]}]
        flows: [{from: a, to: d, port: 5001, rate: 2Mbit, ip: 6}]
        duration: 1s
        """)
    shell = Shell(tmp_path)
    tcpdump = "tcpdump -U --immediate-mode -i eth0 -w d.pcap 2>/dev/null"
    for _ in range(5):  # on a busy machine TCP sends again what was not lost
        report = run_lab(shell, tmp_path / "calm.yaml", f"--on 'd: {tcpdump}'")
        if report["flows"][0]["retransmits"] == 0:
            break
    assert report["flows"][0]["retransmits"] == 0
    shell.run("confluo-capture -q -r d.pcap -w d.ml --telemetry")
    status, printed = shell.run("examples/diagnose-losses d.ml fd00:99::2")
    assert (status, printed[-1]) == (1, "verdict: nothing was lost")
    ours = answer(shell, "confluo-query d.ml switch_path -T --no-header -f switch_path")
    assert {tuple(row) for row in ours} == {("7,300",)}
    theirs = subprocess.run(
        [
            "tshark",
            "-r",
            "d.pcap",
            "-Y",
            "ipv6.opt.ioam.trace.node.id",
            "-T",
            "fields",
            "-e",
            "ipv6.opt.ioam.trace.node.id",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    shown = [[int(word, 0) for word in line.split(",")] for line in theirs.stdout.splitlines()]
    assert shown == [[300, 7]] * len(ours)
    assert len(ours) > 100


@needs_root
@pytest.mark.root
@pytest.mark.net
@pytest.mark.slow
def test_links_of_the_kernel_are_shaped_and_lossy(tmp_path: Path) -> None:
    """No switch: a token bucket and nftables between two hosts."""
    (tmp_path / "kernel.yaml").write_text("""
        lab: kernel
        hosts: [d, a]
        links: [{ends: [d, a], shape: {rate: 8mbit, burst: 8kb, limit: 60kb}, loss: 1/40}]
        flows: [{from: a, to: d, port: 5001}]
        duration: 2s
        """)
    shell = Shell(tmp_path)
    report = run_lab(
        shell,
        tmp_path / "kernel.yaml",
        "--on 'd: confluo-capture -q -i eth0 -w d.ml tcp'",
        "--on 'a: confluo-capture -q -i eth0 -w a.ml tcp'",
    )
    flow = report["flows"][0]
    assert 0 < flow["received"] * 8 < 8e6 * 2.5
    assert flow["retransmits"] > 3
    again = int(answer(shell, "confluo-query a.ml --analyze tcp 'payload_len > 0 && retransmission' --count")[0][0])
    assert abs(again - flow["retransmits"]) <= 2 + flow["retransmits"] // 5  # at the sender each one is seen twice


@needs_root
@pytest.mark.root
@pytest.mark.net
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_leaves_nothing(tmp_path: Path, number: int) -> None:
    name = f"e{os.getpid()}"
    words = [sys.executable, LAB, "run", LAB / "path.yaml", "--name", name, "--on", "d: touch begun; sleep 100"]
    child = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while not (tmp_path / "begun").exists() and child.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    inside = subprocess.run(["ip", "netns", "pids", f"lab-{name}-d"], capture_output=True, text=True, check=True)
    assert inside.stdout.split()
    child.send_signal(number)
    assert child.wait(30) == 128 + number
    assert not [path for path in Path("/run/netns").iterdir() if path.name.startswith(f"lab-{name}-")]
    assert not any(Path("/proc", pid).exists() for pid in inside.stdout.split())
    assert not Path("/run/confluo-lab", name).exists()


@needs_root
@pytest.mark.root
@pytest.mark.net
def test_what_it_did_not_make_stays(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    name = f"t{os.getpid()}"
    up = f"python3 examples/lab up examples/lab/path.yaml --name {name}"
    foreign = f"lab-{name}-d"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        status, printed = shell.run(up)
        assert (status, printed[0][:40]) == (2, f"lab: lab '{name}' is there already; take it"[:40])
        assert Path("/run/netns", foreign).exists()
    finally:
        subprocess.run(["ip", "netns", "del", foreign], check=True)
    try:
        assert shell.run(up)[0] == 0
        assert shell.run(up)[0] == 2
        status, printed = shell.run(f"python3 examples/lab exec {name} a -- ip -o addr show eth0")
        assert (status, "10.99.0.1/24" in "".join(printed)) == (0, True)
        status, printed = shell.run(f"python3 examples/lab traffic {name} --seconds 0.3")
        assert json.loads(printed[0])["received"] > 100_000
        assert name in "\n".join(shell.run("python3 examples/lab list")[1])
        subprocess.run(
            ["ip", "netns", "del", f"lab-{name}-a"], check=True
        )  # another process removes it and creates one with the same name
        subprocess.run(["ip", "netns", "add", f"lab-{name}-a"], check=True)
    finally:
        assert shell.run(f"python3 examples/lab down {name}")[0] == 0
    left = {path.name for path in Path("/run/netns").iterdir() if path.name.startswith(f"lab-{name}-")}
    subprocess.run(["ip", "netns", "del", f"lab-{name}-a"], check=True)
    assert left == {f"lab-{name}-a"}
    status, printed = shell.run(f"python3 examples/lab down {name}")
    assert (status, printed[0].partition(";")[0]) == (2, f"lab: there is no lab '{name}'")
