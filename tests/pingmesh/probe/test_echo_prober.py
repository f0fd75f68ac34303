"""The probe loop against servers that are not ours, on loopback."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

import pytest

from confluo_tools.core.block.block import Staging
from ping_lab import ECHO, MAGIC, MS, SCHEMA, SECOND, TCP, UDP, Targets, packed, pinger, probe


def test_a_connection_is_a_record() -> None:
    with Targets() as target:
        p = pinger(src="me", pod="p01", podset="ps1", dc="east")
        p.list = 77
        where: dict[str, Any] = {"name": "you", "pod": "p02", "podset": "ps2", "dc": "west"}
        p.add(target.address, target.port, TCP, interval=MS, count=20, after=0, level=2, **where)
        before = time.time_ns()
        found = probe(p)
        after = time.time_ns()
    assert len(found) == 20
    for r in found:
        assert (r["kind"], r["level"], r["outcome"], r["notes"]) == ("tcp", "dc", "ok", {"lab"})
        assert (r["ip_version"], r["proto"]) == (4, "tcp")
        assert (r["src_ip"], r["dst_ip"], r["dst_port"]) == (0x7F000001, 0x7F000001, target.port)
        assert before <= r["ts"] <= after
        assert 0 < r["rtt"] <= r["elapsed"] + 1000
        assert (r["retries"], r["hint"], r["errno"], r["echo"], r["payload"], r["list"]) == (0, 0, 0, 0, 0, 77)
        assert (r["src"], r["src_pod"], r["src_podset"], r["src_dc"]) == ("me", "p01", "ps1", "east")
        assert (r["dst"], r["dst_pod"], r["dst_podset"], r["dst_dc"]) == ("you", "p02", "ps2", "west")
    assert [r["seq"] for r in found] == list(range(1, 21))
    assert len({r["src_port"] for r in found}) == 20
    assert p.counts["probes"] == p.counts["ok"] == 20
    assert not p.active


@pytest.mark.parametrize("size", [1, 1000, 65536])
def test_a_payload_comes_back(size: int) -> None:
    with Targets() as target:
        p = pinger()
        p.add(target.address, target.port, ECHO, interval=MS, count=5, payload=size)
        found = probe(p)
    assert [(r["outcome"], r["payload"]) for r in found] == [("ok", size)] * 5
    assert all(r["echo"] > 0 and r["rtt"] > 0 for r in found)


@pytest.mark.parametrize("size", [0, 48, 1000, 65507])
def test_a_datagram_comes_back(size: int) -> None:
    with Targets() as target:
        p = pinger()
        p.token = 0xDEADBEEF01020304
        p.add(target.address, target.port, UDP, interval=MS, count=40, payload=size)
        found = probe(p)
    size = max(size, 48)
    assert [(r["outcome"], r["payload"], r["proto"]) for r in found] == [("ok", size, "udp")] * 40
    assert sorted(r["seq"] for r in found) == list(range(1, 41))
    assert len({r["src_port"] for r in found}) == 16
    for number, (sender, data) in enumerate(target.seen, 1):
        magic, flags, token, seq, _, t1, t2, t3 = struct.unpack(">4sIQIIQQQ", data[:48])
        assert (magic, flags, token, seq, t2, t3, len(data)) == (MAGIC, 0, 0xDEADBEEF01020304, number, 0, 0, size)
        mine = next(r for r in found if r["seq"] == seq)
        assert (mine["src_port"], mine["ts"]) == (sender[1], t1)
    assert all(0 < r["rtt"] <= r["elapsed"] + MS for r in found)


def test_a_probe_tells_the_list_that_it_was_sent_by() -> None:
    """Also when its answer does not come before the next list does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        p, block = pinger(), Staging(SCHEMA.layout, 16)
        p.list = 1
        p.add(packed("127.0.0.1"), silent.getsockname()[1], UDP, interval=MS, count=1, after=0, timeout=300 * MS)
        assert p.run(block, time.monotonic_ns() + 50 * MS) == 0
        p.clear()
        p.list = 2
        [found] = probe(p)
    assert (found["outcome"], found["list"]) == ("timeout", 1)


def test_what_failed_has_no_rtt() -> None:
    with Targets() as target:
        port = target.port
    p = pinger()
    for kind in (TCP, UDP):
        p.add(packed("127.0.0.1"), port, kind, interval=MS, count=3)
    found = probe(p)
    assert len(found) == 6
    assert {(r["outcome"], r["rtt"], r["errno"]) for r in found} == {("refused", 0, 111)}


def test_limits_are_refused() -> None:
    p = pinger(lab=False)
    here = packed("127.0.0.1")
    with pytest.raises(ValueError, match="the minimum is 10 s"):
        p.add(here, 80, TCP, interval=10 * SECOND - 1)
    with pytest.raises(ValueError, match="the maximum is 65536"):
        p.add(here, 80, ECHO, payload=65537)
    p.add(here, 80, TCP)
    with pytest.raises(ValueError, match="duplicate peer"):
        p.add(here, 80, TCP)
    for port in range(81, 100):
        p.add(here, port, TCP)
    with pytest.raises(ValueError, match="one address"):
        p.add(here, 100, TCP)
    for i in range(19980):
        p.add((10 << 24 | i).to_bytes(4, "big"), 80, TCP)
    with pytest.raises(ValueError, match="2000 probes a second"):
        p.add(packed("10.255.0.1"), 80, TCP)
    assert p.peers == 20000
    p.clear()
    assert (p.peers, p.active, p.rate) == (0, False, 0.0)


def test_run_returns_in_time_and_when_it_is_stopped() -> None:
    p = pinger()
    block = Staging(SCHEMA.layout, 16)
    begun = time.monotonic_ns()
    assert p.run(block, begun + 50 * MS) == 0
    assert time.monotonic_ns() - begun >= 50 * MS
    p.stop()
    assert p.run(block, time.monotonic_ns() + 100 * SECOND) == 0  # it would take too long otherwise


@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_connection_that_was_ended_at_once_was_open(how: str) -> None:
    """Who accepts and hangs up has answered, whether we look before or after."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        p = pinger()
        p.add(packed("127.0.0.1"), server.getsockname()[1], TCP, interval=0, count=20)
        p.add(packed("127.0.0.1"), server.getsockname()[1], ECHO, interval=0, count=20, payload=10)
        block = Staging(SCHEMA.layout, 100)
        while p.inflight < 40:
            p.run(block, 0)
        for _ in range(40):
            connection, _ = server.accept()
            if how == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        found = probe(p)
    assert {(r["outcome"], r["rtt"] > 0) for r in found if r["kind"] == "tcp"} == {("ok", True)}
    assert {(r["outcome"], r["rtt"]) for r in found if r["kind"] == "echo"} == {("reset", 0)}
    assert len(found) == 40
