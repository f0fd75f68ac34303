"""A fleet of servers as Pingmesh sees it: server, pod (the servers of one ToR), podset (pods that share leaf
switches), data centre; services that run on some of the servers, and virtual addresses in front of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

PORT = 8765  # of a responder, unless told otherwise
NAME_BYTES = 32  # of a server, as the schema has it
PLACE_BYTES = 16  # of a pod, podset, data centre
MOST_SERVERS = 1 << 20
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # names become names of files and parts of addresses of the web


@dataclass(frozen=True, slots=True)
class Server:
    """``address``: canonical text; ``port``: its responder's; ``active``: if not, it keeps its position, unprobed."""

    name: str
    address: str
    port: int
    pod: str
    podset: str
    dc: str
    active: bool = True

    @property
    def place(self) -> tuple[str, str, str]:
        """Its pod, podset and data centre."""
        return self.pod, self.podset, self.dc


@dataclass(frozen=True)
class Fleet:
    """``servers`` in the order of the file; ``pods`` {pod: its servers, by position}; ``podset_of`` {pod: podset};
    ``dc_of`` {podset: data centre}; ``services`` {service: names of servers}; ``vips`` {name: (address, port)}.

    Made by `make_fleet` or `make_grid`, which see to it that names and addresses are there once.
    """

    servers: tuple[Server, ...]
    pods: Mapping[str, tuple[Server, ...]]
    podset_of: Mapping[str, str]
    dc_of: Mapping[str, str]
    services: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vips: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_named", {s.name: s for s in self.servers})
        object.__setattr__(self, "_at", {s.address: s for s in self.servers})

    _named: dict[str, Server] = field(init=False, repr=False, compare=False)
    _at: dict[str, Server] = field(init=False, repr=False, compare=False)

    def server(self, name: str) -> Server:
        """The server of that name.  Raises KeyError."""
        return self._named[name]

    def at(self, address: str) -> Server | None:
        """The server with that address (canonical text)."""
        return self._at.get(address)

    def __contains__(self, name: object) -> bool:
        return name in self._named

    @property
    def podsets(self) -> dict[str, tuple[str, ...]]:
        """{podset: its pods}."""
        return _turned(self.podset_of)

    @property
    def dcs(self) -> dict[str, tuple[str, ...]]:
        """{data centre: its podsets}."""
        return _turned(self.dc_of)

    def services_of(self) -> dict[str, tuple[str, ...]]:
        """{server: the services that run on it}; servers without any are not there."""
        found: dict[str, list[str]] = {}
        for service, names in self.services.items():
            for name in names:
                found.setdefault(name, []).append(service)
        return {name: tuple(services) for name, services in found.items()}


def _turned(of: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for low, high in of.items():
        found.setdefault(high, []).append(low)
    return {high: tuple(lows) for high, lows in found.items()}


def make_fleet(
    servers: Iterable[Server], services: Mapping[str, Iterable[str]] | None = None,
    vips: Mapping[str, tuple[str, int]] | None = None,
) -> Fleet:  # fmt: skip
    """The fleet of these servers; services may name servers, pods, podsets and data centres.

    Raises ValueError, in words for a user, for names or addresses that are there twice, a pod in two podsets, a
    service of servers that nobody knows.
    """
    its = tuple(servers)
    if not its:
        raise ValueError("has no servers")
    if len(its) > MOST_SERVERS:
        raise ValueError(f"has more than {MOST_SERVERS} servers")
    pods: dict[str, list[Server]] = {}
    podset_of: dict[str, str] = {}
    dc_of: dict[str, str] = {}
    names: dict[str, str] = {}  # what each name is
    at: dict[str, str] = {}
    for s in its:
        for name, what in ((s.name, "server"), (s.pod, "pod"), (s.podset, "podset"), (s.dc, "data centre")):
            if names.get(name) != what or what == "server":
                _new(names, name, what)
        if podset_of.setdefault(s.pod, s.podset) != s.podset:
            raise ValueError(f"pod '{s.pod}' is in podsets '{podset_of[s.pod]}' and '{s.podset}'")
        if dc_of.setdefault(s.podset, s.dc) != s.dc:
            raise ValueError(f"podset '{s.podset}' is in data centres '{dc_of[s.podset]}' and '{s.dc}'")
        if at.setdefault(s.address, s.name) != s.name:
            raise ValueError(f"servers '{at[s.address]}' and '{s.name}' have the same address {s.address}")
        if not 1 <= s.port <= 65535:
            raise ValueError(f"server '{s.name}' has port {s.port}, which is none")
        pods.setdefault(s.pod, []).append(s)
    virtual = dict(vips or {})
    if len(set(virtual.values())) < len(virtual):
        raise ValueError("two vips have the same address and port")
    for name, (address, port) in virtual.items():
        _new(names, name, "vip")
        if address in at:
            raise ValueError(f"vip '{name}' has the address of server '{at[address]}', {address}")
        if not 1 <= port <= 65535:
            raise ValueError(f"vip '{name}' has port {port}, which is none")
    fleet = Fleet(its, {pod: tuple(of) for pod, of in pods.items()}, podset_of, dc_of, {}, virtual)
    known = {}
    for service, members in (services or {}).items():
        _check(service, "service")
        found: dict[str, None] = {}
        for member in members:
            for name in _members(fleet, names.get(member), member):
                found[name] = None
            if names.get(member) in (None, "vip"):
                raise ValueError(f"service '{service}' has '{member}', which is no server, pod, podset or data centre")
        if not found:
            raise ValueError(f"service '{service}' has no servers")
        known[service] = tuple(found)
    return Fleet(its, fleet.pods, podset_of, dc_of, known, virtual)


def _members(fleet: Fleet, what: str | None, name: str) -> Iterator[str]:
    if what == "server":
        yield name
    elif what == "pod":
        yield from (s.name for s in fleet.pods[name])
    elif what in ("podset", "data centre"):
        yield from (s.name for s in fleet.servers if name in (s.podset, s.dc))


def _new(names: dict[str, str], name: str, what: str) -> None:
    _check(name, what)
    if name in names:
        of = f"a {names[name]} and a {what}" if names[name] != what else f"two {what}s"
        raise ValueError(f"'{name}' is the name of {of}")
    names[name] = what


def _check(name: str, what: str) -> None:
    most = NAME_BYTES if what in ("server", "service", "vip") else PLACE_BYTES
    if not WORD.fullmatch(name) or len(name) > most:
        raise ValueError(f"'{name[:60]}' is no name of a {what}: up to {most} letters, digits, '.', '_' and '-'")
    if name.endswith(".sig"):  # the controller keeps signatures under such names
        raise ValueError(f"'{name}' is no name of a {what}: it ends with .sig")


def make_grid(dcs: int, podsets: int, pods: int, servers: int, port: int = PORT) -> Fleet:
    """The regular fleet: ``podsets`` of each data centre, ``pods`` of each podset, ``servers`` of each pod.

    Names are dc1, ps01, p001, p001s01, counted through; addresses 10.x.  Raises ValueError when it is too large.
    """
    if min(dcs, podsets, pods, servers) < 1 or dcs * podsets * pods * servers > MOST_SERVERS:
        raise ValueError(f"a grid has from 1 to {MOST_SERVERS} servers")
    pod_of: dict[str, tuple[Server, ...]] = {}
    podset_of, dc_of = {}, {}
    sparse = servers <= 254 and dcs * podsets * pods < 1 << 16  # a pod's servers then have a /24
    width = max(2, len(str(servers)))
    n = 0
    for d in range(dcs):
        for s in range(d * podsets, (d + 1) * podsets):
            dc, podset = f"dc{d + 1}", f"ps{s + 1:02d}"
            dc_of[podset] = dc
            for p in range(s * pods, (s + 1) * pods):
                pod = f"p{p + 1:03d}"
                podset_of[pod] = podset
                first = (p << 8) + 1 if sparse else n + 1
                pod_of[pod] = tuple(
                    Server(f"{pod}s{i + 1:0{width}d}", _ten(first + i), port, pod, podset, dc) for i in range(servers)
                )
                n += servers
    return Fleet(tuple(s for its in pod_of.values() for s in its), pod_of, podset_of, dc_of)


def _ten(n: int) -> str:
    return f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"
