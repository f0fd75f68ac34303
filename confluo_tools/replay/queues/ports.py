"""A network as output ports, and the routes of flows through them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from confluo_tools.network.hardware import LinkSpeed
from confluo_tools.network.topology import Topology

HOST = 0xFFFFFFFF  # switch of a host's port
_MASK = (1 << 64) - 1


class PortColumns(NamedTuple):
    """Of the switches: bytes of ``buffer``, ``alpha`` in 1/1024.  Of the ports: ``switch_of``, ``ps_per_byte``,
    ``delay`` (ps).
    """

    buffer: array[int]
    alpha: array[int]
    switch_of: array[int]
    ps_per_byte: array[int]
    delay: array[int]


class PortMap:
    """Each direction of a link is an output port of the node it leaves: those of hosts first, then switch by switch.

    ``ends[port]`` is (from, to); ``number`` {(from, to): port}.  ``switches`` are in the order of their numbers in the
    engine.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.switches = topology.switches
        self.ends: list[tuple[int, int]] = sorted(topology.tor_of.items())
        self._first_of_switches = len(self.ends)
        below: dict[int, list[int]] = {}
        for host, tor in self.ends:
            below.setdefault(tor, []).append(host)
        for switch in self.switches:
            self.ends += [(switch, to) for to in (*topology.neighbours[switch], *below.get(switch, ()))]
        self.number = {ends: port for port, ends in enumerate(self.ends)}
        self._onward: dict[tuple[int, int], list[int]] = {}

    def columns(self) -> PortColumns:
        """What `QueueEngine` takes of the switches and ports."""
        hardware = self.topology.hardware
        buffers = [hardware.buffers.get(n, hardware.buffer) for n in self.switches]
        at = {n: i for i, n in enumerate(self.switches)}
        links = [self.link(*ends) for ends in self.ends]
        return PortColumns(
            array("Q", [b.size for b in buffers]),
            array("I", [b.alpha for b in buffers]),
            array("I", [at.get(a, HOST) for a, _ in self.ends]),
            array("I", [max(1, 8 * 10**12 // link.speed) for link in links]),
            array("q", [link.delay * 1000 for link in links]),
        )

    def link(self, a: int, b: int) -> LinkSpeed:
        """Speed and delay of the link from ``a`` to ``b``."""
        hardware, hosts = self.topology.hardware, self.topology.tor_of
        return hardware.links.get((a, b)) or (hardware.server_link if a in hosts or b in hosts else hardware.link)

    def route(self, src: int, dst: int, flow: int) -> list[int] | None:
        """The ports from one host to another: at each switch, one of the shortest ways by a hash of ``flow`` (ECMP).

        None: a host is not in the network, or there is no way.
        """
        topology = self.topology
        tor, last = topology.tor_of.get(src), topology.tor_of.get(dst)
        if tor is None or last is None or src == dst:
            return None
        ports, here = [self.number[src, tor]], tor
        while here != last:
            ways = self._ways(here, last)
            if not ways:
                return None
            to = ways[_mix(flow ^ here * 0x9E3779B97F4A7C15) % len(ways)]
            ports.append(self.number[here, to])
            here = to
        ports.append(self.number[last, dst])
        return ports

    def _ways(self, here: int, last: int) -> list[int]:
        found = self._onward.get((here, last))
        if found is None:
            far = self.topology.distances(last)
            left = far.get(here, 0) - 1
            found = self._onward[here, last] = [b for b in self.topology.neighbours[here] if far.get(b, -2) == left]
        return found

    def along(self, src: int, path: Sequence[int], dst: int) -> list[int] | None:
        """The ports along the switches of a path; None if two of them have no link."""
        nodes = [src, *path, dst]
        ports = [self.number.get((a, b)) for a, b in pairwise(nodes)]
        return None if None in ports else [port for port in ports if port is not None]


def _mix(value: int) -> int:
    # splitmix64
    z = (value + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK
    return z ^ z >> 31
