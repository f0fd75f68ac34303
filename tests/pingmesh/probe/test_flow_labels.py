"""Flow labels of IPv6 while SYNs and their answers are sent again, as they pass the wire of two namespaces."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import netns
from confluo_tools.core.pingmesh.echo_prober import labels_change
from confluo_tools.pingmesh.probe.responder import ListenAddress, Responder
from netns import Lab, Space
from ping_lab import SYN, SYN_ACK, TCP, lose, packed, pinger, probe

MS = 1_000_000
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(netns.missing()), reason=netns.missing() or "-")]


@pytest.fixture
def six() -> Iterator[tuple[Space, Space]]:
    """Two namespaces fd00::1 and fd00::2."""
    with Lab() as lab:
        a, b = lab.pair()
        for i, space in enumerate((a, b), 1):
            space.run("sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/v0/disable_ipv6")
            space.ip("addr", "add", f"fd00::{i}/64", "dev", "v0", "nodad")
        for i, (space, other) in enumerate(((b, a), (a, b)), 1):
            mac = other.run("cat", "/sys/class/net/v0/address").stdout.decode().strip()
            space.ip("neigh", "replace", f"fd00::{i}", "lladdr", mac, "dev", "v0", "nud", "permanent")
        yield a, b


class Wire:
    """Labels of SYNs and of SYN-ACKs, by the prober's port, as they come into the space."""

    def __init__(self) -> None:
        self.labels: dict[tuple[int, int], list[int]] = defaultdict(list)  # (flags, the prober's port)
        self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x86DD))
        self._sock.bind(("v0", 0x86DD))
        self._sock.settimeout(0.05)
        self._over = False
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._over:
            try:
                data, place = self._sock.recvfrom(2048)
            except TimeoutError:
                continue
            if place[2] == socket.PACKET_HOST and data[6] == 6:
                sport, dport = struct.unpack_from("!HH", data, 40)
                flags = data[53] & 0x12
                if flags & 2:
                    self.labels[flags, sport if flags == 2 else dport].append(int.from_bytes(data[1:4]) & 0xFFFFF)

    def close(self) -> None:
        time.sleep(0.2)
        self._over = True
        self._thread.join()
        self._sock.close()


@contextmanager
def watched(space: Space) -> Iterator[Wire]:
    with space.inside():
        wire = Wire()
    try:
        yield wire
    finally:
        wire.close()


@pytest.mark.parametrize("linear", [0, 4])
def test_a_retry_keeps_its_label(six: tuple[Space, Space], linear: int) -> None:
    a, b = six
    a.run("sysctl", "-qw", f"net.ipv4.tcp_syn_linear_timeouts={linear}")
    lose(b, f"in: {SYN} update @lost {{ tcp sport limit rate 1/day burst 2 packets }} drop")
    with b.inside():
        responder = Responder([ListenAddress("fd00::2", 0)], udp=False)
    with responder, watched(b) as wire, a.inside():
        p = pinger()
        p.add(packed("fd00::2"), responder.port, TCP, interval=MS, count=20)
        found = probe(p)
        assert not labels_change()
    assert [(r["outcome"], r["retries"], r["notes"]) for r in found] == [("ok", 2, {"lab"})] * 20
    assert {tuple(labels) for labels in wire.labels.values()} == {(0, 0, 0)}
    assert {port for _, port in wire.labels} == {r["src_port"] for r in found}


def test_an_answer_that_is_sent_again_keeps_its_label(six: tuple[Space, Space]) -> None:
    """It is lost when it arrives, so that it is seen on the wire before."""
    a, b = six
    lose(a, f"in: {SYN_ACK} update @lost {{ tcp dport limit rate 1/day burst 1 packets }} drop")
    with b.inside():
        responder = Responder([ListenAddress("fd00::2", 0)], udp=False)
    with responder, watched(a) as wire, a.inside():
        p = pinger()
        p.add(packed("fd00::2"), responder.port, TCP, interval=MS, count=20)
        found = probe(p)
    assert [(r["outcome"], r["retries"] > 0, r["notes"]) for r in found] == [("ok", True, {"lab"})] * 20
    assert all(len(labels) > 1 for labels in wire.labels.values())
    assert {label for labels in wire.labels.values() for label in labels} == {0}


def test_where_labels_are_forced_it_is_noted(six: tuple[Space, Space]) -> None:
    a, b = six
    a.run("sysctl", "-qw", "net.ipv6.auto_flowlabels=3")
    lose(b, f"in: {SYN} update @lost {{ tcp sport limit rate 1/day burst 1 packets }} drop")
    with b.inside():
        responder = Responder([ListenAddress("fd00::2", 0)], udp=False)
    with responder, watched(b) as wire, a.inside():
        assert labels_change()
        p = pinger()
        p.add(packed("fd00::2"), responder.port, TCP, interval=MS, count=20)
        found = probe(p)
    assert [(r["outcome"], r["retries"], r["notes"]) for r in found] == [("ok", 1, {"lab", "relabel"})] * 20
    assert any(len(set(labels)) > 1 for labels in wire.labels.values())
