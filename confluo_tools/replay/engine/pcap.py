"""The packets of a replay as a capture, as at the interfaces of both senders: whole, with checksums.

A packet of several segments is written as its segments.  Payload is zero bytes, addresses are those of the recording.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from heapq import merge

from confluo_tools.replay.engine.attempt import Attempt
from confluo_tools.replay.engine.segments import RawPacket, tcp_offset

HEAD = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 101)  # nanoseconds, raw IP
FIN, PSH, CWR = 1, 8, 128


def capture_of(done: Attempt) -> Iterator[bytes]:
    """The records of a capture, in the order of their times."""
    for at, packet in merge(*(_timed(done, side) for side in (0, 1))):
        second, ns = divmod(at, 10**9)
        yield struct.pack("<IIII", second, ns, len(packet), len(packet)) + packet


def _timed(done: Attempt, side: int) -> Iterator[tuple[int, bytes]]:
    origin = done.script.origin[0]  # one clock for both
    flow = (done.script.connection.client, done.script.connection.server)[side].flow
    family = socket.AF_INET if flow.version == 4 else socket.AF_INET6
    place = 12 if flow.version == 4 else 8
    addresses = socket.inet_pton(family, flow.src) + socket.inet_pton(family, flow.dst)
    for packet in done.packets[side]:
        head = packet.head[:place] + addresses + packet.head[place + len(addresses) :]
        for part in split(packet._replace(head=head)):
            yield packet.at + origin, part


def split(packet: RawPacket) -> Iterator[bytes]:
    """The packets on the wire: one, or the segments that the device would send."""
    payload = packet.length - len(packet.head)
    size = packet.gso or max(payload, 1)
    for number, first in enumerate(range(0, max(payload, 1), size)):
        part = min(size, payload - first)
        yield checked(_segment(packet.head, number, first, part, first + part >= payload), part)


def _segment(head: bytes, number: int, first: int, payload: int, last: bool) -> bytearray:
    """The headers of segment ``number``, which begins at byte ``first`` of the payload."""
    out = bytearray(head)
    ip = tcp_offset(head)
    if head[0] >> 4 == 4:
        struct.pack_into(">H", out, 2, len(head) + payload)
        struct.pack_into(">H", out, 4, int.from_bytes(head[4:6], "big") + number & 0xFFFF)
    else:
        struct.pack_into(">H", out, 4, len(head) + payload - 40)
    struct.pack_into(">I", out, ip + 4, int.from_bytes(head[ip + 4 : ip + 8], "big") + first & 0xFFFFFFFF)
    if not last:
        out[ip + 13] &= ~(FIN | PSH)
    if number:
        out[ip + 13] &= ~CWR & 0xFF
    return out


def checked(out: bytearray, payload: int) -> bytes:
    """The packet with its checksums and ``payload`` zero bytes."""
    ip = tcp_offset(bytes(out[:1]))
    four = out[0] >> 4 == 4
    if four:
        out[10:12] = b"\0\0"
        out[10:12] = _checksum(out[:ip])
    out[ip + 16 : ip + 18] = b"\0\0"
    length = len(out) - ip + payload
    pseudo = bytes(out[12:20] if four else out[8:40]) + struct.pack(">II", length, 6)
    out[ip + 16 : ip + 18] = _checksum(pseudo + out[ip:])
    return bytes(out) + bytes(payload)


def _checksum(data: bytes | bytearray) -> bytes:
    total = sum(struct.unpack(f">{len(data) // 2}H", data[: len(data) & ~1]))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", ~total & 0xFFFF)
