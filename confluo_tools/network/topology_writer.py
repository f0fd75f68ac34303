"""Write topology files of the current format, and make one of an older file or of two.  Manual: confluo-topology(5)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from confluo_tools import units
from confluo_tools.errors import FormatError
from confluo_tools.network.addresses import canonical
from confluo_tools.network.fleet import NAME_BYTES, PLACE_BYTES, PORT, WORD, FleetServer
from confluo_tools.network.hardware_file import buffer_text, hardware_lines, link_text
from confluo_tools.network.network_file import (
    CLOS_KEYS,
    GRID_KEYS,
    LEVELS,
    VERSION,
    NetworkFile,
    NodeEntry,
    SwitchEntry,
)
from confluo_tools.network.node_numbers import read_number
from confluo_tools.network.topology import PLAIN, T1, TOR, Topology

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]*")  # YAML takes it as it is, in a flow mapping too
_LEVEL_NAMES = {level: name for name, level in LEVELS.items()}


def text_of(file: NetworkFile) -> str:
    """The file as text: YAML that begins with 'topology: 1'."""
    return "\n".join(_lines(file)) + "\n"


def _lines(file: NetworkFile) -> Iterator[str]:
    yield f"topology: {VERSION}"
    if file.port != PORT:
        yield f"port: {file.port}"
    yield from hardware_lines(file)
    if file.clos is not None:
        yield f"clos: {{{', '.join(f'{key}: {getattr(file.clos, f)}' for key, f in CLOS_KEYS.items())}}}"
    if file.grid is not None:
        yield f"grid: {{{', '.join(f'{key}: {n}' for key, n in zip(GRID_KEYS, file.grid, strict=True))}}}"
    if file.switches:
        yield "switches:"
        yield from (f"  {_word(name)}: {_switch(switch)}" for name, switch in file.switches.items())
    if file.links:
        yield "links:"
        yield from (f"- [{_word(a)}, {_word(b)}{_speed(file, a, b)}]" for a, b in file.links)
    if file.servers:
        yield "dcs:"
        yield from _servers(file)
    if file.services:
        yield "services:"
        yield from (f"  {_word(name)}: {_list(members)}" for name, members in file.services.items())
    if file.vips:
        yield "vips:"
        yield from (f"  {_word(name)}: {_word(_host_port(*where))}" for name, where in file.vips.items())


def _servers(file: NetworkFile) -> Iterator[str]:
    tree: dict[str, dict[str, dict[str, list[FleetServer]]]] = {}
    for server in file.servers:
        tree.setdefault(server.dc, {}).setdefault(server.podset, {}).setdefault(server.pod, []).append(server)
    for dc, podsets in tree.items():
        yield f"  {_word(dc)}:"
        for podset, pods in podsets.items():
            yield f"    {_word(podset)}:"
            for pod, servers in pods.items():
                yield f"      {_word(pod)}:"
                yield from (f"        {_word(s.name)}: {_server(file, s)}" for s in servers)


def _server(file: NetworkFile, server: FleetServer) -> str:
    node = file.nodes.get(server.name, NodeEntry())
    parts = [f"address: {_word(server.address)}"] if server.address else []
    if server.port != file.port:
        parts.append(f"port: {server.port}")
    if not server.active:
        parts.append("active: false")
    if node.addresses:
        parts.append(f"addresses: {_list(node.addresses)}")
    if node.number is not None:
        parts.append(f"number: {_word(node.number)}")
    return _word(server.address) if len(parts) == 1 and server.address else f"{{{', '.join(parts)}}}"


def _switch(switch: SwitchEntry) -> str:
    parts = [f"level: {_LEVEL_NAMES[switch.level]}"] if switch.level is not None else []
    if switch.pod is not None:
        parts.append(f"pod: {_word(switch.pod)}")
    if switch.number is not None:
        parts.append(f"number: {_word(switch.number)}")
    if switch.addresses:
        parts.append(f"addresses: {_list(switch.addresses)}")
    if switch.buffer is not None:
        parts.append(f"buffer: {buffer_text(switch.buffer)}")
    return f"{{{', '.join(parts)}}}"


def _speed(file: NetworkFile, a: str, b: str) -> str:
    own = file.link_speeds.get((a, b))
    return f", {link_text(own)}" if own is not None else ""


def _word(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _list(texts: list[str] | tuple[str, ...]) -> str:
    return f"[{', '.join(map(_word, texts))}]"


def _host_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


# -- from the older formats -------------------------------------------------------------------------------------


def from_links(topology: Topology, texts: Mapping[int, str], path: str) -> NetworkFile:
    """The parts of an older file of links.  ``texts``: its addresses, {number: text}.

    The hosts of a ToR become a pod, pods with the same T1s a podset, connected podsets a data centre.  Every node
    keeps its number in records.
    """
    owned: dict[int, list[str]] = {}
    for address, node in topology.alias.items():
        owned.setdefault(node, []).append(texts[address])
    file = NetworkFile(path)
    if topology.clos is not None and not owned.keys() & topology.tor_of.keys():
        file.clos = topology.clos
        file.switches = {topology.name(n): SwitchEntry(addresses=tuple(its)) for n, its in owned.items()}
        return file
    hosts: dict[int, list[int]] = {}
    for host, tor in topology.tor_of.items():
        hosts.setdefault(tor, []).append(host)
    taken = {topology.name(n) for n in topology.tor_of}
    places = _places(topology, list(hosts), taken)
    name = {n: topology.name(n) for n in topology.neighbours}
    for n, its in name.items():
        pod = places[n][0] if n in places else None
        file.switches[its] = SwitchEntry(topology.level[n], _number(n, its, texts), tuple(owned.get(n, ())), pod)
    file.links = [(name[a], name[b]) for a, near in topology.neighbours.items() for b in near if a < b]
    for tor in hosts:
        for host in hosts[tor]:
            _add_host(file, topology.name(host), host, places[tor], owned.get(host, []), texts, taken)
    return file


def _places(topology: Topology, tors: list[int], taken: set[str]) -> dict[int, tuple[str, str, str]]:
    # {ToR with hosts: pod, podset, data centre}
    podsets: dict[tuple[int, ...], str] = {}
    dcs: dict[int, str] = {}
    found = {}
    first_of: dict[int, int] = {}  # {switch: the first ToR that it is connected with}
    for tor in tors:
        if tor not in first_of:
            first_of |= dict.fromkeys(topology.distances(tor), tor)
        first = first_of[tor]
        dc = dcs.setdefault(first, f"dc{len(dcs) + 1}")
        above = tuple(sorted(n for n in topology.neighbours[tor] if topology.level[n] == T1)) or (-1, first)
        podset = podsets.setdefault(above, f"podset-{len(podsets) + 1}")
        name = f"pod-{topology.name(tor)}"
        if not WORD.fullmatch(name) or len(name) > PLACE_BYTES or name in taken:
            name = _free("pod", taken)
        taken.add(name)
        found[tor] = name, podset, dc
    return found


def _add_host(
    file: NetworkFile,
    name: str,
    number: int,
    place: tuple[str, str, str],
    addresses: list[str],
    texts: Mapping[int, str],
    taken: set[str],
) -> None:
    own = canonical(name) if read_number(name) == number else None
    usable = [text for text in addresses if canonical(text) is not None]
    address = own or (canonical(usable[0]) if usable else None) or ""
    more = tuple(text for text in addresses if canonical(text) != address)
    wanted = None if own else _number(number, "", texts)
    if not WORD.fullmatch(name) or len(name) > NAME_BYTES or name.endswith(".sig"):
        name = _free("server", taken)
    if wanted is not None or more:
        file.nodes[name] = NodeEntry(wanted, more)
    file.servers.append(FleetServer(name, address, PORT, *place))


def _number(number: int, name: str, texts: Mapping[int, str]) -> str | None:
    # How the file writes this number; None when the name says it.
    if read_number(name) == number:
        return None
    return texts.get(number) or (str(number) if number < PLAIN else units.format_ip4(number))


def _free(stem: str, taken: set[str]) -> str:
    n = 1
    while f"{stem}-{n}" in taken:
        n += 1
    taken.add(f"{stem}-{n}")
    return f"{stem}-{n}"


# -- from two files ---------------------------------------------------------------------------------------------


def join(links: NetworkFile, servers: NetworkFile) -> tuple[NetworkFile, int]:
    """One file of the switches of the first and the servers of the second, and the number of servers without a ToR.

    A server is the host of the first file that has its address; its pod is below that host's ToR.  Raises FormatError
    when the first has no links, the second has no servers, or a pod has servers below two ToRs.
    """
    if links.clos is not None:
        hint = "list its switches and links to use servers of another file"
        raise FormatError("'clos' has servers of its own", where=links.path, hint=hint)
    graph = links.topology("the first file")
    fleet = servers.fleet("the second file")
    known = dict(_texts_of(links))
    tor_of_pod: dict[str, str] = {}
    nodes: dict[str, NodeEntry] = {}
    lost = 0
    for server in fleet.servers:
        number = read_number(server.address)
        host = graph.node(number) if number is not None else -1
        if host not in graph.tor_of:
            lost += 1
            continue
        tor = graph.name(graph.tor_of[host])
        if tor_of_pod.setdefault(server.pod, tor) != tor:
            what = f"pod '{server.pod}' has servers below '{tor_of_pod[server.pod]}' and '{tor}'"
            raise FormatError(what, where=servers.path)
        entry = known.get(graph.name(host), NodeEntry())
        more = tuple(text for text in entry.addresses if canonical(text) != server.address)
        wanted = entry.number if host != number else None
        if more or wanted is not None:
            nodes[server.name] = NodeEntry(wanted, more)
    if lost == len(fleet.servers):
        hint = "servers and hosts are compared by address"
        raise FormatError(f"has none of the servers of {servers.path}", where=links.path, hint=hint)
    pod_of = {tor: pod for pod, tor in tor_of_pod.items()}
    switches = {name: replace(switch, pod=None) for name, switch in links.switches.items()}
    for tor, pod in pod_of.items():
        switches[tor] = replace(switches.get(tor, SwitchEntry(TOR)), pod=pod)
    return (
        replace(
            servers,
            grid=None,
            clos=None,
            switches=switches,
            links=links.links,
            servers=list(fleet.servers),
            nodes={**servers.nodes, **nodes},
            link=links.link,
            server_link=links.server_link,
            buffer=links.buffer,
            link_speeds=links.link_speeds,
        ),
        lost,
    )


def _texts_of(file: NetworkFile) -> Iterator[tuple[str, NodeEntry]]:
    for server in file.servers:
        node = file.nodes.get(server.name, NodeEntry())
        own = (server.address,) if server.address else ()
        yield server.name, NodeEntry(node.number, (*own, *node.addresses))
