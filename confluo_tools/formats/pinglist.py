"""Pinglists: what one server is to probe, as a file that its agent pulls.  YAML, or an Arrow stream."""

from __future__ import annotations

from typing import Any

from confluo_tools import units
from confluo_tools.algo.fleet import NAME_BYTES, PLACE_BYTES, WORD
from confluo_tools.algo.pinglists import (
    KINDS,
    LEAST_INTERVAL,
    LEVELS,
    MOST_TIMEOUT,
    Peer,
    Pinglist,
    least_payload,
    most_payload,
    version_of,
)
from confluo_tools.errors import ConfluoError, FormatError
from confluo_tools.formats.fleet import canonical
from confluo_tools.formats.pingparts import FORMAT, from_arrow, place_of, to_arrow, yaml_head, yaml_line
from confluo_tools.formats.unzip import compression

MAX_BYTES = 16 << 20  # of a list as it is pulled
MAX_PEERS = 100_000
_HEAD = {"pinglist", "server", "version", "token", "peers"}
_PEER = ("name", "address", "port", "kind", "level", "interval", "timeout", "payload", "dscp", "pod", "podset", "dc")

__all__ = ["MAX_BYTES", "Peer", "Pinglist", "read_pinglist", "to_arrow", "to_yaml"]


def read_pinglist(source: str | bytes, *, lab: bool = False, where: str = "pinglist") -> Pinglist:
    """The list in a file (a path) or in bytes, which ``where`` names in errors; without the server itself.

    ``lab`` lifts the limit of 10 s between two probes of a pair.  Raises FormatError, one line, for everything that
    is not a whole list as `plan` writes them: cut, changed (the version does not fit), too large, out of limits.
    """
    if isinstance(source, str):
        where = source
        try:
            with open(source, "rb") as f:
                source = f.read(MAX_BYTES + 1)
        except OSError as e:
            raise FormatError(e.strerror or str(e), where=where) from None
    if len(source) > MAX_BYTES:
        raise FormatError(f"is larger than {MAX_BYTES >> 20} MiB: no pinglist", where=where)
    is_arrow = source[:4] == b"\xff\xff\xff\xff" or compression(source[:4])
    found = from_arrow(source, where) if is_arrow else _from_yaml(source, where)
    _name(found.server, where)
    its = tuple(p for p in found.peers if p.name != found.server)
    for p in its:
        _check(p, lab, where)
    if len({(p.address, p.port, p.kind, p.dscp) for p in its}) < len(its):
        raise FormatError("has the same peer twice", where=where)
    if found.version != version_of(found.server, found.token, its, found.place):
        raise FormatError("does not fit its version: it was cut or changed", where=where, hint="plan it again")
    return Pinglist(found.server, found.version, found.token, its, found.place)


def to_yaml(found: Pinglist) -> bytes:
    """One list as YAML, a peer a line."""
    lines = yaml_head(found.server, found.version, found.token, len(found.peers), found.place)
    return ("\n".join([*lines, *map(yaml_line, found.peers)]) + "\n").encode()


def _from_yaml(data: bytes, where: str) -> Pinglist:
    import yaml

    try:
        tree: Any = yaml.load(data.decode(), getattr(yaml, "CBaseLoader", yaml.BaseLoader))  # scalars are text
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise FormatError(f"is no pinglist: {' '.join(str(e).split())[:100]}", where=where) from None
    if not isinstance(tree, dict) or set(tree) - {"place"} != _HEAD or tree["pinglist"] != str(FORMAT):
        raise FormatError("is no pinglist", where=where, hint=f"it has the keys {', '.join(sorted(_HEAD))}")
    server, version, token, rows = (tree[key] for key in ("server", "version", "token", "peers"))
    if not isinstance(rows, list) or len(rows) > MAX_PEERS:
        raise FormatError("peers are no list", where=where)
    peers = tuple(_peer(row, where) for row in rows)
    place = tree.get("place", "")
    if not isinstance(place, str):
        raise FormatError("place is no text", where=where, hint="write pod/podset/dc")
    return Pinglist(_name(server, where), _hex(version, where), _hex(token, where), peers, place_of(place, where))


def _peer(row: Any, where: str) -> Peer:
    if not isinstance(row, dict) or not set(row) <= set(_PEER) or not all(isinstance(v, str) for v in row.values()):
        raise FormatError("one of the peers is not understood", where=where)
    try:
        return Peer(
            row["name"], canonical(row["address"]) or "", int(row["port"]), row["kind"], row["level"],
            units.duration(row["interval"]), units.duration(row["timeout"]), int(row.get("payload", 0)),
            int(row.get("dscp", 0)), row.get("pod", ""), row.get("podset", ""), row.get("dc", ""),
        )  # fmt: skip
    except (KeyError, ValueError, ConfluoError):
        raise FormatError(f"peer '{_shown(row.get('name', ''))}' is not understood", where=where) from None


def _check(p: Peer, lab: bool, where: str) -> None:
    name = _name(p.name, where)
    if not p.address:
        raise FormatError(f"peer '{name}' has no address", where=where)
    if not 1 <= p.port <= 65535 or p.kind not in KINDS or p.level not in LEVELS or not 0 <= p.dscp <= 63:
        raise FormatError(f"peer '{name}' is not understood", where=where)
    if p.interval < LEAST_INTERVAL and not (lab and p.interval > 0):
        raise FormatError(f"peer '{name}' is to be probed every {units.format_duration(p.interval)}", where=where,
                          hint="10 s is the least")  # fmt: skip
    if not 0 < p.timeout <= MOST_TIMEOUT or p.interval > 86400 * 10**9:
        raise FormatError(f"peer '{name}' has no sound time-out or interval", where=where)
    if not least_payload(p.kind) <= p.payload <= most_payload(p.kind):
        raise FormatError(f"peer '{name}' is to get {p.payload} B", where=where,
                          hint=f"{least_payload(p.kind)} to {most_payload(p.kind)} are allowed")  # fmt: skip
    for place in (p.pod, p.podset, p.dc):
        if place and (not WORD.fullmatch(place) or len(place) > PLACE_BYTES):
            raise FormatError(f"peer '{name}' is in '{_shown(place)}', which is no place", where=where)


def _shown(word: Any) -> str:
    return ascii(str(word)[:40])[1:-1]


def _name(word: Any, where: str) -> str:
    if not isinstance(word, str) or not WORD.fullmatch(word) or len(word) > NAME_BYTES:
        raise FormatError(f"'{_shown(word)}' is no name of a server", where=where)
    return word


def _hex(word: Any, where: str) -> int:
    try:
        if isinstance(word, str) and len(word) <= 16:
            return int(word, 16)
    except ValueError:
        pass
    raise FormatError(f"'{_shown(word)}' is no number of 16 hexadecimal digits", where=where)
