"""Probe graphs (Pingmesh, section 3.1): complete graphs of servers in a pod, of pods, of data centres.

A pinglist consists of parts that servers share: the servers of its pod; for its position in the pod, the servers of
that position in the other pods; the chosen servers of other data centres.  A part may contain the server itself, which
is left out when the list is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import ceil

from confluo_tools.network.fleet import Fleet, FleetServer

SECOND = 10**9
KINDS = ("tcp", "echo", "http", "https", "udp", "icmp")  # as the schema `probe` numbers them, from 1
LEVELS = ("pod", "dc", "wan", "vip", "adhoc")  # likewise
MIN_INTERVAL = 10 * SECOND  # between two probes of a pair; fixed
MAX_PAYLOAD = 64 << 10
MAX_TIMEOUT = 60 * SECOND
MAX_INTERVAL = 86_400 * SECOND  # ns between two probes of a peer
MAX_PEERS = 5000
MAX_RATE = 2000  # probes per second of an agent
MAX_TARGET_RATE = 2  # probes per second of an agent to one address
NO_PLACE = ("", "", "")  # unknown pod, podset and data centre

Part = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class PinglistPeer:
    """A target of a pinglist.  ``interval``, ``timeout``: ns; ``payload``: bytes."""

    name: str
    address: str
    port: int
    kind: str = "tcp"
    level: str = "adhoc"
    interval: int = 10 * SECOND
    timeout: int = 9 * SECOND
    payload: int = 0
    dscp: int = 0
    pod: str = ""
    podset: str = ""
    dc: str = ""


@dataclass(frozen=True, slots=True)
class Pinglist:
    """The list of a server.  ``version``: 64-bit hash of the content; ``token``: 64-bit token of UDP probes (0: none);
    ``place``: pod, podset and data centre of the server.
    """

    server: str
    version: int
    token: int = 0
    peers: tuple[PinglistPeer, ...] = ()
    place: tuple[str, str, str] = NO_PLACE


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """How targets are probed; a second one is for a second class of service (other ``dscp``, other ``port``)."""

    kind: str = "tcp"
    payload: int = 0
    dscp: int = 0
    port: int = 0  # 0: the server's


@dataclass(frozen=True, slots=True)
class PlanRules:
    """Rules of a plan.  ``graph``: mesh, ring or full; ``ring``: targets of a server in a ring; ``per_podset``: servers
    that probe other data centres; ``unequal``: wrap or skip, for pods of different sizes; ``max_rate``: probes per
    second of a server, above which its interval grows (0: no limit).
    """

    graph: str = "mesh"
    ring: int = 10
    per_podset: int = 2
    unequal: str = "wrap"
    probes: tuple[ProbeSpec, ...] = (ProbeSpec(),)
    interval: int = 10 * SECOND
    timeout: int = 9 * SECOND
    max_peers: int = MAX_PEERS
    max_rate: float = 0.0
    lab: bool = False  # no limits on rates


@dataclass
class PingmeshPlan:
    """The pinglists of a fleet, made on demand.  Memory grows with the number of servers, not of pairs."""

    fleet: Fleet
    rules: PlanRules = field(default_factory=PlanRules)
    token: int = 0

    def __post_init__(self) -> None:
        fleet = self.fleet
        self._pods: dict[str, list[str]] = {}  # by data centre
        for pod, podset in fleet.podset_of.items():
            self._pods.setdefault(fleet.dc_of[podset], []).append(pod)
        self._position = {s.name: i for its in fleet.pods.values() for i, s in enumerate(its)}
        self._chosen: dict[str, list[FleetServer]] = {}  # by data centre: servers that probe others
        wanted = self.rules.per_podset if len(self._pods) > 1 or fleet.vips else 0
        of: dict[str, list[FleetServer]] = {}
        for s in fleet.servers:
            if s.active and wanted:
                of.setdefault(s.podset, []).append(s)
        for podset, its in of.items():
            its.sort(key=lambda s: rank(s.name))
            self._chosen.setdefault(fleet.dc_of[podset], []).extend(its[:wanted])
        self._chosen_names = {s.name for its in self._chosen.values() for s in its}
        self._counts: dict[Part, int] = {}  # peers of a part, without the server itself
        self._ring: list[FleetServer] = []
        self._place: dict[str, int] = {}
        if self.rules.graph == "ring":
            self._ring = sorted((s for s in fleet.servers if s.active), key=lambda s: rank(s.name))
            self._place = {s.name: i for i, s in enumerate(self._ring)}

    def parts(self, server: FleetServer) -> tuple[Part, ...]:
        """The parts of its list; a part has the same content for all servers."""
        if not server.active:
            return ()
        found: list[Part] = []
        if self.rules.graph == "ring":
            found.append(("ring", server.name))
        elif self.rules.graph == "full":
            found.append(("full", server.pod))
        else:
            found.append(("pod", server.pod))
            if len(self._pods[server.dc]) > 1:
                found.append(("dc", server.dc, len(self.fleet.pods[server.pod]), self._position[server.name]))
            if server.name in self._chosen_names and len(self._pods) > 1:
                found.append(("wan", server.dc))
        if server.name in self._chosen_names and self.fleet.vips:
            found.append(("vip",))
        return tuple(found)

    def position(self, server: FleetServer) -> int:
        """Its index in its pod."""
        return self._position[server.name]

    def targets(self, part: Part) -> Iterator[tuple[FleetServer, str]]:
        """(server, level) of the active servers of a part.  VIPs are servers without a pod."""
        fleet = self.fleet
        if part[0] == "pod":
            yield from ((s, "pod") for s in fleet.pods[str(part[1])] if s.active)
        elif part[0] == "dc":
            size, position = int(part[2]), int(part[3])
            for pod in self._pods[str(part[1])]:
                its = fleet.pods[pod]
                yield from (
                    (its[i], "dc") for i in partners(size, len(its), position, self.rules.unequal) if its[i].active
                )
        elif part[0] == "wan":
            for dc, chosen in self._chosen.items():
                if dc != part[1]:
                    yield from ((s, "wan") for s in chosen)
        elif part[0] == "vip":
            for name, (address, port) in fleet.vips.items():
                yield FleetServer(name, address, port, "", "", ""), "vip"
        elif part[0] == "full":
            first = fleet.pods[str(part[1])][0]
            yield from ((s, _level(first, s)) for s in fleet.servers if s.active)
        else:
            me = fleet.server(str(part[1]))
            at, n = self._place[me.name], len(self._ring)
            for step in range(1, min(self.rules.ring, n - 1) + 1):
                s = self._ring[(at + step) % n]
                yield s, _level(me, s)

    def rows(self, part: Part, interval: int) -> list[PinglistPeer]:
        """The targets of a part as peers, once for each kind of probe."""
        found = list(self.targets(part))
        return [
            PinglistPeer(
                s.name,
                s.address,
                p.port or s.port,
                p.kind,
                level,
                interval,
                self.rules.timeout,
                p.payload,
                p.dscp,
                *s.place,
            )
            for p in self.probes(part)
            for s, level in found
        ]

    def probes(self, part: Part) -> tuple[ProbeSpec, ...]:
        """How its targets are probed.  A VIP has a service, not a responder: only its own port is probed."""
        if part[0] != "vip":
            return self.rules.probes
        kinds = [ProbeSpec(p.kind if p.kind in ("http", "https") else "tcp", 0, p.dscp) for p in self.rules.probes]
        return tuple(dict.fromkeys(kinds))

    def peers(self, server: FleetServer) -> tuple[PinglistPeer, ...]:
        """The peers of a server."""
        interval = self.interval(self.count(server))
        return tuple(p for part in self.parts(server) for p in self.rows(part, interval) if p.name != server.name)

    def count(self, server: FleetServer) -> int:
        """The number of peers of a server."""
        found = 0
        for part in self.parts(server):
            if part not in self._counts:
                others = sum(1 for _ in self.targets(part)) - (part[0] in ("pod", "dc", "full"))
                self._counts[part] = others * len(self.probes(part))
            found += self._counts[part]
        return found

    def check(self) -> int:
        """The number of all pairs.  Raises ValueError if a limit is exceeded; its text is for users."""
        total, max_count, busiest = 0, -1, ""
        for s in self.fleet.servers:
            n = self.count(s)
            total += n
            if n > max_count:
                max_count, busiest = n, s.name
        r = self.rules
        if max_count > r.max_peers:
            raise ValueError(f"server '{busiest}' would have {max_count} peers, more than {r.max_peers}")
        probers = len(self._chosen_names) * len(self.probes(("vip",))) if self.fleet.vips else 0
        if probers > r.max_peers:
            raise ValueError(f"each VIP would be probed by {probers} servers, more than {r.max_peers}")
        if self.interval(max(max_count, 0)) > MAX_INTERVAL:
            raise ValueError(f"server '{busiest}' would probe each peer less than once a day")
        rate = max_count * SECOND / self.interval(max(max_count, 0))
        if rate > MAX_RATE and not r.lab:
            raise ValueError(f"server '{busiest}' would send {rate:.0f} probes per second, more than {MAX_RATE}")
        if len(r.probes) * SECOND > r.interval * MAX_TARGET_RATE and not r.lab:
            raise ValueError(f"each target would get {len(r.probes)} probes in {r.interval / SECOND:g} s")
        usual = {(p.kind, p.dscp) for p in r.probes if not p.port}
        for p in r.probes:
            same = next((s.name for s in self.fleet.servers if s.port == p.port and (p.kind, p.dscp) in usual), None)
            if same is not None:
                raise ValueError(f"'{same}' would be probed twice in the same way: its own port is {p.port}")
        return total

    def interval(self, probes: int) -> int:
        """Interval (ns) of a server with this many peers; longer than planned above ``max_rate``."""
        r = self.rules
        if not r.max_rate:
            return r.interval
        step = SECOND // 10
        return max(r.interval, ceil(probes * SECOND / r.max_rate / step - 1e-6) * step)

    def pinglist(self, server: FleetServer) -> Pinglist:
        peers = self.peers(server)
        version = version_of(server.name, self.token, peers, server.place)
        return Pinglist(server.name, version, self.token, peers, server.place)


def partners(mine: int, theirs: int, i: int, unequal: str = "wrap") -> Sequence[int]:
    """Positions in a pod of ``theirs`` servers that server ``i`` of a pod of ``mine`` servers probes.

    Server i probes server i.  For pods of different sizes, ``wrap`` wraps around in the smaller one, so that every
    server of the larger one is probed; ``skip`` leaves out servers without a partner.  The relation is symmetric.
    """
    if i < theirs and mine >= theirs:
        return (i,)
    if unequal == "skip":
        return (i,) if i < theirs else ()
    return range(i, theirs, mine) if mine < theirs else (i % theirs,)


def max_payload(kind: str) -> int:
    """Max payload bytes of a kind of probe: 64 KiB, or the size of a datagram."""
    return {"udp": 65507, "icmp": 65499}.get(kind, MAX_PAYLOAD)


def min_payload(kind: str) -> int:
    return 1 if kind == "echo" else 0


def rank(name: str) -> bytes:
    """A sort key: a pseudo-random order of names that a new name does not change."""
    return blake2b(name.encode(), digest_size=8).digest()


def version_of(server: str, token: int, peers: Iterable[PinglistPeer], place: tuple[str, str, str] = NO_PLACE) -> int:
    """A 64-bit hash of the content of a list; the order of peers does not matter."""
    hashes = [peer_hash(p) for p in peers]
    return version_from(server, token, len(hashes), sum(hashes), place)


def version_from(server: str, token: int, count: int, total: int, place: tuple[str, str, str] = NO_PLACE) -> int:
    """The same from the number of peers and the sum of their hashes."""
    text = f"{server}\n{token}\n{count}\n{total % (1 << 64)}\n" + ("/".join(place) + "\n" if any(place) else "")
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def peer_hash(p: PinglistPeer) -> int:
    words = (
        p.name,
        p.address,
        p.port,
        p.kind,
        p.level,
        p.interval,
        p.timeout,
        p.payload,
        p.dscp,
        p.pod,
        p.podset,
        p.dc,
    )
    return int.from_bytes(blake2b("\n".join(map(str, words)).encode(), digest_size=8).digest(), "big")


def _level(a: FleetServer, b: FleetServer) -> str:
    return "pod" if a.pod == b.pod else "dc" if a.dc == b.dc else "wan"
