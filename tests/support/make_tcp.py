"""Made-up TCP conversations, as rows and as a capture: what real ones seldom show, and what both ends may get wrong."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from pathlib import Path

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
GAPS = (
    0,
    1_000,
    100_000,
    1_000_000,
    2_999_999,
    3_000_000,
    3_000_001,
    5_000_000,
    19_999_999,
    20_000_000,
    20_000_001,
    300_000_000,
)
MASK = 0xFFFFFFFF
Segment = tuple[int, int, int, int, int, int, int]  # sender, seq, ack, flags, window, payload, scale (-1: no option)


def conversation(rng: random.Random, length: int) -> list[Segment]:
    """A handshake (most of the time) and ``length`` more segments of two ends that do not care about the rules much."""
    next_ = [rng.choice([1000, MASK - 255, MASK - 15, rng.getrandbits(32)]), rng.choice([5000, MASK - 127])]
    first, acked = list(next_), list(next_)
    window = [rng.choice([1000, 65535, 300, 9000]), rng.choice([1000, 500])]
    out: list[Segment] = []
    if rng.random() < 0.7:
        for sender, flags in ((0, SYN), (1, SYN | ACK)):
            scale = rng.choice([-1, -1, 0, 2, 7, 14, 20])
            ack = next_[1 - sender] if flags & ACK else 0
            syn = (sender, next_[sender], ack, flags, window[sender], 0, scale)
            out += [syn] * rng.choice([1, 1, 1, 1, 2])
            next_[sender] += 1
            acked[sender] = next_[sender]
        if rng.random() < 0.8:
            out.append((0, next_[0], next_[1], ACK, window[0], 0, -1))
    for _ in range(length):
        sender, what, flags, size = rng.randrange(2), rng.random(), ACK, 0
        other = 1 - sender
        seq, ack = next_[sender], acked[other]
        if what < 0.34:
            size = rng.choice([1, 1, 10, 100, 100, min(window[other], 9000)]) or 1
            next_[sender] += size
        elif what < 0.42:  # something before it is lost
            size, seq = rng.choice([10, 100]), seq + rng.choice([10, 100])
            next_[sender] = seq + size
        elif what < 0.62:
            acked[other] = ack = next_[other]
        elif what < 0.67:
            window[sender] = rng.choice([0, 0, 100, window[sender], 500])
        elif what < 0.72:
            seq, size = seq - 1, rng.choice([0, 1, 1, 2, 10])
        elif what < 0.84 and len(out) > 4:
            out.append(rng.choice(out[4:][-8:]))
            continue
        elif what < 0.88:
            flags, size = ACK | FIN, rng.choice([0, 0, 20])
            next_[sender] += size + 1
        elif what < 0.90:
            flags = RST | ACK
        elif what < 0.92:
            flags, ack, seq = SYN, 0, rng.choice([first[sender], rng.getrandbits(32)])
            if sender == 1:
                continue
            out.append((sender, seq & MASK, ack, flags, window[sender], 0, -1))
            if seq != first[sender]:  # the same ports again: a new conversation
                first[0], next_, acked = seq, [seq + 1, next_[1]], [seq + 1, acked[1]]
            continue
        elif what < 0.97 and next_[sender] - first[sender] > 120:
            size, seq = rng.choice([10, 100]), seq - rng.choice([1, 10, 50, 100, 110])
        else:
            size = 1
        out.append((sender, seq & MASK, ack & MASK, flags, window[sender], size, -1))
    return out


def with_gaps(rng: random.Random, length: int) -> list[Segment]:
    """A correct conversation of ``length`` segments of which the capture lacks some."""
    next_ = [rng.getrandbits(32), rng.getrandbits(32)]
    out: list[Segment] = [
        (0, next_[0], 0, SYN, 1000, 0, -1),
        (1, next_[1], next_[0] + 1 & MASK, SYN | ACK, 1000, 0, -1),
    ]
    next_ = [n + 1 & MASK for n in next_]
    for _ in range(length):
        sender = int(rng.random() < 0.4)
        size = rng.choice([0, 0, 1, 10, 100])
        segment = (sender, next_[sender], next_[1 - sender], ACK, 1000 + rng.choice([0, 0, 1]), size, -1)
        out += [segment] * (2 if size and rng.random() < 0.1 else 1)
        next_[sender] = next_[sender] + size & MASK
    lost = rng.choice([0.05, 0.2, 0.4])
    return [segment for segment in out if rng.random() > lost]


def frame(number: int, segment: Segment) -> bytes:
    """Ethernet, IPv4 and TCP; conversation ``number`` has client port 1024 + number."""
    sender, seq, ack, flags, window, size, scale = segment
    options = b"\1\3\3" + bytes([scale]) if scale >= 0 else b""
    ports = (1024 + number, 80) if sender == 0 else (80, 1024 + number)
    head = 20 + len(options)
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + head + size, 0, 0, 64, 6, 0, 0x0A000001 + sender, 0x0A000002 - sender)
    tcp = struct.pack(">HHIIBBHHH", *ports, seq & MASK, ack & MASK, head // 4 << 4, flags, window, 0, 0)
    return bytes(12) + b"\x08\0" + ip + tcp + options + bytes(size)


def write(path: Path, packets: Iterable[tuple[int, bytes]]) -> None:
    """A capture of (ns, frame)."""
    with path.open("wb") as f:
        f.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1))
        for ts, data in packets:
            f.write(struct.pack("<IIII", 1000 + ts // 10**9, ts % 10**9, len(data), len(data)) + data)


def capture(path: Path, seed: int, conversations: int, length: int = 25) -> None:
    """Conversations one after the other."""
    rng = random.Random(seed)
    packets = []
    for number in range(conversations):
        ts = number * 10**12
        for segment in conversation(rng, rng.randrange(3, length)):
            ts += rng.choice(GAPS)
            packets.append((ts, frame(number, segment)))
    write(path, packets)
