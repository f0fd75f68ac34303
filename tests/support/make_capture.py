"""Captures made byte by byte, from the format descriptions: what readers are tested with."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

Packet = tuple[int, bytes]  # ts in ns, frame

MAGIC = {"us": 0xA1B2C3D4, "ns": 0xA1B23C4D, "modified": 0xA1B2CD34}


def pcap(
    packets: Iterable[Packet],
    *,
    order: str = "<",
    kind: str = "us",
    link: int = 1,
    snap: int = 65535,
    lengths: Sequence[int] = (),
    version: tuple[int, int] = (2, 4),
    wire_first: bool = False,
) -> bytes:
    """A pcap file; ``lengths`` are the lengths on the wire where they differ from those of the frames.

    ``wire_first``: the length on the wire comes before the captured length, as in versions 2.0 to 2.2.
    """
    out = [struct.pack(order + "IHHiIII", MAGIC[kind], *version, 0, 0, snap, link)]
    for i, (ts, frame) in enumerate(packets):
        seconds, rest = divmod(ts, 10**9)
        length = lengths[i] if i < len(lengths) else len(frame)
        sizes = (length, len(frame)) if wire_first else (len(frame), length)
        out.append(struct.pack(order + "IIII", seconds, rest if kind == "ns" else rest // 1000, *sizes))
        if kind == "modified":
            out.append(struct.pack(order + "IHBx", 1, 0x0800, 0))
        out.append(frame)
    return b"".join(out)


def block(order: str, kind: int, body: bytes) -> bytes:
    body += b"\0" * (-len(body) % 4)
    total = len(body) + 12
    return struct.pack(order + "II", kind, total) + body + struct.pack(order + "I", total)


def option(order: str, code: int, value: bytes) -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def section(order: str = "<") -> bytes:
    return block(
        order,
        0x0A0D0D0A,
        struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1) + option(order, 4, b"made by a test") + option(order, 0, b""),
    )


def interface(
    order: str = "<", *, link: int = 1, snap: int = 0, resolution: int | None = None, offset: int | None = None
) -> bytes:
    body = struct.pack(order + "HHI", link, 0, snap) + option(order, 2, b"eth0")
    if resolution is not None:
        body += option(order, 9, bytes([resolution]))
    if offset is not None:
        body += option(order, 14, struct.pack(order + "q", offset))
    return block(order, 1, body + option(order, 0, b""))


def enhanced(ticks: int, frame: bytes, order: str = "<", *, iface: int = 0, length: int | None = None) -> bytes:
    head = struct.pack(
        order + "IIIII", iface, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame) if length is None else length
    )
    return block(order, 6, head + frame + b"\0" * (-len(frame) % 4) + option(order, 1, b"a comment"))


def simple(frame: bytes, order: str = "<", *, length: int | None = None) -> bytes:
    return block(order, 3, struct.pack(order + "I", len(frame) if length is None else length) + frame)


def old(ticks: int, frame: bytes, order: str = "<", *, iface: int = 0) -> bytes:
    return block(
        order,
        2,
        struct.pack(order + "HHIIII", iface, 0, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame)) + frame,
    )


def pcapng(packets: Iterable[Packet], *, order: str = "<", resolution: int = 9, link: int = 1) -> bytes:
    """A pcapng file of one section and one interface that counts 10^-resolution s."""
    out = [section(order), interface(order, link=link, resolution=resolution)]
    out += [enhanced(ts // 10 ** (9 - resolution), frame, order) for ts, frame in packets]
    return b"".join(out)


def udp4(
    payload: bytes = b"", *, sport: int = 1000, dport: int = 53, src: bytes = b"\n\0\0\1", dst: bytes = b"\n\0\0\2"
) -> bytes:
    """An Ethernet frame with a UDP packet."""
    udp = struct.pack(">HHHH", sport, dport, 8 + len(payload), 0) + payload
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, src, dst)
    return b"\2\0\0\0\0\1\2\0\0\0\0\2\x08\0" + ip + udp
