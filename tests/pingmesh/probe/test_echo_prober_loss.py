"""Lost SYNs reported by the kernel, between real namespaces: 472 of 472 in the reference, all of them here.

The target's firewall drops the first N SYNs (or SYN-ACKs) of every connection: a set with a limit for each source port.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import dpkt
import pytest

from confluo_tools.core.block.block import Staging
from netns import Space
from ping_lab import (
    ECHO,
    LIMIT,
    MS,
    SCHEMA,
    SECOND,
    SYN,
    SYN_ACK,
    TCP,
    UDP,
    Targets,
    lose,
    packed,
    pinger,
    probe,
    restore,
)


def linear(space: Space, n: int) -> None:
    space.run("sh", "-c", f"echo {n} >/proc/sys/net/ipv4/tcp_syn_linear_timeouts")


def connects(pair: tuple[Space, Space], n: int, *, seconds: float = 15.0, **more: Any) -> list[dict[str, Any]]:
    a, b = pair
    with b.inside():
        target = Targets(b.address)
    with target, a.inside():
        p = pinger(inflight=2048)
        p.add(target.address, target.port, more.pop("kind", TCP), interval=MS // 2, count=n, after=0, **more)
        return probe(p, seconds)


COUNT_SYNS = f"out: {SYN} update @lost {{ tcp sport counter }}"


def syns(space: Space) -> dict[int, int]:
    """SYNs by source port that left a namespace with the rule COUNT_SYNS."""
    found = json.loads(space.run("nft", "-j", "list", "set", "inet", "loss", "lost").stdout)["nftables"]
    elements = next(one["set"] for one in found if "set" in one)["elem"]
    return {one["elem"]["val"]: one["elem"]["counter"]["packets"] for one in elements}


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("timeouts", [4, 0])
def test_lost_syns_are_counted_and_never_timed(pair: tuple[Space, Space], timeouts: int, lost: int) -> None:
    """The reference's first acceptance check.  A busy host may lose some more: the firewall here counts all SYNs."""
    a, b = pair
    linear(a, timeouts)
    lose(a, COUNT_SYNS)
    if lost:
        lose(b, f"in: {SYN} update @lost {{ tcp sport {LIMIT.format(lost)} }} drop")
    try:
        found = connects(pair, 1000)
        sent = syns(a)
    finally:
        restore(a)
        restore(b)
    assert len({r["src_port"] for r in found}) == 1000
    assert [r for r in found if (r["outcome"], r["retries"]) != ("ok", sent[r["src_port"]] - 1)] == []
    assert all((r["rtt"] > 0) == (r["retries"] == 0) for r in found)
    assert min(r["retries"] for r in found) == lost
    found = [r for r in found if r["retries"] == lost]
    assert len(found) >= 950
    assert {r["hint"] for r in found} == {"forward" if lost == 1 else 0}
    least = {0: 0, 1: 1, 2: 2 if timeouts else 3}[lost]  # what a stopwatch would have to know
    assert all(least * SECOND <= r["elapsed"] < (least + 1.9) * SECOND for r in found)


@pytest.mark.parametrize("timeouts", [4, 0])
def test_a_lost_answer_is_known_by_its_echo(pair: tuple[Space, Space], timeouts: int) -> None:
    a, b = pair
    linear(a, timeouts)
    lose(b, f"out: {SYN_ACK} update @lost {{ tcp dport {LIMIT.format(1)} }} drop")
    try:
        found = connects(pair, 200)
    finally:
        restore(b)
    # Both ends send again after 1 s.  If the timer of the server is first, the client has sent nothing again.
    first = [r for r in found if (r["retries"], r["hint"]) == (0, 0) and r["rtt"] > 900_000_000]
    assert len(first) <= 5
    others = Counter((r["outcome"], r["retries"], r["hint"], r["rtt"]) for r in found if r not in first)
    assert others == {("ok", 1, "reverse", 0): 200 - len(first)}


def test_without_time_stamps_there_is_no_hint(pair: tuple[Space, Space]) -> None:
    a, b = pair
    lose(b, f"in: {SYN} update @lost {{ tcp sport {LIMIT.format(1)} }} drop")
    a.run("sh", "-c", "echo 0 >/proc/sys/net/ipv4/tcp_timestamps")
    try:
        found = connects(pair, 50)
    finally:
        restore(b)
        a.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/tcp_timestamps")
    assert Counter((r["outcome"], r["retries"], r["hint"], r["rtt"]) for r in found) == {("ok", 1, 0, 0): 50}


def test_some_are_lost_and_the_others_keep_their_times(pair: tuple[Space, Space]) -> None:
    """Source ports tell which: percentiles of what was not sent again are those of a network without loss."""
    a, b = pair
    linear(a, 4)
    lose(a, COUNT_SYNS)
    lose(
        b,
        f"in: {SYN} tcp sport & 7 == 1 update @lost {{ tcp sport {LIMIT.format(1)} }} drop\n"
        f"in: {SYN} tcp sport & 7 == 2 update @lost2 {{ tcp sport {LIMIT.format(2)} }} drop\n"
        f"in: {SYN} tcp sport & 7 == 3 drop",
    )
    try:
        found = connects(pair, 800, timeout=4 * SECOND)
        sent = syns(a)
    finally:
        restore(a)
        restore(b)
    assert len(found) == 800
    more = 0  # that lost one more SYN, of a busy host
    for r in found:
        which = r["src_port"] & 7
        if which == 3:
            assert (r["outcome"], r["rtt"], r["errno"]) == ("timeout", 0, 110)
            assert 4 * SECOND <= r["elapsed"] < 5 * SECOND
        else:
            assert (r["outcome"], r["retries"]) == ("ok", sent[r["src_port"]] - 1)
            assert r["retries"] >= {1: 1, 2: 2}.get(which, 0)
            more += r["retries"] > {1: 1, 2: 2}.get(which, 0)
            assert 0 < r["rtt"] < 500 * MS if r["retries"] == 0 else r["rtt"] == 0
    assert more <= 40
    # All residues occur: the walk through the ports leaves none out.
    assert set(Counter(r["src_port"] & 7 for r in found)) == set(range(8))


def test_the_kernel_gives_up_after_two_linear_retries(pair: tuple[Space, Space]) -> None:
    a, b = pair
    linear(a, 0)
    lose(b, f"in: {SYN} drop")
    try:
        found = connects(pair, 5, seconds=18.0, timeout=15 * SECOND)
    finally:
        restore(b)
    assert [(r["outcome"], r["errno"], r["retries"], r["rtt"]) for r in found] == [("timeout", 110, 2, 0)] * 5
    assert all(7 * SECOND <= r["elapsed"] < 8 * SECOND for r in found)


def test_more_are_out_than_fit_into_the_interval(pair: tuple[Space, Space]) -> None:
    """The time-out is ten times the interval: each probe has one record."""
    a, b = pair
    linear(a, 4)
    lose(b, f"in: {SYN} update @lost {{ tcp sport {LIMIT.format(1)} }} drop\nin: udp dport 1-65535 drop")
    try:
        with b.inside():
            target = Targets(b.address)
        with target, a.inside():
            p = pinger()
            p.add(target.address, target.port, TCP, interval=100 * MS, count=20, after=0)
            p.add(target.address, target.port, UDP, interval=100 * MS, count=20, after=0, timeout=SECOND)
            found = probe(p)
    finally:
        restore(b)
    assert Counter((r["kind"], r["outcome"], r["retries"]) for r in found) == {
        ("tcp", "ok", 1): 20,
        ("udp", "timeout", 0): 20,
    }
    assert sorted(r["seq"] for r in found if r["kind"] == "udp") == list(range(1, 21))


def test_a_payload_that_is_lost_on_the_way(pair: tuple[Space, Space]) -> None:
    """The connection is made, then nothing comes through."""
    _, b = pair
    lose(b, "in: meta l4proto tcp tcp flags & psh == psh drop")
    try:
        found = connects(pair, 10, kind=ECHO, payload=1000, timeout=SECOND)
    finally:
        restore(b)
    assert [(r["outcome"], r["rtt"], r["echo"]) for r in found] == [("timeout", 0, 0)] * 10


def test_nobody_there(pair: tuple[Space, Space]) -> None:
    """No route is ours, an ICMP answer is the network's; a neighbour that does not answer is the network's, too."""
    a, b = pair
    lose(
        b,
        "in: tcp dport 81 reject with icmp host-unreachable\nin: tcp dport 82 reject with icmp admin-prohibited\n"
        "in: udp dport 81 reject with icmp host-unreachable",
    )
    try:
        with a.inside():
            p = pinger()
            p.add(packed("192.0.2.1"), 80, TCP, interval=MS, count=1)
            p.add(packed("192.0.2.1"), 80, UDP, interval=MS, count=1)
            for port in (80, 81, 82):
                p.add(packed(b.address), port, TCP, interval=MS, count=1)
            p.add(packed(b.address), 81, UDP, interval=MS, count=1, timeout=2 * SECOND)
            found = probe(p)
    finally:
        restore(b)
    assert {(r["kind"], r["dst_port"], r["outcome"], r["errno"]) for r in found} == {
        ("tcp", 80, "local", 101),
        ("udp", 80, "local", 101),
        ("tcp", 80, "refused", 111),
        ("tcp", 81, "unreachable", 113),
        ("tcp", 82, "unreachable", 113),
        ("udp", 81, "unreachable", 113),
    }
    assert {(r["rtt"], r["retries"]) for r in found} == {(0, 0)}


def test_few_source_ports(pair: tuple[Space, Space]) -> None:
    """All ports of the host are in use: outcome local."""
    a, b = pair
    before = a.run("cat", "/proc/sys/net/ipv4/ip_local_port_range").stdout.decode()
    with b.inside():
        target = Targets(b.address, accept=False)
    try:
        a.run("sh", "-c", "echo 40000 40007 >/proc/sys/net/ipv4/ip_local_port_range")
        lose(b, f"in: {SYN} drop")
        with target, a.inside():
            p = pinger()
            p.add(target.address, target.port, TCP, interval=MS, count=30, after=0, timeout=SECOND)
            found = probe(p)
    finally:
        restore(b)
        a.run("sh", "-c", f"echo {before.strip()} >/proc/sys/net/ipv4/ip_local_port_range")
    outcomes = Counter((r["outcome"], r["errno"]) for r in found)
    assert outcomes == {("timeout", 110): 8, ("local", 99): 22}
    assert {r["src_port"] for r in found if r["outcome"] == "timeout"} == set(range(40000, 40008))


def test_few_rows_at_a_time(pair: tuple[Space, Space]) -> None:
    """A small block fills often; nothing is lost in between."""
    a, b = pair
    with b.inside():
        target = Targets(b.address)
    numbers: list[tuple[int, int]] = []
    with target, a.inside():
        p = pinger(inflight=64)
        for kind in (TCP, UDP, ECHO):
            p.add(target.address, target.port, kind, interval=MS // 10, count=300, payload=100)
        block = Staging(SCHEMA.layout, 3)
        while p.active:
            block.publish(0)
            n = p.run(block, 1 << 62)
            at = [SCHEMA.layout.index(name) for name in ("kind", "seq")]
            numbers += [(block.get(at[0], i), block.get(at[1], i)) for i in range(n)]
    assert sorted(numbers) == sorted((kind, seq) for kind in (TCP, UDP, ECHO) for seq in range(1, 301))


def test_a_capture_counts_the_same_retries(pair: tuple[Space, Space], tmp_path: Path) -> None:
    """A third of all SYNs and answers is lost at random: records agree with the captured packets, probe by probe."""
    a, b = pair
    linear(a, 4)
    file = tmp_path / "syns.pcap"
    watching = a.popen(
        "tcpdump", "-i", "v0", "-n", "-U", "-Z", "root", "-w", file, "tcp[13] & 2 != 0", stderr=subprocess.PIPE
    )
    assert watching.stderr is not None
    assert b"listening" in watching.stderr.readline()
    lose(b, f"in: {SYN} numgen random mod 3 == 0 drop\nout: {SYN_ACK} numgen random mod 3 == 0 drop")
    try:
        found = connects(pair, 400, timeout=5 * SECOND)
    finally:
        restore(b)
        watching.terminate()
        watching.communicate()
    sent: Counter[int] = Counter()
    first: dict[int, float] = {}
    answered: dict[int, list[float]] = {}
    with file.open("rb") as stream:
        for at, data in dpkt.pcap.Reader(stream):
            tcp = dpkt.ethernet.Ethernet(data).data.data
            if tcp.flags & dpkt.tcp.TH_ACK:
                answered.setdefault(tcp.dport, []).append(at)
            else:
                sent[tcp.sport] += 1
                first.setdefault(tcp.sport, at)
    assert len(found) == 400
    for r in found:
        port = r["src_port"]
        assert r["retries"] == sent[port] - 1, r
        assert (r["outcome"] == "ok") == (port in answered) or r["outcome"] == "timeout"
        if r["retries"] == 0:
            assert abs(r["rtt"] / 1e9 - (answered[port][0] - first[port])) < 0.02
        assert (r["rtt"] > 0) == (r["outcome"] == "ok" and r["retries"] == 0)
    assert sum(r["retries"] > 0 for r in found) > 100
