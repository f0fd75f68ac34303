"""Frames out of an interface at a given rate: sendmmsg(2) on packet sockets, past the queueing discipline.

usage: bench/blast.py INTERFACE COUNT RATE [THREADS [CAPTURE]]      RATE in frames/s for all threads, 0: no limit

The frames are those of CAPTURE (examples/data/campus.pcap.gz unless given) in turn, cut to the MTU.
Prints the number of frames sent and the seconds it took.  For namespaces only: addresses are left as they are.
"""

from __future__ import annotations

import ctypes
import gzip
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CAMPUS = ROOT / "examples" / "data" / "campus.pcap.gz"
BATCH = 256
MOST = 1514


class IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Header(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_size", ctypes.c_uint),
        ("vector", ctypes.POINTER(IoVec)),
        ("vectors", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_size", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class Message(ctypes.Structure):
    _fields_ = (("header", Header), ("sent", ctypes.c_uint))


def frames_of(path: Path) -> list[bytes]:
    """The frames of a little-endian pcap file, perhaps compressed."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if data[:4] not in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1"):
        raise SystemExit(f"{path}: no little-endian pcap")
    frames, at = [], 24
    while at + 16 <= len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        frames.append(data[at + 16 : at + 16 + min(size, MOST)])
        at += 16 + size
    return [f for f in frames if len(f) >= 14]


class Sender(threading.Thread):
    """Sends ``count`` of ``frames`` at ``rate`` a second (0: as fast as it goes)."""

    def __init__(self, interface: str, frames: list[bytes], count: int, rate: float, start: int = 0) -> None:
        super().__init__()
        self.count, self.rate, self.sent = count, rate, 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(263, 20, 1)  # PACKET_QDISC_BYPASS
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        self._socket.bind((interface, 0))
        frames = frames[start % len(frames) :] + frames[: start % len(frames)]
        self._kept = [ctypes.create_string_buffer(f, len(f)) for f in frames]
        self._vectors = (IoVec * len(frames))(*[IoVec(ctypes.addressof(b), len(b)) for b in self._kept])
        self._messages = (Message * len(frames))()
        for i in range(len(frames)):
            self._messages[i].header.vector = ctypes.pointer(self._vectors[i])
            self._messages[i].header.vectors = 1
        self._libc = ctypes.CDLL(None, use_errno=True)

    def run(self) -> None:
        fd, total = self._socket.fileno(), len(self._messages)
        size = ctypes.sizeof(Message)
        base = ctypes.addressof(self._messages)
        at, began = 0, time.perf_counter()
        while self.sent < self.count:
            n = min(BATCH, total - at, self.count - self.sent)
            done = self._libc.sendmmsg(fd, ctypes.c_void_p(base + at * size), n, 0)
            if done <= 0:
                if ctypes.get_errno() in (11, 105):  # EAGAIN, ENOBUFS
                    continue
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            self.sent += done
            at = (at + done) % total
            if self.rate:
                ahead = self.sent / self.rate - (time.perf_counter() - began)
                if ahead > 0.0005:
                    time.sleep(ahead)


def blast(interface: str, count: int, rate: float, threads: int = 1, capture: Path = CAMPUS) -> tuple[int, float]:
    """(frames sent, seconds)."""
    frames = frames_of(capture)
    senders = [Sender(interface, frames, count // threads, rate / threads, 997 * i) for i in range(threads)]
    began = time.perf_counter()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    return sum(s.sent for s in senders), time.perf_counter() - began


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 6:
        raise SystemExit(__doc__)
    more = sys.argv[4:]
    done = blast(
        sys.argv[1],
        int(sys.argv[2]),
        float(sys.argv[3]),
        int(more[0]) if more else 1,
        Path(more[1]) if len(more) > 1 else CAMPUS,
    )
    print(f"{done[0]}\t{done[1]:.3f}")
