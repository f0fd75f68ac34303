"""Datagrams that come late, twice, out of order, changed or from another host; IPv6; echo requests."""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from netns import Lab, Space
from ping_lab import ECHO, ICMP, MS, SYN, TCP, UDP, Targets, lose, packed, pinger, probe, restore


def test_the_time_in_the_target_is_not_the_networks() -> None:
    with Targets() as target:
        target.think = 0.02
        p = pinger()
        p.add(target.address, target.port, UDP, interval=50 * MS, count=5)
        found = probe(p)
    for r in found:
        # The kernel begins to stamp a moment after the first socket wants it.
        assert (r["outcome"], r["notes"] | ({"stamped"} if r["seq"] == 1 else set())) == ("ok", {"lab", "stamped"})
        assert r["remote"] >= 20 * MS
        assert r["elapsed"] >= r["remote"] + r["rtt"] - MS
        assert 0 < r["rtt"] < 20 * MS


def test_times_that_cannot_be_are_not_subtracted() -> None:
    """The target's clock says that it had the datagram for longer than the round trip took, or less than nothing."""
    with Targets() as target:
        lies = iter([(1, 1 << 62), (1 << 62, 1), (0, 5), ((1 << 64) - 1, (1 << 64) - 1)])
        target.mangle = lambda data: data[:32] + struct.pack(">QQ", *next(lies)) + data[48:]
        p = pinger()
        p.add(target.address, target.port, UDP, interval=MS, count=4)
        found = probe(p)
    assert [(r["outcome"], r["remote"]) for r in found] == [("ok", 0)] * 4
    assert all(0 < r["rtt"] <= r["elapsed"] + MS for r in found)


def test_twice_and_too_late() -> None:
    with Targets() as target:
        target.copies = 3
        p = pinger()
        p.add(target.address, target.port, UDP, interval=100 * MS, count=5)
        found = probe(p)
        assert [r["outcome"] for r in found] == ["ok"] * 5
        # The copies are there before the next probe is, which says so.
        assert ["duplicated" in r["notes"] for r in found] == [False, True, True, True, True]
        assert p.counts["duplicated"] >= 8
        target.copies = 1
        target.think = 0.15
        p = pinger()
        p.add(target.address, target.port, UDP, interval=100 * MS, count=3, timeout=50 * MS)
        found = probe(p)
    assert [(r["outcome"], r["errno"], r["rtt"]) for r in found] == [("timeout", 110, 0)] * 3
    assert p.counts["timeout"] == 3


def test_answers_that_overtake_each_other() -> None:
    with Targets() as target:
        kept: list[bytes] = []

        def swap(data: bytes) -> bytes | None:
            kept.append(data)
            if len(kept) % 2:
                return None
            target.udp.sendto(kept[-1], target.seen[-1][0])  # the second first
            target.udp.sendto(kept[-2], target.seen[-2][0])
            return None

        target.mangle = swap
        p = pinger(ports=1)
        p.add(target.address, target.port, UDP, interval=5 * MS, count=10)
        found = probe(p)
    assert sorted(r["seq"] for r in found) == list(range(1, 11))
    assert all(r["outcome"] == "ok" for r in found)
    assert {r["seq"] for r in found if "reordered" in r["notes"]} == {1, 3, 5, 7, 9}


def test_another_length_is_garbled() -> None:
    with Targets() as target:
        target.mangle = lambda data: data + b"x"
        p = pinger()
        p.add(target.address, target.port, UDP, interval=MS, count=2, payload=100)
        assert [(r["outcome"], r["rtt"]) for r in probe(p)] == [("garbled", 0)] * 2
        target.mangle = lambda data: data[:48]
        p.add(target.address, target.port, UDP, interval=MS, count=2, payload=100, dscp=1)
        assert [(r["outcome"], r["rtt"]) for r in probe(p)] == [("garbled", 0)] * 2


@pytest.mark.parametrize(("at", "what"), [(0, "magic"), (15, "token"), (19, "seq"), (23, "slot"), (31, "time")])
def test_a_wrong_answer_is_none(at: int, what: str) -> None:
    """Any bit that is not as we sent it: it is not ours."""
    with Targets() as target:
        target.mangle = lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        p = pinger()
        p.add(target.address, target.port, UDP, interval=MS, count=3, timeout=100 * MS)
        found = probe(p)
        assert [r["outcome"] for r in found] == ["timeout"] * 3
        assert p.counts["late"] + p.counts["stray"] == 3


def test_who_answers_must_be_who_was_asked() -> None:
    with Targets() as target, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:

        def elsewhere(data: bytes) -> None:
            other.sendto(data, target.seen[-1][0])

        target.mangle = elsewhere
        p = pinger()
        p.add(target.address, target.port, UDP, interval=MS, count=3, timeout=100 * MS)
        found = probe(p)
    assert [r["outcome"] for r in found] == ["timeout"] * 3
    assert p.counts["stray"] == 3


def test_garbage_to_our_own_ports() -> None:
    """Noise of any length, and answers with any slot: probes go on, and none has two records."""
    noise = random.Random(5)
    with Targets() as target:

        def throw(data: bytes) -> bytes:
            sender = target.seen[-1][0]
            for _ in range(20):
                junk = noise.randbytes(noise.randrange(200))
                if noise.random() < 0.5:
                    junk = b"CPM1" + junk
                if noise.random() < 0.5:
                    junk = data[:20] + noise.randbytes(4) + data[24:]
                with suppress(OSError):
                    target.udp.sendto(junk, sender)
            return data

        target.mangle = throw
        p = pinger()
        p.add(target.address, target.port, UDP, interval=2 * MS, count=100, payload=64)
        found = probe(p)
    assert Counter((r["seq"], r["outcome"]) for r in found) == {(seq, "ok"): 1 for seq in range(1, 101)}


def test_a_payload_that_comes_back_otherwise() -> None:
    with Targets() as target:
        for mangle, outcome in [
            (lambda data: bytes(len(data)), "garbled"),
            (lambda data: data + data, "garbled"),
            (lambda data: None, "reset"),
        ]:
            target.mangle = mangle
            p = pinger()
            p.add(target.address, target.port, ECHO, interval=MS, count=3, payload=500)
            assert [(r["outcome"], r["rtt"], r["echo"]) for r in probe(p)] == [(outcome, 0, 0)] * 3


@pytest.fixture(scope="module")
def six(lab: Lab) -> tuple[Space, Space]:
    """Two namespaces with addresses fd00::1 and fd00::2."""
    a, b = lab.pair()
    for space, mine in ((a, 1), (b, 2)):
        for name in ("all", "v0"):
            space.run("sh", "-c", f"echo 0 >/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
        space.run("sh", "-c", "echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range")
        space.ip("addr", "add", f"fd00::{mine}/64", "dev", "v0", "nodad")
    for space, theirs, other in ((a, 2, b), (b, 1, a)):
        mac = other.run("cat", "/sys/class/net/v0/address").stdout.decode().strip()
        space.ip("neigh", "replace", f"fd00::{theirs}", "lladdr", mac, "dev", "v0", "nud", "permanent")
    return a, b


def test_ipv6(six: tuple[Space, Space]) -> None:
    a, b = six
    with b.inside():
        target = Targets("fd00::2")
    with target, a.inside():
        p = pinger()
        for kind in (TCP, ECHO, UDP, ICMP):
            p.add(target.address, target.port, kind, interval=5 * MS, count=10, payload=1000)
        found = probe(p)
    assert Counter((r["kind"], r["outcome"]) for r in found) == {
        (kind, "ok"): 10 for kind in ("tcp", "echo", "udp", "icmp")
    }
    for r in found:
        assert (r["ip_version"], r["src_ip6"], r["dst_ip6"]) == (6, packed("fd00::1"), packed("fd00::2"))
        assert r["proto"] == {"tcp": "tcp", "echo": "tcp", "udp": "udp", "icmp": "icmp6"}[r["kind"]]
        assert r["dst_port"] == (0 if r["kind"] == "icmp" else target.port)
        assert r["rtt"] > 0


def test_a_retry_over_ipv6(six: tuple[Space, Space]) -> None:
    a, b = six
    lose(b, f"in: {SYN} update @lost {{ tcp sport limit rate 1/day burst 1 packets }} drop")
    try:
        with b.inside():
            target = Targets("fd00::2")
        with target, a.inside():
            p = pinger()
            p.add(target.address, target.port, TCP, interval=MS, count=20)
            found = probe(p)
    finally:
        restore(b)
    assert [(r["outcome"], r["retries"], r["hint"], r["notes"]) for r in found] == [("ok", 1, "forward", {"lab"})] * 20


def test_echo_requests(six: tuple[Space, Space]) -> None:
    a, b = six
    with a.inside():
        p = pinger()
        p.add(packed(b.address), 0, ICMP, interval=MS, count=20, payload=1000)
        p.add(packed("10.77.200.9"), 0, ICMP, interval=MS, count=1)
        found = probe(p)
    assert Counter((r["outcome"], r["payload"], r["proto"], r["errno"]) for r in found) == {
        ("ok", 1000, "icmp", 0): 20,
        ("local", 48, "icmp", 101): 1,
    }
    assert {frozenset(r["notes"]) for r in found if r["outcome"] == "ok" and r["seq"] > 1} == {
        frozenset({"lab", "stamped"})
    }
    assert all(r["rtt"] > 0 for r in found if r["outcome"] == "ok")


def test_classes_of_service(six: tuple[Space, Space]) -> None:
    """What is marked arrives marked."""
    a, b = six
    names = [f"{family}{kind}" for family in ("4", "6") for kind in ("tcp", "udp")]
    counters = "\n".join(f"counter c{name} {{ }}" for name in names)
    which = {"tcp": SYN, "udp": "udp dport 1-65535"}
    rules = "\n".join(f"{'ip' if n[0] == '4' else 'ip6'} dscp 46 {which[n[1:]]} counter name c{n}" for n in names)
    b.run("nft", f"table inet marks {{ {counters}\nchain in {{ type filter hook input priority 0;\n{rules}\n}}\n}}")
    try:
        for address in (b.address, "fd00::2"):
            with b.inside():
                target = Targets(address)
            with target, a.inside():
                p = pinger()
                for kind in (TCP, UDP):
                    for dscp in (0, 46):
                        p.add(target.address, target.port, kind, interval=MS, count=7, dscp=dscp)
                found = probe(p)
            assert Counter((r["kind"], r["dscp"], r["outcome"]) for r in found) == {
                (kind, dscp, "ok"): 7 for kind in ("tcp", "udp") for dscp in (0, 46)
            }
        listed = b.run("nft", "list", "counters").stdout.decode()
    finally:
        b.run("nft", "delete table inet marks")
    assert listed.count("packets 7 ") == 4


def test_our_own_address(six: tuple[Space, Space]) -> None:
    """Where to send from is obeyed by both versions, and by datagrams."""
    a, b = six
    a.ip("addr", "add", "10.77.99.7/32", "dev", "v0")
    b.ip("route", "add", "10.77.99.7/32", "dev", "v0")
    a_mac = a.run("cat", "/sys/class/net/v0/address").stdout.decode().strip()
    b.ip("neigh", "replace", "10.77.99.7", "lladdr", a_mac, "dev", "v0", "nud", "permanent")
    with b.inside():
        target = Targets(b.address)
    with target, a.inside():
        p = pinger(source=packed("10.77.99.7"))
        for kind in (TCP, UDP):
            p.add(target.address, target.port, kind, interval=MS, count=5)
        found = probe(p)
        assert {(r["outcome"], r["src_ip"]) for r in found} == {("ok", int.from_bytes(packed("10.77.99.7"), "big"))}
        assert {sender[0] for sender, _ in target.seen} == {"10.77.99.7"}
        p = pinger(source=packed("10.77.99.8"))
        p.add(target.address, target.port, TCP, interval=MS, count=1)
        assert [(r["outcome"], r["errno"]) for r in probe(p)] == [("local", 99)]


def test_a_clock_that_is_set_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's stamps are of the wall clock: a step between them must not become a round trip.

    The test cannot set the clock; answers claim instead to be sent long ago or in the future.
    """
    with Targets() as target:
        for t1 in (0, 1 << 61):
            target.mangle = lambda data, t1=t1: data[:24] + struct.pack(">Q", t1) + data[32:]
            p = pinger()
            p.add(target.address, target.port, UDP, interval=MS, count=2, timeout=100 * MS)
            assert [r["outcome"] for r in probe(p)] == ["timeout"] * 2


def test_many_targets_at_once() -> None:
    """More peers than slots: all are probed, none is lost."""
    with Targets() as target:
        p = pinger(inflight=8)
        for i in range(500):
            p.add(
                packed(f"127.0.{i // 250}.{i % 250 + 1}"),
                target.port,
                UDP,
                interval=MS,
                count=2,
                after=0,
                timeout=200 * MS,
            )
        found = probe(p)
    answered: dict[Any, int] = Counter(r["dst_ip"] for r in found if r["outcome"] == "ok")
    assert len(found) == 1000
    assert answered == {0x7F000001: 2}
