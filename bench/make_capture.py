"""Make a large capture from a small one: the same packets again and again, later and with other addresses.

usage: bench/make_capture.py SOURCE.pcap PACKETS OUT.pcap

Each copy is moved behind the one before it in time, and the second byte of each 10.x IPv4 address (else the
third) is changed, so that flows differ from copy to copy.  SOURCE: Ethernet, little
endian, microseconds or nanoseconds.
"""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np


def make(source: Path, packets: int, out: Path) -> int:
    """Write at least ``packets`` packets; returns how many."""
    data = source.read_bytes()
    if data[:4] not in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1"):
        raise SystemExit(f"{source}: is not a little-endian pcap file")
    starts = []
    at = 24
    while at + 16 <= len(data):
        starts.append(at)
        at += 16 + int.from_bytes(data[at + 8 : at + 12], "little")
    body = np.frombuffer(data[24:at], dtype=np.uint8)
    records = np.array(starts) - 24
    seconds = np.stack([body[records + i].astype(np.int64) << 8 * i for i in range(4)]).sum(axis=0)
    span = int(seconds.max() - seconds.min()) + 1
    frames = records + 16
    last = len(body) - 1
    v4 = frames[(body[np.minimum(frames + 12, last)] == 8) & (body[np.minimum(frames + 13, last)] == 0)]
    copies = -(-packets // len(records))
    with out.open("wb") as f:
        f.write(data[:24])
        for copy in range(copies):
            new = body.copy()
            later = seconds + copy * span
            for i in range(4):
                new[records + i] = later >> 8 * i & 255
            for address in (26, 30):
                new[v4 + address + 1] ^= np.uint8(copy & 255)
                new[v4 + address + 2] ^= np.uint8(copy >> 8 & 255)
            f.write(new.tobytes())
    return copies * len(records)


def count(capture: Path) -> int:
    """Packets of a little-endian pcap file."""
    packets, at = 0, 24
    with capture.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        while at + 16 <= len(data):
            at += 16 + int.from_bytes(data[at + 8 : at + 12], "little")
            packets += 1
    return packets


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    print(make(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
