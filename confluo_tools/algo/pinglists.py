"""Who probes whom (Pingmesh, section 3.1): complete graphs of servers in a pod, of pods, of data centres.

A list is made of parts that servers share: the servers of its pod; for its position in the pod, the servers of that
position in the other pods; the chosen servers of other data centres.  A part may hold the server itself: nobody
probes itself, so it is left out when the list is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import ceil

from confluo_tools.algo.fleet import Fleet, Server

SECOND = 10**9
KINDS = ("tcp", "echo", "http", "https", "udp", "icmp")  # as the schema `probe` numbers them, from 1
LEVELS = ("pod", "dc", "wan", "vip", "adhoc")  # likewise
LEAST_INTERVAL = 10 * SECOND  # of a pair: compiled in
MOST_PAYLOAD = 64 << 10
MOST_TIMEOUT = 60 * SECOND
MOST_PEERS = 5000
MOST_RATE = 2000  # probes a second that an agent sends
TARGET_RATE = 2  # to one address
NOWHERE = ("", "", "")  # pod, podset and data centre of whom nobody has told

Part = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """A target.  ``interval``, ``timeout``: ns; ``payload``: bytes."""

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
    """``version``: of what it says, 64 bits; ``token``: what udp probes carry, 64 bits (0: none was agreed on);
    ``place``: pod, podset and data centre of the server itself.
    """

    server: str
    version: int
    token: int = 0
    peers: tuple[Peer, ...] = ()
    place: tuple[str, str, str] = NOWHERE


@dataclass(frozen=True, slots=True)
class Probe:
    """How a target is probed; a second one is a second class of service (another ``dscp``, another ``port``)."""

    kind: str = "tcp"
    payload: int = 0
    dscp: int = 0
    port: int = 0  # 0: the server's


@dataclass(frozen=True, slots=True)
class Rules:
    """``graph``: mesh, ring or full; ``ring``: targets of a server there; ``per_podset``: servers that probe other
    data centres; ``unequal``: what pods of different sizes do, wrap or skip; ``most_rate``: probes a second of a
    server, above which its interval grows (0: without limit).
    """

    graph: str = "mesh"
    ring: int = 10
    per_podset: int = 2
    unequal: str = "wrap"
    probes: tuple[Probe, ...] = (Probe(),)
    interval: int = 10 * SECOND
    timeout: int = 9 * SECOND
    most_peers: int = MOST_PEERS
    most_rate: float = 0.0
    lab: bool = False  # rates are not looked at


@dataclass
class Plan:
    """The lists of a fleet, made when asked for.  What is kept grows with the servers, not with the pairs."""

    fleet: Fleet
    rules: Rules = field(default_factory=Rules)
    token: int = 0

    def __post_init__(self) -> None:
        fleet = self.fleet
        self._pods: dict[str, list[str]] = {}  # of a data centre
        for pod, podset in fleet.podset_of.items():
            self._pods.setdefault(fleet.dc_of[podset], []).append(pod)
        self._position = {s.name: i for its in fleet.pods.values() for i, s in enumerate(its)}
        self._chosen: dict[str, list[Server]] = {}  # of a data centre: who speaks for it
        wanted = self.rules.per_podset if len(self._pods) > 1 or fleet.vips else 0
        of: dict[str, list[Server]] = {}
        for s in fleet.servers:
            if s.active and wanted:
                of.setdefault(s.podset, []).append(s)
        for podset, its in of.items():
            its.sort(key=lambda s: rank(s.name))
            self._chosen.setdefault(fleet.dc_of[podset], []).extend(its[:wanted])
        self._speaks = {s.name for its in self._chosen.values() for s in its}
        self._counts: dict[Part, int] = {}  # of a part, its reader left out
        self._circle: list[Server] = []
        self._place: dict[str, int] = {}
        if self.rules.graph == "ring":
            self._circle = sorted((s for s in fleet.servers if s.active), key=lambda s: rank(s.name))
            self._place = {s.name: i for i, s in enumerate(self._circle)}

    def parts(self, server: Server) -> tuple[Part, ...]:
        """The parts of its list; the same part says the same, whoever has it."""
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
            if server.name in self._speaks and len(self._pods) > 1:
                found.append(("wan", server.dc))
        if server.name in self._speaks and self.fleet.vips:
            found.append(("vip",))
        return tuple(found)

    def position(self, server: Server) -> int:
        """Its place in its pod, from 0."""
        return self._position[server.name]

    def targets(self, part: Part) -> Iterator[tuple[Server, str]]:
        """(server, level) of a part, those that are not active left out.  VIPs are servers without a pod."""
        fleet = self.fleet
        if part[0] == "pod":
            yield from ((s, "pod") for s in fleet.pods[str(part[1])] if s.active)
        elif part[0] == "dc":
            size, position = int(part[2]), int(part[3])
            for pod in self._pods[str(part[1])]:
                its = fleet.pods[pod]
                yield from ((its[i], "dc") for i in partners(size, len(its), position, self.rules.unequal)
                            if its[i].active)  # fmt: skip
        elif part[0] == "wan":
            for dc, chosen in self._chosen.items():
                if dc != part[1]:
                    yield from ((s, "wan") for s in chosen)
        elif part[0] == "vip":
            for name, (address, port) in fleet.vips.items():
                yield Server(name, address, port, "", "", ""), "vip"
        elif part[0] == "full":
            first = fleet.pods[str(part[1])][0]
            yield from ((s, _level(first, s)) for s in fleet.servers if s.active)
        else:
            me = fleet.server(str(part[1]))
            at, n = self._place[me.name], len(self._circle)
            for step in range(1, min(self.rules.ring, n - 1) + 1):
                s = self._circle[(at + step) % n]
                yield s, _level(me, s)

    def rows(self, part: Part, interval: int) -> list[Peer]:
        """The targets of a part as peers: as often as there are kinds of probes."""
        found = list(self.targets(part))
        return [
            Peer(s.name, s.address, p.port or s.port, p.kind, level, interval, self.rules.timeout, p.payload, p.dscp,
                 *s.place)
            for p in self.probes(part) for s, level in found
        ]  # fmt: skip

    def probes(self, part: Part) -> tuple[Probe, ...]:
        """How its targets are probed.  Behind a VIP is a service, no responder: connections to its own port only."""
        if part[0] != "vip":
            return self.rules.probes
        kinds = [Probe(p.kind if p.kind in ("http", "https") else "tcp", 0, p.dscp) for p in self.rules.probes]
        return tuple(dict.fromkeys(kinds))

    def peers(self, server: Server) -> tuple[Peer, ...]:
        """The targets of a server."""
        interval = self.interval(self.count(server))
        return tuple(p for part in self.parts(server) for p in self.rows(part, interval) if p.name != server.name)

    def count(self, server: Server) -> int:
        """How many peers a server has."""
        found = 0
        for part in self.parts(server):
            if part not in self._counts:
                others = sum(1 for _ in self.targets(part)) - (part[0] in ("pod", "dc", "full"))
                self._counts[part] = others * len(self.probes(part))
            found += self._counts[part]
        return found

    def check(self) -> int:
        """How many pairs there are in all.  Raises ValueError, in words for a user, when a cap is exceeded."""
        total, most, busiest = 0, -1, ""
        for s in self.fleet.servers:
            n = self.count(s)
            total += n
            if n > most:
                most, busiest = n, s.name
        r = self.rules
        if most > r.most_peers:
            raise ValueError(f"server '{busiest}' would have {most} peers, more than {r.most_peers}")
        speakers = len(self._speaks) * len(self.probes(("vip",))) if self.fleet.vips else 0
        if speakers > r.most_peers:
            raise ValueError(f"each vip would be probed by {speakers}, more than {r.most_peers}")
        rate = most * SECOND / self.interval(max(most, 0))
        if rate > MOST_RATE and not r.lab:
            raise ValueError(f"server '{busiest}' would send {rate:.0f} probes a second, more than {MOST_RATE}")
        if len(r.probes) * SECOND > r.interval * TARGET_RATE and not r.lab:
            raise ValueError(f"each target would get {len(r.probes)} probes in {r.interval / SECOND:g} s")
        usual = {(p.kind, p.dscp) for p in r.probes if not p.port}
        for p in r.probes:
            same = next((s.name for s in self.fleet.servers if s.port == p.port and (p.kind, p.dscp) in usual), None)
            if same is not None:
                raise ValueError(f"'{same}' would be probed twice alike: its port is {p.port} anyway")
        return total

    def interval(self, probes: int) -> int:
        """Between two probes of a pair when a server has so many: longer than asked for above ``most_rate`` (ns)."""
        r = self.rules
        if not r.most_rate:
            return r.interval
        step = SECOND // 10
        return max(r.interval, ceil(probes * SECOND / r.most_rate / step - 1e-6) * step)

    def pinglist(self, server: Server) -> Pinglist:
        peers = self.peers(server)
        version = version_of(server.name, self.token, peers, server.place)
        return Pinglist(server.name, version, self.token, peers, server.place)


def partners(mine: int, theirs: int, i: int, unequal: str = "wrap") -> Sequence[int]:
    """Positions in a pod of ``theirs`` servers that server ``i`` of a pod of ``mine`` probes.

    Server i probes server i.  Of pods of different sizes, ``wrap`` goes round in the smaller one, so that every
    server of the larger is probed; ``skip`` leaves those alone that have no partner.  Either way j is a partner of i
    when i is one of j.
    """
    if i < theirs and mine >= theirs:
        return (i,)
    if unequal == "skip":
        return (i,) if i < theirs else ()
    return range(i, theirs, mine) if mine < theirs else (i % theirs,)


def most_payload(kind: str) -> int:
    """Bytes that such a probe carries at most: 64 KiB, or what a datagram has room for."""
    return {"udp": 65507, "icmp": 65499}.get(kind, MOST_PAYLOAD)


def least_payload(kind: str) -> int:
    return 1 if kind == "echo" else 0


def rank(name: str) -> bytes:
    """An order of names that has nothing to do with them, and that a new one does not change."""
    return blake2b(name.encode(), digest_size=8).digest()


def version_of(server: str, token: int, peers: Iterable[Peer], place: tuple[str, str, str] = NOWHERE) -> int:
    """A number (64 bits) that is another one when the list says something else; the order of peers says nothing."""
    hashes = [peer_hash(p) for p in peers]
    return version_from(server, token, len(hashes), sum(hashes), place)


def version_from(server: str, token: int, count: int, total: int, place: tuple[str, str, str] = NOWHERE) -> int:
    """The same from the number of peers and the sum of their hashes, which parts of lists can share."""
    text = f"{server}\n{token}\n{count}\n{total % (1 << 64)}\n" + ("/".join(place) + "\n" if any(place) else "")
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def peer_hash(p: Peer) -> int:
    words = (p.name, p.address, p.port, p.kind, p.level, p.interval, p.timeout, p.payload, p.dscp, p.pod, p.podset,
             p.dc)  # fmt: skip
    return int.from_bytes(blake2b("\n".join(map(str, words)).encode(), digest_size=8).digest(), "big")


def _level(a: Server, b: Server) -> str:
    return "pod" if a.pod == b.pod else "dc" if a.dc == b.dc else "wan"
