"""--dedup: copies of packets, next to editcap and to brute force; packets that are alike, but no copies, are kept."""

from __future__ import annotations

import struct
import subprocess
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.core.packets.packet import Packets
from confluo_tools.core.query.packet_copies import PacketCopies
from confluo_tools.formats.pcap import packet_schema
from confluo_tools.schema import Field, Schema
from remote_lab import env
from running import CAMPUS, lines, run

PLAIN = Schema("packet", [Field("ts", "time"), Field("packet_digest", "u64")])
HOP = bytes.fromhex("020000000001 020000000002 86dd")


def udp6(payload: bytes, *, hops: int = 64, flow: int = 0) -> bytes:
    """An IPv6 UDP packet; its checksum is not that of the payload."""
    head = struct.pack(">IHBB", 6 << 28 | flow, 8 + len(payload), 17, hops)
    return head + bytes(15) + b"\1" + bytes(15) + b"\2" + struct.pack(">HHHH", 53, 53, 8 + len(payload), 7) + payload


def udp4(payload: bytes, *, ttl: int = 64, ip_id: int = 0, flags: int = 0, checksum: int = 0) -> bytes:
    head = struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(payload), ip_id, flags << 13, ttl, 17, checksum)
    head += bytes([10, 0, 0, 1, 10, 0, 0, 2])
    return head + struct.pack(">HHHH", 53, 53, 8 + len(payload), 7) + payload


def tcp6(seq: int, *, options: bytes = b"") -> bytes:
    size = 20 + len(options)
    head = struct.pack(">IHBB", 6 << 28, size, 6, 64) + bytes(15) + b"\1" + bytes(15) + b"\2"
    return head + struct.pack(">HHIIHHHH", 80, 9, seq, 1, size // 4 << 12 | 16, 99, 0, 0) + options


def ethernet(packet: bytes) -> bytes:
    return HOP[:12] + (b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\x00") + packet


def kept(frames: list[bytes], *, digest: bool = True, inner: bool = False, links: tuple[int, ...] = ()) -> list[int]:
    """Numbers of the frames, 1 ns apart, that are no copies; the number that could not be compared at the end."""
    packets = Packets(packet_schema(digest=digest).layout, inner=inner)
    for i, frame in enumerate(frames):
        packets.add(frame, ts=i, link_type=links[i] if links else 1)
    copies = PacketCopies(packets.layout, 1000, 1 << 20)
    found = copies.kept_of(packets.take()).tolist()
    assert copies.copies == len(frames) - len(found)
    return [*found, copies.unclear]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=40), st.integers(0, 12), st.integers(1, 9))
def test_brute_force(steps: list[tuple[int, int]], window: int, part: int) -> None:
    rows: list[tuple[int, int]] = []
    for step, digest in steps:
        rows.append(((rows[-1][0] if rows else -20) + step, digest))
    wanted = [i for i, (t, d) in enumerate(rows) if not any(d == e and t - s <= window for s, e in rows[:i])]
    copies, found = PacketCopies(PLAIN.layout, window, 1 << 20), []
    for at in range(0, len(rows), part):
        some = rows[at : at + part]
        columns = [array("q", [t for t, _ in some]), array("Q", [d for _, d in some])]
        found += [at + i for i in copies.kept_of(Block.wrap(PLAIN.layout, len(some), columns)).tolist()]
    assert found == wanted
    assert (copies.copies, copies.unclear) == (len(rows) - len(wanted), 0)


def test_only_picked_rows_count() -> None:
    block = Block.wrap(PLAIN.layout, 4, [array("q", [1, 2, 3, 4]), array("Q", [5, 5, 5, 6])])
    copies = PacketCopies(PLAIN.layout, 1, 1 << 20)
    assert copies.kept_of(block, Picks.of(4, [1, 3])).tolist() == [1, 3]


def test_many_packets_in_a_window() -> None:
    copies, n = PacketCopies(PLAIN.layout, 1 << 40, 1 << 24), 65536
    for turn in (0, 1, 0):
        times = array("q", range(n * turn, n * turn + n))
        digests = array("Q", range(1 + n * turn, 1 + n * turn + n))
        left = len(copies.kept_of(Block.wrap(PLAIN.layout, n, [times, digests])))
    assert (left, copies.copies) == (0, n)
    assert copies.memory <= 150 * 2 * n
    few = PacketCopies(PLAIN.layout, 1 << 40, 1 << 18)
    with pytest.raises(OverflowError):
        few.kept_of(Block.wrap(PLAIN.layout, n, [times, digests]))


@pytest.mark.parametrize("shift", ["0.002", "0.02"])
def test_like_editcap(tmp_path: Path, shift: str) -> None:
    once, later, both, wanted = (tmp_path / name for name in ("once.pcap", "later.pcap", "both.pcap", "wanted.pcap"))
    assert run("confluo-convert", CAMPUS, "-w", once).returncode == 0
    for words in (
        ["editcap", "-F", "nsecpcap", "-t", shift, once, later],
        ["mergecap", "-F", "nsecpcap", "-w", both, once, later],
        ["editcap", "-F", "nsecpcap", "-w", "0.01", both, wanted],
    ):
        subprocess.run(words, check=True, capture_output=True, timeout=60)
    shown = ["-f", "ts,len,src_ip,ip_id,tcp_seq", "-T", "--no-header"]
    expected = run("confluo-query", wanted, *shown).stdout
    assert run("confluo-query", both, "--dedup", "10ms", *shown).stdout == expected
    if shift == "0.002":
        done = run("confluo-query", "-r", once, "-r", later, "--dedup", "10ms", "--stats", *shown)
        assert (done.returncode, done.stdout) == (0, expected)
        copies = 2 * 5735 - expected.count(b"\n")
        assert f" {copies} copies left out, ".encode() in done.stderr
        logs = [tmp_path / "once.ml", tmp_path / "later.ml"]
        for capture, log in zip((once, later), logs, strict=True):
            assert run("confluo-capture", "-q", "-r", capture, "-w", log, "--digest").returncode == 0
        count = run("confluo-query", "-r", logs[0], "-r", logs[1], "--dedup", "10ms", "udp", "--count")
        assert lines(count) == lines(run("confluo-query", wanted, "udp", "--count"))
        packets = run("confluo-query", both, "--dedup", "10ms", "-o", "pcap").stdout
        assert packets[24:] == wanted.read_bytes()[24:]


def test_what_is_equal() -> None:
    one, two = udp6(b"one"), udp6(b"two")
    assert kept([ethernet(one), ethernet(two), ethernet(one)]) == [0, 1, 0]
    assert kept([ethernet(one), ethernet(udp6(b"one", hops=63)), ethernet(udp6(b"one", flow=1))]) == [0, 2, 0]
    vlan = HOP[:12] + bytes.fromhex("8100 0007 86dd") + one
    assert kept([vlan, ethernet(one), one, ethernet(one) + b"padding"], links=(1, 1, 101, 1)) == [0, 0]
    four = [udp4(b"x", ttl=64, checksum=5), udp4(b"x", ttl=63, checksum=6), udp4(b"x", ip_id=1)]
    assert kept([ethernet(packet) for packet in four]) == [0, 2, 0]
    arp = HOP[:12] + bytes.fromhex("0806 0001 0800 0604 0001") + bytes(20)
    assert kept([arp, arp, arp[:6] + b"\4" + arp[7:], arp[:-1] + b"\1"]) == [0, 2, 3, 0]
    payload = bytes(range(200))
    others = [payload[:i] + b"\xff" + payload[i + 1 :] for i in range(200)]
    assert kept([ethernet(udp6(data)) for data in (payload, *others)]) == [*range(201), 0]


def test_the_inner_packet() -> None:
    def outer(ip_id: int) -> bytes:
        inner = udp4(b"x")
        head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(inner), ip_id, 0, 64, 4, 0)
        return ethernet(head + bytes([10, 0, 0, 8, 10, 0, 0, 9]) + inner)

    assert kept([outer(1), outer(2)]) == [0, 1, 0]
    assert kept([outer(1), outer(2)], inner=True) == [0, 0]


def test_without_a_digest() -> None:
    same = [udp6(b"one"), udp6(b"two"), udp4(b"x"), udp4(b"x"), udp4(b"x", ip_id=1, flags=2)]
    assert kept([ethernet(packet) for packet in same], digest=False) == [0, 1, 2, 3, 4, 5]
    told = [udp4(b"x", ip_id=1), udp4(b"x", ip_id=1, ttl=9), udp4(b"x", ip_id=2), tcp6(1), tcp6(2), tcp6(1)]
    assert kept([ethernet(packet) for packet in told], digest=False) == [0, 2, 3, 4, 0]
    sack = bytes.fromhex("0101050a 00000001 00000002")
    assert kept([ethernet(tcp6(1, options=sack))] * 2, digest=False) == [0, 1, 2]


def test_messages(tmp_path: Path) -> None:
    log = tmp_path / "old.ml"
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", log).returncode == 0
    done = run("confluo-query", log, "--dedup", "10ms", "udp", "--count")
    assert done.returncode == 0
    assert done.stderr.startswith(f"confluo-query: {log}: ".encode())
    assert b" records have no packet_digest, and their fields do not tell packets apart" in done.stderr
    for words, what in (
        (["--dedup", "10"], b"--dedup: '10' is not a duration"),
        (["--dedup", "10ms", "--follow"], b"--dedup and --follow exclude each other"),
        (["--dedup", "1s", "--memory-limit", "1k", "--count"], b"--dedup: the packets within 1s need more memory than"),
        (["--dedup", "1s", "--engine", "local"], b"--dedup and --engine exclude each other"),
    ):
        done = run("confluo-query", CAMPUS, *words)
        assert done.returncode in (1, 2)
        assert done.stderr.startswith(b"confluo-query: " + what), done.stderr


def test_logs_of_other_hosts(tmp_path: Path) -> None:
    """One packet captured at two places counts once, wherever the logs are; the digest comes with their rows."""
    here, there = tmp_path / "0.ml", tmp_path / "1.ml"
    for log in (here, there):
        assert run("confluo-capture", "-q", "--digest", "-r", CAMPUS, "-w", log).returncode == 0
    words = ["--dedup", "10ms", "-T", "-f", "ts,src_ip,dst_ip,len,packet_digest"]
    once = run("confluo-query", here, *words)
    assert once.returncode == 0
    for names in ([here, f"sw1:{there}"], [f"sw1:{here}", f"sw2:{there}"], [f"sw1:{here}"]):
        inputs = [word for name in names for word in ("-r", name)]
        for more in ([], ["tcp"]):
            done = run("confluo-query", *inputs, *words, *more, env=env(tmp_path))
            assert done.returncode == 0, done.stderr
            assert done.stdout == (run("confluo-query", here, *more, *words).stdout if more else once.stdout)
    both = ["-r", here, "-r", f"sw1:{there}"]
    done = run("confluo-query", *both, "--count", env=env(tmp_path))
    assert int(done.stdout) == 2 * int(run("confluo-query", here, "--count").stdout)
    table = ["--dedup", "10ms", "--agg", "count, sum(len)", "--by", "src_ip", "-T"]
    assert run("confluo-query", *both, *table, env=env(tmp_path)).stdout == run("confluo-query", here, *table).stdout
