"""Packets with in-band telemetry, built by hand from RFC 9197 and RFC 9486; and a slow, obvious reader of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from confluo_tools.core.packets.packet import Packets
from confluo_tools.formats.pcap import packet_schema
from confluo_tools.schema import Schema

SCHEMA = packet_schema(telemetry=True)
IOAM6, IOAM4 = 0x31, 0x5E
NAMES = [
    "id",
    "ifs",
    "seconds",
    "fraction",
    "delay",
    "data",
    "queue",
    "checksum",
    "id_wide",
    "ifs_wide",
    "data_wide",
    "buffer",
]
BIT = {name: 23 - i for i, name in enumerate(NAMES)} | {"future": 23 - 15, "snapshot": 1}
SIZES = dict.fromkeys(NAMES, 4) | dict.fromkeys(["id_wide", "ifs_wide", "data_wide"], 8) | {"future": 4}
ORDER = [*NAMES, "future"]


@dataclass
class Hop:
    """What one switch writes.  ``queue``: None for unknown."""

    id: int
    queue: int | None = 0
    ttl: int = 64
    snapshot: bytes = b""
    seconds: int = 0xFFFFFFFF
    fraction: int = 0xFFFFFFFF

    def time(self, ns: bool = False) -> int:
        """Its time in ns; 0: none."""
        if 0xFFFFFFFF in (self.seconds, self.fraction):
            return 0
        if self.seconds >= 2**31:  # NTP: from 1900
            since = self.seconds - 2208988800
            return since * 10**9 + (self.fraction * 10**9 >> 32) if since >= 0 else 0
        rest = self.fraction * (1 if ns else 1000)
        return self.seconds * 10**9 + rest if rest < 10**9 else 0


@dataclass
class Trace:
    """``hops``: first hop first.  ``free``: bytes left for more."""

    hops: list[Hop]
    parts: list[str] = field(default_factory=lambda: ["id", "queue"])
    free: int = 0
    namespace: int = 0

    def node(self, hop: Hop) -> bytes:
        out = b""
        queue = 0xFFFFFFFF if hop.queue is None else hop.queue
        for name in ORDER:
            if name not in self.parts:
                continue
            if name == "id":
                out += struct.pack(">I", hop.ttl << 24 | hop.id & 0xFFFFFF)
            elif name == "id_wide":
                out += struct.pack(">Q", hop.ttl << 56 | hop.id)
            elif name in ("queue", "seconds", "fraction"):
                value = {"queue": queue, "seconds": hop.seconds, "fraction": hop.fraction}[name]
                out += struct.pack(">I", value)
            else:
                out += b"\xee" * SIZES[name]
        if "snapshot" in self.parts:
            out += bytes([len(hop.snapshot) // 4, 0, 0, 1]) + hop.snapshot
        return out

    def data(self) -> bytes:
        """The data of the option: reserved byte, kind, trace header, free space, newest hop first."""
        kind = sum(1 << BIT[name] for name in self.parts)
        node = sum(SIZES.get(name, 0) for name in self.parts) // 4
        head = struct.pack(">BBHHI", 0, 0, self.namespace, node << 11 | self.free // 4, kind << 8)
        return head + bytes(self.free) + b"".join(self.node(hop) for hop in reversed(self.hops))

    def fields(self, most: int) -> dict[str, tuple[int, ...]]:
        """switch_path and queue_depth as they must come out, ``most`` being the largest value of their type."""
        shown: dict[str, tuple[int, ...]] = {}
        hops = self.hops[:8]
        if hops and "id" in self.parts:
            shown["switch_path"] = tuple(min(hop.id & 0xFFFFFF, most) for hop in hops)
        elif hops and "id_wide" in self.parts:
            shown["switch_path"] = tuple(min(hop.id, 2**32 - 1, most) for hop in hops)
        if hops and "queue" in self.parts:
            shown["queue_depth"] = tuple(min(hop.queue or 0, most) for hop in hops)
        return {name: (*value, *[0] * (8 - len(value))) for name, value in shown.items() if any(value)}


def read(data: bytes) -> dict[str, tuple[int, ...]] | None:
    """Twin of read_trace for switch_path and queue_depth of the widest type; None: not a trace, or a bad one."""
    if len(data) < 10 or data[:2] != b"\0\0":
        return None
    node, free, kind = data[4] >> 3, data[5] & 127, int.from_bytes(data[6:9], "big")
    parts = [name for name in NAMES if kind >> BIT[name] & 1]
    future = sum(kind >> bit & 1 for bit in range(2, 12))
    if node == 0 or node * 4 != sum(SIZES[name] for name in parts) + 4 * future or 4 * free > len(data) - 10:
        return None
    rest = data[10 + 4 * free :]
    hops: list[dict[str, int]] = []
    while rest:
        if len(rest) < node * 4:
            return None
        values, at = {}, 0
        for name in parts:
            values[name] = int.from_bytes(rest[at : at + SIZES[name]], "big")
            at += SIZES[name]
        hops.insert(0, values)
        rest = rest[node * 4 :]
        if kind & 2:
            if not rest or len(rest) < 4 + 4 * rest[0]:
                return None
            rest = rest[4 + 4 * rest[0] :]
    none = 2**32 - 1
    found: dict[str, list[int]] = {"switch_path": [], "queue_depth": []}
    for hop in hops[:8]:
        wide = min(hop.get("id_wide", 0) % 2**56, none)
        found["switch_path"].append(hop["id"] % 2**24 if "id" in hop else wide)
        found["queue_depth"].append(hop.get("queue", 0) % none)
    return {name: (*value, *[0] * (8 - len(value))) for name, value in found.items() if any(value)}


def option(kind: int, data: bytes) -> bytes:
    """An option of IPv6 (0x31) or, with its length counted in, of IPv4."""
    return bytes([kind, len(data) + (2 if kind == IOAM4 else 0)]) + data


def ip6(
    options: bytes, proto: int, body: bytes, *, src: bytes = b"\xfd" * 16, dst: bytes = b"\xfe" * 16, ttl: int = 64
) -> bytes:
    """An IPv6 packet with these hop-by-hop options, padded to 8 bytes."""
    pad = -(len(options) + 2) % 8
    options += b"\0" if pad == 1 else bytes([1, pad - 2]) + bytes(pad - 2) if pad else b""
    hop = bytes([proto, (len(options) + 2) // 8 - 1]) + options
    return struct.pack(">IHBB", 6 << 28, len(hop) + len(body), 0, ttl) + src + dst + hop + body


def ip4(options: bytes, proto: int, body: bytes, *, src: bytes = b"\xc0\0\2\1", dst: bytes = b"\xc0\0\2\2") -> bytes:
    """An IPv4 packet with these options, padded with end of options."""
    options += bytes(-len(options) % 4)
    size = 20 + len(options)
    assert size <= 60
    head = struct.pack(">BBHHHBBH", 0x40 | size // 4, 0, size + len(body), 1, 0, 64, proto, 0)
    return head + src + dst + options + body


def ethernet(packet: bytes, kind: int = 0) -> bytes:
    return b"\2\0\0\0\0\2\2\0\0\0\0\1" + struct.pack(">H", kind or (0x86DD if packet[0] >> 4 == 6 else 0x0800)) + packet


UDP = struct.pack(">HHHH", 1000, 2000, 12, 0) + b"data"


def carried(trace: Trace, version: int, before: bytes = b"", after: bytes = b"") -> bytes:
    """A frame with a UDP packet that carries the trace between other options."""
    if version == 6:
        return ethernet(ip6(before + option(IOAM6, trace.data()) + after, 17, UDP))
    return ethernet(ip4(before + option(IOAM4, trace.data()) + after, 17, UDP))


def frames() -> list[bytes]:
    """Some of each kind: seeds for the fuzzer."""
    two = Trace([Hop(1, 5), Hop(2, 7)], free=16)
    odd = Trace([Hop(3, 1, snapshot=b"abcd"), Hop(4, None)], ["id", "queue", "snapshot", "future"])
    wide = Trace([Hop(2**40, 2**20)], ["queue", "id_wide", "buffer"])
    many = Trace([Hop(k + 1, k) for k in range(20)])
    short = Trace([Hop(1, 5), Hop(2, 7)], free=8), Trace([Hop(9, 9)], ["id"]), Trace([Hop(1), Hop(2), Hop(3)])
    return [*(carried(t, 6, b"\1\2\0\0") for t in (two, odd, wide, many)), *(carried(t, 4, b"\1\1") for t in short)]


def parse(frame: bytes, schema: Schema = SCHEMA, **how: Any) -> dict[str, Any]:
    packets = Packets(schema.layout, inner=how.pop("inner", False), rows=1)
    packets.add(frame, **how)
    block = packets.take()
    return {name: value for i, name in enumerate(block.layout.names) if (value := block.get(i, 0))}
