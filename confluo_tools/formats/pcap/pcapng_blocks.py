"""Blocks of pcapng files, little-endian, with times in nanoseconds."""

from __future__ import annotations

import struct
from collections.abc import Sequence

COMMENT, NAME, TIME_RESOLUTION = 1, 2, 9  # codes of options
SECTION, INTERFACE, PACKET = 0x0A0D0D0A, 1, 6  # types of blocks


def block(kind: int, body: bytes, options: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """A block; ``body`` is a multiple of 4 bytes."""
    for code, value in options:
        body += struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)
    if options:
        body += bytes(4)
    return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)


def section(options: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """The header of a file."""
    return block(SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1), options)


def interface(link: int, options: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """An interface of this link type; the first one has the number 0."""
    return block(INTERFACE, struct.pack("<HHI", link, 0, 0), [*options, (TIME_RESOLUTION, b"\x09")])


def packet(number: int, time: int, wire: int, data: bytes) -> bytes:
    """A packet of interface ``number``: time in ns, length on the wire, captured bytes."""
    time &= 0xFFFFFFFFFFFFFFFF
    head = struct.pack("<5I", number, time >> 32, time & 0xFFFFFFFF, len(data), max(wire, len(data)))
    return block(PACKET, head + data + bytes(-len(data) % 4))
