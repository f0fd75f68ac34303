"""Files that tell what a network looks like: YAML (parameters of a Clos, or its parts), or a list of links.

A list of links has a link of two switches a line, ``a b``, or a host and its ToR, ``host->tor``.  A node is a number
below 2^24, an address, or (in YAML) any other word; `read_number` says which number stands for it.
"""

from __future__ import annotations

import re
from typing import Any

from confluo_tools.algo.topology import (
    HOST,
    PLAIN,
    T1,
    T2,
    TOR,
    ZERO,
    Clos,
    Topology,
    as_clos,
    make_clos,
    make_topology,
)  # fmt: skip
from confluo_tools.errors import FormatError
from confluo_tools.formats.stream import read_whole
from confluo_tools.schema.types import fold6
from confluo_tools.units import try_ip4, try_ip6

MAX_BYTES = 64 << 20
MAX_NODES = 1 << 21
MAX_LINKS = 1 << 23
LEVELS = {"host": HOST, "tor": TOR, "leaf": TOR, "t1": T1, "agg": T1, "spine": T1, "t2": T2, "core": T2}
_KEYS = {"clos", "switches", "links", "hosts", "aliases"}
_CLOS = ("pods", "tors", "t1s", "t2s", "hosts")
_LINK = re.compile(r"(\S+?)\s*->\s*(\S+)|(\S+)\s+(\S+)")

__all__ = ["Clos", "Topology", "as_clos", "make_clos", "read_number", "read_topology"]


def read_number(word: str) -> int | None:
    """The number of a node that is written as a number below 2^24 or as an address; None for other words.

    0 becomes 2^24 - 1, because a 0 in a path is a hop that did not answer.
    """
    if word.isascii() and word.isdigit() and len(word) < 9:
        number = int(word)
        return (number or ZERO) if number < PLAIN else None
    four = try_ip4(word)
    if four is not None:
        return four or None  # 0.0.39.16 is how an address field writes node 10000
    six = try_ip6(word) if ":" in word else None
    return None if six is None else fold6(six)


def read_topology(path: str) -> Topology:
    """The network that a file describes.  Raises FormatError, with the line where that is known."""
    data = read_whole(path, MAX_BYTES, "topology")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise FormatError("is not text: no topology", where=path) from None
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if not first:
        raise FormatError("describes no network", where=path, hint="write 'clos: {pods: 2, ...}' or a link a line")
    if re.match(r"\s*[\w.:-]+(\s*->\s*|\s+)[\w.:-]+\s*(#.*)?$", first) and not re.match(r"\s*\w+:(\s|$)", first):
        return _edges(path, text)
    return _yaml(path, text)


def _edges(path: str, text: str) -> Topology:
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
            raise FormatError(f"'{line[:60]}' is no link", where=where, hint="write 'a b' or 'host->tor'")
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
    return _checked(path, links, tor_of, names, {}, {})


def _yaml(path: str, text: str) -> Topology:
    import yaml

    try:
        data = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # safe loaders only
    except (yaml.YAMLError, RecursionError) as e:
        raise FormatError(f"is no YAML: {' '.join(str(e).split())[:100]}", where=path) from None
    if not isinstance(data, dict) or not data or not data.keys() <= _KEYS:
        hint = f"it has the keys {', '.join(sorted(_KEYS))}"
        raise FormatError("is no topology", where=path, hint=hint)
    if "clos" in data:
        topology = make_clos(_clos(path, data["clos"]))
        if set(data) - {"clos", "aliases"}:
            raise FormatError("a Clos has no switches, links or hosts of its own", where=path, hint="write one of both")
        numbers = _Numbers(path, {name: n for n, name in topology.names.items()})
        topology.alias.update(_aliases(path, data.get("aliases"), numbers))
        return topology
    numbers = _Numbers(path, {})
    level: dict[int, int] = {}
    alias: dict[int, int] = {}
    for name, about in _mapping(path, "switches", data.get("switches")):
        about = {"level": about} if isinstance(about, str | int) else about
        if about is not None and (not isinstance(about, dict) or not about.keys() <= {"level", "number", "addresses"}):
            hint = "write {level: tor, addresses: [10.0.0.1]}"
            raise FormatError(f"switch '{name}' is not understood", where=path, hint=hint)
        about = about or {}
        number = numbers.add(name, about.get("number"))
        if "level" in about:
            its = LEVELS.get(_word(path, about["level"]).lower(), about["level"])
            if its not in (TOR, T1, T2) or isinstance(its, bool):
                raise FormatError(f"switch '{name}' has no level", where=path, hint="write tor, t1 or t2")
            level[number] = its
        addresses = about.get("addresses", [])
        for word in addresses if isinstance(addresses, list) else [addresses]:
            alias[numbers.address(_word(path, word))] = number
    links = []
    for pair in _list(path, "links", data.get("links")):
        if not isinstance(pair, list) or len(pair) != 2:
            what = f"'{_word(path, pair)}'" if not isinstance(pair, list | dict) else "one of the links"
            raise FormatError(f"{what} is no link", where=path, hint="write [a, b]")
        a, b = (numbers.add(_word(path, word)) for word in pair)
        if a == b:
            raise FormatError(f"links '{pair[0]}' with itself", where=path)
        links.append((a, b))
    tor_of = {}
    for name, tor in _mapping(path, "hosts", data.get("hosts")):
        tor_of[numbers.add(name)] = numbers.add(_word(path, tor))
    alias |= _aliases(path, data.get("aliases"), numbers)
    return _checked(path, links, tor_of, numbers.names, level, alias)


def _checked(
    path: str, links: list[tuple[int, int]], tor_of: dict[int, int], names: dict[int, str], level: dict[int, int],
    alias: dict[int, int],
) -> Topology:  # fmt: skip
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
        raise FormatError("the Clos is not understood", where=path, hint=f"it has {', '.join(_CLOS)}")
    for key in _CLOS:
        if type(data[key]) is not int or not 1 <= data[key] <= MAX_NODES:
            raise FormatError(f"{key} is no number from 1 to {MAX_NODES}", where=path)
    clos = Clos(**data)
    if clos.all_hosts + clos.switches > MAX_NODES or clos.links > MAX_LINKS:
        raise FormatError(f"has more than {MAX_NODES} nodes or {MAX_LINKS} links", where=path)
    return clos


class _Numbers:
    # Names and the numbers that stand for them; a name that is no number gets the next free one.

    def __init__(self, path: str, known: dict[str, int]) -> None:
        self.path, self.known = path, known
        self.names = {number: name for name, number in known.items()}
        self._next = 1

    def add(self, name: str, wanted: Any = None) -> int:
        if name in self.known:
            return self.known[name]
        number = read_number(name if wanted is None else _word(self.path, wanted))
        if wanted is not None and number is None:
            raise FormatError(f"'{name}' has number '{_word(self.path, wanted)}', which is none", where=self.path)
        if number is None:
            while self._next in self.names:
                self._next += 1
            number = self._next
        if self.names.setdefault(number, name) != name:
            raise FormatError(f"'{name}' and '{self.names[number]}' have the same number {number}", where=self.path,
                              hint="give one of them another with 'number:'")  # fmt: skip
        if len(self.names) > MAX_NODES:
            raise FormatError(f"has more than {MAX_NODES} nodes", where=self.path)
        self.known[name] = number
        return number

    def address(self, word: str) -> int:
        number = read_number(word)
        if number is None or (number < PLAIN and ":" not in word):  # of IPv6, it is a hash: any number
            raise FormatError(f"'{word[:60]}' is no address", where=self.path)
        return number


def _aliases(path: str, data: Any, numbers: _Numbers) -> dict[int, int]:
    found = {}
    for word, name in _mapping(path, "aliases", data):
        name = _word(path, name)
        if name not in numbers.known and read_number(name) is None:
            raise FormatError(f"the alias {word} is of '{name}', which is not there", where=path)
        found[numbers.address(word)] = numbers.add(name)
    return found


def _word(path: str, value: Any) -> str:
    """A name, a number or an address as text.  Never a whole tree: YAML can make a small file one without end."""
    if isinstance(value, list | dict | set) or value is None:
        raise FormatError("has a list, a mapping or nothing where a name belongs", where=path)
    return str(value)[:256]


def _mapping(path: str, key: str, data: Any) -> list[tuple[str, Any]]:
    if data is None:
        return []
    if isinstance(data, list) and key == "switches":
        data = dict.fromkeys([_word(path, name) for name in data])
    if not isinstance(data, dict) or len(data) > MAX_NODES:
        raise FormatError(f"'{key}' is no mapping", where=path)
    return [(_word(path, name), value) for name, value in data.items()]


def _list(path: str, key: str, data: Any) -> list[Any]:
    if data is None:
        return []
    if not isinstance(data, list) or len(data) > MAX_LINKS:
        raise FormatError(f"'{key}' is no list", where=path)
    return data
