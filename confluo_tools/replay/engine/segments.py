"""The TCP packets that an end sent in a replay: their headers, relative to the initial sequence numbers."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from confluo_tools.core.replay.serial_replay import IP_OFFSET, PACKET

FIN, SYN, PSH, ACK = 1, 2, 8, 16
FLAGS = ((2, "S"), (1, "F"), (4, "R"), (8, "P"), (16, "."), (32, "U"), (64, "E"), (128, "W"), (256, "e"))


class RawPacket(NamedTuple):
    """A packet as the device gave it.  ``at``: ns after the start; ``gso``: payload of each of its segments, 0: one.

    ``head``: IP and TCP headers; ``length``: bytes of the IP packet.
    """

    at: int
    length: int
    gso: int
    head: bytes


class SentPacket(NamedTuple):
    """The header of a packet.  ``seq``, ``ack`` and ``sack`` count from the SYN of the end that they are about."""

    at: int
    seq: int
    ack: int
    len: int
    flags: int
    window: int
    sack: tuple[int, ...] = ()
    ecn: int = 0
    tsval: int = 0
    tsecr: int = 0
    ip_id: int = 0
    segments: int = 1
    gso: int = 0  # payload of each segment, if there are several

    @property
    def identity(self) -> tuple[int, int, int, int, int, tuple[int, ...]]:
        """What must be equal in a replay."""
        return self.seq, self.ack, self.len, self.flags, self.window, self.sack

    def __str__(self) -> str:
        flags = "".join(letter for bit, letter in FLAGS if self.flags & bit)
        text = f"[{flags}] seq {self.seq} len {self.len} ack {self.ack} win {self.window}"
        if self.sack:
            edges = (f"{self.sack[i]}:{self.sack[i + 1]}" for i in range(0, len(self.sack) - 1, 2))
            text += f" sack {' '.join(edges)}"
        return text


def raw_packets(packed: bytes | memoryview) -> Iterator[RawPacket]:
    """The packets of `SerialReplay.packets`."""
    for at, length, head, data in struct.iter_unpack(PACKET, packed):
        gso_type, gso = data[1], int.from_bytes(data[4:6], "little")
        yield RawPacket(at, length - IP_OFFSET, gso if gso_type else 0, data[IP_OFFSET:head])


def segments_of(packets: Sequence[Sequence[RawPacket]]) -> tuple[list[SentPacket], list[SentPacket]]:
    """The headers of the packets of both ends."""
    isn = [initial_sequence_number(packets[0]), initial_sequence_number(packets[1])]
    return ([_segment(p, isn[0], isn[1]) for p in packets[0]], [_segment(p, isn[1], isn[0]) for p in packets[1]])


def initial_sequence_number(packets: Sequence[RawPacket]) -> int:
    """The sequence number of the SYN among the packets of an end; 0: there is none."""
    for p in packets:
        seq, _, _, flags = struct.unpack_from(">IIBB", p.head, tcp_offset(p.head) + 4)
        if flags & SYN:
            return int(seq)
    return 0


def tcp_offset(head: bytes) -> int:
    """Bytes of the IP header."""
    return 40 if head[0] >> 4 == 6 else (head[0] & 15) * 4


def _segment(p: RawPacket, isn: int, peer_isn: int) -> SentPacket:
    head = p.head
    at = tcp_offset(head)
    seq, ack, offset, flags, window = struct.unpack_from(">IIBBH", head, at + 4)
    flags |= (offset & 1) << 8
    sack, tsval, tsecr = _options(head[at + 20 :], peer_isn)
    six = head[0] >> 4 == 6
    ip_id = 0 if six else int.from_bytes(head[4:6], "big")
    ecn = head[1] >> 4 & 3 if six else head[1] & 3
    payload = p.length - len(head)
    return SentPacket(
        p.at,
        (seq - isn) & 0xFFFFFFFF,
        (ack - peer_isn) & 0xFFFFFFFF if flags & ACK else 0,
        payload,
        flags,
        window,
        sack,
        ecn,
        tsval,
        tsecr,
        ip_id,
        -(-payload // p.gso) if p.gso and payload else 1,
        p.gso,
    )


def part_of(packets: Sequence[SentPacket], numbers: range, first: int, count: int) -> SentPacket:
    """The packet that devices made of ``count`` segments of the packets with these numbers, from ``first`` on."""
    whole = packets[numbers[0]]
    if not count or not (whole.gso or first or len(numbers) > 1):
        return whole
    skip = first * whole.gso
    length = whole.len - skip if count >= whole.segments - first else count * whole.gso
    taken, flags = min(count, whole.segments - first), whole.flags
    if skip + length < whole.len:
        flags &= ~(FIN | PSH)
    for number in numbers[1:]:
        more = packets[number]
        rest = min(count - taken, more.segments)
        length += more.len if rest == more.segments else rest * more.gso
        flags |= more.flags if rest == more.segments else more.flags & ~(FIN | PSH)
        taken += rest
    seq, ip_id = whole.seq + skip & 0xFFFFFFFF, whole.ip_id + first & 0xFFFF
    return whole._replace(seq=seq, ip_id=ip_id, len=length, flags=flags, segments=taken)


def _options(data: bytes, peer_isn: int) -> tuple[tuple[int, ...], int, int]:
    """(SACK edges, tsval, tsecr)."""
    sack: tuple[int, ...] = ()
    tsval = tsecr = place = 0
    while place + 1 < len(data):
        kind = data[place]
        if kind == 0:
            break
        if kind == 1:
            place += 1
            continue
        size = data[place + 1]
        if kind == 5:
            edges = struct.unpack_from(f">{(size - 2) // 4}I", data, place + 2)
            sack = tuple([(edge - peer_isn) & 0xFFFFFFFF for edge in edges])
        elif kind == 8:
            tsval, tsecr = struct.unpack_from(">II", data, place + 2)
        place += max(size, 2)
    return sack, tsval, tsecr
