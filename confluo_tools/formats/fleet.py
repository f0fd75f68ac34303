"""Topology files of Pingmesh: which servers there are, in which pods, podsets and data centres."""

from __future__ import annotations

import re
from typing import Any

from confluo_tools import units
from confluo_tools.algo.fleet import MOST_SERVERS, PORT, Fleet, Server, make_fleet, make_grid
from confluo_tools.errors import FormatError
from confluo_tools.formats.stream import read_whole

MAX_BYTES = 256 << 20
_KEYS = {"port", "dcs", "grid", "services", "vips"}
_WHERE = re.compile(r"(\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<four>[\d.]+))(:(?P<port>[0-9]{1,5}))?|(?P<bare>[0-9A-Fa-f:.]+)")
_GRID = ("dcs", "podsets", "pods", "servers")

__all__ = ["Fleet", "Server", "address_port", "canonical", "read_fleet"]


def read_fleet(path: str) -> Fleet:
    """The fleet that a file describes; - is standard input.  Raises FormatError, with the line where that is known."""
    return parse_fleet(read_whole(path, MAX_BYTES, "topology"), "standard input" if path == "-" else path)


def parse_fleet(data: bytes, path: str) -> Fleet:
    """The same of the bytes of one; ``path`` names it in errors."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise FormatError("is not text: no topology", where=path) from None
    tree = _load(text, path)
    if not isinstance(tree, dict) or not tree.keys() <= _KEYS or len(tree.keys() & {"dcs", "grid"}) != 1:
        hint = "it has 'dcs: {DC: {PODSET: {POD: {SERVER: ADDRESS}}}}' or 'grid', and port, services, vips"
        raise FormatError("is no topology", where=path, hint=hint)
    port = _number(path, "port", tree.get("port", str(PORT)), 65535)
    services = {name: [_word(path, w) for w in (words if isinstance(words, list) else [words])]
                for name, words in _mapping(path, "services", tree.get("services"))}  # fmt: skip
    vips = {}
    for name, about in _mapping(path, "vips", tree.get("vips")):
        where = address_port(_word(path, about), 0)
        if where is None or not where[1]:
            raise FormatError(f"vip '{name}' has no address and port", where=path, hint="write 10.9.0.1:443")
        vips[name] = where
    try:
        if "grid" in tree:
            grid = tree["grid"]
            if not isinstance(grid, dict) or set(grid) != set(_GRID):
                raise FormatError("the grid is not understood", where=path, hint=f"it has {', '.join(_GRID)}")
            for key in _GRID:
                _number(path, f"{key} of the grid", grid[key], MOST_SERVERS)
            dcs, podsets, pods, servers = (int(grid[key]) for key in _GRID)
            fleet = make_grid(dcs, podsets, pods, servers, port)
            return make_fleet(fleet.servers, services, vips) if services or vips else fleet
        return make_fleet(_servers(path, tree["dcs"], port), services, vips)
    except ValueError as e:
        raise FormatError(str(e), where=path) from None


def _servers(path: str, tree: Any, port: int) -> list[Server]:
    found: list[Server] = []
    for dc, podsets in _mapping(path, "dcs", tree):
        for podset, pods in _mapping(path, f"data centre '{dc}'", podsets):
            for pod, its in _mapping(path, f"podset '{podset}'", pods):
                servers = _mapping(path, f"pod '{pod}'", its)
                if not servers:
                    raise FormatError(f"pod '{pod}' has no servers", where=path)
                for name, about in servers:
                    found.append(_server(path, name, about, port, pod, podset, dc))
                if len(found) > MOST_SERVERS:
                    raise FormatError(f"has more than {MOST_SERVERS} servers", where=path)
            if not pods:
                raise FormatError(f"podset '{podset}' has no pods", where=path)
        if not podsets:
            raise FormatError(f"data centre '{dc}' has no podsets", where=path)
    return found


def _server(path: str, name: str, about: Any, port: int, pod: str, podset: str, dc: str) -> Server:
    active = True
    if isinstance(about, dict):
        if not about.keys() <= {"address", "port", "active"} or "address" not in about:
            hint = "write {address: 10.0.0.1, port: 8765, active: true}"
            raise FormatError(f"server '{name[:60]}' is not understood", where=path, hint=hint)
        word = about.get("active", "true")
        if word not in ("true", "false"):
            raise FormatError(f"active of server '{name[:60]}' is neither true nor false", where=path)
        active = word == "true"
        port = _number(path, f"port of server '{name[:60]}'", about.get("port", str(port)), 65535)
        about = about["address"]
    where = address_port(_word(path, about), port)
    if where is None:
        said = f"server '{name[:60]}' has no address" + (f": '{about[:60]}' is none that a host has" if about else "")
        raise FormatError(said, where=path, hint="write 10.0.0.1 or 'fd00::1'; names are not looked up")
    return Server(name, *where, pod, podset, dc, active)


def canonical(text: str) -> str | None:
    """An address as it is always written; None when it is none that a server can have."""
    four = units.try_ip4(text)
    if four is not None:
        return units.format_ip4(four) if 1 << 24 <= four < 224 << 24 else None
    six = units.try_ip6(text)
    if six is None or six[0] == 255 or six == bytes(16):
        return None
    if six[0] == 0xFE and six[1] & 0xC0 == 0x80:  # of a link: it says nothing without an interface
        return None
    if six[:12] == bytes(10) + b"\xff\xff":
        return canonical(units.format_ip4(int.from_bytes(six[12:], "big")))
    return units.format_ip6(six)


def address_port(text: str, port: int) -> tuple[str, int] | None:
    """ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT; the port is ``port`` when there is none."""
    match = _WHERE.fullmatch(text)
    if match is None:
        return None
    if match["port"] is not None:
        port = int(match["port"])
        if not 1 <= port <= 65535:
            return None
    address = canonical(match["six"] or match["bare"] or match["four"])
    return None if address is None else (address, port)


def _load(text: str, path: str) -> Any:
    import yaml

    class Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
        # All scalars are text: names are what is written.  A key that is there twice is an error here: of two
        # servers with one name, one would be lost without a word.
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                word = key.value if isinstance(key.value, str) else ""
                if word in seen:
                    raise FormatError(f"'{word[:60]}' is there twice", where=f"{path}:{key.start_mark.line + 1}")
                seen.add(word)
            found: dict[Any, Any] = super().construct_mapping(node, deep)
            return found

    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        at = f"{path}:{mark.line + 1}" if mark is not None else path
        raise FormatError(f"is no YAML: {e.problem or e.context}", where=at) from None
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise FormatError(f"is no YAML: {' '.join(str(e).split())[:100]}", where=path) from None


def _word(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise FormatError("has a list or a mapping where a name or an address belongs", where=path)
    return value[:256]


def _mapping(path: str, what: str, data: Any) -> list[tuple[str, Any]]:
    if data is None or data == "":
        return []
    if not isinstance(data, dict) or len(data) > MOST_SERVERS:
        raise FormatError(f"{what} is no mapping", where=path, hint="write NAME: {NAME: ...}; of a pod {NAME: ADDRESS}")
    return [(_word(path, name), value) for name, value in data.items()]


def _number(path: str, what: str, value: Any, most: int) -> int:
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10):
        number = 0
    else:
        number = int(value)
    if not 1 <= number <= most:
        raise FormatError(f"{what} is no number from 1 to {most}", where=path)
    return number
