"""Capture files as a source: compressed, several, growing, damaged, from pipes."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from conftest import ROOT

import make_capture as make
from confluo_tools.errors import ConfluoError, FormatError, SchemaError
from confluo_tools.formats.pcap import Captures, is_capture, open_captures, packet_schema
from confluo_tools.schema import Field, Schema

SECOND = 10**9
PACKETS = [(k * SECOND, make.udp4(bytes(k % 50), sport=k % 60000 + 1)) for k in range(5000)]
CAPTURE = make.pcap(PACKETS)
NG = make.pcapng(PACKETS)


def write(folder: Path, data: bytes, name: str = "trace.pcap") -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


def seen(captures: Captures, *names: str) -> list[tuple[int, ...]]:
    found = []
    for block in captures:
        columns = [captures.schema.index(name) for name in names]
        found += [tuple(block.get(c, i) for c in columns) for i in range(block.rows)]
    return found


PLAIN = [(ts, 42 + k % 50, k % 60000 + 1) for k, (ts, _) in enumerate(PACKETS)]


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "gzip",
        "gzip of two members",
        "gzip with zeros behind",
        "zstd",
        "zstd of three frames",
        "zstd without sizes",
        "xz",
        "xz of two streams",
    ],
)
@pytest.mark.parametrize("data", [CAPTURE, NG], ids=["pcap", "pcapng"])
def test_compression_is_told_by_the_first_bytes(tmp_path: Path, name: str, data: bytes) -> None:
    third = len(data) // 3
    packed = {
        "plain": lambda: data,
        "gzip": lambda: gzip.compress(data),
        "gzip of two members": lambda: gzip.compress(data[:third]) + gzip.compress(data[third:]),
        "gzip with zeros behind": lambda: gzip.compress(data) + bytes(1000),
        "zstd": lambda: zstandard.compress(data),
        "zstd of three frames": lambda: b"".join(zstandard.compress(d) for d in (data[:99], b"", data[99:])),
        "xz": lambda: lzma.compress(data),
        "xz of two streams": lambda: lzma.compress(data[:third]) + bytes(4) + lzma.compress(data[third:]),
        "zstd without sizes": lambda: zstandard.ZstdCompressor(write_content_size=False).compress(data),
    }[name]()
    with open_captures([write(tmp_path, packed, "named like nothing")]) as captures:
        assert seen(captures, "ts", "len", "src_port") == PLAIN
        assert captures.warnings == []
        assert captures.bytes_read == captures.total_bytes == len(packed)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, lzma.compress])
def test_cut_compressed_captures_give_what_is_there(tmp_path: Path, pack: object) -> None:
    packed = pack(os.urandom(0) + CAPTURE)  # type: ignore[operator]
    with open_captures([write(tmp_path, packed[: len(packed) * 2 // 3])]) as captures:
        got = seen(captures, "ts", "len", "src_port")
    assert got == PLAIN[: len(got)]
    assert 100 < len(got) < len(PLAIN)
    assert captures.damaged
    (warning,) = captures.warnings
    assert "cut off" in warning
    assert f"{len(got)} packets" in warning


def test_damaged_compressed_captures_give_what_is_there(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(CAPTURE, 1))
    packed[len(packed) // 2 :] = b"\xaa" * (len(packed) - len(packed) // 2)
    with open_captures([write(tmp_path, bytes(packed))]) as captures:
        got = seen(captures, "ts", "len", "src_port")
    assert got[:2000] == PLAIN[:2000]  # behind the damage, what unpacks wrongly is read wrongly
    assert "damaged" in captures.warnings[0]


def test_several_files_are_one_stream(tmp_path: Path) -> None:
    contents = (CAPTURE, gzip.compress(NG), make.pcap([]), make.pcap(PACKETS[:2], link=101))
    files = [write(tmp_path, content, f"{i}") for i, content in enumerate(contents)]
    with open_captures(files) as captures:
        got = seen(captures, "ts", "iface", "file_offset", "link_type", "file_number")
    assert [g[0] for g in got] == [ts for ts, _ in (*PACKETS, *PACKETS, *PACKETS[:2])]
    assert [sum(1 for g in got if g[1] == i) for i in range(4)] == [5000, 5000, 0, 2]
    whole = [CAPTURE, NG, make.pcap([]), make.pcap(PACKETS[:2])]  # gzip is taken away
    assert [sum(1 for g in got if g[4] == i) for i in range(4)] == [5000, 5000, 0, 2]
    for k in (0, 4999, 5000, 7777, 9999, 10000, 10001):
        head = 28 if 5000 <= k < 10000 else 16
        frame = PACKETS[k % 5000][1]
        assert whole[got[k][4]][got[k][2] + head :][: len(frame)] == frame
    assert got[-1][3] == 101
    with open_captures(files) as captures:
        captures.number = (1 << 32) - 3
        assert {n for (n,) in seen(captures, "file_number")} == {(1 << 32) - k for k in (1, 2, 3)}  # the last one stays


def test_a_damaged_file_does_not_move_those_behind_it(tmp_path: Path) -> None:
    first = CAPTURE[:1000]
    with open_captures([write(tmp_path, first, "a"), write(tmp_path, CAPTURE, "b")]) as captures:
        places = seen(captures, "file_number", "file_offset")
    assert places[0] == (0, 24)
    assert places[-5000] == (1, 24)
    before = f"{len(places) - 5000} packets before that were read"
    assert captures.warnings == [f"{tmp_path}/a: the last record is cut off; {before}"]


def test_many_files_need_few_descriptors(tmp_path: Path) -> None:
    name = write(tmp_path, make.pcap(PACKETS[:1]))
    before = len(os.listdir("/proc/self/fd"))
    with open_captures([name] * 300) as captures:
        most = max(len(os.listdir("/proc/self/fd")) for _ in captures)
    assert most <= before + 2


def test_odd_packets_are_kept_and_told(tmp_path: Path) -> None:
    with open_captures([write(tmp_path, make.pcap(PACKETS[:3], lengths=[9, 43]))]) as captures:
        assert seen(captures, "len", "cap_len")[0] == (9, 42)
    assert captures.warnings == [f"{tmp_path}/trace.pcap: 1 packet claims more captured bytes than were on the wire"]
    assert not captures.damaged
    bad = NG + make.enhanced(1, b"x", iface=7)
    with open_captures([write(tmp_path, bad)]) as captures:
        assert len(seen(captures, "ts")) == 5000
    assert "1 impossible record was left out" in captures.warnings[0]
    assert captures.damaged


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty: it has not even the header of a capture"),
        (b"#!/bin/sh\n", "is not a pcap or pcapng capture"),
        (b"\xd4", "is not a pcap or pcapng capture"),
        (gzip.compress(b"no capture", mtime=0), "is not a pcap or pcapng capture"),
        (zstandard.compress(b""), "is empty: it has not even the header of a capture"),
        (bz2.compress(CAPTURE), "is not a pcap or pcapng capture"),
    ],
)
def test_what_is_no_capture_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    name = write(tmp_path, content)
    with pytest.raises(FormatError) as raised:
        list(open_captures([name]))
    assert str(raised.value) == f"{name}: {what}"


def test_inputs_that_cannot_be_opened(tmp_path: Path) -> None:
    for name, what in (("missing", "No such file or directory"), ("", "is a folder, not a capture")):
        with pytest.raises(FormatError, match=what):
            open_captures([str(tmp_path / name)])
    with pytest.raises(FormatError, match="only once"):
        open_captures(["-", "-"])
    with pytest.raises(ConfluoError, match="outer or inner"):
        open_captures([write(tmp_path, CAPTURE)], decap="both")
    with pytest.raises(SchemaError, match="ttl"):
        open_captures([write(tmp_path, CAPTURE)], Schema("odd", [Field("ttl", "f32")]))


def grow(name: str, pieces: list[bytes], pause: float) -> Iterator[None]:
    with open(name, "ab", buffering=0) as f:
        for piece in pieces:
            f.write(piece)
            yield
            time.sleep(pause)


@pytest.mark.parametrize("packed", [False, True])
def test_follow_waits_for_a_file_to_grow(tmp_path: Path, packed: bool) -> None:
    data = gzip.compress(CAPTURE) if packed else CAPTURE
    cuts = [0, 10, 30, len(data) // 2, len(data) - 1, len(data)]
    name = write(tmp_path, b"")
    captures = open_captures([name], follow=True)
    done = threading.Event()

    def work() -> None:
        for _ in grow(name, [data[a:b] for a, b in itertools.pairwise(cuts)], 0.05):
            pass
        done.set()

    writer = threading.Thread(target=work)
    writer.start()
    got = 0
    partial = 0
    for block in captures:
        got += block.rows
        partial += not done.is_set()
        if got == len(PACKETS):
            captures.stop()
    writer.join()
    assert got == len(PACKETS)
    assert partial  # rows came before the file was whole
    assert captures.warnings == []
    captures.close()


def test_a_followed_file_that_shrinks_ends(tmp_path: Path) -> None:
    name = write(tmp_path, CAPTURE)
    captures = open_captures([name], follow=True)
    got = 0
    for block in captures:
        got += block.rows
        if got == len(PACKETS):
            os.truncate(name, 100)
    assert "became shorter" in captures.warnings[0]


def test_rows_of_a_pipe_do_not_wait_for_others() -> None:
    """Two packets come, the writer waits for us, and only then goes on."""
    readable, writable = os.pipe()
    stdin = os.dup(0)
    os.dup2(readable, 0)
    try:
        os.write(writable, make.pcap(PACKETS[:2]) + b"\0\0\0")
        captures = open_captures(["-"])
        assert captures.live
        blocks = iter(captures)
        assert next(blocks).rows == 2
        os.write(writable, make.pcap(PACKETS[:1])[24 + 3 :])
        os.close(writable)
        assert next(blocks).rows == 1
        assert next(blocks, None) is None
        assert captures.warnings == []
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
        os.close(readable)


def test_stop_ends_waiting(tmp_path: Path) -> None:
    captures = open_captures([write(tmp_path, CAPTURE[:-5])], follow=True)
    threading.Timer(0.2, captures.stop).start()
    assert sum(block.rows for block in captures) == len(PACKETS) - 1
    assert captures.warnings == []


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A bomb: 200 MB of zeros that look like a pcapng block, in 200 kB."""
    block = make.block("<", 99, bytes(200_000_000))
    bomb = gzip.compress(make.section() + make.interface() + block + make.enhanced(1, b"x"), 1)
    del block
    name = write(tmp_path, bomb)
    tracemalloc.start()
    with open_captures([name]) as captures:
        assert seen(captures, "cap_len") == [(1,)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_wide_rows_come_in_small_batches(tmp_path: Path) -> None:
    with open_captures([write(tmp_path, CAPTURE)], packet_schema(snap=65535)) as captures:
        sizes = {block.rows for block in captures}
    assert max(sizes) == 63


def test_schemas_of_captures() -> None:
    names = [f.name for f in packet_schema(offset=False).fields]
    assert "file_offset" not in names
    assert "switch_path" not in names
    assert [f.name for f in packet_schema(snap=64).fields] == [*names, "file_offset", "file_number", "raw"]
    assert packet_schema(snap=64)["raw"].type.size == 64
    with pytest.raises(SchemaError, match="65536 bytes"):
        packet_schema(snap=65536)
    assert is_capture(CAPTURE[:4])
    assert is_capture(NG[:4])
    assert not is_capture(b"ARRO")


def test_our_own_captures_are_read(tmp_path: Path) -> None:
    for path in sorted((ROOT / "examples" / "data").glob("*.gz")):
        with open_captures([str(path)], decap="inner") as captures:
            assert len(seen(captures, "ts")) > 100
        assert captures.warnings == []
