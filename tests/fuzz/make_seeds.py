"""Inputs for the fuzzer to start from, all made here: captures of each format, frames of each link type and tunnel."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "packets"), str(TESTS / "support")]

import test_packet as packets

import make_capture as make
import make_telemetry


def frames() -> list[tuple[int, bytes]]:
    """(link type, frame): what the tests of the parser use."""
    found = [(1, packets.ethernet(p[0], 0x0800)) for p in packets.TUNNELS.values()]
    found += [mark for case in packets.test_link_types.pytestmark for mark in case.args[1]]
    tcp = struct.pack(">HHIIBBHHH", 1, 2, 3, 4, 0xF0, 0x12, 5, 6, 0)
    tcp += b"\2\4\5\xb4\3\3\7\4\2\x08\x0a" + bytes(8) + b"\5\x0a" + bytes(8) + b"\x22\4ab\x1e\4\0\0"
    found.append((1, packets.ethernet(packets.ip4_packet(6, tcp), 0x0800)))
    v6 = b"\x60\0\0\0\0\x40\0\x40" + bytes(32)
    chain = b"\x2c\0\xc2\4\0\0\0\x40" + b"\x2b\0\0\1\0\0\0\1" + b"\x3c\0" + bytes(6) + b"\x33\0" + bytes(6)
    found.append((1, packets.ethernet(v6 + chain + b"\x3a\4" + bytes(22) + b"\x80\0" + bytes(6), 0x86DD)))
    found += [(1, frame) for frame in make_telemetry.frames()]
    return found


def captures() -> list[bytes]:
    some = [(k * 10**9 + 123456789, frame[:120]) for k, (_, frame) in enumerate(frames()[::5])]
    plain = ((3, "<", "us"), (3, ">", "us"), (2, "<", "ns"), (1, ">", "ns"), (2, "<", "modified"), (0, "<", "us"))
    made = [make.pcap(some[:n], order=order, kind=kind) for n, order, kind in plain]
    made += [make.pcapng(some[:n], order=order, resolution=r) for n, order, r in ((3, "<", 6), (2, ">", 9))]
    frame = some[0][1]
    made.append(
        b"".join(
            [
                make.section(),
                make.interface(link=113, snap=40, resolution=0x8A, offset=-5),
                make.simple(frame),
                make.old(7, frame),
                make.block("<", 0xBAD, b"custom"),
                make.enhanced(1, frame, length=2000),
                make.section(">"),
                make.interface(">", resolution=12),
                make.enhanced(2**40, frame, ">"),
            ]
        )
    )
    return made


def make_seeds(folder: Path) -> int:
    """Write the seeds into ``folder``; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    seeds = [bytes([2 | inner, link & 255, link >> 8, 0]) + frame for link, frame in frames() for inner in (0, 1)]
    seeds += [bytes([inner, piece]) + data for data in captures() for inner, piece in ((0, 1), (1, 15), (1, 63))]
    for i, seed in enumerate(seeds):
        (folder / f"seed-{i:03d}").write_bytes(seed)
    return len(seeds)


if __name__ == "__main__":
    print(make_seeds(Path(sys.argv[1])))
