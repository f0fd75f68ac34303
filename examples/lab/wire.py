"""Ethernet frames as the switches of the lab change them: in-band telemetry as confluo-telemetry(7) describes it."""

from __future__ import annotations

import struct

OPTION6, OPTION4 = 0x31, 0x5E
KIND = 0x820000  # of each node: hop limit and node id, queue depth
NODE = 2  # words of four bytes that this takes
HEAD = 12  # bytes of the option before the room for nodes
MOST4 = 3  # nodes that fit an IPv4 header
OVERFLOW = 0x400
IP4, IP6 = b"\x08\x00", b"\x86\xdd"


def stamp(frame: bytes, node: int, depth: int, room: int) -> bytes:
    """The frame with switch ``node`` and its queue ``depth`` written down; the first one leaves ``room`` for nodes.

    What is not IP, and what carries other options, stays as it is.
    """
    kind = frame[12:14]
    if kind == IP4 and len(frame) >= 34:
        return _stamp4(frame, node, depth, min(room, MOST4))
    if kind == IP6 and len(frame) >= 54:
        return _stamp6(frame, node, depth, room)
    return frame


def _empty(option: int, length: int, room: int) -> bytes:
    head = struct.pack(">BBBBHHI", option, length, 0, 0, 0, NODE << 11 | room * NODE, KIND << 8)
    return head + bytes(4 * NODE * room)


def _write(frame: bytearray, at: int, node: int, depth: int, ttl: int) -> None:
    """Fill the last free place of the option at ``at``."""
    shape = int.from_bytes(frame[at + 6 : at + 8], "big")
    free = shape & 127
    if free < NODE:
        frame[at + 6 : at + 8] = (shape | OVERFLOW).to_bytes(2, "big")
        return
    place = at + HEAD + 4 * (free - NODE)
    frame[place : place + 8] = struct.pack(">II", ttl << 24 | node & 0xFFFFFF, depth)
    frame[at + 6 : at + 8] = (shape - NODE).to_bytes(2, "big")


def _stamp4(frame: bytes, node: int, depth: int, room: int) -> bytes:
    size = (frame[14] & 15) * 4
    if size == 20:
        option = _empty(OPTION4, HEAD + 4 * NODE * room, room)
        out = bytearray(frame[:34] + option + frame[34:])
        length = int.from_bytes(frame[16:18], "big") + len(option)
        out[14] = 0x40 | (20 + len(option)) // 4
        out[16:18] = length.to_bytes(2, "big")
    elif frame[34] == OPTION4:
        out = bytearray(frame)
    else:
        return frame
    _write(out, 34, node, depth, out[22])
    size = (out[14] & 15) * 4
    out[24:26] = b"\0\0"
    out[24:26] = checksum(bytes(out[14 : 14 + size])).to_bytes(2, "big")
    return bytes(out)


def _stamp6(frame: bytes, node: int, depth: int, room: int) -> bytes:
    if frame[20]:  # no hop-by-hop header yet
        option = _empty(OPTION6, HEAD - 2 + 4 * NODE * room, room)
        header = bytes([frame[20], (4 + len(option)) // 8 - 1, 1, 0]) + option  # 16 + 8 * room bytes
        out = bytearray(frame[:54] + header + frame[54:])
        out[18:20] = (int.from_bytes(frame[18:20], "big") + len(header)).to_bytes(2, "big")
        out[20] = 0
    elif frame[58:59] == bytes([OPTION6]):
        out = bytearray(frame)
    else:
        return frame
    _write(out, 58, node, depth, out[21])
    return bytes(out)


def checksum(header: bytes) -> int:
    """The checksum of an IPv4 header with a zero checksum field."""
    total: int = sum(struct.unpack(f">{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def priority(frame: bytes) -> int:
    """0 to 7, the larger first: the upper three bits of the DSCP."""
    kind = frame[12:14]
    if kind == IP4:
        return frame[15] >> 5
    if kind == IP6:
        return (frame[14] << 4 | frame[15] >> 4) >> 5 & 7
    return 7


def is_data(frame: bytes) -> bool:
    """Whether it is more than an acknowledgement: what the rules about drops and detours are for."""
    return len(frame) > 250
