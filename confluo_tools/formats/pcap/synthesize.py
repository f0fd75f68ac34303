"""Frames built from the fields of packet records, for records without captured bytes.

A frame has the headers that the fields describe: Ethernet with VLAN tags, IPv4 or IPv6, TCP, UDP, SCTP or ICMP.  It
has no payload: the frame is cut after the headers, and its original length is that of the record.  Length fields are
those of the packet.  Checksums of IPv4 are right; those of TCP, UDP and ICMP where the packet had no payload, else 0.
Not rebuilt: IPv4 options, IPv6 extension headers (a fragment header is), MPLS, tunnels, SACK blocks.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import UsageError
from confluo_tools.formats.pcap import pcapng_blocks
from confluo_tools.schema.link_types import ETHERNET, RAW_IP

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.schema import Column, Schema

NEEDED = ("ts", "len", "ip_version", "proto", "src_ip", "dst_ip")
OPTIONAL = (
    "payload_len",
    "src_port",
    "dst_port",
    "ip_len",
    "ttl",
    "dscp",
    "ecn",
    "ip_id",
    "ip_flags",
    "frag_offset",
    "tcp_seq",
    "tcp_ack",
    "tcp_flags",
    "tcp_window",
    "tcp_opts",
    "tcp_mss",
    "tcp_wscale",
    "tcp_tsval",
    "tcp_tsecr",
    "icmp_type",
    "icmp_code",
    "eth_src",
    "eth_dst",
    "eth_type",
    "vlan",
    "vlan2",
    "vlan_count",
    "link_type",
)
ICMP, TCP, UDP, FRAGMENT, ICMP6, SCTP, UDPLITE = 1, 6, 17, 44, 58, 132, 136
MF, DF, RESERVED = 1, 2, 4  # bits of ip_flags
MSS, WSCALE, SACK_OK, TSTAMP = 1, 2, 4, 16  # bits of tcp_opts


class HeaderFields:
    """The fields of one record; missing ones are 0.  Addresses are 4 or 16 bytes."""

    src: bytes
    dst: bytes
    len: int
    cap_len: int = 0
    ip_version: int
    proto: int
    payload_len: int = 0
    src_port: int = 0
    dst_port: int = 0
    ip_len: int = 0
    ttl: int = 0
    dscp: int = 0
    ecn: int = 0
    ip_id: int = 0
    ip_flags: int = 0
    frag_offset: int = 0
    tcp_seq: int = 0
    tcp_ack: int = 0
    tcp_flags: int = 0
    tcp_window: int = 0
    tcp_opts: int = 0
    tcp_mss: int = 0
    tcp_wscale: int = 0
    tcp_tsval: int = 0
    tcp_tsecr: int = 0
    icmp_type: int = 0
    icmp_code: int = 0
    eth_src: int = 0
    eth_dst: int = 0
    eth_type: int = 0
    vlan: int = 0
    vlan2: int = 0
    vlan_count: int = 0
    link_type: int = ETHERNET


def frame(r: HeaderFields) -> tuple[int, bytes]:
    """(link type, bytes) of a record: raw IP when the packet was captured without an Ethernet header, else Ethernet."""
    packet = b"" if r.ip_version not in (4, 6) else _ip4(r) if r.ip_version == 4 else _ip6(r)
    if packet and r.link_type != ETHERNET:
        return RAW_IP, packet
    return ETHERNET, _ethernet(r) + packet


def _ethernet(r: HeaderFields) -> bytes:
    default = {4: 0x0800, 6: 0x86DD}.get(r.ip_version, 0)
    kind = default or r.eth_type  # MPLS and PPPoE are not rebuilt: the IP header follows directly
    tags = struct.pack(">HH", 0x8100, r.vlan & 0xFFF) if r.vlan_count else b""
    if r.vlan_count > 1:  # IEEE 802.1ad: a service tag, then a customer tag
        tags = struct.pack(">HHHH", 0x88A8, r.vlan & 0xFFF, 0x8100, r.vlan2 & 0xFFF)
    return r.eth_dst.to_bytes(6, "big") + r.eth_src.to_bytes(6, "big") + tags + struct.pack(">H", kind)


def _ip4(r: HeaderFields) -> bytes:
    above = _transport(r, 20)
    flags = (r.ip_flags & RESERVED) << 13 | (r.ip_flags & DF) << 13 | (r.ip_flags & MF) << 13
    total = 20 + len(above) + r.payload_len
    words = (0x4500 | r.dscp << 2 | r.ecn, total & 0xFFFF, r.ip_id, flags | r.frag_offset >> 3, r.ttl << 8 | r.proto)
    head = struct.pack(">5H2x", *words) + r.src + r.dst
    return head[:10] + struct.pack(">H", _checksum(head)) + head[12:] + above


def _ip6(r: HeaderFields) -> bytes:
    above, following = _transport(r, 40), r.proto
    if r.frag_offset or r.ip_flags & MF:
        above = struct.pack(">BxHI", r.proto, r.frag_offset & 0xFFF8 | r.ip_flags & MF, r.ip_id) + above
        following = FRAGMENT
    words = (6 << 28 | (r.dscp << 2 | r.ecn) << 20, len(above) + r.payload_len & 0xFFFF, following, r.ttl)
    return struct.pack(">IHBB", *words) + r.src + r.dst + above


def _transport(r: HeaderFields, ip_head: int) -> bytes:
    """The header above IP; b'' in later fragments and for protocols without one in the record."""
    if r.frag_offset:
        return b""
    ports = struct.pack(">HH", r.src_port, r.dst_port)
    if r.proto == TCP:
        return _summed(r, _tcp(r, ip_head), 16)
    if r.proto in (UDP, UDPLITE):
        return _summed(r, ports + struct.pack(">H2x", 8 + r.payload_len & 0xFFFF), 6)
    if r.proto == SCTP:
        return ports + bytes(8)
    if r.proto == ICMP:
        return _summed(r, struct.pack(">BB6x", r.icmp_type, r.icmp_code), 2)
    if r.proto == ICMP6:
        return _summed(r, struct.pack(">BB6x", r.icmp_type, r.icmp_code), 2)
    return b""


def _tcp(r: HeaderFields, ip_head: int) -> bytes:
    options = b""
    if r.tcp_opts & MSS:
        options += struct.pack(">BBH", 2, 4, r.tcp_mss)
    if r.tcp_opts & SACK_OK:
        options += b"\x04\x02"
    if r.tcp_opts & TSTAMP:
        options += struct.pack(">BBII", 8, 10, r.tcp_tsval, r.tcp_tsecr)
    if r.tcp_opts & WSCALE:
        options += struct.pack(">BBB", 3, 3, r.tcp_wscale)
    options += b"\x01" * (-len(options) % 4)
    size = r.ip_len - ip_head - r.payload_len  # of the header, if the packet had nothing else
    if 20 + len(options) < size <= 60 and size % 4 == 0:
        options += b"\x01" * (size - 20 - len(options))  # options with values that the record does not have
    flags = (20 + len(options)) // 4 << 12 | r.tcp_flags & 0xFFF
    head = struct.pack(">HHIIHH4x", r.src_port, r.dst_port, r.tcp_seq, r.tcp_ack, flags, r.tcp_window)
    return head + options


def _summed(r: HeaderFields, head: bytes, at: int) -> bytes:
    """``head`` with its checksum at ``at``, which stays 0 when bytes that it covers are not known."""
    if r.payload_len or r.ip_flags & MF:
        return head
    pseudo = b"" if r.proto == ICMP else r.src + r.dst + struct.pack(">II", len(head), r.proto)
    total = _checksum(pseudo + head)
    return head[:at] + struct.pack(">H", total or 0xFFFF) + head[at + 2 :]


def _checksum(data: bytes) -> int:
    from dpkt import in_cksum

    return int(in_cksum(data))


COMMENT = (
    "Not captured packets: headers built from the fields of records by confluo-tools. "
    "Payload, IP options and tunnels are absent; packets are cut after the headers."
)
_CODES = {1: "B", 2: "H", 3: "I", 4: "Q", 8: "q"}


class SynthesizedWriter:
    """Rows of the packet schema as a pcapng on ``out``: the bytes in ``raw`` if present, else headers from the fields.

    Comments of the section and of the interfaces say that the packets are synthesized.
    """

    def __init__(self, schema: Schema, out: Any) -> None:
        missing = [name for name in NEEDED if name not in schema]
        if missing:
            hint = "headers need the fields " + ", ".join(NEEDED)
            raise UsageError(f"the records have no field '{missing[0]}'", where="--synthesize", hint=hint)
        self._raw = "raw" in schema and {"cap_len", "link_type"} <= {field.name for field in schema.fields}
        names = [name for name in (*NEEDED, *OPTIONAL) if name in schema]
        self.schema = schema.project([*names, "cap_len", "raw"] if self._raw else names)
        self.layout = self.schema.layout
        self.out = out
        self._interfaces: dict[tuple[int, bool], int] = {}  # (link type, synthesized) -> number

    def start(self) -> None:
        self.out.write(pcapng_blocks.section([(pcapng_blocks.COMMENT, COMMENT.encode())]))

    def write(self, block: Block, picks: Picks | None = None) -> None:
        block = block.project(self.layout)
        if picks is not None:
            block = block.take(picks)
        columns = {c.name: self._column(block, i, c) for i, c in enumerate(self.schema.columns)}
        addresses = ("src_ip", "dst_ip", "src_ip6", "dst_ip6", "raw", "ts")
        values = {name: column for name, column in columns.items() if name not in addresses}
        record = HeaderFields()
        pieces: list[bytes] = []
        for i in range(block.rows):
            for name, column in values.items():
                setattr(record, name, column[i])
            link, data, built = record.link_type, b"", False
            if self._raw:
                data = columns["raw"][i][: record.cap_len]
            if not any(data):
                if record.ip_version == 6:
                    record.src, record.dst = columns["src_ip6"][i], columns["dst_ip6"][i]
                else:
                    record.src, record.dst = (columns[n][i].to_bytes(4, "big") for n in ("src_ip", "dst_ip"))
                (link, data), built = frame(record), True
            number = self._interface(link, built, pieces)
            pieces.append(pcapng_blocks.packet(number, columns["ts"][i], record.len, data))
        self.out.write(b"".join(pieces))

    def _interface(self, link: int, built: bool, pieces: list[bytes]) -> int:
        if (link, built) not in self._interfaces:
            self._interfaces[link, built] = len(self._interfaces)
            options = [(pcapng_blocks.COMMENT, COMMENT.encode()), (pcapng_blocks.NAME, b"synthesized")]
            pieces.append(pcapng_blocks.interface(link, options if built else ()))
        return self._interfaces[link, built]

    def _column(self, block: Block, i: int, column: Column) -> list[Any]:
        data = bytes(block.buffer(i))
        if column.code not in _CODES:
            return [data[k * column.size : (k + 1) * column.size] for k in range(block.rows)]
        values: list[Any] = memoryview(data).cast(_CODES[column.code]).tolist()  # type: ignore[call-overload]
        return values

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        if not self._interfaces:  # readers need at least one interface
            pieces: list[bytes] = []
            self._interface(ETHERNET, True, pieces)
            self.out.write(b"".join(pieces))
