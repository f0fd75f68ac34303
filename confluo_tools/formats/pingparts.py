"""Pinglists as bytes, made of parts that many servers share: each part is encoded once.

An Arrow list is a zstd-compressed Arrow stream of the schema `pinglist`, a frame for the head and one for each part.
Shared parts may hold the server itself; whoever reads the list leaves it out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from confluo_tools import units
from confluo_tools.algo.fleet import PLACE_BYTES, WORD, Server
from confluo_tools.algo.pinglists import KINDS, LEVELS, Part, Peer, Pinglist, Plan, peer_hash, version_from
from confluo_tools.errors import FormatError
from confluo_tools.formats import arrow_meta as meta
from confluo_tools.formats.build import block_of, packed_address
from confluo_tools.schema import load

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.schema import Schema

FORMAT = 1
FIELDS = ("dst", "ip_version", "dst_ip", "dst_port", "kind", "level", "interval", "timeout", "payload", "dscp",
          "dst_pod", "dst_podset", "dst_dc")  # fmt: skip
ROOM = 256 << 20  # bytes of parts that are kept
MOST_PLAIN = 64 << 20  # bytes of a list when it is not compressed
_KEY = "pinglist:"
_PLACE = 3 * PLACE_BYTES + 2


@dataclass(slots=True)
class Encoded:
    """A part: its peers' hashes added up, the rows of each server in it, and what the list is made of."""

    rows: int
    total: int
    at: dict[str, list[int]]
    hashes: dict[str, int]  # of all rows of a server
    size: int = 0
    lines: list[str] = field(default_factory=list)
    columns: list[bytes] = field(default_factory=list)
    frame: bytes = b""


class Lists:
    """The lists of a plan in one of the forms: yaml, arrow, or columns of records (rows)."""

    def __init__(self, plan: Plan, form: str) -> None:
        self.plan, self.form = plan, form
        self._kept: OrderedDict[tuple[Part, int], Encoded] = OrderedDict()
        self._bytes = 0
        if form == "arrow":
            from zstandard import ZstdCompressor

            self._zip = ZstdCompressor(level=3)
            self._end = self._zip.compress(meta.EOS)

    def servers(self) -> list[Server]:
        """In an order in which those with the same parts follow each other."""
        plan = self.plan
        if plan.rules.graph != "mesh":
            return list(plan.fleet.servers)
        return sorted(plan.fleet.servers, key=lambda s: (s.dc, len(plan.fleet.pods[s.pod]), plan.position(s)))

    def _part(self, part: Part, interval: int) -> Encoded:
        key = (part, interval)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        found = self._encode(self.plan.rows(part, interval))
        self._kept[key] = found
        self._bytes += found.size
        while self._bytes > ROOM and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].size
        return found

    def _encode(self, peers: Sequence[Peer]) -> Encoded:
        at: dict[str, list[int]] = {}
        hashes: dict[str, int] = {}
        total = 0
        for i, p in enumerate(peers):
            h = peer_hash(p)
            total += h
            at.setdefault(p.name, []).append(i)
            hashes[p.name] = hashes.get(p.name, 0) + h
        out = Encoded(len(peers), total, at, hashes, 300 * len(peers))
        if self.form == "yaml":
            out.lines = [yaml_line(p) for p in peers]
            out.size += sum(map(len, out.lines))
        elif peers:
            out.columns = columns_of(peers)
            if self.form == "arrow":
                out.frame = self._zip.compress(batch(out.columns, len(peers)))
                out.columns = []
            out.size += len(out.frame) + sum(map(len, out.columns))
        return out

    def _of(self, server: Server) -> tuple[list[Encoded], int, int]:
        # Its parts, its version, the number of its peers.
        interval = self.plan.interval(self.plan.count(server))
        parts = [self._part(part, interval) for part in self.plan.parts(server)]
        name = server.name
        total = sum(p.total - p.hashes.get(name, 0) for p in parts)
        count = sum(p.rows - len(p.at.get(name, ())) for p in parts)
        return parts, version_from(name, self.plan.token, count, total, server.place), count

    def document(self, server: Server) -> tuple[bytes, int]:
        """(a server's list as it is stored, its version)."""
        parts, version, count = self._of(server)
        place = server.place
        if self.form == "arrow":
            head = self._zip.compress(_head(server.name, version, self.plan.token, place))
            return b"".join([head, *(p.frame for p in parts), self._end]), version
        lines = yaml_head(server.name, version, self.plan.token, count, place)
        for p in parts:
            own = p.at.get(server.name)
            lines += p.lines if own is None else [line for i, line in enumerate(p.lines) if i not in own]
        return ("\n".join(lines) + "\n").encode(), version

    def block(self, server: Server) -> Block | None:
        """A server's pairs as records; None when it has none."""
        from confluo_tools.core.block import Block

        schema = pairs_schema()
        parts, version, count = self._of(server)
        if not count:
            return None
        names = schema.layout.names
        mine = {name: i for i, name in enumerate(_shape().layout.names)}
        sizes = [c.size * c.count for c in schema.columns]
        four, six = packed_address(server.address)
        once = {"src": _text(server.name, 32), "src_ip": four.to_bytes(4, "little"), "src_ip6": six or bytes(16),
                "src_pod": _text(server.pod, 16), "src_podset": _text(server.podset, 16),
                "src_dc": _text(server.dc, 16), "list": version.to_bytes(8, "little")}  # fmt: skip
        buffers: list[Any] = []
        for name, size in zip(names, sizes, strict=True):
            if name in once:
                buffers.append(once[name] * count)
                continue
            pieces = []
            for p in parts:
                if not p.rows:
                    continue
                data, start = p.columns[mine[name]], 0
                for i in p.at.get(server.name, ()):
                    pieces.append(data[start : i * size])
                    start = (i + 1) * size
                pieces.append(data[start:] if start else data)
            buffers.append(b"".join(pieces))
        return Block.wrap(schema.layout, count, buffers)


@cache
def pairs_schema() -> Schema:
    """A pair of a plan as a record; it has no time, so that pairs are no records for a log."""
    import os

    return load(os.path.join(os.path.dirname(__file__), "pinglist.yaml"))


@cache
def _shape() -> Schema:
    return pairs_schema().project(FIELDS)


def columns_of(peers: Sequence[Peer]) -> list[bytes]:
    """The physical columns of a list's rows."""
    addresses = [packed_address(p.address) for p in peers]
    values: dict[str, Sequence[Any]] = {
        "dst": [p.name for p in peers], "ip_version": [6 if six else 4 for _, six in addresses],
        "dst_ip": [four for four, _ in addresses], "dst_ip6": [six or bytes(16) for _, six in addresses],
        "dst_port": [p.port for p in peers], "kind": [KINDS.index(p.kind) + 1 for p in peers],
        "level": [LEVELS.index(p.level) + 1 for p in peers], "interval": [p.interval for p in peers],
        "timeout": [p.timeout for p in peers], "payload": [p.payload for p in peers],
        "dscp": [p.dscp for p in peers], "dst_pod": [p.pod for p in peers],
        "dst_podset": [p.podset for p in peers], "dst_dc": [p.dc for p in peers],
    }  # fmt: skip
    out = [b""] * len(_shape().columns)
    for start in range(0, len(peers), 65536):
        rows = min(65536, len(peers) - start)
        block = block_of(_shape(), {k: v[start : start + rows] for k, v in values.items()}, rows)
        out = [had + bytes(block.buffer(i)) for i, had in enumerate(out)]
    return out


def batch(columns: Sequence[bytes], rows: int) -> bytes:
    """A record batch of an Arrow stream, metadata and body."""
    places, pieces, at = [], [], 0
    for data in columns:
        pad = -len(data) % 64
        places.append((at, len(data)))
        pieces += [data, bytes(pad)]
        at += len(data) + pad
    return b"".join([meta.batch_message(_shape(), rows, places, at), *pieces])


def to_arrow(found: Pinglist) -> bytes:
    """One list as an Arrow stream, compressed."""
    from zstandard import ZstdCompressor

    body = batch(columns_of(found.peers), len(found.peers)) if found.peers else b""
    head = _head(found.server, found.version, found.token, found.place)
    return ZstdCompressor(level=3).compress(head + body + meta.EOS)


def _head(server: str, version: int, token: int, place: tuple[str, str, str]) -> bytes:
    # Messages take a while to be built, so there is one for each length of a name, and its words are put in.
    data, name, first, second, third = _template(len(server))
    out = bytearray(data)
    out[name : name + len(server)] = server.encode()
    out[first : first + 16] = b"%016x" % version
    out[second : second + 16] = b"%016x" % token
    out[third : third + _PLACE] = "/".join(place).encode().ljust(_PLACE)
    return bytes(out)


@cache
def _template(length: int) -> tuple[bytes, int, int, int, int]:
    sizes = {"server": length, "version": 16, "token": 16, "place": _PLACE}

    def message(other: str) -> bytes:
        words = {"format": str(FORMAT), **{k: ("y" if k == other else "x") * n for k, n in sizes.items()}}
        return meta.schema_message(_shape(), {"confluo:kind": "pinglist", **{_KEY + k: v for k, v in words.items()}})

    data = message("")
    # A word stands where the message changes with it: short ones could stand anywhere.
    places = [next(i for i, (a, b) in enumerate(zip(data, message(k), strict=True)) if a != b) for k in sizes]
    return data, places[0], places[1], places[2], places[3]


def from_arrow(data: bytes, where: str) -> Pinglist:
    """The list in an Arrow stream.  Raises FormatError for anything but a whole one of `plan`."""
    from confluo_tools.formats.arrow import StreamReader

    stream = _plain(data, where)

    def refuse(what: str) -> None:
        raise FormatError(what, where=where)

    with StreamReader(stream, warn=refuse) as reader:
        if reader.schema.kind != "pinglist" or reader.schema.layout.names != _shape().layout.names:
            raise FormatError("is no pinglist", where=where)
        words = {key: reader.metadata.get(_KEY + key, "") for key in ("format", "server", "version", "token", "place")}
        if words["format"] != str(FORMAT):
            raise FormatError(f"is a pinglist of format '{words['format'][:10]}'", where=where)
        peers: list[Peer] = []
        for block in reader.blocks():
            peers += _peers(block, where)
    return Pinglist(words["server"], _hex(words["version"], where), _hex(words["token"], where), tuple(peers),
                    place_of(words["place"].rstrip(" "), where))  # fmt: skip


def _peers(block: Block, where: str) -> Iterator[Peer]:
    layout = block.layout
    column = {name: layout.index(name) for name in layout.names}

    def text(name: str, row: int) -> str:
        return bytes(block.get(column[name], row)).rstrip(b"\0").decode("ascii")

    for row in range(block.rows):
        get = {name: block.get(i, row) for name, i in column.items()}
        six = bytes(get["dst_ip6"])
        address = units.format_ip6(six) if get["ip_version"] == 6 else units.format_ip4(get["dst_ip"])
        try:
            yield Peer(text("dst", row), address, get["dst_port"], KINDS[get["kind"] - 1], LEVELS[get["level"] - 1],
                       get["interval"], get["timeout"], get["payload"], get["dscp"], text("dst_pod", row),
                       text("dst_podset", row), text("dst_dc", row))  # fmt: skip
        except (IndexError, UnicodeDecodeError):
            raise FormatError(f"row {row + 1} is not understood", where=where) from None


def _plain(data: bytes, where: str) -> Any:
    from confluo_tools.formats.stream import ByteStream
    from confluo_tools.formats.unzip import Damage, compression, plain

    kind = compression(data[:4])
    if kind:
        out = bytearray()
        try:
            for piece in plain(kind, [data], 1 << 20, where):
                out += piece
                if len(out) > MOST_PLAIN:
                    raise FormatError(f"becomes larger than {MOST_PLAIN >> 20} MiB: no pinglist", where=where)
        except Damage as e:
            raise FormatError(str(e), where=where) from None
        data = bytes(out)

    class Bytes(ByteStream):
        def __init__(self) -> None:
            self.fd, self.name, self.offset, self.waits, self.idle, self.damage = -1, where, 0, False, None, ""
            self._have, self._at, self._ended, self._close = bytearray(data), 0, False, False

        def _more(self) -> bytes:
            return b""

    return Bytes()


def yaml_head(server: str, version: int, token: int, peers: int, place: tuple[str, str, str]) -> list[str]:
    """The lines before the peers."""
    where = [f"place: {'/'.join(place)}"] if any(place) else []
    return [f"pinglist: {FORMAT}", f"server: {server}", *where, f"version: {version:016x}", f"token: {token:016x}",
            "peers:" if peers else "peers: []"]  # fmt: skip


def place_of(text: str, where: str) -> tuple[str, str, str]:
    """Of ``pod/podset/dc``, or of nothing.  Raises FormatError."""
    words = text.split("/") if text else ["", "", ""]
    if len(words) != 3 or any(w and (not WORD.fullmatch(w) or len(w) > PLACE_BYTES) for w in words):
        raise FormatError(f"'{text[:60]}' is no place", where=where, hint="write pod/podset/dc")
    return words[0], words[1], words[2]


def yaml_line(p: Peer) -> str:
    """A peer's."""
    words = [f"name: {p.name}", f"address: '{p.address}'", f"port: {p.port}", f"kind: {p.kind}", f"level: {p.level}"]
    words += [f"interval: {units.format_duration(p.interval)}", f"timeout: {units.format_duration(p.timeout)}"]
    words += [f"{key}: {value}" for key in ("payload", "dscp", "pod", "podset", "dc") if (value := getattr(p, key))]
    return f"- {{{', '.join(words)}}}"


def _text(word: str, size: int) -> bytes:
    return word.encode().ljust(size, b"\0")


def _hex(word: str, where: str) -> int:
    try:
        if len(word) == 16:
            return int(word, 16)
    except ValueError:
        pass
    raise FormatError(f"'{word[:40]}' is no number of 16 hexadecimal digits", where=where)
