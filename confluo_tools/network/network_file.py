"""A topology file as it is written: switches, links and servers by name, and what they make together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from confluo_tools.errors import FormatError
from confluo_tools.network.fleet import PORT, Fleet, FleetServer, check_places, clos_servers, make_fleet, make_grid
from confluo_tools.network.hardware import BUFFER, LINK, Hardware, LinkSpeed, SwitchBuffer
from confluo_tools.network.node_numbers import NodeNumbers
from confluo_tools.network.topology import T1, T2, TOR, Clos, Link, Topology, make_clos, make_topology

VERSION = "1"
LEVELS = {"tor": TOR, "t1": T1, "t2": T2}
CLOS_KEYS = {"podsets": "pods", "tors": "tors", "t1s": "t1s", "t2s": "t2s", "servers": "hosts"}  # field of Clos
GRID_KEYS = ("dcs", "podsets", "pods", "servers")


@dataclass(slots=True)
class SwitchEntry:
    """A switch of a file: ``level`` (None: by its links), ``number`` in records, addresses of its traceroute answers;
    ``pod``: the servers below it, when it is a ToR; ``buffer`` of its packets.
    """

    level: int | None = None
    number: str | None = None
    addresses: tuple[str, ...] = ()
    pod: str | None = None
    buffer: SwitchBuffer | None = None


@dataclass(slots=True)
class NodeEntry:
    """What a file says of a server as a node: its ``number`` in records and further ``addresses``."""

    number: str | None = None
    addresses: tuple[str, ...] = ()


@dataclass
class NetworkFile:
    """A file as it is written: names and texts, checked one by one.  `topology` and `fleet` check the whole.

    Either ``clos``, ``grid`` or ``servers`` is given; ``nodes`` {name of a server: what else is known of it};
    ``services`` {service: names of servers, pods, podsets or data centres}.  ``link``, ``server_link``, ``buffer``: of
    links and switches without their own; ``link_speeds`` {(a, b): of this link}.
    """

    path: str
    clos: Clos | None = None
    grid: tuple[int, int, int, int] | None = None
    switches: dict[str, SwitchEntry] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    servers: list[FleetServer] = field(default_factory=list)
    nodes: dict[str, NodeEntry] = field(default_factory=dict)
    services: dict[str, list[str]] = field(default_factory=dict)
    vips: dict[str, tuple[str, int]] = field(default_factory=dict)
    port: int = PORT
    link: LinkSpeed = LINK
    server_link: LinkSpeed = LINK
    buffer: SwitchBuffer = BUFFER
    link_speeds: dict[tuple[str, str], LinkSpeed] = field(default_factory=dict)

    @property
    def has_links(self) -> bool:
        """Whether it says how switches are linked."""
        return self.clos is not None or bool(self.links) or any(s.pod is not None for s in self.switches.values())

    @property
    def has_addresses(self) -> bool:
        """Whether it has servers, and an address of each."""
        if self.clos is not None or self.grid is not None:
            return True
        return bool(self.servers) and all(s.address for s in self.servers)

    def fleet(self, command: str = "confluo-pingmesh") -> Fleet:
        """The servers.  Raises FormatError when there are none, or an address is missing; ``command`` needs them."""
        needs = f"{command} needs the servers of each pod ('dcs')"
        if self.clos is None and self.grid is None and not self.servers:
            if self.has_links:
                raise FormatError("has no servers", where=self.path, hint=needs)
            raise FormatError("has no servers", where=self.path)
        without = next((s.name for s in self.servers if not s.address), None)
        if without is not None:
            raise FormatError(f"server '{without}' has no address", where=self.path, hint=f"{command} needs one")
        try:
            if self.clos is not None:
                servers = list(clos_servers(self.clos, self.port))
            elif self.grid is not None:
                fleet = make_grid(*self.grid, self.port)
                if not self.services and not self.vips:
                    return fleet
                servers = list(fleet.servers)
            else:
                servers = self.servers
            return make_fleet(servers, self.services, self.vips)
        except ValueError as e:
            raise FormatError(str(e), where=self.path) from None

    def topology(self, command: str = "confluo-vote") -> Topology:
        """The graph of switches, and the ToR of each server.  Raises FormatError when it has no links."""
        if not self.has_links:
            hint = f"{command} needs switches and links ('clos', or 'switches' and 'links')"
            raise FormatError("has no links", where=self.path, hint=hint)
        numbers = NodeNumbers(self.path, {})
        if self.clos is not None:
            topology = make_clos(self.clos)
            known = {name: n for n, name in topology.names.items()}
            owner: dict[int, int] = {}
            for name, entry in self.switches.items():
                self._addresses(numbers, owner, known[name], entry.addresses)
            for server in clos_servers(self.clos, self.port):
                self._addresses(numbers, owner, known[server.name], (server.address,))
            topology.alias.update(owner)
            topology.hardware = self._hardware(known)
            return topology
        try:
            check_places(self.servers)
        except ValueError as e:
            raise FormatError(str(e), where=self.path) from None
        return self._graph(numbers)

    def _graph(self, numbers: NodeNumbers) -> Topology:
        level: dict[int, int] = {}
        owner: dict[int, int] = {}
        tor_at: dict[str, int] = {}
        for name, wanted in self._given_numbers():
            numbers.add(name, wanted)
        for name, switch in self.switches.items():
            number = numbers.add(name, switch.number)
            if switch.pod is not None:
                tor_at[switch.pod] = number
            if switch.level is not None:
                level[number] = switch.level
        links: list[Link] = [(numbers.add(a), numbers.add(b)) for a, b in self.links]
        switches = {*self.switches, *(name for link in self.links for name in link)}
        tor_of: dict[int, int] = {}
        for server in self.servers:
            if server.name in switches:
                what = f"'{server.name}' is a switch and a server"
                raise FormatError(what, where=self.path, hint="links join switches; a server is in the pod of its ToR")
            node = self.nodes.get(server.name, NodeEntry())
            number = numbers.add(server.name, node.number or server.address)
            if server.pod in tor_at:
                tor_of[number] = tor_at[server.pod]
            self._addresses(numbers, owner, number, (*((server.address,) if server.address else ()), *node.addresses))
        for name, switch in self.switches.items():
            self._addresses(numbers, owner, numbers.known[name], switch.addresses)
        alias = {address: number for address, number in owner.items() if address != number}
        topology = make_topology(links, tor_of, names=numbers.names, level=level, alias=alias)
        topology.hardware = self._hardware(numbers.known)
        return topology

    def _hardware(self, number: Mapping[str, int]) -> Hardware:
        buffers = {number[name]: s.buffer for name, s in self.switches.items() if s.buffer is not None}
        links: dict[Link, LinkSpeed] = {}
        for (a, b), speed in self.link_speeds.items():
            links[number[a], number[b]] = links[number[b], number[a]] = speed
        return Hardware(self.link, self.server_link, self.buffer, links, buffers)

    def _given_numbers(self) -> Iterator[tuple[str, str]]:
        # They come first: the free numbers are those that no node has been given.
        for name, switch in self.switches.items():
            if switch.number is not None:
                yield name, switch.number
        for name, node in self.nodes.items():
            if node.number is not None and name not in self.switches:
                yield name, node.number

    def _addresses(self, numbers: NodeNumbers, owner: dict[int, int], number: int, addresses: tuple[str, ...]) -> None:
        for text in addresses:
            address = numbers.address(text)
            if owner.setdefault(address, number) != number:
                raise FormatError(f"two nodes have the address {text}", where=self.path)
