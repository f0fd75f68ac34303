"""Encoder and decoder of pinglists.  Lists consist of parts that many servers share: each part is encoded once.

An Arrow list is a zstd-compressed Arrow stream of the schema `pinglist`, a frame for the head and one per part.
Shared parts may contain the server itself; readers leave it out.

YAML lines are formatted here, not by yaml.safe_dump: it is about 100 times slower (a plan has up to a million pairs),
cannot join parts that are encoded once, and would break the promise of the same bytes for the same list.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from confluo_tools import units
from confluo_tools.errors import FormatError
from confluo_tools.formats import arrow_meta as meta
from confluo_tools.formats.block_builder import block_of, packed_address
from confluo_tools.network.fleet import PLACE_BYTES, WORD, FleetServer
from confluo_tools.pingmesh.plan.graphs import (
    KINDS,
    LEVELS,
    Part,
    Pinglist,
    PinglistPeer,
    PingmeshPlan,
    peer_hash,
    version_from,
)
from confluo_tools.schema import load

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.bytestream import ByteStream
    from confluo_tools.schema import Schema

FORMAT = 1
FIELDS = (
    "dst",
    "ip_version",
    "dst_ip",
    "dst_port",
    "kind",
    "level",
    "interval",
    "timeout",
    "payload",
    "dscp",
    "dst_pod",
    "dst_podset",
    "dst_dc",
)
MAX_CACHE = 256 << 20  # bytes of encoded parts
MAX_PLAIN = 64 << 20  # bytes of a decompressed list
_KEY = "pinglist:"
_PLACE = 3 * PLACE_BYTES + 2


@dataclass(slots=True)
class EncodedPart:
    """An encoded part: the sum of its peers' hashes, the rows of each server, and the bytes of one format."""

    rows: int
    total: int
    at: dict[str, list[int]]
    hashes: dict[str, int]  # sum over the rows of a server
    size: int = 0
    lines: list[str] = field(default_factory=list)
    columns: list[bytes] = field(default_factory=list)
    frame: bytes = b""


class PinglistEncoder:
    """Encodes the lists of a plan in one format: yaml, arrow, or rows (columns of records)."""

    def __init__(self, plan: PingmeshPlan, form: str) -> None:
        self.plan, self.form = plan, form
        self._kept: OrderedDict[tuple[Part, int], EncodedPart] = OrderedDict()
        self._bytes = 0
        if form == "arrow":
            from zstandard import ZstdCompressor

            self._zip = ZstdCompressor(level=3)
            self._end = self._zip.compress(meta.EOS)

    def servers(self) -> list[FleetServer]:
        """All servers, those with the same parts next to each other."""
        plan = self.plan
        if plan.rules.graph != "mesh":
            return list(plan.fleet.servers)
        return sorted(plan.fleet.servers, key=lambda s: (s.dc, len(plan.fleet.pods[s.pod]), plan.position(s)))

    def _part(self, part: Part, interval: int) -> EncodedPart:
        key = (part, interval)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        found = self._encode(self.plan.rows(part, interval))
        self._kept[key] = found
        self._bytes += found.size
        while self._bytes > MAX_CACHE and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].size
        return found

    def _encode(self, peers: Sequence[PinglistPeer]) -> EncodedPart:
        at: dict[str, list[int]] = {}
        hashes: dict[str, int] = {}
        total = 0
        for i, p in enumerate(peers):
            h = peer_hash(p)
            total += h
            at.setdefault(p.name, []).append(i)
            hashes[p.name] = hashes.get(p.name, 0) + h
        out = EncodedPart(len(peers), total, at, hashes, 300 * len(peers))
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

    def _parts_of(self, server: FleetServer) -> tuple[list[EncodedPart], int, int]:
        # The encoded parts, the version, and the number of peers of a server.
        interval = self.plan.interval(self.plan.count(server))
        parts = [self._part(part, interval) for part in self.plan.parts(server)]
        name = server.name
        total = sum(p.total - p.hashes.get(name, 0) for p in parts)
        count = sum(p.rows - len(p.at.get(name, ())) for p in parts)
        return parts, version_from(name, self.plan.token, count, total, server.place), count

    def document(self, server: FleetServer) -> tuple[bytes, int]:
        """The bytes of a server's list, and its version."""
        parts, version, count = self._parts_of(server)
        place = server.place
        if self.form == "arrow":
            head = self._zip.compress(_head(server.name, version, self.plan.token, place))
            return b"".join([head, *(p.frame for p in parts), self._end]), version
        lines = yaml_head(server.name, version, self.plan.token, count, place)
        for p in parts:
            own = p.at.get(server.name)
            lines += p.lines if own is None else [line for i, line in enumerate(p.lines) if i not in own]
        return ("\n".join(lines) + "\n").encode(), version

    def block(self, server: FleetServer) -> Block | None:
        """The pairs of a server as records; None: it has none."""
        from confluo_tools.core.block.block import Block

        schema = pairs_schema()
        parts, version, count = self._parts_of(server)
        if not count:
            return None
        names = schema.layout.names
        mine = {name: i for i, name in enumerate(_shape().layout.names)}
        sizes = [c.size * c.count for c in schema.columns]
        four, six = packed_address(server.address)
        once = {
            "src": _text(server.name, 32),
            "src_ip": four.to_bytes(4, "little"),
            "src_ip6": six or bytes(16),
            "src_pod": _text(server.pod, 16),
            "src_podset": _text(server.podset, 16),
            "src_dc": _text(server.dc, 16),
            "list": version.to_bytes(8, "little"),
        }
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
    """The schema of a pair of a plan.  It has no time: pairs cannot be written to a log."""
    return load(os.path.join(os.path.dirname(__file__), "pinglist.yaml"))


@cache
def _shape() -> Schema:
    return pairs_schema().project(FIELDS)


def columns_of(peers: Sequence[PinglistPeer]) -> list[bytes]:
    """The physical columns of the peers of a list."""
    addresses = [packed_address(p.address) for p in peers]
    values: dict[str, Sequence[Any]] = {
        "dst": [p.name for p in peers],
        "ip_version": [6 if six else 4 for _, six in addresses],
        "dst_ip": [four for four, _ in addresses],
        "dst_ip6": [six or bytes(16) for _, six in addresses],
        "dst_port": [p.port for p in peers],
        "kind": [KINDS.index(p.kind) + 1 for p in peers],
        "level": [LEVELS.index(p.level) + 1 for p in peers],
        "interval": [p.interval for p in peers],
        "timeout": [p.timeout for p in peers],
        "payload": [p.payload for p in peers],
        "dscp": [p.dscp for p in peers],
        "dst_pod": [p.pod for p in peers],
        "dst_podset": [p.podset for p in peers],
        "dst_dc": [p.dc for p in peers],
    }
    out = [b""] * len(_shape().columns)
    for start in range(0, len(peers), 65536):
        rows = min(65536, len(peers) - start)
        block = block_of(_shape(), {k: v[start : start + rows] for k, v in values.items()}, rows)
        out = [had + bytes(block.buffer(i)) for i, had in enumerate(out)]
    return out


def batch(columns: Sequence[bytes], rows: int) -> bytes:
    """A record batch of an Arrow stream: metadata and body."""
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
    # Building a message is slow: there is one template per length of the name, and the values are patched in.
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
    # The position of a value is where the message changes with it; searching for short values would be ambiguous.
    places = [next(i for i, (a, b) in enumerate(zip(data, message(k), strict=True)) if a != b) for k in sizes]
    return data, places[0], places[1], places[2], places[3]


def from_arrow(data: bytes, where: str) -> Pinglist:
    """The list in an Arrow stream.  Raises FormatError for anything but a complete list of `plan`."""
    from confluo_tools.formats.arrow import StreamReader

    def reject(problem: str) -> None:
        raise FormatError(problem, where=where)

    with closing(_stream(data, where)) as stream, StreamReader(stream, warn=reject) as reader:
        if reader.schema.kind != "pinglist" or reader.schema.layout.names != _shape().layout.names:
            raise FormatError("not a pinglist", where=where)
        words = {key: reader.metadata.get(_KEY + key, "") for key in ("format", "server", "version", "token", "place")}
        if words["format"] != str(FORMAT):
            raise FormatError(f"unsupported pinglist format '{words['format'][:10]}'", where=where)
        peers: list[PinglistPeer] = []
        for block in reader.blocks():
            peers += _peers(block, where)
    return Pinglist(
        words["server"],
        _hex(words["version"], where),
        _hex(words["token"], where),
        tuple(peers),
        place_of(words["place"].rstrip(" "), where),
    )


def _peers(block: Block, where: str) -> Iterator[PinglistPeer]:
    layout = block.layout
    column = {name: layout.index(name) for name in layout.names}

    def text(name: str, row: int) -> str:
        return bytes(block.get(column[name], row)).rstrip(b"\0").decode("ascii")

    for row in range(block.rows):
        get = {name: block.get(i, row) for name, i in column.items()}
        six = bytes(get["dst_ip6"])
        address = units.format_ip6(six) if get["ip_version"] == 6 else units.format_ip4(get["dst_ip"])
        try:
            yield PinglistPeer(
                text("dst", row),
                address,
                get["dst_port"],
                KINDS[get["kind"] - 1],
                LEVELS[get["level"] - 1],
                get["interval"],
                get["timeout"],
                get["payload"],
                get["dscp"],
                text("dst_pod", row),
                text("dst_podset", row),
                text("dst_dc", row),
            )
        except (IndexError, UnicodeDecodeError):
            raise FormatError(f"invalid row {row + 1}", where=where) from None


def _stream(data: bytes, where: str) -> ByteStream:
    # The decompressed bytes as a stream over a memory file.
    from confluo_tools.formats.bytestream import ByteStream
    from confluo_tools.formats.decompress import Damage, compression, plain

    kind = compression(data[:4])
    if kind:
        out = bytearray()
        try:
            for piece in plain(kind, [data], 1 << 20, where):
                out += piece
                if len(out) > MAX_PLAIN:
                    raise FormatError(f"not a pinglist: exceeds {MAX_PLAIN >> 20} MiB decompressed", where=where)
        except Damage as e:
            raise FormatError(str(e), where=where) from None
        data = bytes(out)
    fd = os.memfd_create("pinglist", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
        return ByteStream(fd, where)
    except BaseException:
        os.close(fd)
        raise


def yaml_head(server: str, version: int, token: int, peers: int, place: tuple[str, str, str]) -> list[str]:
    """The YAML lines before the peers."""
    where = [f"place: {'/'.join(place)}"] if any(place) else []
    return [
        f"pinglist: {FORMAT}",
        f"server: {server}",
        *where,
        f"version: {version:016x}",
        f"token: {token:016x}",
        "peers:" if peers else "peers: []",
    ]


def place_of(text: str, where: str) -> tuple[str, str, str]:
    """The place in ``pod/podset/dc``; empty text: unknown.  Raises FormatError."""
    words = text.split("/") if text else ["", "", ""]
    if len(words) != 3 or any(w and (not WORD.fullmatch(w) or len(w) > PLACE_BYTES) for w in words):
        raise FormatError(f"invalid place '{text[:60]}'", where=where, hint="write pod/podset/dc")
    return words[0], words[1], words[2]


def yaml_line(p: PinglistPeer) -> str:
    """The YAML line of a peer."""
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
    raise FormatError(f"'{word[:40]}' is not a number of 16 hexadecimal digits", where=where)
