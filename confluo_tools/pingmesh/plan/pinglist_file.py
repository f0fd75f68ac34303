"""Pinglist files: read and validate YAML or an Arrow stream; write YAML."""

from __future__ import annotations

from typing import Any

from confluo_tools import units
from confluo_tools.errors import ConfluoError, FormatError
from confluo_tools.formats.decompress import compression
from confluo_tools.network.addresses import canonical
from confluo_tools.network.fleet import NAME_BYTES, PLACE_BYTES, WORD
from confluo_tools.pingmesh.plan.graphs import (
    KINDS,
    LEVELS,
    MAX_INTERVAL,
    MAX_TIMEOUT,
    MIN_INTERVAL,
    Pinglist,
    PinglistPeer,
    max_payload,
    min_payload,
    version_of,
)
from confluo_tools.pingmesh.plan.pinglist_parts import FORMAT, from_arrow, place_of, to_arrow, yaml_head, yaml_line

MAX_BYTES = 16 << 20  # of a list file
MAX_PEERS = 100_000
MAX_YAML_NODES = 4 << 20
_HEAD = {"pinglist", "server", "version", "token", "peers"}
_PEER = ("name", "address", "port", "kind", "level", "interval", "timeout", "payload", "dscp", "pod", "podset", "dc")

__all__ = ["MAX_BYTES", "Pinglist", "PinglistPeer", "read_pinglist", "to_arrow", "to_yaml"]


def read_pinglist(source: str | bytes, *, lab: bool = False, where: str = "pinglist") -> Pinglist:
    """The list in a file (a path) or in bytes, named ``where`` in errors; without the server itself.

    ``lab`` lifts the minimum of 10 s between two probes of a pair.  Raises FormatError for anything but a complete list
    of `plan`: truncated, changed (wrong version), too large, out of limits.
    """
    if isinstance(source, str):
        where = source
        try:
            with open(source, "rb") as f:
                source = f.read(MAX_BYTES + 1)
        except OSError as e:
            raise FormatError(e.strerror or str(e), where=where) from None
    if len(source) > MAX_BYTES:
        raise FormatError(f"not a pinglist: exceeds {MAX_BYTES >> 20} MiB", where=where)
    is_arrow = source[:4] == b"\xff\xff\xff\xff" or compression(source[:4])
    found = from_arrow(source, where) if is_arrow else _from_yaml(source, where)
    _name(found.server, where)
    its = tuple(p for p in found.peers if p.name != found.server)
    for p in its:
        _check(p, lab, where)
    if len({(p.address, p.port, p.kind, p.dscp) for p in its}) < len(its):
        raise FormatError("duplicate peer", where=where)
    if found.version != version_of(found.server, found.token, its, found.place):
        raise FormatError(
            "wrong version: the list was truncated or changed", where=where, hint="write it again with plan"
        )
    return Pinglist(found.server, found.version, found.token, its, found.place)


def to_yaml(found: Pinglist) -> bytes:
    """One list as YAML, one peer per line."""
    lines = yaml_head(found.server, found.version, found.token, len(found.peers), found.place)
    return ("\n".join([*lines, *map(yaml_line, found.peers)]) + "\n").encode()


def _from_yaml(data: bytes, where: str) -> Pinglist:
    from confluo_tools import guarded_yaml

    try:
        tree: Any = guarded_yaml.load(data, as_text=True, max_nodes=MAX_YAML_NODES)
    except guarded_yaml.YamlError as e:
        raise FormatError(f"not a pinglist: {e}", where=where) from None
    if not isinstance(tree, dict) or set(tree) - {"place"} != _HEAD or tree["pinglist"] != str(FORMAT):
        raise FormatError("not a pinglist", where=where, hint=f"its keys are {', '.join(sorted(_HEAD))}")
    server, version, token, rows = (tree[key] for key in ("server", "version", "token", "peers"))
    if not isinstance(rows, list) or len(rows) > MAX_PEERS:
        raise FormatError(f"'peers' is not a list of up to {MAX_PEERS}", where=where)
    peers = tuple(_peer(row, where) for row in rows)
    place = tree.get("place", "")
    if not isinstance(place, str):
        raise FormatError("'place' is not text", where=where, hint="write pod/podset/dc")
    return Pinglist(_name(server, where), _hex(version, where), _hex(token, where), peers, place_of(place, where))


def _peer(row: Any, where: str) -> PinglistPeer:
    if not isinstance(row, dict) or not set(row) <= set(_PEER) or not all(isinstance(v, str) for v in row.values()):
        raise FormatError("invalid peer", where=where)
    try:
        return PinglistPeer(
            row["name"],
            canonical(row["address"]) or "",
            int(row["port"]),
            row["kind"],
            row["level"],
            units.duration(row["interval"]),
            units.duration(row["timeout"]),
            int(row.get("payload", 0)),
            int(row.get("dscp", 0)),
            row.get("pod", ""),
            row.get("podset", ""),
            row.get("dc", ""),
        )
    except (KeyError, ValueError, ConfluoError):
        raise FormatError(f"invalid peer '{_shown(row.get('name', ''))}'", where=where) from None


def _check(p: PinglistPeer, lab: bool, where: str) -> None:
    name = _name(p.name, where)
    if not p.address:
        raise FormatError(f"peer '{name}' has no address", where=where)
    if not 1 <= p.port <= 65535 or p.kind not in KINDS or p.level not in LEVELS or not 0 <= p.dscp <= 63:
        raise FormatError(f"invalid peer '{name}'", where=where)
    if p.interval < MIN_INTERVAL and not (lab and p.interval > 0):
        raise FormatError(
            f"peer '{name}' has an interval of {units.format_duration(p.interval)}",
            where=where,
            hint="the minimum is 10 s",
        )
    if not 0 < p.timeout <= MAX_TIMEOUT or p.interval > MAX_INTERVAL:
        raise FormatError(f"peer '{name}' has an invalid time-out or interval", where=where)
    if not min_payload(p.kind) <= p.payload <= max_payload(p.kind):
        raise FormatError(
            f"peer '{name}' has a payload of {p.payload} B",
            where=where,
            hint=f"{min_payload(p.kind)} to {max_payload(p.kind)} B are valid",
        )
    for place in (p.pod, p.podset, p.dc):
        if place and (not WORD.fullmatch(place) or len(place) > PLACE_BYTES):
            raise FormatError(f"peer '{name}' has an invalid place '{_shown(place)}'", where=where)


def _shown(word: Any) -> str:
    return ascii(str(word)[:40])[1:-1]


def _name(word: Any, where: str) -> str:
    if not isinstance(word, str) or not WORD.fullmatch(word) or len(word) > NAME_BYTES:
        raise FormatError(f"invalid server name '{_shown(word)}'", where=where)
    return word


def _hex(word: Any, where: str) -> int:
    try:
        if isinstance(word, str) and len(word) <= 16:
            return int(word, 16)
    except ValueError:
        pass
    raise FormatError(f"'{_shown(word)}' is not a number of up to 16 hexadecimal digits", where=where)
