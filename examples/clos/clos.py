"""Model of a Clos of switches and hosts: names, levels, links, addresses, topology file.  Creates no namespaces.

    2 pods of 2 ToR and 2 T1, 2 T2, 2 hosts per ToR (the paper's Figure 2, smaller):

            core1       core2              T2
           / / \\ \\     / / \\ \\
        agg1  agg2   agg3  agg4            T1   each to every T2
         | \\  / |     | \\  / |
        tor1  tor2   tor3  tor4            ToR  each to every T1 of its pod
        h1 h2 h3 h4  h5 h6 h7 h8
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

from topology import Mistake

MOST = 400  # namespaces
HOST, TOR, T1, T2 = range(4)
HOSTS4, LINKS4, SWITCHES4 = (int(IPv4Address(a)) for a in ("10.77.0.0", "10.78.0.0", "10.79.0.0"))
HOSTS6, LINKS6, SWITCHES6 = (int(IPv6Address(a)) for a in ("fd77::", "fd78::", "fd79::"))


@dataclass
class Node:
    """A switch or a host.  ``number``: from 1 on its level; ``pod`` from 1 (0: a T2 has none)."""

    name: str
    level: int
    number: int
    pod: int
    ip4: str = ""  # of a switch: its own address, on lo
    ip6: str = ""
    tor: str = ""  # of a host


@dataclass
class Link:
    """A link, both directions.  ``ends``: the lower node first; addresses of the ends: a /31 and a /127."""

    ends: tuple[str, str]
    ip4: tuple[str, str]
    ip6: tuple[str, str]
    number: int

    def mac(self, side: int) -> str:
        return f"02:77:00:{self.number >> 8:02x}:{self.number & 255:02x}:{side + 1:02x}"


@dataclass
class Clos:
    pods: int = 2
    tors: int = 2  # per pod
    t1s: int = 2  # per pod
    t2s: int = 2
    hosts: int = 2  # per ToR
    nodes: dict[str, Node] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = {"pods": self.pods, "tors": self.tors, "t1s": self.t1s, "t2s": self.t2s, "hosts": self.hosts}
        for what, count in sizes.items():
            if not 1 <= count <= 64:
                raise Mistake(f"{what}: {count}; 1 to 64 can be built")
        racks = self.pods * self.tors
        if self.t2s + self.pods * (self.tors + self.t1s) + racks * self.hosts > MOST or racks > 255:
            raise Mistake(f"that is more than {MOST} namespaces")
        for i in range(1, self.t2s + 1):
            self._switch("core", T2, i, 0)
        for i in range(1, self.pods * self.t1s + 1):
            self._switch("agg", T1, i, (i - 1) // self.t1s + 1)
        for i in range(1, racks + 1):
            self._switch("tor", TOR, i, (i - 1) // self.tors + 1)
            for k in range(self.hosts):
                h = Node(f"h{(i - 1) * self.hosts + k + 1}", HOST, (i - 1) * self.hosts + k + 1, 0, tor=f"tor{i}")
                h.pod = self.nodes[h.tor].pod
                # the ToR has the first address of the pair
                here4, here6 = HOSTS4 + (i << 8) + 2 * k, HOSTS6 + (i << 64) + 2 * k
                h.ip4, h.ip6 = str(IPv4Address(here4 + 1)), str(IPv6Address(here6 + 1))
                self.nodes[h.name] = h
                self._link(h.name, h.tor, (h.ip4, str(IPv4Address(here4))), (h.ip6, str(IPv6Address(here6))))
        for tor in self.level(TOR):
            for t1 in self.level(T1):
                if t1.pod == tor.pod:
                    self._fabric(tor.name, t1.name)
        for t1 in self.level(T1):
            for t2 in self.level(T2):
                self._fabric(t1.name, t2.name)

    def _switch(self, kind: str, level: int, number: int, pod: int) -> None:
        own = level << 8 | number
        node = Node(
            f"{kind}{number}", level, number, pod, str(IPv4Address(SWITCHES4 + own)), str(IPv6Address(SWITCHES6 + own))
        )
        self.nodes[node.name] = node

    def _fabric(self, low: str, high: str) -> None:
        at = 2 * len(self.links)
        pair4 = str(IPv4Address(LINKS4 + at)), str(IPv4Address(LINKS4 + at + 1))
        self._link(low, high, pair4, (str(IPv6Address(LINKS6 + at)), str(IPv6Address(LINKS6 + at + 1))))

    def _link(self, low: str, high: str, ip4: tuple[str, str], ip6: tuple[str, str]) -> None:
        self.links.append(Link((low, high), ip4, ip6, len(self.links)))

    def level(self, level: int) -> list[Node]:
        return [node for node in self.nodes.values() if node.level == level]

    def host_nodes(self) -> list[Node]:
        return self.level(HOST)

    def around(self, name: str) -> list[tuple[Node, Link, int]]:
        """(neighbour, link, index of the end ``name``) for each link of a node."""
        return [
            (self.nodes[link.ends[1 - side]], link, side)
            for link in self.links
            for side in (0, 1)
            if link.ends[side] == name
        ]

    def directed(self) -> list[tuple[str, str]]:
        """Every directed link: (from, to)."""
        return [pair for link in self.links for pair in (link.ends, (link.ends[1], link.ends[0]))]

    def owner(self) -> dict[str, str]:
        """Map each address to its node: own addresses, and addresses of link ends."""
        found = {address: node.name for node in self.nodes.values() for address in (node.ip4, node.ip6)}
        for link in self.links:
            for side, name in enumerate(link.ends):
                found[link.ip4[side]] = found[link.ip6[side]] = name
        return found


LEVELS = {TOR: "tor", T1: "t1", T2: "t2"}


def describe(plan: Clos) -> str:
    """The topology file, as confluo-vote, confluo-trace and confluo-pingmesh read it.

    A switch has its own address, which is its number in records, and an address on each link: it answers a
    traceroute from the address of the link on which the probe arrived.
    """
    addresses: dict[str, list[str]] = {}
    for address, name in plan.owner().items():
        addresses.setdefault(name, []).append(address)
    lines = [f"# {plan.pods} pods of {plan.tors} ToR and {plan.t1s} T1, {plan.t2s} T2, {plan.hosts} hosts a ToR"]
    lines += ["topology: 1", "switches:"]
    for node in plan.nodes.values():
        if node.level != HOST:
            its = ", ".join(f"'{address}'" for address in addresses[node.name])
            pod = f"pod: rack{node.number}, " if node.level == TOR else ""
            about = f"level: {LEVELS[node.level]}, {pod}number: {node.ip4}, addresses: [{its}]"
            lines.append(f"  {node.name}: {{{about}}}")
    pairs = [link.ends for link in plan.links if plan.nodes[link.ends[0]].level != HOST]
    lines += ["links:", *(f"- [{low}, {high}]" for low, high in pairs), "dcs:", "  lab:"]
    for podset in range(1, plan.pods + 1):
        lines.append(f"    podset{podset}:")
        for tor in plan.level(TOR):
            if tor.pod == podset:
                hosts = [host for host in plan.host_nodes() if host.tor == tor.name]
                its = ", ".join(f"{host.name}: {{address: {host.ip4}, addresses: ['{host.ip6}']}}" for host in hosts)
                lines.append(f"      rack{tor.number}: {{{its}}}")
    return "\n".join(lines) + "\n"
