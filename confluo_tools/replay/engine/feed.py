"""The recorded packets of the other end, as a replay gives them to an end that has no live peer.

A packet is built from its recorded header.  Its acknowledgement number, SACK edges and echoed time stamp count from the
first packet of the end that gets it; the engine moves them to what this end sends now.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from confluo_tools.core.replay.serial_replay import PACKET
from confluo_tools.errors import ConfluoError
from confluo_tools.replay.engine.segments import ACK, SYN, SentPacket
from confluo_tools.replay.engine.settings import number
from confluo_tools.replay.recording import ConnectionEnd

_FIELDS = ("ts", "seq", "ack", "len", "tcp_flags", "window", "ecn", "tsval", "tsecr", "ip_id")
_NOP, _MSS, _SCALE, _SACK_OK, _SACK, _STAMPS = 1, 2, 3, 4, 5, 8
_NEEDS_CHECKSUM = 1  # of virtio_net_hdr: the field has the sum of the pseudo header
_GSO = {4: 1, 6: 4}
_ETHERNET = 14
LEAST_MSS = 88  # TCP_MIN_MSS of Linux
MAX_WINDOW, MAX_LENGTH = 0xFFFF, 0xFFFF
_MAC = bytes.fromhex("020000000001") + bytes.fromhex("020000000002")
_TYPES = {4: 0x0800, 6: 0x86DD}
FIRST = 1_000_000  # sequence number of the SYN that is fed


@dataclass(frozen=True)
class SynOptions:
    """What a SYN offers.  ``scale``: window scale, -1: none."""

    mss: int
    scale: int
    sack: bool
    timestamps: bool


@dataclass
class Feed:
    """The packets for one end, in the order in which its TCP processed them.

    ``mss``: payload of a segment in packets of several.  ``stamp``: first time stamp that the end sent when it was
    recorded.
    """

    packets: list[SentPacket]
    options: SynOptions
    mss: int
    stamp: int

    def packed(self, source: tuple[str, int], target: tuple[str, int]) -> bytes:
        """The packets as the engine reads them, from and to these addresses and ports."""
        pack = struct.Struct(PACKET).pack
        out = []
        for p in self.packets:
            head = frame_head(p, self, source, target)
            out.append(pack(0, len(head) + p.len, len(head), head))
        return b"".join(out)


def feed_of(end: ConnectionEnd, other: ConnectionEnd) -> Feed:
    """What ``end`` received.  ``other`` may be empty.  Raises ConfluoError if the recording has not enough for it."""
    got = end.headers_received
    if len(got) != end.packets_received:
        raise ConfluoError(
            f"there are no headers of the packets that {end.flow.src} got", hint="record with --level headers"
        )
    rows = zip(*(got[name] for name in _FIELDS), end.sack_received, strict=True)
    packets = [
        SentPacket(at, seq, ack, length, flags, window, sack, ecn, tsval, tsecr, ip_id)
        for at, seq, ack, length, flags, window, ecn, tsval, tsecr, ip_id, sack in rows
    ]
    if any(p.window > MAX_WINDOW or p.len > MAX_LENGTH for p in packets):
        raise ConfluoError("the header of a packet cannot be: the recording is damaged")
    options = _syn_options(end, other) if packets else SynOptions(0, -1, False, False)
    stamps = 12 * any(p.tsval for p in packets[:1])
    sizes = [size for size in (number(end, "mss"), options.mss) if size >= LEAST_MSS]
    echoed = next((p.tsecr for p in packets if p.tsecr), 0)
    stamp = end.headers_sent["tsval"][0] if len(end.headers_sent) else echoed
    return Feed(packets, options, min(sizes, default=LEAST_MSS) - stamps, stamp)


def _syn_options(end: ConnectionEnd, other: ConnectionEnd) -> SynOptions:
    for holder, prefix in ((end, "peer_"), (other, "")):
        if f"{prefix}mss" in holder.settings:
            scale, sack, stamps = (holder.setting(f"{prefix}{name}", -1) for name in ("wscale", "sack", "timestamps"))
            mss = number(holder, f"{prefix}mss")
            if not 0 <= mss < 1 << 16 or not -1 <= scale < 1 << 8:
                raise ConfluoError("an option of a SYN cannot be: the recording is damaged")
            return SynOptions(mss, scale, sack > 0, stamps > 0)
    raise ConfluoError(f"the recording has no options of the SYN that {end.flow.src} got")


def frame_head(p: SentPacket, feed: Feed, source: tuple[str, int], target: tuple[str, int]) -> bytes:
    """virtio_net_hdr, Ethernet, IP and TCP headers of a packet."""
    six = ":" in source[0]
    family = socket.AF_INET6 if six else socket.AF_INET
    addresses = socket.inet_pton(family, source[0]) + socket.inet_pton(family, target[0])
    options = _options(p, feed)
    tcp_length = 20 + len(options) + p.len
    pseudo = _folded(addresses + struct.pack(">II", tcp_length, socket.IPPROTO_TCP))
    offset = (5 + len(options) // 4) << 4 | (p.flags >> 8 & 1)
    ports = struct.pack(">HH", source[1], target[1])
    tcp = ports + struct.pack(
        ">IIBBHHH", p.seq + FIRST & 0xFFFFFFFF, p.ack, offset, p.flags & 0xFF, p.window, pseudo, 0
    )
    ip = _ip6(p, tcp_length, addresses) if six else _ip4(p, tcp_length, addresses)
    version = 6 if six else 4
    several = p.len > feed.mss
    offloads = struct.pack(
        "<BBHHHH",
        _NEEDS_CHECKSUM,
        _GSO[version] if several else 0,
        _ETHERNET + len(ip) + len(tcp) + len(options),
        feed.mss if several else 0,
        _ETHERNET + len(ip),
        16,
    )
    return offloads + _MAC + struct.pack(">H", _TYPES[version]) + ip + tcp + options


def _options(p: SentPacket, feed: Feed) -> bytes:
    """TCP options in the order of Linux."""
    syn, stamps = p.flags & SYN, b""
    if p.tsval or (syn and feed.options.timestamps):
        stamps = struct.pack(">BBII", _STAMPS, 10, p.tsval, p.tsecr - feed.stamp & 0xFFFFFFFF if p.flags & ACK else 0)
    if syn:
        offer = feed.options
        out = struct.pack(">BBH", _MSS, 4, offer.mss)
        permitted = bytes((_SACK_OK, 2)) if offer.sack else bytes((_NOP, _NOP))
        out += permitted + stamps if stamps else bytes((_NOP, _NOP, _SACK_OK, 2)) if offer.sack else b""
        return out + (bytes((_NOP, _SCALE, 3, offer.scale)) if offer.scale >= 0 else b"")
    out = bytes((_NOP, _NOP)) + stamps if stamps else b""
    if p.sack:
        edges = p.sack[: (40 - len(out) - 4) // 8 * 2]
        out += bytes((_NOP, _NOP, _SACK, 2 + 4 * len(edges))) + struct.pack(f">{len(edges)}I", *edges)
    return out


def _ip4(p: SentPacket, length: int, addresses: bytes) -> bytes:
    total = 20 + length
    head = struct.pack(">BBHHHBBH", 0x45, p.ecn, total & 0xFFFF if total < 1 << 16 else 0, p.ip_id, 0x4000, 64, 6, 0)
    return head[:10] + struct.pack(">H", ~_folded(head + addresses) & 0xFFFF) + addresses


def _ip6(p: SentPacket, length: int, addresses: bytes) -> bytes:
    return struct.pack(">IHBB", 6 << 28 | p.ecn << 20, length if length < 1 << 16 else 0, 6, 64) + addresses


def _folded(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
