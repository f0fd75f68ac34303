"""A fleet of servers, as Pingmesh needs it: servers, the services that run on them, virtual addresses (VIPs).

A server is in a pod (the servers below one ToR), a pod in a podset (pods that share T1 switches; the 007 paper calls
it a pod), a podset in a data centre.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from confluo_tools.network.topology import Clos

PORT = 8765  # default port of a responder
NAME_BYTES = 32  # of a server, as in the schema
PLACE_BYTES = 16  # of a pod, podset, data centre
MAX_SERVERS = 1 << 20
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # names become file names and parts of URLs


@dataclass(frozen=True, slots=True)
class FleetServer:
    """``address``: canonical text; ``port``: of its responder; ``active``: false: keeps its position, unprobed."""

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

    Use `make_fleet` or `make_grid`, which check that names and addresses are unique.
    """

    servers: tuple[FleetServer, ...]
    pods: Mapping[str, tuple[FleetServer, ...]]
    podset_of: Mapping[str, str]
    dc_of: Mapping[str, str]
    services: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vips: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_named", {s.name: s for s in self.servers})
        object.__setattr__(self, "_at", {s.address: s for s in self.servers})

    _named: dict[str, FleetServer] = field(init=False, repr=False, compare=False)
    _at: dict[str, FleetServer] = field(init=False, repr=False, compare=False)

    def server(self, name: str) -> FleetServer:
        """The server of that name.  Raises KeyError."""
        return self._named[name]

    def at(self, address: str) -> FleetServer | None:
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
        """{server: the services that run on it}; servers without services are left out."""
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


def check_places(servers: Iterable[FleetServer]) -> dict[str, str]:
    """{name: "server", "pod", "podset" or "data centre"}.

    Raises ValueError, with a message for the user, when a name occurs twice or a pod is in two podsets.
    """
    podset_of: dict[str, str] = {}
    dc_of: dict[str, str] = {}
    names: dict[str, str] = {}
    for s in servers:
        for name, what in ((s.name, "server"), (s.pod, "pod"), (s.podset, "podset"), (s.dc, "data centre")):
            if names.get(name) != what or what == "server":
                _new(names, name, what)
        if podset_of.setdefault(s.pod, s.podset) != s.podset:
            raise ValueError(f"pod '{s.pod}' is in podsets '{podset_of[s.pod]}' and '{s.podset}'")
        if dc_of.setdefault(s.podset, s.dc) != s.dc:
            raise ValueError(f"podset '{s.podset}' is in data centres '{dc_of[s.podset]}' and '{s.dc}'")
    return names


def make_fleet(
    servers: Iterable[FleetServer],
    services: Mapping[str, Iterable[str]] | None = None,
    vips: Mapping[str, tuple[str, int]] | None = None,
) -> Fleet:
    """The fleet of these servers; services may name servers, pods, podsets and data centres.

    Raises ValueError, with a message for the user, for names or addresses that occur twice, a pod in two podsets, a
    service with an unknown member.
    """
    its = tuple(servers)
    if not its:
        raise ValueError("has no servers")
    if len(its) > MAX_SERVERS:
        raise ValueError(f"has more than {MAX_SERVERS} servers")
    names = check_places(its)
    pods: dict[str, list[FleetServer]] = {}
    at: dict[str, str] = {}
    for s in its:
        if at.setdefault(s.address, s.name) != s.name:
            raise ValueError(f"servers '{at[s.address]}' and '{s.name}' have the same address {s.address}")
        if not 1 <= s.port <= 65535:
            raise ValueError(f"server '{s.name}' has the invalid port {s.port}")
        pods.setdefault(s.pod, []).append(s)
    podset_of = {s.pod: s.podset for s in its}
    dc_of = {s.podset: s.dc for s in its}
    virtual = dict(vips or {})
    if len(set(virtual.values())) < len(virtual):
        raise ValueError("two vips have the same address and port")
    for name, (address, port) in virtual.items():
        _new(names, name, "vip")
        if address in at:
            raise ValueError(f"vip '{name}' has the address of server '{at[address]}', {address}")
        if not 1 <= port <= 65535:
            raise ValueError(f"vip '{name}' has the invalid port {port}")
    fleet = Fleet(its, {pod: tuple(of) for pod, of in pods.items()}, podset_of, dc_of, {}, virtual)
    known = {}
    for service, members in (services or {}).items():
        _check(service, "service")
        found: dict[str, None] = {}
        for member in members:
            for name in _members(fleet, names.get(member), member):
                found[name] = None
            if names.get(member) in (None, "vip"):
                raise ValueError(
                    f"service '{service}' has '{member}', which is not a server, pod, podset or data centre"
                )
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
    max_bytes = NAME_BYTES if what in ("server", "service", "vip") else PLACE_BYTES
    if not WORD.fullmatch(name) or len(name) > max_bytes:
        raise ValueError(
            f"'{name[:60]}' is not a valid name of a {what}: up to {max_bytes} letters, digits, '.', '_' and '-'"
        )
    if name.endswith(".sig"):  # the controller keeps signatures under such names
        raise ValueError(f"'{name}' is not a valid name of a {what}: it ends with .sig")


def make_grid(dcs: int, podsets: int, pods: int, servers: int, port: int = PORT) -> Fleet:
    """The regular fleet: ``podsets`` of each data centre, ``pods`` of each podset, ``servers`` of each pod.

    Names are dc1, ps01, p001, p001s01, numbered consecutively; addresses are in 10.0.0.0/8.  Raises ValueError when it
    is too large.
    """
    if min(dcs, podsets, pods, servers) < 1 or dcs * podsets * pods * servers > MAX_SERVERS:
        raise ValueError(f"a grid has from 1 to {MAX_SERVERS} servers")
    pod_of: dict[str, tuple[FleetServer, ...]] = {}
    podset_of, dc_of = {}, {}
    width = max(2, len(str(servers)))
    all_pods = dcs * podsets * pods
    for d in range(dcs):
        for s in range(d * podsets, (d + 1) * podsets):
            dc, podset = f"dc{d + 1}", f"ps{s + 1:02d}"
            dc_of[podset] = dc
            for p in range(s * pods, (s + 1) * pods):
                pod = f"p{p + 1:03d}"
                podset_of[pod] = podset
                pod_of[pod] = tuple(
                    FleetServer(f"{pod}s{i + 1:0{width}d}", _address(p, i, all_pods, servers), port, pod, podset, dc)
                    for i in range(servers)
                )
    return Fleet(tuple(s for its in pod_of.values() for s in its), pod_of, podset_of, dc_of)


def clos_servers(clos: Clos, port: int = PORT) -> Iterator[FleetServer]:
    """The hosts of a `Clos` as servers: the names of `make_clos`, addresses in 10.0.0.0/8 as those of a grid.

    Pod pod-1-2 is below tor-1-2, in podset-1 of dc1.
    """
    pods = clos.pods * clos.tors
    for p in range(pods):
        podset, tor = p // clos.tors + 1, p % clos.tors + 1
        place = f"pod-{podset}-{tor}", f"podset-{podset}", "dc1"
        for i in range(clos.hosts):
            yield FleetServer(f"host-{podset}-{tor}-{i + 1}", _address(p, i, pods, clos.hosts), port, *place)


def _address(pod: int, i: int, pods: int, servers: int) -> str:
    # Each pod has a /24 when it fits; otherwise addresses are consecutive.
    n = (pod << 8) + 1 + i if servers <= 254 and pods < 1 << 16 else pod * servers + 1 + i
    return f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"
