"""The packets of ends that were fed with recorded packets, as those of one connection.

Each end acknowledged what it was fed.  Here its acknowledgements are moved to the sequence numbers and time stamps of
the other end; of an end that was not replayed, the packets are those that the other end got.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from confluo_tools.replay.engine.feed import FIRST, Feed
from confluo_tools.replay.engine.segments import ACK, SYN, RawPacket, raw_packets, tcp_offset

_SACK, _STAMPS = 5, 8
Packets = tuple[list[RawPacket], list[RawPacket]]
Feeds = tuple[Feed | None, Feed | None]


def joined(packets: Packets, feeds: Feeds, packed: tuple[bytes, bytes], arrived: Sequence[Sequence[int]]) -> Packets:
    """The packets of both ends.  ``packed``: the feeds; ``arrived``: when each end got its packets, ns."""
    first = _first(packets[0]), _first(packets[1])
    out: list[list[RawPacket]] = []
    for side, feed in enumerate(feeds):
        other = 1 - side
        fed = feeds[other]
        if feed is not None and fed is None:
            out.append(packets[side])
        elif feed is not None:
            stamp = feed.packets[0].tsval if feed.packets else 0
            by = first[other][0] - FIRST, first[other][1] - stamp
            out.append([_moved(p, *by) for p in packets[side]])
        else:
            got = zip(raw_packets(packed[other]), arrived[other], strict=False)
            out.append([_moved(p._replace(at=at), *first[other]) for p, at in got])
    return out[0], out[1]


def _first(packets: Sequence[RawPacket]) -> tuple[int, int]:
    """Sequence number and time stamp of the SYN of an end."""
    for p in packets:
        at = tcp_offset(p.head)
        if p.head[at + 13] & SYN:
            stamps = _option(p.head, at, _STAMPS)
            stamp = int.from_bytes(p.head[stamps + 2 : stamps + 6], "big") if stamps else 0
            return int.from_bytes(p.head[at + 4 : at + 8], "big"), stamp
    return 0, 0


def _moved(packet: RawPacket, sequence: int, stamp: int) -> RawPacket:
    """A packet with its acknowledgements moved by so much."""
    head = bytearray(packet.head)
    at = tcp_offset(packet.head)
    if not head[at + 13] & ACK:
        return packet
    _add(head, at + 8, sequence)
    place = _option(packet.head, at, _STAMPS)
    if place:
        _add(head, place + 6, stamp)
    place = _option(packet.head, at, _SACK)
    if place:
        for edge in range(place + 2, place + head[place + 1], 4):
            _add(head, edge, sequence)
    return packet._replace(head=bytes(head))


def _add(head: bytearray, place: int, by: int) -> None:
    (value,) = struct.unpack_from(">I", head, place)
    struct.pack_into(">I", head, place, value + by & 0xFFFFFFFF)


def _option(head: bytes, tcp: int, kind: int) -> int:
    """Place of a TCP option in the headers; 0: there is none."""
    place, end = tcp + 20, min(tcp + (head[tcp + 12] >> 4) * 4, len(head))
    while place + 1 < end and head[place]:
        if head[place] == kind:
            return place
        place += 1 if head[place] == 1 else max(head[place + 1], 2)
    return 0
