"""Older topology files of confluo-vote and confluo-trace: YAML (a Clos, or its parts), or a list of links.

A list of links has a link of two switches per line, ``a b``, or a host and its ToR, ``host->tor``.  A node is a number
below 2^24, an address, or (in YAML) any other word; `NodeNumbers` assigns its number.  See confluo-topology(5).
"""

from __future__ import annotations

import re
from typing import Any

from confluo_tools.errors import FormatError
from confluo_tools.network.node_numbers import (
    MAX_BYTES,
    MAX_LINKS,
    MAX_NODES,
    MAX_YAML_NODES,
    NodeNumbers,
    read_number,
    word_of,
)
from confluo_tools.network.topology import HOST, T1, T2, TOR, Clos, Topology, make_clos, make_topology

LEVELS = {"host": HOST, "tor": TOR, "leaf": TOR, "t1": T1, "agg": T1, "spine": T1, "t2": T2, "core": T2}
_KEYS = {"clos", "switches", "links", "hosts", "aliases"}
_CLOS = ("pods", "tors", "t1s", "t2s", "hosts")
_LINK = re.compile(r"(\S+?)\s*->\s*(\S+)|(\S+)\s+(\S+)")


def parse_links(text: str, path: str) -> tuple[Topology, dict[int, str]]:
    """The network of such a file and the text of each address in it, by number.  Raises FormatError, with the line."""
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if not first:
        raise FormatError("describes no network", where=path, hint="confluo-topology(5) shows one")
    return _edges(path, text) if is_edge(first) else _yaml(path, text)


def is_edge(line: str) -> bool:
    """Whether a line is one of a list of links, not of YAML."""
    two = re.match(r"\s*[\w.:-]+(\s*->\s*|\s+)[\w.:-]+\s*(#.*)?$", line)
    return two is not None and not re.match(r"\s*\w+:(\s|$)", line)


def _edges(path: str, text: str) -> tuple[Topology, dict[int, str]]:
    links: list[tuple[int, int]] = []
    tor_of: dict[int, int] = {}
    names = {}
    for at, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        where = f"{path}:{at}"
        match = _LINK.fullmatch(line)
        if not match:
            raise FormatError(f"'{line[:60]}' is not a link", where=where, hint="write 'a b' or 'host->tor'")
        ends = []
        for word in (match[1], match[2]) if match[1] else (match[3], match[4]):
            number = read_number(word)
            if number is None:
                hint = "numbers are below 16777216; names need YAML"
                raise FormatError(f"'{word[:60]}' is neither a number nor an address", where=where, hint=hint)
            if str(number) != word:
                names[number] = word
            ends.append(number)
        a, b = ends
        if a == b:
            raise FormatError("links a node with itself", where=where)
        if match[1]:
            if tor_of.setdefault(a, b) != b:
                raise FormatError(f"host {match[1]} has two ToRs", where=where)
        else:
            links.append((a, b))
        if len(links) > MAX_LINKS or len(tor_of) > MAX_NODES:
            raise FormatError("has too many links", where=where)
    return _checked(path, links, tor_of, names, {}, {}), {}


def _yaml(path: str, text: str) -> tuple[Topology, dict[int, str]]:
    from confluo_tools import guarded_yaml

    try:
        data = guarded_yaml.load(text, max_bytes=MAX_BYTES, max_nodes=MAX_YAML_NODES)
    except guarded_yaml.YamlError as e:
        where = f"{path}:{e.line}" if e.line else path
        raise FormatError(f"is not YAML: {e.problem}", where=where) from None
    if not isinstance(data, dict) or not data or not data.keys() <= _KEYS:
        hint = f"it has the keys {', '.join(sorted(_KEYS))}"
        raise FormatError("is not a topology", where=path, hint=hint)
    if "clos" in data:
        topology = make_clos(_clos(path, data["clos"]))
        if set(data) - {"clos", "aliases"}:
            raise FormatError("'clos' excludes switches, links and hosts", where=path)
        numbers = NodeNumbers(path, {name: n for n, name in topology.names.items()})
        topology.alias.update(_aliases(path, data.get("aliases"), numbers))
        return topology, numbers.texts
    numbers = NodeNumbers(path, {})
    level: dict[int, int] = {}
    alias: dict[int, int] = {}
    for name, about in _mapping(path, "switches", data.get("switches")):
        about = {"level": about} if isinstance(about, str | int) else about
        if about is not None and (not isinstance(about, dict) or not about.keys() <= {"level", "number", "addresses"}):
            hint = "write {level: tor, addresses: [10.0.0.1]}"
            raise FormatError(f"switch '{name}' is invalid", where=path, hint=hint)
        about = about or {}
        number = numbers.add(name, about.get("number"))
        if "level" in about:
            its = LEVELS.get(word_of(path, about["level"]).lower(), about["level"])
            if its not in (TOR, T1, T2) or isinstance(its, bool):
                raise FormatError(f"switch '{name}' has an unknown level", where=path, hint="write tor, t1 or t2")
            level[number] = its
        addresses = about.get("addresses", [])
        for word in addresses if isinstance(addresses, list) else [addresses]:
            alias[numbers.address(word_of(path, word))] = number
    links = []
    for pair in _list(path, "links", data.get("links")):
        if not isinstance(pair, list) or len(pair) != 2:
            what = f"'{word_of(path, pair)}'" if not isinstance(pair, list | dict) else "one of the links"
            raise FormatError(f"{what} is not a link", where=path, hint="write [a, b]")
        a, b = (numbers.add(word_of(path, word)) for word in pair)
        if a == b:
            raise FormatError(f"links '{pair[0]}' with itself", where=path)
        links.append((a, b))
    tor_of = {}
    for name, tor in _mapping(path, "hosts", data.get("hosts")):
        tor_of[numbers.add(name)] = numbers.add(word_of(path, tor))
    alias |= _aliases(path, data.get("aliases"), numbers)
    return _checked(path, links, tor_of, numbers.names, level, alias), numbers.texts


def _checked(
    path: str,
    links: list[tuple[int, int]],
    tor_of: dict[int, int],
    names: dict[int, str],
    level: dict[int, int],
    alias: dict[int, int],
) -> Topology:
    switches = {n for link in links for n in link} | set(tor_of.values())
    if not switches:
        raise FormatError("describes no network", where=path, hint="write links and hosts")
    both = switches & tor_of.keys()
    if both:
        number = min(both)
        raise FormatError(f"'{names.get(number, number)}' is a host and a switch", where=path)
    return make_topology(links, tor_of, names=names, level=level, alias=alias)


def _clos(path: str, data: Any) -> Clos:
    if not isinstance(data, dict) or set(data) != set(_CLOS):
        raise FormatError("the Clos is invalid", where=path, hint=f"it has {', '.join(_CLOS)}")
    for key in _CLOS:
        if type(data[key]) is not int or not 1 <= data[key] <= MAX_NODES:
            raise FormatError(f"{key} is not a number from 1 to {MAX_NODES}", where=path)
    clos = Clos(**data)
    if clos.all_hosts + clos.switches > MAX_NODES or clos.links > MAX_LINKS:
        raise FormatError(f"has more than {MAX_NODES} nodes or {MAX_LINKS} links", where=path)
    return clos


def _aliases(path: str, data: Any, numbers: NodeNumbers) -> dict[int, int]:
    found = {}
    for word, name in _mapping(path, "aliases", data):
        name = word_of(path, name)
        if name not in numbers.known and read_number(name) is None:
            raise FormatError(f"the alias {word} is of '{name}', which is unknown", where=path)
        found[numbers.address(word)] = numbers.add(name)
    return found


def _mapping(path: str, key: str, data: Any) -> list[tuple[str, Any]]:
    if data is None:
        return []
    if isinstance(data, list) and key == "switches":
        data = dict.fromkeys([word_of(path, name) for name in data])
    if not isinstance(data, dict) or len(data) > MAX_NODES:
        raise FormatError(f"'{key}' is not a mapping", where=path)
    return [(word_of(path, name), value) for name, value in data.items()]


def _list(path: str, key: str, data: Any) -> list[Any]:
    if data is None:
        return []
    if not isinstance(data, list) or len(data) > MAX_LINKS:
        raise FormatError(f"'{key}' is not a list", where=path)
    return data
