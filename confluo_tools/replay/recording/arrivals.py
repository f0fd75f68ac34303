"""Which packet of the sender each received packet is: what is missing was lost, what goes back was late."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from confluo_tools.errors import ConfluoError
from confluo_tools.replay.recording.connection import ConnectionEnd
from confluo_tools.replay.recording.runs import Runs

_FIELDS = ("seq", "ack", "len", "tcp_flags", "window", "tsval", "tsecr")
SLACK = 20_000  # ns: times of packets at both ends are inferred within 5 us, and of TCP a little later
NEVER = 1 << 62
MAX_SEGMENTS = 1024  # of a packet: 64 KiB have fewer


class Arrival(NamedTuple):
    """What a received packet is: ``segments`` of those that were sent, from segment ``first`` of packet ``packet`` on.

    ``packet`` -1: the sender did not record it.  ``segments`` 0: the whole packet.
    """

    packet: int
    first: int = 0
    segments: int = 0


def arrivals(sender: ConnectionEnd, receiver: ConnectionEnd) -> array[int]:
    """For each packet that ``receiver`` processed, its number in the order in which ``sender`` sent it; -1: none.

    It is the first of several that a device merged.  As `arrived_segments`.
    """
    return array("q", (arrival.packet for arrival in arrived_segments(sender, receiver)))


def arrived_segments(sender: ConnectionEnd, receiver: ConnectionEnd) -> list[Arrival]:
    """What each packet that ``receiver`` processed is, of what ``sender`` sent.

    IPv4 packets are found by their identification, those of IPv6 by their headers at both ends: these only if no
    device splits or merges them.  Raises ConfluoError without headers.
    """
    if receiver.flow.version == 4:
        return by_identification(sender, receiver)
    return [Arrival(number) for number in by_headers(sender, receiver)]


def by_identification(sender: ConnectionEnd, receiver: ConnectionEnd) -> list[Arrival]:
    """IP identification counts segments by one: devices may split and merge packets on the way.

    Of several with the same identification it is the one next to the segment that is expected.
    """
    places: dict[int, list[int]] = defaultdict(list)  # identification -> numbers of segments
    starts = array("q")  # number of the first segment of each packet
    owner = array("q")  # packet of each segment
    for packet, (ip_id, count) in enumerate(_identifications(sender.sent)):
        starts.append(len(owner))
        for i in range(count):
            places[ip_id + i & 0xFFFF].append(len(owner))
            owner.append(packet)
    starts.append(len(owner))
    out: list[Arrival] = []
    expected = 0
    for ip_id, count in _identifications(receiver.received):
        found = places.get(ip_id)
        if not found:
            out.append(Arrival(-1))
            continue
        place = found[0] if len(found) == 1 else min(found, key=lambda n: abs(n - expected))
        packet = owner[place]
        whole = starts[packet] == place and place + count == starts[packet + 1]
        out.append(Arrival(packet) if whole else Arrival(packet, place - starts[packet], count))
        expected = max(expected, place + count)
    return out


def _identifications(packets: Runs) -> Iterator[tuple[int, int]]:
    """(IP identification, segments) of each packet."""
    segments = (min(max(count, 1), MAX_SEGMENTS) for count in packets.expanded("segments"))
    return zip(packets.expanded("ip_id"), segments, strict=True)


def by_headers(sender: ConnectionEnd, receiver: ConnectionEnd) -> array[int]:
    """By equal headers.  Of several packets with the same header, it is the next one that was not received before and
    that was sent early enough: not faster than the fastest packet with a header of its own.
    """
    if len(sender.headers_sent) < sender.packets_sent or len(receiver.headers_received) < receiver.packets_received:
        raise ConfluoError("packets of IPv6 have no identification", hint="record with --level headers at both ends")
    sent, came = _headers(sender, "sent"), _headers(receiver, "received")
    places: dict[Any, list[int]] = defaultdict(list)
    for number, header in enumerate(sent):
        places[header].append(number)
    left, at = sender.headers_sent["ts"], receiver.headers_received["ts"]
    fastest = _fastest(came, places, left, at)
    out, expected = array("q"), 0
    for header, when in zip(came, at, strict=True):
        found = places.get(header)
        number = _next(found, expected, left, when - fastest + SLACK) if found else -1
        if found and number >= 0:
            found.remove(number)
        out.append(number)
        expected = max(expected, number + 1)
    return out


def _headers(end: ConnectionEnd, which: str) -> list[Any]:
    headers = end.headers_sent if which == "sent" else end.headers_received
    sacks = end.sack_sent if which == "sent" else end.sack_received
    return list(zip(*(headers[name] for name in _FIELDS), sacks, strict=True))


def _fastest(came: Sequence[Any], places: dict[Any, list[int]], left: Sequence[int], at: Sequence[int]) -> int:
    """The shortest time from sending to processing a packet with a header of its own, ns by both clocks."""
    alone = (
        (places[header][0], when) for header, when in zip(came, at, strict=True) if len(places.get(header, ())) == 1
    )
    return min((when - left[number] for number, when in alone), default=-NEVER)


def _next(found: list[int], expected: int, left: Sequence[int], latest: int) -> int:
    """Of the packets ``found``, ascending: the first from ``expected`` on if it was sent by ``latest``, else the last
    one before it.
    """
    place = bisect_left(found, expected)
    if place < len(found) and left[found[place]] <= latest:
        return found[place]
    return found[place - 1] if place else found[0]
