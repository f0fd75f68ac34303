"""Topology files: switches, links and servers of a data centre, in one YAML file.  Manual: confluo-topology(5).

confluo-vote and confluo-trace take the graph of switches from it (`read_topology`), confluo-pingmesh the servers
(`read_fleet`).  Files of the older formats, which have one or the other, are read as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from confluo_tools.errors import FormatError
from confluo_tools.formats.bytestream import read_whole
from confluo_tools.network import strict_yaml
from confluo_tools.network.addresses import address_port
from confluo_tools.network.fat_tree import MAX_K, FatTree
from confluo_tools.network.fleet import MAX_SERVERS, PORT, Fleet, FleetServer
from confluo_tools.network.hardware import LinkSpeed
from confluo_tools.network.hardware_file import read_buffer, read_hardware, read_link
from confluo_tools.network.links_file import is_edge, parse_links
from confluo_tools.network.network_file import (
    CLOS_KEYS,
    GRID_KEYS,
    LEVELS,
    VERSION,
    NetworkFile,
    NodeEntry,
    SwitchEntry,
)
from confluo_tools.network.node_numbers import MAX_BYTES, MAX_LINKS, MAX_NODES, read_number
from confluo_tools.network.topology import T1, T2, TOR, Clos, Topology, make_clos

_LINK_KEYS = {"clos", "fat_tree", "switches", "links"}
_HARDWARE_KEYS = {"link", "server_link", "buffer"}
_SERVER_KEYS = {"port", "dcs", "grid", "services", "vips"}
_KEYS = {"topology"} | _LINK_KEYS | _HARDWARE_KEYS | _SERVER_KEYS
_DCS = "write dcs: {DC: {PODSET: {POD: {SERVER: ADDRESS}}}}"


def read_topology(path: str, command: str = "confluo-vote") -> Topology:
    """The graph of switches of a topology file of any format; - is standard input.

    Raises FormatError, with the line where it is known; ``command`` is named when the file has no links.
    """
    text, name = _text(path)
    if _kind(text, "links") == "links":
        return parse_links(text, name)[0]
    return parse_network(text, name).topology(command)


def read_fleet(path: str, command: str = "confluo-pingmesh") -> Fleet:
    """The servers of a topology file of any format; - is standard input.

    Raises FormatError, with the line where it is known; ``command`` is named when the file has no servers.
    """
    text, name = _text(path)
    return _fleet(text, name, command)


def parse_fleet(data: bytes, path: str) -> Fleet:
    """The servers of the bytes of a file; ``path`` names it in errors."""
    return _fleet(_decoded(data, path), path, "confluo-pingmesh")


def read_network(path: str) -> NetworkFile:
    """A topology file of any format, for conversion.  Raises FormatError."""
    from confluo_tools.network.topology_writer import from_links

    text, name = _text(path)
    if _kind(text, "links") == "links":
        return from_links(*parse_links(text, name), name)
    return parse_network(text, name)


def _fleet(text: str, path: str, command: str) -> Fleet:
    if _kind(text, "servers") == "links":
        raise FormatError("has no servers", where=path, hint=f"{command} needs the servers of each pod ('dcs')")
    return parse_network(text, path).fleet(command)


def _text(path: str) -> tuple[str, str]:
    name = "standard input" if path == "-" else path
    return _decoded(read_whole(path, MAX_BYTES, "topology"), name), name


def _decoded(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FormatError("is not text", where=path) from None


def _kind(text: str, default: str) -> str:
    # "network": begins with 'topology: 1'; "links", "servers": an older file with one of the two; else the default.
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", "---", "%"))]
    if not lines:
        return default
    if re.match(r"[\s{]*[\"']?topology[\"']?\s*:", lines[0]):
        return "network"
    if is_edge(lines[0]):
        return "links"
    keys = {m[1] for line in lines if (m := re.match(r"[{\s]*[\"']?(\w+)[\"']?\s*:", line)) and not line[0].isspace()}
    if keys & {"dcs", "grid"}:
        return "servers"
    return "links" if keys & {"clos", "switches", "links", "hosts", "aliases"} else default


def parse_network(text: str, path: str) -> NetworkFile:
    """The parts of a file that begins with 'topology: 1', or of an older file of servers.  Raises FormatError."""
    tree = strict_yaml.load(text, path)
    if not isinstance(tree, dict) or not tree:
        raise FormatError("is not a topology", where=path, hint="confluo-topology(5) shows one")
    unknown = [key for key in tree if key not in _KEYS]
    if unknown:
        what = f"unknown key '{str(unknown[0])[:60]}'"
        raise FormatError(what, where=path, hint=f"the keys are {', '.join(sorted(_KEYS))}")
    if "topology" not in tree and tree.keys() & _LINK_KEYS:
        hint = "begin the file with 'topology: 1'"
        raise FormatError("has switches and servers, but is not of format 1", where=path, hint=hint)
    if tree.get("topology", VERSION) != VERSION:
        given = strict_yaml.word(path, tree["topology"])[:20]
        what = f"topology of format {given!r}; this version reads {VERSION}"
        raise FormatError(what, where=path)
    sources = [key for key in ("clos", "fat_tree", "grid", "dcs") if key in tree]
    if len(sources) > 1:
        raise FormatError(f"'{sources[0]}' and '{sources[1]}' exclude each other", where=path)
    if "topology" not in tree and not sources:
        raise FormatError("has no servers", where=path, hint=_DCS)
    for key in ("clos", "fat_tree", "grid"):
        if key in tree and "links" in tree:
            raise FormatError(f"'{key}' and 'links' exclude each other", where=path)
    file = NetworkFile(path, port=strict_yaml.number(path, "port", tree.get("port", str(PORT)), 65535))
    if "clos" in tree:
        file.clos = _clos(path, tree["clos"])
    if "grid" in tree:
        file.grid = _grid(path, tree["grid"])
    if "fat_tree" in tree:
        _add_fat_tree(file, tree["fat_tree"])
    read_hardware(file, tree)
    _read_switches(file, tree.get("switches"))
    for a, b, speed in _links(file, tree.get("links")):
        file.links.append((a, b))
        if speed is not None:
            file.link_speeds[a, b] = speed
    _read_servers(file, tree.get("dcs"))
    _check_pods(file)
    for name, value in strict_yaml.mapping(path, "services", tree.get("services"), MAX_SERVERS):
        file.services[name] = strict_yaml.words(path, value)
    for name, about in strict_yaml.mapping(path, "vips", tree.get("vips"), MAX_SERVERS):
        where = address_port(strict_yaml.word(path, about), 0)
        if where is None or not where[1]:
            raise FormatError(f"vip '{name}' has no address and port", where=path, hint="write 10.9.0.1:443")
        file.vips[name] = where
    return file


def _clos(path: str, data: Any) -> Clos:
    if not isinstance(data, dict) or set(data) != set(CLOS_KEYS):
        raise FormatError("'clos' is invalid", where=path, hint=f"its keys are {', '.join(CLOS_KEYS)}")
    clos = Clos(**{f: strict_yaml.number(path, f"{key} of clos", data[key], MAX_NODES) for key, f in CLOS_KEYS.items()})
    if clos.all_hosts + clos.switches > MAX_NODES or clos.links > MAX_LINKS:
        raise FormatError(f"has more than {MAX_NODES} nodes or {MAX_LINKS} links", where=path)
    return clos


def _grid(path: str, data: Any) -> tuple[int, int, int, int]:
    if not isinstance(data, dict) or set(data) != set(GRID_KEYS):
        raise FormatError("'grid' is invalid", where=path, hint=f"its keys are {', '.join(GRID_KEYS)}")
    dcs, podsets, pods, servers = (strict_yaml.number(path, f"{k} of grid", data[k], MAX_SERVERS) for k in GRID_KEYS)
    return dcs, podsets, pods, servers


def _add_fat_tree(file: NetworkFile, data: Any) -> None:
    k = strict_yaml.number(file.path, "fat_tree", data, MAX_K)
    if k % 2:
        raise FormatError("fat_tree is odd", where=file.path, hint="it is the number of ports of a switch, 4, 8 or 16")
    tree = FatTree(k)
    file.switches = {name: SwitchEntry(TOR, pod=pod) for name, pod in tree.tors()}
    file.switches |= {name: SwitchEntry(T1) for name in tree.t1s()} | {name: SwitchEntry(T2) for name in tree.t2s()}
    file.links = list(tree.links())
    file.servers = [FleetServer(s.name, s.address, file.port, s.pod, s.podset, "dc1") for s in tree.servers()]


def _read_switches(file: NetworkFile, data: Any) -> None:
    path = file.path
    if isinstance(data, list):
        data = dict.fromkeys(strict_yaml.words(path, data), "")
    known = set(make_clos(replace(file.clos, hosts=1)).names.values()) if file.clos is not None else set()
    for name, about in strict_yaml.mapping(path, "switches", data, MAX_NODES):
        entry = _switch(file, name, about)
        if name in file.switches:  # of a fat tree
            if entry.level is not None or entry.number or entry.pod:
                what = f"switch '{name}': only its addresses and its buffer can be given with 'fat_tree'"
                raise FormatError(what, where=path)
            entry = replace(file.switches[name], addresses=entry.addresses, buffer=entry.buffer)
        file.switches[name] = entry
        if file.clos is not None and (name not in known or name.startswith("host-")):
            hint = "they are named tor-1-2, t1-1-2, t2-3"
            raise FormatError(f"'{name[:60]}' is not a switch of this Clos", where=path, hint=hint)
        if file.clos is not None and (entry.level is not None or entry.number or entry.pod):
            raise FormatError(
                f"switch '{name}': only its addresses and its buffer can be given with 'clos'", where=path
            )


def _switch(file: NetworkFile, name: str, about: Any) -> SwitchEntry:
    path = file.path
    if isinstance(about, str):
        about = {"level": about} if about else {}
    if not isinstance(about, dict) or not about.keys() <= {"level", "number", "addresses", "pod", "buffer"}:
        hint = "write {level: tor, pod: rack1, addresses: [10.0.0.1], number: 7}; each is optional"
        raise FormatError(f"switch '{name[:60]}' is invalid", where=path, hint=hint)
    pod = strict_yaml.word(path, about["pod"]) if about.get("pod") else None
    level = TOR if pod is not None else None
    if "level" in about:
        text = strict_yaml.word(path, about["level"])
        if text not in LEVELS:
            raise FormatError(f"switch '{name}' has the unknown level '{text[:20]}'", where=path, hint="tor, t1 or t2")
        if pod is not None and LEVELS[text] != TOR:
            raise FormatError(f"switch '{name}' has a pod, but its level is {text}", where=path, hint="only a ToR has")
        level = LEVELS[text]
    number = strict_yaml.word(path, about["number"]) if "number" in about else None
    buffer = read_buffer(path, f"switch '{name[:60]}'", about, file.buffer)
    return SwitchEntry(level, number, _address_list(path, name, about.get("addresses")), pod, buffer)


def _address_list(path: str, name: str, data: Any) -> tuple[str, ...]:
    if data is None or data == "":
        return ()
    found = strict_yaml.words(path, data)
    for text in found:
        if read_number(text) is None or text.isdigit():
            raise FormatError(f"'{text[:60]}' of '{name[:60]}' is not an address", where=path)
    return tuple(found)


def _links(file: NetworkFile, data: Any) -> Iterator[tuple[str, str, LinkSpeed | None]]:
    path = file.path
    if data is None or data == "":
        return
    if not isinstance(data, list) or len(data) > MAX_LINKS:
        raise FormatError("links is not a list", where=path, hint="write [[a, b], [a, c]]")
    for link in data:
        speed = None
        if isinstance(link, list) and len(link) == 3 and isinstance(link[2], dict):
            speed = read_link(path, "a link", link[2], file.link)
            link = link[:2]
        if not isinstance(link, list) or len(link) != 2:
            what = f"'{link[:60]}'" if isinstance(link, str) else "one of the links"
            raise FormatError(f"{what} is not a link", where=path, hint="write [a, b], or [a, b, {speed: 40Gbit}]")
        a, b = strict_yaml.words(path, link)
        if a == b:
            raise FormatError(f"links '{a}' with itself", where=path)
        yield a, b, speed


def _read_servers(file: NetworkFile, tree: Any) -> None:
    path = file.path

    def items(what: str, data: Any) -> list[tuple[str, Any]]:
        return strict_yaml.mapping(path, what, data, MAX_SERVERS, _DCS)

    for dc, podsets in items("dcs", tree):
        for podset, pods in items(f"data centre '{dc}'", podsets):
            for pod, its in items(f"podset '{podset}'", pods):
                servers = items(f"pod '{pod}'", its)
                if not servers:
                    raise FormatError(f"pod '{pod}' has no servers", where=path)
                for name, about in servers:
                    file.servers.append(_server(file, name, about, (pod, podset, dc)))
                if len(file.servers) > MAX_SERVERS:
                    raise FormatError(f"has more than {MAX_SERVERS} servers", where=path)
            if not pods:
                raise FormatError(f"podset '{podset}' has no pods", where=path)
        if not podsets:
            raise FormatError(f"data centre '{dc}' has no podsets", where=path)


def _server(file: NetworkFile, name: str, about: Any, place: tuple[str, str, str]) -> FleetServer:
    path, port, active = file.path, file.port, True
    if isinstance(about, dict):
        if not about.keys() <= {"address", "port", "active", "addresses", "number"} or not about.keys() & {
            "address",
            "number",
        }:
            hint = "write {address: 10.0.0.1, port: 8765, active: true}"
            raise FormatError(f"server '{name[:60]}' is invalid", where=path, hint=hint)
        word = about.get("active", "true")
        if word not in ("true", "false"):
            raise FormatError(f"active of server '{name[:60]}' is neither true nor false", where=path)
        active = word == "true"
        port = strict_yaml.number(path, f"port of server '{name[:60]}'", about.get("port", str(port)), 65535)
        node = NodeEntry(
            strict_yaml.word(path, about["number"]) if "number" in about else None,
            _address_list(path, name, about.get("addresses")),
        )
        if node.number or node.addresses:
            file.nodes[name] = node
        if "address" not in about:
            return FleetServer(name, "", port, *place, active)
        about = about["address"]
    where = address_port(strict_yaml.word(path, about), port)
    if where is None:
        what = f"server '{name[:60]}' has no address" + (f": '{about[:60]}' is not a host address" if about else "")
        raise FormatError(what, where=path, hint="write 10.0.0.1 or 'fd00::1'; names are not looked up")
    return FleetServer(name, *where, *place, active)


def _check_pods(file: NetworkFile) -> None:
    pods = {server.pod for server in file.servers}
    tors: dict[str, str] = {}
    for name, switch in file.switches.items():
        if switch.pod is None:
            continue
        if switch.pod not in pods:
            raise FormatError(f"switch '{name}' has pod '{switch.pod}', which is not in dcs", where=file.path)
        if tors.setdefault(switch.pod, name) != name:
            what = f"pod '{switch.pod}' has two ToRs, '{tors[switch.pod]}' and '{name}'"
            raise FormatError(what, where=file.path)
