"""Networks of switches: neighbours, levels, and the share of the flows on each link (007, sections 3-5).

Nodes are numbers, as in records of the schema `path`: 0 is an unknown node.  Links are directed: (from, to).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from confluo_tools.network.hardware import Hardware

HOST, TOR, T1, T2 = range(4)
PLAIN = 1 << 24  # numbers below it are not addresses
ZERO = PLAIN - 1  # replaces node 0 of a file, because in a path 0 is a hop that did not answer

MAX_CACHED = 1 << 20  # distances kept for the next query

Link = tuple[int, int]


@dataclass(frozen=True)
class Clos:
    """The network of 007: ``pods`` of ``tors`` ToRs and ``t1s`` T1s, fully meshed; each T1 linked to all ``t2s`` T2s.

    A pod of 007 is a podset of confluo-topology(5).  Numbers, from 1: ToRs pod by pod, then T1s pod by pod, then T2s;
    hosts from a power of ten above them.
    """

    pods: int
    tors: int
    t1s: int
    t2s: int
    hosts: int  # of a ToR

    @property
    def switches(self) -> int:
        return self.pods * (self.tors + self.t1s) + self.t2s

    @property
    def all_hosts(self) -> int:
        return self.pods * self.tors * self.hosts

    @property
    def links(self) -> int:
        """Directed links, those of hosts included."""
        return 2 * self.pods * (self.tors * self.hosts + self.tors * self.t1s + self.t1s * self.t2s)

    @property
    def first_host(self) -> int:
        first = 10000
        while first <= self.switches:
            first *= 10
        return first

    def tor(self, pod: int, i: int) -> int:
        """The i-th ToR (from 0) of a pod (from 0)."""
        return 1 + pod * self.tors + i

    def t1(self, pod: int, i: int) -> int:
        return 1 + self.pods * self.tors + pod * self.t1s + i

    def t2(self, i: int) -> int:
        return 1 + self.pods * (self.tors + self.t1s) + i

    def host(self, pod: int, tor: int, i: int) -> int:
        return self.first_host + (pod * self.tors + tor) * self.hosts + i

    def __str__(self) -> str:
        return f"{self.pods} pods of {self.tors} ToRs and {self.t1s} T1s, {self.t2s} T2s, {self.hosts} hosts at a ToR"


@dataclass
class Topology:
    """``names`` {number: name}; ``level`` {number: HOST, TOR, T1 or T2}; ``tor_of`` {host: its ToR};
    ``neighbours`` {switch: switches it has links with}; ``alias`` {number of an address: number of its node}.

    ``clos``: its parameters, if it was made from them.  ``hardware``: speeds, delays, buffers.
    """

    names: dict[int, str] = field(default_factory=dict)
    level: dict[int, int] = field(default_factory=dict)
    tor_of: dict[int, int] = field(default_factory=dict)
    neighbours: dict[int, tuple[int, ...]] = field(default_factory=dict)
    alias: dict[int, int] = field(default_factory=dict)
    clos: Clos | None = None
    hardware: Hardware = field(default_factory=Hardware)

    def __post_init__(self) -> None:
        self._distance: dict[int, dict[int, int]] = {}  # to a switch, from every switch
        self._next: dict[int, dict[int, list[int]]] = {}  # to a switch: where each switch on the way sends flows
        self._room = MAX_CACHED

    def node(self, number: int) -> int:
        """The node that has an address; the number itself when it is not an alias."""
        return self.alias.get(number, number)

    def name(self, number: int) -> str:
        """The node's name; without one, an address as such and other numbers in decimal."""
        found = self.names.get(number)
        if found is not None:
            return found
        if number < PLAIN:
            return str(number)
        return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))

    @property
    def tors(self) -> list[int]:
        return sorted(n for n, level in self.level.items() if level == TOR)

    @property
    def switches(self) -> list[int]:
        return sorted(self.neighbours)

    def hosts_at(self) -> dict[int, int]:
        """ToR -> number of its hosts."""
        count = dict.fromkeys(self.tors, 0)
        for tor in self.tor_of.values():
            count[tor] = count.get(tor, 0) + 1
        return count

    def links(self) -> list[Link]:
        """All directed links, those of hosts included."""
        found = [(a, b) for a, near in self.neighbours.items() for b in near]
        for host, tor in self.tor_of.items():
            found += [(host, tor), (tor, host)]
        return found

    def distances(self, to: int) -> dict[int, int]:
        """Number of links from each switch to ``to``; switches that cannot reach it are left out."""
        known = self._distance.get(to)
        if known is not None:
            return known
        far = {to: 0}
        edge = [to]
        while edge:
            edge = [
                b for a in edge for b in self.neighbours.get(a, ()) if b not in far and far.setdefault(b, far[a] + 1)
            ]
        self._room -= len(far)
        if self._room < 0:
            self._distance.clear()
            self._next.clear()
            self._room = MAX_CACHED - len(far)
        self._distance[to] = far
        self._next[to] = {}
        return far

    def on_the_way(self, src_tor: int, a: int, b: int, dst_tor: int) -> bool:
        """Whether the link from ``a`` to ``b`` is on a shortest path between two switches."""
        far = self.distances(dst_tor)
        whole, rest, before = far.get(src_tor), far.get(b), self.distances(a).get(src_tor)
        return whole is not None and rest is not None and before is not None and before + 1 + rest == whole

    def shares(self, src_tor: int, dst_tor: int) -> dict[Link, float]:
        """The share of the flows between two ToRs that uses each directed link between switches.

        Each switch spreads flows evenly over its neighbours on shortest paths (ECMP).  Empty without a path, and within
        one ToR.
        """
        return {(a, b): share / len(onward) for a, share, onward in self._spread(src_tor, dst_tor) for b in onward}

    def visits(self, src_tor: int, dst_tor: int) -> dict[int, float]:
        """The share of the flows between two ToRs that passes each switch, both ToRs included."""
        seen = {a: share for a, share, _ in self._spread(src_tor, dst_tor)}
        if seen or src_tor == dst_tor:
            seen[dst_tor] = 1.0
        return seen

    def _spread(self, src_tor: int, dst_tor: int) -> Iterator[tuple[int, float, list[int]]]:
        # Switch by switch from the source: its share of the flows, and where it sends them on.
        far = self.distances(dst_tor)
        if src_tor not in far:
            return
        known = self._next[dst_tor]
        here = {src_tor: 1.0}
        for left in range(far[src_tor], 0, -1):
            there: dict[int, float] = {}
            for a, share in here.items():
                onward = known.get(a)
                if onward is None:
                    onward = known[a] = [b for b in self.neighbours[a] if far.get(b) == left - 1]
                yield a, share, onward
                each = share / len(onward)
                for b in onward:
                    there[b] = there.get(b, 0.0) + each
            here = there

    def paths(self, src_tor: int, dst_tor: int) -> Iterator[tuple[int, ...]]:
        """All shortest paths between two ToRs, as switches from ``src_tor`` to ``dst_tor``."""
        far = self.distances(dst_tor)
        stack: list[tuple[int, ...]] = [(src_tor,)] if src_tor in far else []
        while stack:
            path = stack.pop()
            if path[-1] == dst_tor:
                yield path
            left = far[path[-1]]
            stack += [(*path, b) for b in reversed(self.neighbours.get(path[-1], ())) if far.get(b) == left - 1]


def make_clos(clos: Clos) -> Topology:
    """The network of these parameters, with names: tor-1-2 is the second ToR of the first pod, t1-1-2, t2-3 and
    host-1-2-40.
    """
    topology = Topology(clos=clos)
    names, level, near = topology.names, topology.level, topology.neighbours
    t2s = tuple(clos.t2(i) for i in range(clos.t2s))
    for pod in range(clos.pods):
        tors = tuple(clos.tor(pod, i) for i in range(clos.tors))
        t1s = tuple(clos.t1(pod, i) for i in range(clos.t1s))
        for i, tor in enumerate(tors):
            names[tor], level[tor], near[tor] = f"tor-{pod + 1}-{i + 1}", TOR, t1s
            for j in range(clos.hosts):
                host = clos.host(pod, i, j)
                names[host], level[host], topology.tor_of[host] = f"host-{pod + 1}-{i + 1}-{j + 1}", HOST, tor
        for i, t1 in enumerate(t1s):
            names[t1], level[t1], near[t1] = f"t1-{pod + 1}-{i + 1}", T1, (*tors, *t2s)
    t1s = tuple(clos.t1(pod, i) for pod in range(clos.pods) for i in range(clos.t1s))
    for i, t2 in enumerate(t2s):
        names[t2], level[t2], near[t2] = f"t2-{i + 1}", T2, t1s
    return topology


def make_topology(
    links: Iterable[Link],
    tor_of: Mapping[int, int],
    *,
    names: Mapping[int, str] | None = None,
    level: Mapping[int, int] | None = None,
    alias: Mapping[int, int] | None = None,
) -> Topology:
    """A network from its links between switches (both directions of each) and its hosts.

    Levels that are not given: a switch with hosts is a ToR, a switch next to a ToR a T1, any other a T2.
    """
    near: dict[int, dict[int, None]] = {tor: {} for tor in tor_of.values()}
    for a, b in links:
        near.setdefault(a, {})[b] = None
        near.setdefault(b, {})[a] = None
    levels = dict(level or {})
    tors = set(tor_of.values()) | {n for n, its in levels.items() if its == TOR}
    for n in near:
        levels.setdefault(n, TOR if n in tors else T1 if not tors.isdisjoint(near[n]) else T2)
    levels |= dict.fromkeys(tor_of, HOST)
    neighbours = {n: tuple(its) for n, its in near.items()}
    return Topology(dict(names or {}), levels, dict(tor_of), neighbours, dict(alias or {}))


def as_clos(topology: Topology) -> Clos | None:
    """The parameters of a network that is a `Clos`, whatever the names of its nodes; else None (leaf-spine too)."""
    if topology.clos is not None:
        return topology.clos
    level, near = topology.level, topology.neighbours
    tors, t1s, t2s = ({n for n in near if level.get(n) == its} for its in (TOR, T1, T2))
    hosts = set(topology.hosts_at().values())
    pods: dict[frozenset[int], set[int]] = {}  # T1s -> the ToRs that are joined to exactly these
    for tor in tors:
        pods.setdefault(frozenset(near[tor]), set()).add(tor)
    sizes = {(len(above), len(below)) for above, below in pods.items()}
    if not t2s or len(hosts) != 1 or len(sizes) != 1 or len(tors) + len(t1s) + len(t2s) != len(near):
        return None
    ((n1, n0),) = sizes
    if not n1 or len(t1s) != n1 * len(pods):
        return None
    for above, below in pods.items():
        if not above <= t1s or any(set(near[t1]) != below | t2s for t1 in above):
            return None
    if any(set(near[t2]) != t1s for t2 in t2s):
        return None
    return Clos(len(pods), n0, n1, len(t2s), hosts.pop())
