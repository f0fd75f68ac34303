"""What the tests of the Clos share: its modules, a fabric for a test module, and a traceroute in forty lines."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT

import netns

HERE = [str(ROOT / "examples" / "clos"), str(ROOT / "examples" / "lab")]
sys.path[:0] = HERE
try:
    import agents
    import clos
    import drops
    import load
    import net
    import proof
    import spaces
    from topology import Mistake
finally:
    for folder in HERE:
        sys.path.remove(folder)

SEED = "/proc/sys/net/ipv4/fib_multipath_hash_seed"  # since Linux 6.11
__all__ = ["FIVE", "Fabric", "Mistake", "agents", "clos", "drops", "load", "net", "proof", "spaces", "up"]

# The five kinds of directed link on which the sender can see a loss; the sixth, ToR to host, is outside the fabric.
FIVE = {
    "host-ToR": ("h1", "tor1"),
    "ToR-T1": ("tor1", "agg2"),
    "T1-T2": ("agg1", "core1"),
    "T2-T1": ("core1", "agg3"),
    "T1-ToR": ("agg3", "tor4"),
}

needs_root = pytest.mark.skipif(netns.missing() != "", reason=netns.missing())
needs_seed = pytest.mark.skipif(not os.path.exists(SEED), reason="multipath hashes without a seed")


class Fabric:
    """A Clos that is up, and the file that describes it."""

    def __init__(self, plan: clos.Clos, state: net.State, file: Path) -> None:
        self.plan, self.state, self.file = plan, state, file
        self._port = netns.PORTS

    def flows(self, count: int, size: int = 20_000, seed: int = 1, ip: int = 4) -> list[load.Flow]:
        """Flows with ports that no flow here had before: the kernel keeps those of ended ones for a minute."""
        self._port += count
        return load.choose(self.plan, count, size, seed, ip, self._port - count)

    def load(self, count: int, size: int = 20_000, seed: int = 1, ip: int = 4) -> list[load.Flow]:
        return load.run(self.state, self.flows(count, size, seed, ip))

    def set(self, node: str, key: str, value: str) -> None:
        with net.inside(self.state.space(node)):
            Path("/proc/sys/net", key).write_text(value)


@contextlib.contextmanager
def up(folder: Path, icmp: int = 0, **sizes: int) -> Iterator[Fabric]:
    file = folder / "clos.yaml"
    plan = clos.Clos(**sizes)
    state = spaces.up(plan, str(file), f"t{os.getpid()}{folder.name[-8:]}", icmp=icmp)
    try:
        file.write_text(clos.describe(plan))
        yield Fabric(plan, state, file)
    finally:
        net.down(state)


def ways(fabric: Fabric, flows: list[load.Flow]) -> dict[drops.Key, list[str]]:
    """Of both directions of all these flows, as nftables saw their packets."""
    keys = [key for flow in flows for key in (flow.key, flow.key[2:] + flow.key[:2])]
    return drops.ways(fabric.plan, drops.counts(fabric.state, fabric.plan), keys)


def wait_until(true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def probe(fabric: Fabric, flow: load.Flow, hops: int) -> dict[int, str]:
    """Who answers to TCP packets of this flow (IPv4) with TTL 1 to ``hops``, a wrong checksum, and the TTL as ID."""
    with net.inside(fabric.state.space(flow.source)):
        out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        back = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    found: dict[int, str] = {}
    with out, back:
        tcp = struct.pack(">HHIIBBHHH", flow.src_port, flow.dst_port, 1, 0, 0x50, 0x10, 1, 0xBAD, 0)
        for ttl in range(1, hops + 1):
            head = struct.pack(
                ">BBHHHBBH4s4s",
                0x45,
                0,
                40,
                ttl,
                0,
                ttl,
                6,
                0,
                socket.inet_aton(flow.src_ip),
                socket.inet_aton(flow.dst_ip),
            )
            out.sendto(head + tcp, (flow.dst_ip, 0))
        until = time.monotonic() + 10
        while len(found) < hops and (left := until - time.monotonic()) > 0:
            if not select.select([back], [], [], left)[0]:
                break
            packet, (source, _) = back.recvfrom(2048)
            quoted = packet[(packet[0] & 15) * 4 + 8 :]
            if packet[20] == 11 and quoted[20:24] == tcp[:4] and quoted[16:20] == socket.inet_aton(flow.dst_ip):
                found[quoted[5]] = source
    return found
