"""Captures of every link type and encapsulation that the parser reads, made byte by byte.

`LINKS` and `TUNNELS` are compared with tshark and tcpdump, so each test that needs such frames runs in any clone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import make_capture
from make_capture import pcap

IP, IP6, ARP = 0x0800, 0x86DD, 0x0806
A4, B4, C4, D4 = (bytes([192, 0, 2, n]) for n in (1, 2, 3, 4))
A6, B6, C6, D6 = (bytes.fromhex("20010db8") + bytes(11) + bytes([n]) for n in (1, 2, 3, 4))
MAC_A, MAC_B, MAC_C, MAC_D = (bytes([2, 0, 0, 0, 0, n]) for n in (1, 2, 3, 4))
Packet = tuple[int, bytes]  # EtherType, the packet


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f">{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ip4(proto: int, body: bytes, *, src: bytes = A4, dst: bytes = B4, fragment: int = 0) -> bytes:
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), 7, fragment, 64, proto, 0) + src + dst
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + body


def ip6(proto: int, body: bytes, *, src: bytes = A6, dst: bytes = B6) -> bytes:
    return struct.pack(">IHBB", 6 << 28, len(body), proto, 64) + src + dst + body


def tcp(source: int = 40000, port: int = 80, payload: bytes = b"tcp!", flags: int = 24) -> bytes:
    return struct.pack(">HHIIBBHHH", source, port, 1000, 2000, 0x50, flags, 512, 0, 0) + payload


def udp(source: int, port: int, payload: bytes) -> bytes:
    return struct.pack(">HHHH", source, port, 8 + len(payload), 0) + payload


def icmp(type: int = 8) -> bytes:
    body = struct.pack(">BBHHH", type, 0, 0, 1, 2) + b"ping"
    return body[:2] + struct.pack(">H", checksum(body)) + body[4:]


def auth(proto: int, body: bytes) -> bytes:
    """An authentication header before ``body``."""
    return struct.pack(">BBHII", proto, 4, 0, 256, 1) + bytes(12) + body


def arp() -> bytes:
    return struct.pack(">HHBBH", 1, IP, 6, 4, 1) + MAC_A + A4 + bytes(6) + B4


def ethernet(packet: Packet, *tags: tuple[int, int], src: bytes = MAC_A, dst: bytes = MAC_B) -> bytes:
    return dst + src + b"".join(struct.pack(">HH", *tag) for tag in tags) + struct.pack(">H", packet[0]) + packet[1]


def snap(packet: Packet) -> bytes:
    return b"\xaa\xaa\3\0\0\0" + struct.pack(">H", packet[0]) + packet[1]


PLAIN: tuple[Packet, ...] = (
    (IP, ip4(6, tcp())),
    (IP, ip4(17, udp(5353, 9999, b"udp?"))),
    (IP, ip4(1, icmp())),
    (IP6, ip6(6, tcp(443, 50000, b"six"))),
    (IP6, ip6(17, udp(5000, 5001, b"udp6"))),
)
AUTH: tuple[Packet, ...] = (
    (IP, ip4(51, auth(6, tcp()))),
    (IP, ip4(51, auth(17, udp(1, 2, b"x")))),
    (IP6, ip6(51, auth(89, b"\3\1\0\x24" + bytes(32)))),  # OSPFv3, protected as RFC 4552 says
    (IP6, ip6(51, auth(6, tcp()))),
)

# -- link types -----------------------------------------------------------------------------------------------------


def _ppp(packet: Packet) -> bytes:
    return struct.pack(">H", {IP: 0x21, IP6: 0x57}[packet[0]]) + packet[1]


def _family(packet: Packet, order: str) -> bytes:
    return struct.pack(order + "I", {IP: 2, IP6: 30}[packet[0]])


def _cooked(packet: Packet) -> bytes:
    return struct.pack(">HHH", 0, 1, 6) + MAC_A + b"\0\0" + struct.pack(">H", packet[0]) + packet[1]


def _cooked2(packet: Packet) -> bytes:
    return struct.pack(">HHIHBB", packet[0], 0, 2, 1, 0, 6) + MAC_A + b"\0\0" + packet[1]


def _nflog(packet: Packet) -> bytes:
    family = {IP: 2, IP6: 10}[packet[0]]
    prefix = struct.pack("<HH", 5, 10) + b"\0" + bytes(3)
    return bytes([family, 0, 0, 0]) + prefix + struct.pack("<HH", 4 + len(packet[1]), 9) + packet[1]


def wlan(packet: Packet, control: int = 0x0208) -> bytes:
    """An 802.11 data frame, from an access point."""
    return struct.pack("<HH", control, 0) + MAC_B + MAC_C + MAC_A + b"\x10\0" + snap(packet)


def radiotap(frame: bytes) -> bytes:
    return struct.pack("<BBHI", 0, 0, 8, 0) + frame


def _mpls(packet: Packet) -> bytes:
    return struct.pack(">II", 16 << 12 | 64, 17 << 12 | 0x100 | 63) + packet[1]


def _arcnet(packet: Packet, linux: bool) -> bytes:
    type = {IP: 212, IP6: 196}[packet[0]]
    return b"\1\2" + (b"\0\0" if linux else b"") + bytes([type, 0]) + b"\0\7" + packet[1]


def _infiniband(packet: Packet) -> bytes:
    return bytes(24) + bytes(range(16)) + struct.pack(">HH", packet[0], 0) + packet[1]


def pktap(frame: bytes, link: int) -> bytes:
    return struct.pack("<III", 108, 1, link) + b"en0".ljust(24, b"\0") + bytes(72) + frame


LINKS: dict[int, Callable[[Packet], bytes]] = {
    1: ethernet,
    101: lambda p: p[1],
    113: _cooked,
    276: _cooked2,
    105: wlan,
    127: lambda p: radiotap(wlan(p)),
    0: lambda p: _family(p, "<") + p[1],
    108: lambda p: _family(p, ">") + p[1],
    109: lambda p: struct.pack("<IQ", {IP: 2, IP6: 24}[p[0]], 0) + p[1],
    9: _ppp,
    50: lambda p: b"\xff\3" + _ppp(p),
    166: lambda p: b"\0\3" + _ppp(p),
    51: lambda p: struct.pack(">BBHH", 0x11, 0, 9, 2 + len(p[1])) + _ppp(p),
    104: lambda p: b"\x0f\0" + struct.pack(">H", p[0]) + p[1],
    219: _mpls,
    228: lambda p: p[1],
    229: lambda p: p[1],
    239: _nflog,
    10: lambda p: b"\x50" + MAC_B + MAC_A + snap(p),
    107: lambda p: b"\x18\x41\3" + {IP: b"\xcc", IP6: b"\x8e"}[p[0]] + p[1],
    7: lambda p: _arcnet(p, False),
    129: lambda p: _arcnet(p, True),
    242: _infiniband,
    258: lambda p: pktap(ethernet(p), 1),
}
ONLY = {228: IP, 229: IP6}  # link types of one version of IP
FRAME_RELAY: tuple[Callable[[Packet], bytes], ...] = (
    LINKS[107],
    lambda p: b"\x18\x41" + struct.pack(">H", p[0]) + p[1],  # Cisco
    lambda p: b"\x18\x41\3\0\x80\0\0\0" + struct.pack(">H", p[0]) + p[1],  # padded, SNAP
    lambda p: b"\x18\x40\x40\x81\3" + {IP: b"\xcc", IP6: b"\x8e"}[p[0]] + p[1],  # address of 4 bytes
)


def frames(link: int, packets: Iterable[Packet] = PLAIN) -> list[bytes]:
    """The packets as frames of a link type."""
    return [LINKS[link](p) for p in packets if p[0] == ONLY.get(link, p[0])]


# -- 802.11 ---------------------------------------------------------------------------------------------------------


def wlan_frames() -> list[bytes]:
    """Data frames of all directions, management frames of each subtype, control frames."""
    data = [wlan(PLAIN[0], control) for control in (0x0008, 0x0108, 0x0208)]
    bridge = struct.pack("<HH", 0x0308, 0) + MAC_C + MAC_D + MAC_B + b"\x10\0" + MAC_A + snap(PLAIN[0])
    quality = struct.pack("<HH", 0x0288, 0) + MAC_B + MAC_C + MAC_A + b"\x10\0\0\0" + snap(PLAIN[1])
    null = struct.pack("<HH", 0x0148, 0) + MAC_C + MAC_A + MAC_C + b"\x10\0"
    management = [
        struct.pack("<HH", subtype << 4, 0) + MAC_B + MAC_A + MAC_C + b"\x20\0" + bytes(24)
        for subtype in (0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13)
    ]
    short = [struct.pack("<HH", subtype << 4 | 4, 50) + MAC_B for subtype in (12, 13)]
    pair = [struct.pack("<HH", subtype << 4 | 4, 50) + MAC_B + MAC_A for subtype in (10, 11, 14, 15)]
    blocks = [
        struct.pack("<HH", 0x84, 0) + MAC_B + MAC_A + b"\5\0\x10\0",
        struct.pack("<HH", 0x94, 0) + MAC_B + MAC_A + b"\5\0\x10\0" + bytes(8),
    ]
    return [*data, bridge, quality, null, *management, *short, *pair, *blocks]


# -- tunnels --------------------------------------------------------------------------------------------------------

OUTER = {"src": C4, "dst": D4}


def _gre(type: int, payload: bytes, flags: int = 0, fields: bytes = b"") -> Packet:
    return IP, ip4(47, struct.pack(">HH", flags, type) + fields + payload, **OUTER)


def _udp(port: int, payload: bytes, source: int = 50505) -> Packet:
    return IP, ip4(17, udp(source, port, payload), **OUTER)


def l2tp(packet: Packet, flags: int, fields: bytes = b"") -> Packet:
    """A data message of version 2; ``flags``: 0x4000 length, 0x0800 sequence, 0x0200 offset."""
    payload = b"\xff\3" + _ppp(packet)
    size = b"" if not flags & 0x4000 else struct.pack(">H", 8 + len(fields) + len(payload))
    return _udp(1701, struct.pack(">H", flags | 2) + size + struct.pack(">HH", 3, 9) + fields + payload, 1701)


TUNNELS: dict[str, Callable[[Packet], Packet]] = {
    "gre": lambda p: _gre(p[0], p[1]),
    "gre with a key": lambda p: _gre(p[0], p[1], 0x2000, struct.pack(">I", 77)),
    "gre of Ethernet": lambda p: _gre(0x6558, ethernet(p)),
    "gre of PPTP": lambda p: _gre(0x880B, b"\xff\3" + _ppp(p), 0x3001, struct.pack(">HHI", 4 + len(p[1]), 5, 1)),
    "gre of 802.11": lambda p: _gre(0x8200, wlan(p)),
    "erspan 2": lambda p: _gre(0x88BE, struct.pack(">II", 0x10000005, 0) + ethernet(p), 0x1000, bytes(4)),
    "vxlan": lambda p: _udp(4789, struct.pack(">II", 8 << 24, 42 << 8) + ethernet(p)),
    "geneve": lambda p: _udp(6081, struct.pack(">HHI", 0, 0x6558, 43 << 8) + ethernet(p)),
    "gtp": lambda p: _udp(2152, struct.pack(">BBHI", 0x30, 255, len(p[1]), 44) + p[1]),
    "ip in ip": lambda p: (IP, ip4(4 if p[0] == IP else 41, p[1], **OUTER)),
    "ip in ip6": lambda p: (IP6, ip6(4 if p[0] == IP else 41, p[1], src=C6, dst=D6)),
    "mpls in udp": lambda p: _udp(6635, _mpls(p)),
    "l2tp": lambda p: l2tp(p, 0),
    "l2tp with length and sequence": lambda p: l2tp(p, 0x4800, bytes(4)),
    "l2tp with an offset": lambda p: l2tp(p, 0x0200, b"\0\2\0\0"),
}
TUNNELS6: dict[str, Callable[[bytes], Packet]] = {
    "teredo": lambda p: _udp(3544, p),
    "teredo from the server": lambda p: _udp(50505, p, 3544),
    "teredo with origin": lambda p: _udp(50505, struct.pack(">HHI", 0, 0x1234, 0x01020304) + p, 3544),
    "teredo with authentication": lambda p: _udp(3544, struct.pack(">HBB", 1, 0, 0) + bytes(9) + p),
}
# Tunnels without an IP header that can be read; the last one carries nothing.
UNREAD: dict[str, Packet] = {
    "arp in vxlan": TUNNELS["vxlan"]((ARP, arp())),
    "control of ppp in l2tp": _udp(1701, struct.pack(">HHH", 2, 3, 9) + b"\xff\3\xc0\x21" + bytes(8), 1701),
    "l2tp version 3": _udp(1701, struct.pack(">HHI", 3, 0, 99) + bytes(20), 1701),
    "l2tp version 3 over ip": (IP, ip4(115, struct.pack(">I", 99) + bytes(20), **OUTER)),
    "control of l2tp": _udp(1701, struct.pack(">HHHHHH", 0xC802, 12, 3, 9, 0, 0), 1701),
}


def tunnelled() -> dict[str, list[bytes]]:
    """Ethernet frames by the name of their tunnel."""
    made = {name: [ethernet(wrap(p)) for p in PLAIN] for name, wrap in TUNNELS.items()}
    return made | {name: [ethernet(wrap(PLAIN[3][1])), ethernet(wrap(PLAIN[4][1]))] for name, wrap in TUNNELS6.items()}


def tagged() -> list[bytes]:
    """VLAN tags, 802.3 with SNAP, MPLS, PPPoE, ARP, authentication headers."""
    made = []
    for packet in PLAIN:
        made += [ethernet(packet, (0x8100, 5)), ethernet(packet, (0x88A8, 6), (0x8100, 7))]
        made += [ethernet((0x8847, _mpls(packet))), ethernet((0x8864, LINKS[51](packet)))]
        made.append(MAC_B + MAC_A + struct.pack(">H", 8 + len(packet[1])) + snap(packet))
    return [*made, ethernet((ARP, arp())), *(ethernet(packet) for packet in AUTH)]


def fragments() -> list[bytes]:
    """The first and the last fragment of a datagram, and whole packets."""
    first, last = (IP, ip4(17, udp(1000, 53, bytes(24)), fragment=0x2000)), (IP, ip4(17, bytes(24), fragment=4))
    return [ethernet(packet) for packet in (first, last, *PLAIN)]


def odd() -> dict[str, bytes]:
    """Capture files by name, with what tshark shows otherwise on purpose (docs/oracles.md)."""
    whole = [ethernet(packet) for packet in PLAIN]
    four, six = whole[0], whole[3]
    jumbo = bytes([6, 0, 0xC2, 4]) + struct.pack(">I", 69_960)
    large = struct.pack(">IHBB", 6 << 28, 0, 0, 64) + A6 + B6 + jumbo + tcp()
    broken = [
        four[:14] + b"\x44" + four[15:],  # an IP header of 16 bytes
        four[:16] + b"\0\x10" + four[18:],  # a packet that is shorter than its header
        four[:14] + b"\x75" + four[15:],  # IP version 7
        four[:28],
        four[:32],
        four[:40],
        six[:30],
        six[:48],
        ethernet((IP6, large)),
    ]
    times = [(1_700_000_000 + i) * 10**9 for i in range(len(broken))]
    lengths = [max(len(frame), len(six if frame[12:14] == six[12:14] else four)) for frame in broken[:-1]]
    late = make_capture.interface(resolution=9) + make_capture.enhanced(2**63 + 5, four)
    plain = make_capture.interface(resolution=9) + make_capture.enhanced(times[0], four)
    fraction = struct.pack("<IIII", 1_700_000_000, 2**31, len(four), len(four)) + four
    return {
        "broken.pcap": pcap(zip(times, broken, strict=True), lengths=[*lengths, 70_014]),
        "late.pcapng": make_capture.section() + late,
        "sections.pcapng": (make_capture.section() + plain) * 2,
        "fraction.pcap": pcap([]) + fraction,
    }


def write(path: Path, every: Iterable[bytes], link: int = 1) -> Path:
    """A capture of the frames, a millisecond apart."""
    path.write_bytes(pcap([(1_700_000_000 * 10**9 + i * 10**6, frame) for i, frame in enumerate(every)], link=link))
    return path
