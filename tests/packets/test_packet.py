"""The packet parser: packets crafted by dpkt and by hand, cut anywhere, in tunnels, and the flow hash's twin."""

from __future__ import annotations

import ctypes
import socket
import struct
from ctypes.util import find_library

import dpkt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Picks
from confluo_tools.core.packets.packet import COLUMNS, NOTES, Packets, flow_hash, sample_flows, sample_packets
from confluo_tools.formats.pcap import packet_schema
from confluo_tools.schema import Field, Schema, builtin, fold6
from confluo_tools.schema.link_types import LINK_TYPES
from oracle_packets import Row, address

SCHEMA = packet_schema()
u8, u16, u32 = st.integers(0, 255), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)
ip4, ip6 = st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)
TRUNCATED, MALFORMED, FRAGMENT, UNKNOWN_LINK, OPTIONS, INNER, AUTH = 1, 2, 4, 8, 16, 32, 128


def parse(frame: bytes, *, inner: bool = False, link: int = 1, length: int | None = None) -> Row:
    """The fields that are not zero of one frame; addresses as text."""
    packets = Packets(SCHEMA.layout, inner=inner, rows=1)
    packets.add(frame, link_type=link, length=length)
    block = packets.take()
    row: Row = {name: block.get(i, 0) for i, name in enumerate(block.layout.names)}
    for name in ("src_ip", "dst_ip"):
        row[name] = address(row[name], row.pop(name + "6"), row["ip_version"])
    return {name: value for name, value in row.items() if value}


def twin_pair(a: int, b: int, kind: int) -> int:
    """The definition of flow_hash.  It may never change: it is stored, and sampling goes by it."""
    low, high = sorted([a, b])
    h = low * 0x9E3779B97F4A7C15 % 2**64
    h ^= h >> 32
    h = (h + (high | kind << 48)) * 0xD6E8FEB86659FD93 % 2**64
    h ^= h >> 32
    h = h * 0xD6E8FEB86659FD93 % 2**64 >> 32
    return h or 1


def twin_hash(src: int, dst: int, sport: int, dport: int, proto: int) -> int:
    return twin_pair(src << 16 | sport, dst << 16 | dport, proto)


@given(u32, u32, u16, u16, u8)
def test_flow_hash_is_its_twin_and_symmetric(src: int, dst: int, sport: int, dport: int, proto: int) -> None:
    assert flow_hash(src, dst, sport, dport, proto) == twin_hash(src, dst, sport, dport, proto)
    assert flow_hash(dst, src, dport, sport, proto) == twin_hash(src, dst, sport, dport, proto)


def test_flow_hash_of_one_flow_for_ever() -> None:
    assert flow_hash(0x0A000001, 0x0A000002, 1234, 80, 6) == 2316366625


def ethernet(payload: bytes, kind: int) -> bytes:
    return b"\2\0\0\0\0\2\2\0\0\0\0\1" + struct.pack(">H", kind) + payload


@st.composite
def transports(draw: st.DrawFn) -> tuple[int, bytes, Row]:
    """Protocol number, bytes made by dpkt, fields."""
    kind = draw(st.sampled_from(["tcp", "udp", "icmp", "sctp", "other"]))
    payload = draw(st.binary(max_size=30))
    sport, dport = draw(u16), draw(u16)
    assume(dport not in (4789, 8472, 4790, 6081, 2152))
    ports: Row = {"src_port": sport, "dst_port": dport}
    if kind == "udp":
        return (
            17,
            bytes(dpkt.udp.UDP(sport=sport, dport=dport, ulen=8 + len(payload), data=payload)),
            {**ports, "payload_len": len(payload)},
        )
    if kind == "sctp":
        return 132, struct.pack(">HHII", sport, dport, 1, 2) + payload, {**ports, "payload_len": len(payload)}
    if kind == "icmp":
        t, c = draw(u8), draw(u8)
        body = bytes(dpkt.icmp.ICMP(type=t, code=c, data=dpkt.icmp.ICMP.Echo(id=1, seq=2, data=payload)))
        return 1, body, {"icmp_type": t, "icmp_code": c, "payload_len": len(payload)}
    if kind == "other":
        return 89, payload, {"payload_len": len(payload)}
    seq, ack, flags, window = draw(u32), draw(u32), draw(st.integers(0, 255)), draw(u16)
    mss, shift, val, ecr = draw(u16), draw(u8), draw(u32), draw(u32)
    known: dict[str, tuple[int, bytes, Row]] = {
        "mss": (1, struct.pack(">BBH", 2, 4, mss), {"tcp_mss": mss}),
        "wscale": (2, bytes([3, 3, shift]), {"tcp_wscale": shift}),
        "sack_ok": (4, bytes([4, 2]), {}),
        "sack": (8, bytes([5, 10]) + bytes(8), {}),
        "tstamp": (16, struct.pack(">BBII", 8, 10, val, ecr), {"tcp_tsval": val, "tcp_tsecr": ecr}),
        "fastopen": (32, bytes([34, 4, 1, 2]), {}),
        "mptcp": (64, bytes([30, 4, 0, 0]), {}),
        "other": (128, bytes([19, 2]), {}),
        "nop": (0, b"\1", {}),
    }
    fields: Row = {**ports, "tcp_seq": seq, "tcp_ack": ack, "tcp_flags": flags, "tcp_window": window}
    bits, options = 0, b""
    for name in draw(st.lists(st.sampled_from(sorted(known)), unique=True)):
        bit, text, more = known[name]
        if len(options) + len(text) <= 40:
            bits, options = bits | bit, options + text
            fields |= more
    options += b"\0" * (-len(options) % 4)
    tcp = dpkt.tcp.TCP(sport=sport, dport=dport, seq=seq, ack=ack, flags=flags, win=window, data=payload)
    tcp.opts, tcp.off = options, 5 + len(options) // 4
    return 6, bytes(tcp), {**fields, "tcp_opts": bits, "payload_len": len(payload)}


@st.composite
def ip_packets(draw: st.DrawFn) -> tuple[int, bytes, Row]:
    """EtherType, an IP packet made by dpkt, its fields."""
    proto, body, fields = draw(transports())
    ttl, tos, ident = draw(u8), draw(u8), draw(u16)
    fields = {**fields, "proto": proto, "ttl": ttl, "dscp": tos >> 2, "ecn": tos & 3}
    if draw(st.booleans()):
        src, dst = draw(ip4), draw(ip4)
        options = draw(st.sampled_from([b"", b"\1" * 4, b"\x94\4\0\0" + b"\0" * 8]))
        df = draw(st.booleans())
        ip = dpkt.ip.IP(tos=tos, id=ident, df=df, ttl=ttl, p=proto, src=src, dst=dst, data=body)
        ip.opts, ip.hl = options, 5 + len(options) // 4
        ip.len = 20 + len(options) + len(body)
        fields |= {"ip_version": 4, "ip_id": ident, "ip_flags": 2 * df, "ip_len": ip.len}
        if options:
            fields["notes"] = OPTIONS
        raw = bytes(ip)
        kind = 0x0800
    else:
        src, dst = draw(ip6), draw(ip6)
        chain = draw(st.lists(st.sampled_from([0, 43, 60]), max_size=3))
        headers = b""
        for i, _ in enumerate(chain):
            size = draw(st.integers(0, 2))
            following = chain[i + 1] if i + 1 < len(chain) else proto
            headers += bytes([following, size]) + bytes([1, 4 + 8 * size]) + bytes(4 + 8 * size)
        ip6h = dpkt.ip6.IP6(plen=len(headers) + len(body), nxt=chain[0] if chain else proto, hlim=ttl, src=src, dst=dst)
        ip6h.v, ip6h.fc, ip6h.flow = 6, tos, draw(st.integers(0, 0xFFFFF))
        raw = ip6h.pack_hdr() + headers + body
        fields |= {"ip_version": 6, "ip_len": len(raw)}
        if chain:
            fields["notes"] = OPTIONS
        if proto == 1:
            fields["proto"] = 1
        kind = 0x86DD
    text = socket.AF_INET if kind == 0x0800 else socket.AF_INET6
    fields |= {"src_ip": socket.inet_ntop(text, src), "dst_ip": socket.inet_ntop(text, dst)}
    number = (lambda a: int.from_bytes(a, "big")) if kind == 0x0800 else fold6
    ports = fields.get("src_port", 0), fields.get("dst_port", 0)
    fields["flow_hash"] = twin_hash(number(src), number(dst), *ports, proto)
    return kind, raw, fields


def only_set(fields: Row) -> Row:
    return {name: value for name, value in fields.items() if value}


@given(
    ip_packets(),
    st.lists(st.tuples(st.sampled_from([0x8100, 0x88A8, 0x9100]), st.integers(0, 4095)), max_size=3),
    st.lists(st.integers(0, 0xFFFFF), max_size=3),
)
@settings(max_examples=400)
def test_every_field_of_crafted_packets(
    packet: tuple[int, bytes, Row], tags: list[tuple[int, int]], labels: list[int]
) -> None:
    kind, raw, fields = packet
    if labels:
        stack = b"".join(
            struct.pack(">I", label << 12 | (i == len(labels) - 1) << 8 | 64) for i, label in enumerate(labels)
        )
        kind, raw = 0x8847, stack + raw
    types = [t for t, _ in tags] + [kind]
    body = b"".join(struct.pack(">HH", 0xE000 | tag, types[i + 1]) for i, (_, tag) in enumerate(tags)) + raw
    frame = ethernet(body, types[0])
    expected: Row = {
        **fields,
        "len": len(frame),
        "cap_len": len(frame),
        "link_type": 1,
        "eth_src": 0x020000000001,
        "eth_dst": 0x020000000002,
        "eth_type": kind,
        "vlan_count": len(tags),
        "mpls_count": len(labels),
        "vlan": tags[0][1] if tags else 0,
        "vlan2": tags[1][1] if len(tags) > 1 else 0,
        "mpls_label": labels[0] if labels else 0,
    }
    assert parse(frame) == parse(frame, inner=True) == only_set(expected)


@given(ip_packets(), st.booleans(), st.lists(st.tuples(st.integers(0, 99), u8), max_size=3), st.data())
@settings(max_examples=500)
def test_the_short_way_of_most_frames_is_the_long_way(
    packet: tuple[int, bytes, Row], stamped: bool, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Plain frames are parsed in one go; the same packet without a link header is not."""
    kind, whole, _ = packet
    if stamped:
        tcp = struct.pack(">HHIIHHHHHHII", 1234, 80, 5, 6, 0x8018, 7, 8, 9, 0x0101, 0x080A, 11, 12) + b"data"
        kind, whole = 0x0800, ip4_packet(6, tcp)
    raw = bytearray(whole)
    for at, value in changes:
        raw[at % len(raw)] = value
    assume(raw[0] >> 4 in (4, 6))
    length = data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw) + 9)))
    cut = data.draw(st.one_of(st.just(len(raw)), st.integers(1, len(raw))))
    plain = parse(ethernet(bytes(raw[:cut]), kind), length=length + 14)
    other = parse(bytes(raw[:cut]), link=101, length=length)
    for name in ("len", "cap_len", "link_type", "eth_src", "eth_dst", "eth_type"):
        plain.pop(name, None), other.pop(name, None)
    assert plain == other


@given(ip_packets(), st.data())
@settings(max_examples=300)
def test_a_cut_packet_has_the_fields_that_are_there(packet: tuple[int, bytes, Row], data: st.DataObject) -> None:
    kind, raw, _ = packet
    frame = ethernet(raw, kind)
    whole = parse(frame)
    cut = data.draw(st.integers(0, len(frame)))
    part = parse(frame[:cut], length=len(frame))
    told = {"cap_len", "notes", "flow_hash"}
    if part.get("notes", 0) & TRUNCATED:
        told |= {"proto"}  # with IPv6 extension headers: the last one that is there
        assert part.get("tcp_opts", 0) | whole.get("tcp_opts", 0) == whole.get("tcp_opts", 0)
        assert part["notes"] & MALFORMED == 0
        told |= {"tcp_opts"}
        for name in ("src_ip", "dst_ip"):
            if part.get(name) in ("0.0.0.0", "::"):
                told.add(name)
    else:
        assert part.keys() | {"notes"} == whole.keys() | {"notes"}
    for name, value in part.items():
        assert name in told or value == whole.get(name), name
    if len(frame) - cut > len(raw):
        assert part["notes"] & TRUNCATED


def icmp4(src: bytes = b"\n\1\0\1", dst: bytes = b"\n\1\0\2") -> bytes:
    return bytes(dpkt.ip.IP(p=1, src=src, dst=dst, ttl=9, len=28, data=dpkt.icmp.ICMP(type=8, code=0, data=b"1234")))


def ip4_packet(proto: int, body: bytes) -> bytes:
    return bytes(dpkt.ip.IP(p=proto, src=b"\xc0\0\2\1", dst=b"\xc0\0\2\2", ttl=64, len=20 + len(body), data=body))


def udp(port: int, body: bytes) -> bytes:
    return ip4_packet(17, struct.pack(">HHHH", 40000, port, 8 + len(body), 0) + body)


INNER4, INNER6 = icmp4(), dpkt.ip6.IP6(plen=0, nxt=59, hlim=3, src=b"\1" * 16, dst=b"\2" * 16).pack_hdr()
INNER6 = b"\x60" + INNER6[1:]
INNER_ETHER = ethernet(struct.pack(">HH", 5, 0x0800) + INNER4, 0x8100)
TUNNELS: dict[str, tuple[bytes, int, int, bytes]] = {
    # name: packet, tunnel, vni, inner
    "ipip": (ip4_packet(4, INNER4), 4, 0, INNER4),
    "6in4": (ip4_packet(41, INNER6), 4, 0, INNER6),
    "gre": (ip4_packet(47, struct.pack(">HH", 0, 0x0800) + INNER4), 1, 0, INNER4),
    "gre with everything": (ip4_packet(47, struct.pack(">HHIII", 0xB000, 0x86DD, 0, 77, 1) + INNER6), 1, 77, INNER6),
    "gre with ethernet": (ip4_packet(47, struct.pack(">HHI", 0x2000, 0x6558, 9) + INNER_ETHER), 1, 9, INNER4),
    "gre with mpls": (ip4_packet(47, struct.pack(">HHI", 0, 0x8847, 1 << 12 | 0x100) + INNER4), 1, 0, INNER4),
    "gre with ppp": (
        ip4_packet(47, struct.pack(">HHHHIH", 0x3001, 0x880B, 2, 7, 1, 0x21) + INNER4),
        1,
        2 << 16 | 7,
        INNER4,
    ),
    "erspan I": (ip4_packet(47, struct.pack(">HH", 0, 0x88BE) + INNER_ETHER), 6, 0, INNER4),
    "erspan II": (
        ip4_packet(47, struct.pack(">HHIII", 0x1000, 0x88BE, 1, 0x10000000 | 77, 0) + INNER_ETHER),
        6,
        77,
        INNER4,
    ),
    "erspan III": (
        ip4_packet(47, struct.pack(">HHIIII", 0x1000, 0x22EB, 1, 0x20000000 | 78, 0, 0) + INNER_ETHER),
        6,
        78,
        INNER4,
    ),
    "vxlan": (udp(4789, struct.pack(">II", 0x08000000, 1234 << 8) + INNER_ETHER), 2, 1234, INNER4),
    "vxlan on linux": (udp(8472, struct.pack(">II", 0x08000000, 99 << 8) + INNER_ETHER), 2, 99, INNER4),
    "vxlan-gpe": (udp(4790, struct.pack(">II", 0x0C000002, 98 << 8) + INNER6), 2, 98, INNER6),
    "geneve": (
        udp(6081, struct.pack(">HHII", 0x0200 >> 1, 0x6558, 55 << 8, 0)[:8] + bytes(4) + INNER_ETHER),
        3,
        55,
        INNER4,
    ),
    "geneve with ip": (udp(6081, struct.pack(">HHI", 0, 0x0800, 56 << 8) + INNER4), 3, 56, INNER4),
    "gtp": (udp(2152, struct.pack(">BBHI", 0x30, 255, len(INNER4), 4321) + INNER4), 5, 4321, INNER4),
    "gtp with extensions": (
        udp(2152, struct.pack(">BBHI", 0x34, 255, 0, 5) + b"\0\0\0\x85" + b"\1\0\0\0" + INNER4),
        5,
        5,
        INNER4,
    ),
    "vxlan in gre": (
        ip4_packet(47, struct.pack(">HH", 0, 0x0800) + udp(4789, struct.pack(">II", 0x08000000, 3 << 8) + INNER_ETHER)),
        1,
        0,
        INNER4,
    ),
}
OF_IP = "ip_version proto src_ip dst_ip ttl ip_len icmp_type payload_len src_port dst_port"


@pytest.mark.parametrize("name", TUNNELS)
def test_tunnels(name: str) -> None:
    packet, tunnel, vni, innermost = TUNNELS[name]
    frame = ethernet(packet, 0x0800)
    outer, inner = parse(frame), parse(frame, inner=True)
    bare = parse(ethernet(innermost, 0x0800 if innermost[0] >> 4 == 4 else 0x86DD))
    for row in (outer, inner):
        assert (row["tunnel"], row.get("vni", 0)) == (tunnel, vni)
        assert "vlan" not in row
    assert (outer["src_ip"], outer["dst_ip"], outer["ttl"], outer.get("notes", 0)) == ("192.0.2.1", "192.0.2.2", 64, 0)
    assert inner["notes"] == INNER
    for field in OF_IP.split():
        assert inner.get(field) == bare.get(field), field
    for cut in range(len(frame)):  # nothing that is cut may fail
        assert parse(frame[:cut], inner=True, length=len(frame))["len"] == len(frame)


def test_tunnels_that_only_look_like_one() -> None:
    for body in (bytes(8) + INNER_ETHER, b"\x08"):
        row = parse(ethernet(udp(4789, body), 0x0800), inner=True)
        assert "tunnel" not in row
        assert row["dst_port"] == 4789
    reply = parse(ethernet(udp(40000, struct.pack(">II", 0x08000000, 1) + INNER_ETHER), 0x0800))
    assert "tunnel" not in reply


def test_an_arp_inside_a_tunnel_leaves_the_outer_headers() -> None:
    arp = ethernet(bytes(dpkt.arp.ARP()), 0x0806)
    row = parse(ethernet(udp(4789, struct.pack(">II", 0x08000000, 0) + arp), 0x0800), inner=True)
    assert (row["src_ip"], row["tunnel"], row.get("notes", 0)) == ("192.0.2.1", 2, 0)


def test_tunnels_in_tunnels_end() -> None:
    packet = icmp4()
    for _ in range(40):
        packet = ip4_packet(4, packet)
    row = parse(ethernet(packet, 0x0800), inner=True)
    assert (row["tunnel"], row["notes"], row["proto"]) == (4, INNER, 4)


@pytest.mark.parametrize(
    ("link", "frame"),
    [
        (101, INNER4),
        (12, INNER4),
        (14, INNER4),
        (228, INNER4),
        (113, struct.pack(">HHH8sH", 0, 1, 6, b"\2\0\0\0\0\1", 0x0800) + INNER4),
        (276, struct.pack(">HHIHBB8s", 0x0800, 0, 1, 1, 0, 6, b"\2\0\0\0\0\1") + INNER4),
        (0, struct.pack("<I", 2) + INNER4),
        (0, struct.pack(">I", 2) + INNER4),
        (108, struct.pack(">I", 2) + INNER4),
        (109, struct.pack("<III", 2, 0, 0) + INNER4),
        (9, b"\xff\3\0\x21" + INNER4),
        (9, b"\0\x21" + INNER4),
        (9, b"\x21" + INNER4),
        (50, b"\xff\3\0\x21" + INNER4),
        (50, b"\x0f\0\x08\0" + INNER4),
        (104, b"\x0f\0\x08\0" + INNER4),
        (166, b"\0\3\0\x21" + INNER4),
        (51, struct.pack(">BBHH", 0x11, 0, 7, 2 + len(INNER4)) + b"\0\x21" + INNER4),
        (219, struct.pack(">I", 5 << 12 | 0x100) + INNER4),
        (239, b"\2\0\0\0" + struct.pack("<HH", 7, 1) + b"abc\0" + struct.pack("<HH", 4 + len(INNER4), 9) + INNER4),
        (239, b"\2\0\0\0" + struct.pack(">HH", 7, 1) + b"abc\0" + struct.pack(">HH", 4 + len(INNER4), 9) + INNER4),
        (105, b"\x08\x02" + bytes(22) + b"\xaa\xaa\3\0\0\0\x08\0" + INNER4),
        (105, b"\x88\x01" + bytes(24) + b"\xaa\xaa\3\0\0\0\x08\0" + INNER4),
        (127, b"\0\0\x0a\0" + bytes(6) + b"\x08\x03" + bytes(28) + b"\xaa\xaa\3\0\0\0\x08\0" + INNER4),
        (1, ethernet(b"\xaa\xaa\3\0\0\0\x08\0" + INNER4, 8 + len(INNER4))),
        (1, ethernet(b"\x11\0\0\7\0\x1e\0\x21" + INNER4, 0x8864)),
        (1, ethernet(struct.pack(">I", 9 << 12 | 0x100) + bytes(4) + ethernet(INNER4, 0x0800), 0x8847)),
        (1, ethernet(b"\1\1\0\1\0\7\x08\0" + INNER4, 0x8909)),
    ],
)
def test_link_types(link: int, frame: bytes) -> None:
    row = parse(frame, link=link)
    assert (row["src_ip"], row["dst_ip"], row["icmp_type"], row["ttl"]) == ("10.1.0.1", "10.1.0.2", 8, 9)
    assert row.get("notes", 0) == 0
    assert row.get("link_type", 0) == link
    for cut in range(len(frame)):
        assert parse(frame[:cut], link=link, length=len(frame)).get("cap_len", 0) == cut


def test_unknown_link_types_are_kept_and_noted() -> None:
    assert parse(b"abc", link=253) == {
        "len": 3,
        "cap_len": 3,
        "link_type": 253,
        "notes": UNKNOWN_LINK,
        "flow_hash": twin_pair(0, 0, 0),
    }


def test_ip_lengths_of_offloaded_segments() -> None:
    tcp = bytes(dpkt.tcp.TCP(sport=1, dport=2)) + bytes(100)
    packet = bytearray(ip4_packet(6, tcp))
    packet[2:4] = b"\0\0"
    row = parse(ethernet(bytes(packet), 0x0800)[:60], length=80_000)
    assert (row["ip_len"], row["payload_len"], row.get("notes", 0)) == (79_986, 79_946, 0)
    v6 = dpkt.ip6.IP6(plen=0, nxt=6, hlim=3, src=b"\1" * 16, dst=b"\2" * 16).pack_hdr()
    row = parse(ethernet(b"\x60" + v6[1:] + tcp, 0x86DD), length=80_000)
    assert (row["ip_len"], row["payload_len"]) == (79_986, 79_926)
    jumbo = b"\x60" + v6[1:6] + b"\0" + v6[7:] + bytes([6, 0, 0xC2, 4]) + struct.pack(">I", 79_946) + tcp
    row = parse(ethernet(jumbo, 0x86DD), length=80_000)
    assert (row["ip_len"], row["proto"], row["payload_len"]) == (79_986, 6, 79_918)


@pytest.mark.parametrize("offset", [0, 8, 65528])
def test_fragments(offset: int) -> None:
    body = struct.pack(">HHHH", 7, 9, 100, 0) + bytes(24)
    v4 = bytearray(ip4_packet(17, body))
    v4[6:8] = struct.pack(">H", 0x2000 | offset // 8)
    header = bytes([17, 0]) + struct.pack(">HI", offset | 1, 1)
    v6 = b"\x60" + dpkt.ip6.IP6(plen=40, nxt=44, hlim=3, src=b"\1" * 16, dst=b"\2" * 16).pack_hdr()[1:] + header + body
    for frame in (ethernet(bytes(v4), 0x0800), ethernet(v6, 0x86DD)):
        row = parse(frame)
        assert row["notes"] & FRAGMENT
        assert (row.get("frag_offset", 0), row["ip_flags"], row["proto"]) == (offset, 1, 17)
        assert row.get("dst_port", 0) == (0 if offset else 9)
        assert row["payload_len"] == (32 if offset else 24)


def test_arp_has_addresses_without_an_ip_version() -> None:
    arp = bytes(dpkt.arp.ARP(spa=b"\n\0\0\1", tpa=b"\n\0\0\2"))
    row = parse(ethernet(arp, 0x0806))
    assert (row["src_ip"], row["dst_ip"], row["eth_type"]) == ("10.0.0.1", "10.0.0.2", 0x0806)
    assert "ip_version" not in row
    assert row["flow_hash"] == twin_pair(0x020000000001, 0x020000000002, 0x0806)


def test_authentication_headers_are_stepped_over() -> None:
    ah = bytes([1, 4, 0, 0]) + bytes(20)
    inner = INNER4[20:]
    for frame in (
        ethernet(ip4_packet(51, ah + inner), 0x0800),
        ethernet(
            b"\x60" + dpkt.ip6.IP6(plen=32, nxt=51, hlim=1, src=b"\1" * 16, dst=b"\2" * 16).pack_hdr()[1:] + ah + inner,
            0x86DD,
        ),
    ):
        row = parse(frame)
        assert (row["proto"], row["icmp_type"], row["notes"]) == (1, 8, OPTIONS | AUTH)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({14: b"\x44"}, "src_ip"),
        ({16: b"\0\x05"}, "src_ip"),
        ({46: b"\x10"}, "tcp_flags"),
        ({16: b"\xff\xff"}, "src_port"),
    ],
)
def test_headers_that_contradict_themselves(change: dict[int, bytes], field: str) -> None:
    tcp = dpkt.tcp.TCP(sport=1, dport=2, flags=2)
    frame = bytearray(ethernet(ip4_packet(6, bytes(tcp)), 0x0800))
    for at, value in change.items():
        frame[at : at + len(value)] = value
    row = parse(bytes(frame))
    assert row["notes"] & MALFORMED
    assert row[field]


@given(
    st.binary(max_size=120),
    st.sampled_from([0, 1, 9, 50, 51, 101, 104, 105, 108, 109, 113, 127, 166, 219, 228, 239, 276, 253]),
    st.booleans(),
    u32,
)
@settings(max_examples=500)
def test_no_bytes_make_it_fail(frame: bytes, link: int, inner: bool, length: int) -> None:
    row = parse(frame, link=link, inner=inner, length=length)
    assert row.get("len", 0) == length
    assert row.get("payload_len", 0) <= max(length, len(frame))


def test_columns_of_other_integer_types_are_held_at_their_largest() -> None:
    layout = builtin("header64").layout
    packets = Packets(layout, rows=4)
    packets.add(ethernet(ip4_packet(6, bytes(dpkt.tcp.TCP(sport=1, dport=2)) + bytes(99)), 0x0800), length=70_000)
    jumbo = bytearray(ip4_packet(6, bytes(dpkt.tcp.TCP(sport=1, dport=2)) + bytes(99)))
    jumbo[2:4] = b"\0\0"
    packets.add(ethernet(bytes(jumbo), 0x0800), length=90_000)
    block = packets.take()
    assert [block.get(layout.index("payload_len"), i) for i in (0, 1)] == [99, 65535]
    with pytest.raises(ValueError, match="ttl"):
        Packets(Schema("odd", [Field("ttl", "f32")]).layout)
    with pytest.raises(ValueError, match="raw"):
        Packets(Schema("odd", [Field("raw", "u32")]).layout)


def test_batches_are_zeroed_and_kept_apart() -> None:
    full = ethernet(ip4_packet(6, bytes(dpkt.tcp.TCP(sport=1, dport=2, flags=18))), 0x0800)
    packets = Packets(packet_schema(snap=20).layout, rows=2)
    blocks = []
    for k in range(8):
        packets.add(full if k % 2 else b"x" * (k + 1), ts=k)
        packets.add(b"", ts=-k)
        assert not packets.ready()
        with pytest.raises(ValueError, match="full"):
            packets.add(full)
        blocks.append(packets.take())
    raw, port = blocks[0].layout.index("raw"), blocks[0].layout.index("dst_port")
    for k, block in enumerate(blocks):
        assert [block.get(0, i) for i in (0, 1)] == [k, -k]
        assert block.get(port, 0) == (2 if k % 2 else 0)
        frame = full if k % 2 else b"x" * (k + 1)
        assert block.get(raw, 0) == frame[:20].ljust(20, b"\0")
        assert block.get(raw, 1) == bytes(20)
    seen: set[int] = set()
    for k in range(20):  # the blocks are not kept: their memory is used again, without old rows
        packets.add(full if k % 3 == 0 else b"z")
        block = packets.take()
        assert (block.rows, block.get(port, 0)) == (1, 0 if k % 3 else 2)
        seen.add(id(block))
    assert len(seen) <= 4


def test_notes_are_counted() -> None:
    packets = Packets(SCHEMA.layout)
    packets.add(b"x")
    packets.add(b"x", link_type=253)
    assert packets.counts == {**dict.fromkeys(NOTES, 0), "truncated": 1, "unknown_link": 1, "not_followed": 0}
    assert (packets.unknown_links(), packets.unknown_links()) == ([253], [])
    assert packets.wire_bytes == 2


def test_the_compiled_columns_are_those_of_the_schema() -> None:
    columns = builtin("packet").columns
    wide = {"switch_path", "queue_depth"}  # parsed as u32
    assert (
        tuple((c.name, 3, 4 * c.count) if c.name in wide else (c.name, c.code, c.size * c.count) for c in columns)
        == COLUMNS
    )
    assert {1 << i: name for i, name in enumerate(NOTES)} == builtin("packet")["notes"].names


def test_the_schema_names_the_bits_that_the_parser_sets() -> None:
    assert {1 << i: name for i, name in enumerate(NOTES)} == SCHEMA["notes"].names


@given(st.lists(u32, min_size=1, max_size=200), st.integers(1, 1000), st.data())
def test_sampling_of_flows_goes_by_the_hash(ports: list[int], n: int, data: st.DataObject) -> None:
    packets = Packets(SCHEMA.layout, rows=len(ports))
    for port in ports:
        packets.add(ethernet(udp(port & 0x7FF, bytes(4)), 0x0800))
    block = packets.take()
    hashes = [block.get(SCHEMA.index("flow_hash"), i) for i in range(block.rows)]
    chosen = sorted(data.draw(st.sets(st.integers(0, block.rows - 1))))
    picks = Picks.of(block.rows, chosen)
    sample_flows(block, picks, n)
    assert picks.tolist() == [i for i in chosen if hashes[i] < 2**32 // n]
    with pytest.raises(ValueError, match="n must be positive"):
        sample_flows(block, picks, 0)


@given(st.lists(st.integers(0, 50), max_size=9), st.integers(1, 20), st.integers(0, 2**63))
def test_sampling_of_packets_counts_through_all_blocks(sizes: list[int], n: int, start: int) -> None:
    kept, seen = [], start
    for size in sizes:
        picks = Picks.of(size)
        first = seen
        seen = sample_packets(picks, seen, n)
        kept += [first + i for i in picks.tolist()]
    assert seen == start + sum(sizes)
    assert kept == [k for k in range(start, seen) if k % n == 0]


def test_zones_tell_which_columns_hold_nothing() -> None:
    packets = Packets(SCHEMA.layout)
    packets.add(b"x" * 20, ts=-5)
    block = packets.take()
    zones = {name: block.zones(i) for i, name in enumerate(SCHEMA.layout.names)}
    assert zones["tcp_seq"] == zones["src_ip6"] == zones["vlan"] == (0, 0)
    for name in ("ts", "len", "cap_len", "link_type", "eth_type"):
        assert zones[name] == (0, 2**64 - 1)
    layout = Schema("odd", [Field("nothing", "i64"), Field("ttl", "u8"), Field("floats", "f64")]).layout
    odd = Packets(layout)
    odd.add(b"")
    assert [odd.take().zones(i) for i in range(3)] == [(2**63, 2**63), (0, 0), (2**63, 2**63)]


def test_link_types_have_the_names_of_libpcap() -> None:
    library = find_library("pcap")
    if library is None:
        pytest.skip("libpcap is not installed")
    pcap = ctypes.CDLL(library)
    pcap.pcap_datalink_val_to_name.restype = ctypes.c_char_p
    for number, link in LINK_TYPES.items():
        if number not in (12, 14):  # RAW of other systems
            dlt = link.dlt if link.dlt >= 0 else number
            assert pcap.pcap_datalink_val_to_name(dlt) == link.name.encode(), number


@pytest.mark.parametrize("number", range(300))
def test_a_link_type_is_parsed_if_the_table_has_it(number: int) -> None:
    assert (parse(bytes(64), link=number).get("notes", 0) & UNKNOWN_LINK == 0) == (number in LINK_TYPES)
