"""One direction of a TCP connection over time: segments, acknowledgements, the window, and the labels of both ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

FIN, SYN, ACK = 1, 2, 16
HALF, WHOLE = 1 << 31, 1 << 32
MAX_SCALE = 14


class TimedPacket(NamedTuple):
    """A segment as captured.  ``side``: of its sender; ``scale``: of the option, -1 without."""

    ts: int
    side: int
    seq: int
    ack: int
    size: int
    flags: int
    window: int
    scale: int
    number: int
    cwnd: int = 0  # packets, of a recording with probes


class TimedLabel(NamedTuple):
    """A row of the schema `explanation`, with words."""

    ts: int
    duration: int
    event: str
    name: str
    cause: str
    certainty: str
    why: str
    packet: int


class Sent(NamedTuple):
    """``ts`` in ns since the first packet; ``again``: below the highest sequence number sent."""

    ts: int
    seq: int
    size: int
    again: bool
    number: int


class Acked(NamedTuple):
    """An acknowledgement and the end of the window that it offers, relative sequence numbers."""

    ts: int
    ack: int
    edge: int
    number: int


@dataclass
class Timeline:
    """What is drawn.  Times in ns since ``start`` (ns since 1970), sequence numbers from 0 at the SYN."""

    title: str
    start: int = 0
    end: int = 0
    sent: list[Sent] = field(default_factory=list)
    acked: list[Acked] = field(default_factory=list)
    congestion: list[tuple[int, int]] = field(default_factory=list)  # time, end of the congestion window
    labels: list[TimedLabel] = field(default_factory=list)

    @property
    def highest(self) -> int:
        """The highest sequence number sent."""
        return max((s.seq + s.size for s in self.sent), default=0)


def main_side(packets: Iterable[TimedPacket]) -> int:
    """The side that sent more payload."""
    size = [0, 0]
    for p in packets:
        size[p.side] += p.size
    return int(size[1] > size[0])


def draw(title: str, packets: list[TimedPacket], labels: Iterable[TimedLabel]) -> Timeline:
    """The timeline of the side that sent more payload."""
    side = main_side(packets)
    line = Timeline(title, packets[0].ts if packets else 0)
    scales = [-1, -1]
    base, high, mss, una = -1, 0, 0, 0
    for p in packets:
        at = p.ts - line.start
        line.end = max(line.end, at)
        if p.flags & SYN:
            scales[p.side] = p.scale
        if p.side == side:
            if base < 0:
                base = p.seq if p.flags & SYN else (p.seq - 1) % WHOLE
            if p.size or p.flags & (SYN | FIN):
                seq = _near(p.seq - base, high)
                line.sent.append(Sent(at, seq, p.size, seq < high, p.number))
                high = max(high, seq + p.size + (p.flags & SYN > 0) + (p.flags & FIN > 0))
            mss = max(mss, p.size)
            if p.cwnd:
                line.congestion.append((at, una + p.cwnd * mss))
        elif p.flags & ACK:
            if base < 0:
                base = (p.ack - 1) % WHOLE
            ack = _near(p.ack - base, high)
            scaled = 0 if p.flags & SYN or min(scales) < 0 else min(scales[1 - side], MAX_SCALE)
            una = max(una, ack)
            line.acked.append(Acked(at, ack, ack + (p.window << scaled), p.number))
    line.labels = [label._replace(ts=label.ts - line.start) for label in labels]
    return line


def _near(seq: int, near: int) -> int:
    """The number near another one that is ``seq`` modulo 2^32."""
    return near + ((seq - near + HALF) % WHOLE - HALF)
