"""When probes are sent: how far apart, how evenly, and what becomes of those that wait; limits of the host."""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from confluo_tools.core.block.block import Staging
from netns import Space
from ping_lab import ECHO, MS, SCHEMA, SECOND, SYN, TCP, UDP, Targets, lose, packed, pinger, probe, records, restore

SUPPORT = Path(__file__).resolve().parents[2] / "support"


def run_for(p: Any, seconds: float, rows: int = 16384) -> list[dict[str, Any]]:
    block = Staging(SCHEMA.layout, rows)
    p.run(block, time.monotonic_ns() + int(seconds * SECOND))
    return records(block)


def addresses(n: int) -> list[bytes]:
    return [(127 << 24 | 1 << 16 | i).to_bytes(4, "big") for i in range(1, n + 1)]


def test_a_list_begins_evenly_and_no_faster_than_planned() -> None:
    """1,000 peers at 10 s are 100 a second from the start: all phases are there, in no order of the list."""
    with Targets("0.0.0.0") as target:
        p = pinger(lab=False, jitter=0.03)
        for i, address in enumerate(addresses(1000)):
            p.add(address, target.port, TCP, name=f"s{i}")
        assert abs(p.rate - 100) < 1e-6
        begun = time.monotonic()
        block = Staging(SCHEMA.layout, 100)
        p.run(block, time.monotonic_ns() + 20 * SECOND)
        took = time.monotonic() - begun
    found = records(block)
    assert len(found) == 100
    assert took > 0.9  # later on a busy machine, never earlier
    assert {r["notes"] == set() for r in found} == {True}
    numbers = [int(r["dst"][1:]) for r in found]
    assert len(set(numbers)) == 100
    assert {n // 100 for n in numbers} == set(range(10))  # the golden ratio leaves no part of the list for later


def test_a_pair_keeps_its_interval_over_a_new_list() -> None:
    with Targets() as target:
        p = pinger(jitter=0.5)
        first = []
        for _ in range(4):
            p.add(target.address, target.port, TCP, interval=200 * MS, after=0)
            first += run_for(p, 0.3)
            p.clear()
    times = [r["ts"] for r in first]
    assert len(times) >= 4
    assert all(b - a >= 199 * MS for a, b in itertools.pairwise(times))
    assert [r["seq"] for r in first] == list(range(1, len(first) + 1))
    assert len({r["src_port"] for r in first}) == len(first)


def test_one_address_is_not_probed_all_at_once() -> None:
    """Two peers of one host: half a second between them, although both are due."""
    with Targets() as target:
        p = pinger(lab=False)
        p.add(target.address, target.port, TCP, after=0)
        p.add(target.address, target.port, UDP, after=0)
        p.add(target.address, target.port, ECHO, after=0, payload=10)
        block = Staging(SCHEMA.layout, 3)
        p.run(block, time.monotonic_ns() + 20 * SECOND)
        found = records(block)
    times = sorted(r["ts"] for r in found)
    assert {r["kind"] for r in found} == {"tcp", "udp", "echo"}
    assert all(b - a >= 499 * MS for a, b in itertools.pairwise(times))


def test_after_a_pause_they_do_not_go_all_together() -> None:
    """200 peers of 20 a second are due: 20 at once, then twice the planned rate."""
    with Targets("0.0.0.0") as target:
        p = pinger(lab=False)
        for address in addresses(200):
            p.add(address, target.port, TCP, after=0)
        found = run_for(p, 0.5)
    assert 16 <= len(found) <= 20 + 0.5 * 40 + 2


def test_slower_under_pressure() -> None:
    with Targets() as target:
        p = pinger()
        p.add(target.address, target.port, TCP, interval=20 * MS, count=4, after=0)
        p.slow = 5
        found = probe(p)
    times = [r["ts"] for r in found]
    assert all(b - a >= 99 * MS for a, b in itertools.pairwise(times))
    assert {frozenset(r["notes"]) for r in found} == {frozenset({"lab", "slowed"})}
    with pytest.raises(ValueError, match="1 to 1024"):
        p.slow = 0.5


def test_probes_that_were_due_and_not_sent_are_counted() -> None:
    """No call of `run` for a second: nine of ten probes are skipped, not sent in a burst."""
    with Targets() as target:
        p = pinger()
        p.add(target.address, target.port, TCP, interval=100 * MS, after=0)
        run_for(p, 0.01)
        time.sleep(1.0)
        found = run_for(p, 0.05)
    assert len(found) == 1
    assert p.counts["skipped"] >= 8


def test_a_host_that_stalls_is_not_a_slow_network(pair: tuple[Space, Space]) -> None:
    """Second acceptance check of the reference, made exact: answers wait for 0.3 s before `run` reads them."""
    a, b = pair
    with b.inside():
        target = Targets(b.address)
    with target, a.inside():
        first = pinger()
        first.add(target.address, target.port, UDP, interval=MS, count=1)
        probe(first)  # the kernel begins to stamp a moment after the first socket wants it
        p = pinger()
        for kind in (TCP, UDP):
            for dscp in range(20):
                p.add(
                    target.address,
                    target.port,
                    kind,
                    interval=SECOND,
                    count=1,
                    after=0,
                    dscp=dscp // 4 * 8,
                    scope=dscp % 4,
                )
        block = Staging(SCHEMA.layout, 100)
        p.run(block, 0)
        assert (block.rows, p.inflight) == (0, 40)
        while len(target.sent) < 21:  # all datagrams are answered; the kernel answers connections
            time.sleep(0.001)
        time.sleep(0.3)
        found = probe(p)
    assert Counter((r["kind"], r["outcome"]) for r in found) == {("tcp", "ok"): 20, ("udp", "ok"): 20}
    assert all(r["elapsed"] >= 300 * MS for r in found)
    assert all(r["rtt"] > 0 for r in found)
    assert all(r["elapsed"] - r["rtt"] >= 250 * MS for r in found)


def test_who_was_away_for_long_does_not_give_up_what_is_there(pair: tuple[Space, Space]) -> None:
    """This process stalls for longer than any time-out: all answers have arrived, and none counts as lost."""
    a, b = pair
    with b.inside():
        target = Targets(b.address)
        silent = Targets(b.address)
        silent.mangle = lambda data: None
    with target, silent, a.inside():
        p = pinger(inflight=2000)
        p.add(target.address, target.port, TCP, interval=0, count=500, timeout=100 * MS)
        p.add(target.address, target.port, UDP, interval=0, count=500, timeout=100 * MS)
        p.add(silent.address, silent.port, UDP, interval=0, count=20, timeout=100 * MS)
        block = Staging(SCHEMA.layout, 2000)
        while p.counts["probes"] < 1020:
            p.run(block, 0)
        time.sleep(0.4)
        while p.active:
            p.run(block, time.monotonic_ns() + SECOND)
    found = Counter((r["kind"], r["dst_port"] == target.port, r["outcome"]) for r in records(block))
    assert found == {("tcp", True, "ok"): 500, ("udp", True, "ok"): 500, ("udp", False, "timeout"): 20}


def test_time_outs_of_every_length() -> None:
    """No probe times out early, and each one times out."""
    lengths = random.Random(3)
    p = pinger()
    with Targets() as target:
        target.mangle = lambda data: None
        for dscp in range(16):
            p.add(
                target.address,
                target.port,
                UDP,
                interval=3 * MS,
                count=20,
                dscp=dscp // 2,
                scope=dscp % 2,
                timeout=lengths.randrange(1, 400) * MS,
            )
        found = probe(p)
    assert Counter(r["outcome"] for r in found) == {"timeout": 320}
    assert all(r["elapsed"] >= MS for r in found)


def test_clear_does_not_forget_what_is_out(pair: tuple[Space, Space]) -> None:
    a, b = pair
    lose(b, f"in: {SYN} drop")
    try:
        with a.inside():
            p = pinger()
            p.add(packed(b.address), 80, TCP, interval=SECOND, after=0, timeout=500 * MS, name="gone", pod="p9")
            assert run_for(p, 0.1) == []
            p.clear()
            assert (p.peers, p.inflight, p.active) == (0, 1, True)
            found = run_for(p, 5.0)
    finally:
        restore(b)
    assert [(r["dst"], r["dst_pod"], r["outcome"]) for r in found] == [("gone", "p9", "timeout")]
    assert not p.active


def test_a_seed_is_a_walk_through_the_ports(pair: tuple[Space, Space]) -> None:
    a, b = pair
    with b.inside():
        target = Targets(b.address)
    walks = []
    with target:
        for seed in (5, 5, 6):
            with a.inside():
                p = pinger(seed=seed)
                p.add(target.address, target.port, TCP, interval=MS, count=200)
                walks.append([r["src_port"] for r in probe(p)])
    assert walks[0] == walks[1] != walks[2]
    assert all(len(set(walk)) == 200 for walk in walks)
    # 16 paths chosen by the port's low bits: each has its share, none is left out.
    for walk in walks:
        assert min(Counter(port % 16 for port in walk).values()) >= 6
        assert len(Counter(port % 16 for port in walk)) == 16


def test_thousands_of_sockets(pair: tuple[Space, Space]) -> None:
    """A network that eats everything: as many connections as there are descriptors are out at once, and all end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n = 25_000 if hard == resource.RLIM_INFINITY else min(25_000, hard - 1000)
    if n < 1000:
        pytest.skip(f"no more than {hard} descriptors")
    a, b = pair
    lose(b, f"in: {SYN} drop")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, n + 900), hard))
    try:
        with a.inside():
            p = pinger(inflight=n)
            p.add(packed(b.address), 80, TCP, interval=0, count=n, timeout=3 * SECOND)
            most = 0
            block = Staging(SCHEMA.layout, 65536)
            while p.active:
                p.run(block, time.monotonic_ns() + 100 * MS)
                most = max(most, p.inflight)
    finally:
        restore(b)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    outcomes = block.buffer(SCHEMA.layout.index("outcome"))
    assert (block.rows, Counter(bytes(outcomes)[:n])) == (n, {2: n})
    assert len(set(memoryview(bytes(block.buffer(SCHEMA.layout.index("src_port")))).cast("H"))) == n
    assert most > n // 2


def test_no_descriptors_left() -> None:
    """Outcome local with EMFILE; probes go on when descriptors are free again."""
    code = f"""
import sys, resource, os
sys.path[:0] = {[str(SUPPORT), str(SUPPORT.parents[1])]!r}
from ping_lab import *
with Targets() as target:
    target.mangle = lambda data: (time.sleep(0.5), data)[1]
    p = pinger()
    p.add(target.address, target.port, ECHO, interval=MS, count=30, payload=8, after=0)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 16, used + 16))
    found = probe(p)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 16, used + 16))
    print(sorted({{(r["outcome"], r["errno"]) for r in found}}), len(found))
    p.add(target.address, target.port, TCP, interval=MS, count=3)
    print([r["outcome"] for r in probe(p)])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, cwd=SUPPORT.parents[1]
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "('local', 24)" in first
    assert first.endswith(" 30")
    assert second == "['ok', 'ok', 'ok']"


def test_a_signal_interrupts_and_rows_stay() -> None:
    class Enough(Exception):
        pass

    def enough(number: int, frame: object) -> None:
        raise Enough

    before = signal.signal(signal.SIGALRM, enough)
    try:
        with Targets() as target:
            p = pinger()
            p.add(target.address, target.port, TCP, interval=MS)
            block = Staging(SCHEMA.layout, 65536)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Enough):
                p.run(block, time.monotonic_ns() + 60 * SECOND)
            assert block.rows > 0
            assert block.rows == p.counts["ok"]
            rows = block.rows
            assert p.run(block, time.monotonic_ns() + 60 * SECOND, 5) == 5
            assert block.rows == rows + 5
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_stop_from_another_thread() -> None:
    p = pinger()
    p.add(packed("127.0.0.1"), 9, TCP, interval=SECOND, after=100 * SECOND)
    threading.Timer(0.1, p.stop).start()
    assert p.run(Staging(SCHEMA.layout, 16), time.monotonic_ns() + 100 * SECOND) == 0


def test_descriptors_are_given_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Targets() as target:
        target.mangle = lambda data: None
        inside = len(os.listdir("/proc/self/fd"))
        p = pinger(inflight=64)
        for kind in (TCP, ECHO, UDP):
            p.add(target.address, target.port, kind, interval=10 * MS, payload=100, timeout=10 * SECOND)
        run_for(p, 0.2)
        assert len(os.listdir("/proc/self/fd")) > inside
        del p
    deadline = time.monotonic() + 5  # the server's threads end by themselves
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("4 or 16", {"address": b"abc"}),
        ("not a unicast address", {"address": packed("224.0.0.1")}),
        ("not a unicast address", {"address": packed("255.255.255.255")}),
        ("not a unicast address", {"address": packed("0.0.0.0")}),
        ("not a unicast address", {"address": packed("ff02::1")}),
        ("not a unicast address", {"address": packed("::")}),
        ("not a unicast address", {"address": packed("::ffff:10.0.0.1")}),
        ("unknown kind", {"kind": 3}),
        ("port 0", {"port": 0}),
        ("not below 64", {"dscp": 64}),
        ("an interval", {"interval": -1}),
        ("a time-out", {"timeout": -1}),
        ("a time-out", {"timeout": 61 * SECOND}),
        ("needs a payload", {"kind": ECHO}),
        ("the maximum is 65507", {"kind": UDP, "payload": 65508}),
        ("longer than 32", {"name": "x" * 33}),
        ("longer than 16", {"pod": "é" * 9}),
    ],
)
def test_what_cannot_be_is_refused(words: str, more: dict[str, Any]) -> None:
    p = pinger()
    wanted: dict[str, Any] = {"address": packed("127.0.0.1"), "port": 80, "kind": TCP} | more
    with pytest.raises(ValueError, match=words):
        p.add(wanted.pop("address"), wanted.pop("port"), wanted.pop("kind"), **wanted)
    assert (p.peers, p.active, p.rate) == (0, False, 0.0)
