"""Detection, compressed input, Parquet and Arrow files, pcap output, tables, and files that appear whole."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from test_formats_arrow import Sink as Memory
from test_text import ALL, block_of

from confluo_tools.core.block.block import Block
from confluo_tools.errors import FormatError, UsageError
from confluo_tools.formats.block_builder import blocks_of_rows
from confluo_tools.formats.bytestream import ByteStream, open_bytes, sniff, unzip
from confluo_tools.formats.detect import PEEK, detect, is_multilog
from confluo_tools.formats.output_file import FileSink, OutputSink, open_sink
from confluo_tools.formats.parquet import ArrowFileReader, ArrowFileWriter
from confluo_tools.formats.pcap.writer import PcapWriter
from confluo_tools.formats.registry import OUTPUTS
from confluo_tools.formats.table import TableWriter, cut, default_fields
from confluo_tools.formats.writers import open_writer
from confluo_tools.schema import Field, Schema, builtin
from running import CAMPUS, DATA, ROOT
from sessions import Shell

# -- what an input is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "is_"),
    [
        (b"\xff\xff\xff\xff\x10\x00\x00\x00", "stream"),
        (b"ARROW1\0\0", "arrow"),
        (b"PAR1", "parquet"),
        (b"\xd4\xc3\xb2\xa1", "pcap"),
        (b"\xa1\xb2\x3c\x4d", "pcap"),
        (b"\x0a\x0d\x0d\x0a", "pcapng"),
        (b"#fields\tts\n", "tsv"),
        (b"#separator \\x09\n", "tsv"),
        (b'{"a":1}\n', "ndjson"),
        (b'\xef\xbb\xbf\n {"a":1}', "ndjson"),
        (b"ts,src_ip\n1,2\n", "csv"),
        (b"1,2\n", ""),
        (b"hello world\n", ""),
        (b"", ""),
        (b"\n\n", ""),
        (b"a\xff,b\n", ""),
    ],
)
def test_detection(head: bytes, is_: str) -> None:
    assert detect(head) == is_


def test_a_multilog_is_a_folder_with_a_control_page(tmp_path: Path) -> None:
    assert not is_multilog(str(tmp_path))
    (tmp_path / "control").write_bytes(b"")
    assert is_multilog(str(tmp_path))
    assert not is_multilog("-")


def pipe(pieces: Sequence[bytes]) -> ByteStream:
    """A stream over a pipe into which a thread writes piece after piece."""
    r, w = os.pipe()

    def feed() -> None:
        for piece in pieces:
            os.write(w, piece)
        os.close(w)

    threading.Thread(target=feed, daemon=True).start()
    return ByteStream(r, "pipe")


@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        gzip.compress,
        zstandard.compress,
        lambda d: gzip.compress(d[:100]) + gzip.compress(d[100:]) + b"\0\0\0",
        lambda d: zstandard.compress(d[:9]) + zstandard.compress(d[9:]),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000, 1 << 20])
def test_bytes_come_whole_however_they_are_cut(pack: Any, size: int) -> None:
    data = b'{"a":1}\n' * 3000
    packed = pack(data)
    pieces = [packed[i : i + size] for i in range(0, len(packed), size)]
    stream = pipe([*pieces[:400], b"".join(pieces[400:])])
    assert data.startswith(sniff(stream, PEEK))
    plain = unzip(stream)
    assert plain.peek(20) == data[:20]
    out = plain.read(5) + plain.some() + plain.read(10)
    rest = bytearray(len(data))
    n = plain.readinto(memoryview(rest))
    assert out + bytes(rest[:n]) == data
    assert plain.at_end()
    assert plain.offset == len(data)
    assert getattr(plain, "damage", "") == ""
    stream.close()


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_cut_and_damaged_compression_is_reported(pack: Any) -> None:
    packed = pack(os.urandom(100_000))
    plain = unzip(pipe([packed[: len(packed) // 2]]))
    got = b"".join(iter(plain.some, b""))
    assert len(got) < 100_000
    assert "are cut off" in plain.damage  # type: ignore[attr-defined]
    broken = bytearray(packed)
    broken[len(broken) // 2] ^= 255
    plain = unzip(pipe([bytes(broken)]))
    while plain.some():
        pass
    if pack is gzip.compress:
        assert "gzip data are damaged" in plain.damage  # type: ignore[attr-defined]


def test_idle_is_called_before_a_wait() -> None:
    r, w = os.pipe()
    stream = ByteStream(r, "pipe")
    seen: list[int] = []

    def idle() -> None:
        seen.append(stream.offset)
        os.write(w, b"next")

    stream.idle = idle
    os.write(w, b"first")
    assert stream.some() == b"first"
    assert seen == []
    assert stream.some() == b"next"
    assert seen == [5]
    os.close(w)
    stream.close()


def test_reading_a_folder_is_an_error_with_its_name(tmp_path: Path) -> None:
    stream = open_bytes(str(tmp_path))
    with pytest.raises(IsADirectoryError) as e:
        stream.some()
    assert e.value.filename == str(tmp_path)


# -- files that appear whole -----------------------------------------------------------------------------------


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out \udcff'x\"".encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    sink = open_sink(str(path))
    sink.write(b"a" * 100)
    assert not path.exists()
    sink.writev([b"b" * 70_000, b"c"])
    sink.close()
    assert path.read_bytes() == b"a" * 100 + b"b" * 70_000 + b"c"
    assert os.listdir(os.fsencode(tmp_path)) == [os.fsencode(path.name)]
    assert sink.bytes == 70_101


def test_nothing_is_left_of_a_file_that_failed(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "x"))
    sink.write(b"half")
    sink.flush()
    sink.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_which_nobody_knows_is_removed_at_the_end(tmp_path: Path) -> None:
    """A signal comes when the file is there, and its sink is not yet."""
    code = """
import os, sys
from confluo_tools.formats.output_file import FileSink
create = os.open
def interrupted(*args):
    os.close(create(*args))
    assert os.listdir(".")
    raise KeyboardInterrupt
os.open = interrupted
FileSink("out.tsv")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True
    )
    assert done.stderr.endswith(b"KeyboardInterrupt\n")
    assert list(tmp_path.iterdir()) == []


def test_files_in_a_folder_of_others_are_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that waits under the name of the unfinished file is not followed, and its owner gets nothing."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(os, "urandom", bytes)  # even if the name were known
    for path in (victim, tmp_path / "nothing"):
        link = tmp_path / f".x.tsv.{bytes(6).hex()}.tmp"
        link.symlink_to(path)
        with pytest.raises(FileExistsError) as e:
            FileSink(str(tmp_path / "x.tsv"))
        assert e.value.filename == str(tmp_path / "x.tsv")
        assert link.is_symlink()
        link.unlink()
    assert victim.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["victim"]


def test_no_overwriting_without_force(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="exists; --force"):
        FileSink(str(path))
    sink = FileSink(str(path), force=True)
    sink.write(b"new")
    assert path.read_bytes() == b"old"
    sink.close()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_another_process_was_faster(tmp_path: Path) -> None:
    path = tmp_path / "x"
    sink = FileSink(str(path))
    path.write_bytes(b"theirs")
    with pytest.raises(UsageError, match="exists"):
        sink.close()
    sink.abort()
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"theirs"]


def test_links_are_followed_and_devices_written(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    sink = FileSink(str(tmp_path / "link"), force=True)
    sink.write(b"new")
    sink.close()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    null = FileSink("/dev/null")
    null.write(b"x" * 100_000)
    null.close()
    with pytest.raises(UsageError, match="is a folder"):
        FileSink(str(tmp_path))


def test_a_full_disk_is_reported_once() -> None:
    sink = FileSink("/dev/full")
    sink.write(b"x")
    with pytest.raises(OSError, match="No space") as e:
        sink.close()
    assert e.value.filename == "/dev/full"


def test_a_non_blocking_pipe_is_waited_for() -> None:
    r, w = os.pipe()
    os.set_blocking(w, False)
    got = bytearray()

    def drain() -> None:
        while piece := os.read(r, 1 << 16):
            got.extend(piece)

    reader = threading.Thread(target=drain)
    sink = OutputSink(w, "pipe")
    reader.start()
    data = os.urandom(1 << 21)
    sink.writev([data, b"", data[:7]])
    sink.flush()
    os.close(w)
    reader.join()
    assert bytes(got) == data + data[:7]


# -- Parquet and Arrow files -----------------------------------------------------------------------------------


ROWS = [
    {"ts": 10**18 + i, "u8": i % 256, "ip": i, "v": 4, "name": b"n%d" % i, "path": (i % 7, 0, 3), "f64": i / 3}
    for i in range(1000)
]


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_files_of_pyarrow_and_back(kind: str, tmp_path: Path) -> None:
    block = block_of(ALL, ROWS)
    path = tmp_path / f"x.{kind}"
    sink = open_sink(str(path))
    writer = open_writer(kind, ALL, sink, metadata={"confluo:history": '["x"]'})
    writer.write(block)
    writer.write(block.slice(0, 10))
    writer.close()
    sink.close()
    table = pq.read_table(path) if kind == "parquet" else pa.ipc.open_file(path).read_all()
    table.validate(full=True)
    assert table.num_rows == 1010
    assert table.column("path").to_pylist()[:1000] == [[*r["path"], 0] for r in ROWS]
    if kind == "parquet":
        assert duckdb.sql(f"select count(*), sum(u8), max(f64) from '{path}'").fetchall() == [
            (1010, sum(r["u8"] for r in ROWS) + 45, max(r["f64"] for r in ROWS))
        ]
    for stream in (open_bytes(str(path)), pipe([path.read_bytes()[:1000], path.read_bytes()[1000:]])):
        reader = ArrowFileReader(stream, kind)
        assert reader.schema == ALL
        assert reader.metadata["confluo:history"] == '["x"]'
        got = list(reader)
        for i in range(len(ALL.columns)):
            data = b"".join(bytes(b.buffer(i)) for b in got)
            assert data[: len(bytes(block.buffer(i)))] == bytes(block.buffer(i))
        assert reader.rows == 1010
        reader.close()


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_damaged_files_are_reported(kind: str, tmp_path: Path) -> None:
    out = Memory()
    writer = open_writer(kind, ALL, out)
    writer.write(block_of(ALL, ROWS))
    writer.close()
    path = tmp_path / "x"
    path.write_bytes(out.getvalue()[:-20])
    with pytest.raises(FormatError, match="is not a complete"):
        ArrowFileReader(open_bytes(str(path)), kind)


# -- packets again ---------------------------------------------------------------------------------------------


def to_pcap(blocks: Sequence[Block], schema: Schema, **options: Any) -> tuple[bytes, list[str]]:
    out, told = Memory(), []
    writer = PcapWriter(schema, out, warn=told.append, **options)
    for block in blocks:
        writer.write(block)
    writer.close()
    return out.getvalue(), told


def frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """(ns, length on the wire, bytes) of a nanosecond pcap, by hand."""
    assert struct.unpack_from("<IHH", data) == (0xA1B23C4D, 2, 4)
    at, found = 24, []
    while at < len(data):
        s, ns, cap, wire = struct.unpack_from("<IIII", data, at)
        found.append((s * 10**9 + ns, wire, data[at + 16 : at + 16 + cap]))
        at += 16 + cap
    return found


def peer(path: Path, pcapng: bool) -> list[str]:
    """What tcpdump prints of a capture; for pcapng, tshark, because tcpdump takes only one interface."""
    words = ["tshark", "-r", path, "-x"] if pcapng else ["tcpdump", "-nr", path, "--nano", "-tt", "-xx"]
    if shutil.which(str(words[0])) is None:
        pytest.skip(f"no {words[0]} here")
    done = subprocess.run(words, capture_output=True, check=True)
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize("name", sorted(p.name for p in DATA.glob("*.gz")))
def test_every_packet_comes_back_from_its_source(name: str, tmp_path: Path) -> None:
    from confluo_tools.formats.pcap.files import open_captures

    plain = tmp_path / "plain"
    plain.write_bytes(gzip.decompress((DATA / name).read_bytes()))
    zst = tmp_path / "zst"
    zst.write_bytes(zstandard.compress(plain.read_bytes()))
    with open_captures([str(plain)]) as captures:
        blocks = list(captures)
    links = {b.get(captures.schema.index("link_type"), i) for b in blocks for i in range(b.rows)}
    results = [to_pcap(blocks, captures.schema, sources=[str(p)]) for p in (plain, DATA / name, zst)]
    assert results[0] == results[1] == results[2]
    data, told = results[0]
    if len(links) > 1:
        assert "link type" in told[0]
        return
    assert told == []
    out = tmp_path / "out.pcap"
    out.write_bytes(data)
    assert peer(out, "pcapng" in name) == peer(plain, "pcapng" in name)
    backwards = [b.slice(i, 1) for b in reversed(blocks[-3:]) for i in reversed(range(b.rows))]
    again, _ = to_pcap(backwards, captures.schema, sources=[str(zst)])
    assert sorted(frames(again)) == sorted(frames(data)[-len(backwards) :])


def test_kept_bytes_become_packets() -> None:
    from confluo_tools.formats.pcap.files import open_captures, packet_schema

    whole = open_captures([str(CAMPUS)])
    all_frames = frames(to_pcap(list(whole), whole.schema, sources=[str(CAMPUS)])[0])
    kept = open_captures([str(CAMPUS)], packet_schema(snap=60))
    data, told = to_pcap(list(kept), kept.schema)
    assert told == []
    assert frames(data) == [(ts, wire, packet[:60]) for ts, wire, packet in all_frames]


def test_several_sources_count_as_one(tmp_path: Path) -> None:
    from confluo_tools.formats.pcap.files import open_captures

    paths = [str(DATA / "vlan.pcap.gz"), str(DATA / "loss.pcap.gz")]
    both = open_captures(paths)
    data, told = to_pcap(list(both), both.schema, sources=paths)
    singles = []
    for path in paths:
        one = open_captures([path])
        singles += frames(to_pcap(list(one), one.schema, sources=[path])[0])
    assert told == []
    assert frames(data) == singles


def test_packets_of_several_runs_come_back(tmp_path: Path) -> None:
    from confluo_tools.formats.pcap.files import open_captures

    paths = [str(DATA / name) for name in ("vlan.pcap.gz", "loss.pcap.gz", "campus.pcap.gz")]
    blocks, wanted = [], []
    for run_of in (paths[:2], paths[2:]):
        with open_captures(run_of) as captures:
            rows = list(captures)
        blocks += rows
        wanted += frames(to_pcap(rows, captures.schema, sources=run_of)[0])
    for order in (paths, [*paths[2:], *paths[:2]]):
        data, told = to_pcap(blocks, captures.schema, sources=order)
        assert told == []
        assert frames(data) == wanted


def test_records_of_before_count_the_captures_of_a_run_as_one(tmp_path: Path) -> None:
    """Logs made before file_number: offsets go on from capture to capture."""
    from confluo_tools.formats.pcap.files import open_captures

    paths = [str(DATA / name) for name in ("vlan.pcap.gz", "loss.pcap.gz", "campus.pcap.gz")]
    sizes = [len(gzip.decompress(Path(path).read_bytes())) for path in paths]
    blocks, wanted = [], []
    for run_of, starts in (([0, 1], [0, sizes[0]]), ([2], [0])):
        for i, start in zip(run_of, starts, strict=True):
            with open_captures([paths[i]]) as captures:
                rows = list(captures)
            schema = captures.schema.project([f.name for f in captures.schema.fields if f.name != "file_number"])
            wanted += frames(to_pcap(rows, captures.schema, sources=[paths[i]])[0])
            column = schema.index("file_offset")
            for block in (b.project(schema.layout) for b in rows):
                buffers = [bytes(block.buffer(c)) for c in range(len(schema.columns))]
                offsets = memoryview(buffers[column]).cast("Q").tolist()
                buffers[column] = struct.pack(f"<{block.rows}Q", *(at + start for at in offsets[: block.rows]))
                blocks.append(Block.wrap(schema.layout, block.rows, buffers))
    data, told = to_pcap(blocks, schema, sources=paths)
    assert told == []
    assert frames(data) == wanted


def test_the_wrong_source_is_noticed() -> None:
    from confluo_tools.formats.pcap.files import open_captures

    captures = open_captures([str(CAMPUS)])
    data, told = to_pcap(list(captures), captures.schema, sources=[str(DATA / "loss.pcap.gz")])
    assert frames(data) == []
    assert "check that it is the right capture" in told[0]
    with pytest.raises(UsageError, match="no field 'raw'; give the capture"):
        PcapWriter(captures.schema, Memory())
    with pytest.raises(UsageError, match="only records of packets"):
        PcapWriter(ALL, Memory(), sources=["x"])
    with pytest.raises(FormatError, match="not a pcap"):
        PcapWriter(captures.schema, Memory(), sources=[__file__])
    assert to_pcap([], captures.schema, sources=[str(CAMPUS)])[0][:4] == struct.pack("<I", 0xA1B23C4D)


# -- tables ----------------------------------------------------------------------------------------------------


def table(schema: Schema, rows: Sequence[dict[str, Any]], **options: Any) -> list[str]:
    out = Memory()
    writer = TableWriter(schema, out, **options)
    writer.write(block_of(schema, rows))
    writer.close()
    return out.getvalue().decode().splitlines()


def test_numbers_stand_right_and_text_left() -> None:
    schema = Schema("t", [Field("who", "bytes(8)"), Field("n", "u32"), Field("took", "duration"), Field("x", "f64")])
    rows: list[dict[str, Any]] = [{"who": b"a", "n": 5, "took": 250_000, "x": 1.0}]
    rows.append({"who": b"bcd", "n": 12345, "took": 61 * 10**9, "x": 1 / 3})
    assert table(schema, rows) == [
        "who      n   took         x",
        "---  -----  -----  --------",
        "a        5  250us         1",
        "bcd  12345   1m1s  0.333333",
    ]
    assert table(schema, rows, header=False)[0] == "a        5  250us         1"
    rows = [{"who": b"a", "n": 5, "took": 1, "x": x} for x in (1_009_376.4, -2.5e14 / 3, 1e-7, 2.5e20)]
    assert [line.split()[-1] for line in table(schema, rows, header=False)] == [
        "1009376",
        "-83333333333333",
        "1e-07",
        "2.5e+20",
    ]


def test_a_table_stays_below_eighty_and_says_what_it_cut() -> None:
    schema = builtin("packet")
    rows = [
        {
            "ts": 10**18 + i,
            "ip_version": 6,
            "src_ip": 7,
            "src_ip6": bytes(range(16)),
            "dst_ip": 9,
            "dst_ip6": bytes(range(16, 32)),
            "proto": 6,
            "tcp_flags": 511,
        }
        for i in range(3)
    ]
    lines = table(schema, rows)
    assert max(map(len, lines)) <= 79
    assert lines[1].endswith("~")  # not all fields
    assert all("~" in line for line in lines[3:])
    whole = table(schema, rows, width=None)
    assert "1:203:405:607:809:a0b:c0d:e0f" in whole[2]
    assert whole[0].endswith("~")
    assert not any("~" in line for line in whole[2:])
    assert max(map(len, table(schema, rows, fields=[f.name for f in schema.fields]))) <= 79


def test_the_day_is_said_once_unless_it_changes() -> None:
    schema = Schema("t", [Field("ts", "time"), Field("n", "u8")])
    day = 1795132800 * 10**9
    lines = table(schema, [{"ts": day + 10**9 * i, "n": i} for i in range(250)])
    assert lines[:4] == ["date: 2026-11-20 UTC", "ts          n", "--------  ---", "00:00:00    0"]
    out = Memory()
    writer = TableWriter(schema, out)
    writer.write(block_of(schema, [{"ts": day + i} for i in range(300)]))
    writer.write(block_of(schema, [{"ts": day + 86400 * 10**9}]))
    writer.close()
    assert out.getvalue().decode().splitlines()[-1].startswith("2026-11-21 00:")
    two_days = table(schema, [{"ts": day - 1}, {"ts": day}])
    assert two_days[2].startswith("2026-11-19 23:59:59.999999999")


@given(st.lists(st.integers(0, 2 * 10**9), min_size=1, max_size=8), st.integers(20, 60), st.sampled_from([1, 10**3]))
def test_times_of_a_narrow_table_stay_different(times: list[int], width: int, tick: int) -> None:
    schema = Schema("t", [Field("ts", "time"), Field("who", "bytes(30)"), Field("n", "u32")])
    rows: list[dict[str, Any]] = [{"ts": 10**18 + t // tick * tick, "who": b"w" * 30, "n": 1} for t in times]
    shown = [line.split()[0] for line in table(schema, rows, width=width)[3:]]
    assert len(set(shown)) == len({row["ts"] for row in rows})
    assert not any("~" in time for time in shown)


def test_what_a_table_shows_of_many_fields() -> None:
    assert default_fields(builtin("packet"))[:2] == ["ts", "src_ip"]
    for kind, first in {"alert": ["ts", "event", "trigger"], "probe": ["ts", "kind", "src"]}.items():
        assert default_fields(builtin(kind))[:3] == first
        assert len(default_fields(builtin(kind))) < 10
    assert default_fields(ALL) == [f.name for f in ALL.fields]
    assert (cut("abcdef", 6), cut("abcdefg", 6)) == ("abcdef", "abcde~")


def test_a_drawn_table_has_the_same_cells() -> None:
    schema = Schema("t", [Field("who", "bytes(12)"), Field("n", "u32")])
    rows = [{"who": b"[bold]x", "n": 5}]
    styled = table(schema, rows, styled=True)
    import re

    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in styled]
    assert plain[0] == ["who", "n"]
    assert plain[2] == ["[bold]x", "5"]
    assert "\x1b[1m" in styled[0]


def test_every_format_takes_every_schema() -> None:
    for fmt in OUTPUTS:
        if fmt in ("pcap", "pcapng"):
            continue
        out = Memory()
        writer = open_writer(fmt, ALL, out)
        writer.start()
        writer.write(block_of(ALL, ROWS[:3]))
        writer.flush()
        writer.close()
        assert out.getvalue()
    with pytest.raises(UsageError, match="unknown output format 'xml'"):
        open_writer("xml", ALL, io.BytesIO())


def test_file_knows_our_files(tmp_path: Path) -> None:
    if shutil.which("file") is None:
        pytest.skip("no file(1) here")
    from running import ROOT, run

    log, stream = tmp_path / "x.ml", tmp_path / "x.arrows"
    run("confluo-convert", CAMPUS, "-w", log)
    run("confluo-convert", CAMPUS, "-w", stream)
    for path, says in [
        (log / "control", "MultiLog control page (confluo-tools), format 1"),
        (stream, "confluo-tools records (Arrow IPC stream)"),
        (next((log / "lane-000").glob("*.arrow")), "Arrow IPC file, confluo-tools records"),
        (ROOT / "setup.py", "ASCII text"),
    ]:
        words = ["file", "-b", "-m", ROOT / "docs" / "confluo.magic", path]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.stdout.startswith(says)


PEAK = """
import resource, sys
from confluo_tools.commands import query
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
status = query.main([sys.argv[1], "--count"])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
sys.exit(status)
"""


def test_numbers_that_go_up_are_stored_as_differences(tmp_path: Path) -> None:
    """pyarrow reads them back; columns that repeat, or jump, are stored otherwise."""
    schema = builtin("packet").project(["ts", "src_port", "tcp_seq"])
    rows = [{"ts": 1 << 60 | n * 1001, "src_port": n % 3, "tcp_seq": n * 2654435761 % (1 << 32)} for n in range(5000)]
    out = io.BytesIO()
    writer = ArrowFileWriter("parquet", schema, out)
    for block in blocks_of_rows(schema, rows):
        writer.write(block)
    writer.close()
    table = pq.read_table(io.BytesIO(out.getvalue()))
    assert [int(t.value) for t in table.column("ts")] == [row["ts"] for row in rows]
    assert table.column("tcp_seq").to_pylist() == [row["tcp_seq"] for row in rows]
    stored = pq.ParquetFile(io.BytesIO(out.getvalue())).metadata.row_group(0)
    encodings = {stored.column(n).path_in_schema: stored.column(n).encodings for n in range(stored.num_columns)}
    assert {name for name, used in encodings.items() if "DELTA_BINARY_PACKED" in used} == {"ts"}


def test_a_small_parquet_file_with_long_texts_costs_bounded_memory(tmp_path: Path) -> None:
    """A dictionary holds one text of 30 KB for all rows: 10,000 of them at once took more than 1 GB."""
    pq.write_table(pa.table({"a": pa.array(["x" * 30000] * 10000)}), tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 4096
    argv = [sys.executable, "-c", PEAK, str(tmp_path / "a.parquet")]
    done = subprocess.run(argv, capture_output=True, check=True, cwd=ROOT, timeout=60)
    count, peak = done.stdout.split()
    assert count == b"10000"
    assert int(peak) < 500 << 10, "KiB"


@pytest.mark.parametrize(("suffix", "unpack"), [(".gz", "gzip -dc"), (".xz", "xz -dc")])
def test_pictures_are_compressed_by_their_names(tmp_path: Path, suffix: str, unpack: str) -> None:
    """As files of records are."""
    (tmp_path / "fat.yaml").write_text("topology: 1\nfat_tree: 4\n")
    shell, capture = Shell(tmp_path), "examples/data/loss.pcap.gz"
    flow = "--flow 10.1.0.11:59302-192.0.2.11:443"
    for name, words in (
        ("a.svg", f"confluo-replay explain -q {capture} {flow} -w"),
        ("b.html", f"confluo-query {capture} --agg count --by 1s -w"),
        ("c.html", "confluo-replay queues --simulate 1ms --topology fat.yaml -o tsv -w /dev/null --picture"),
        ("d.svg", "confluo-pingmesh simulate --span 20s -o stream | confluo-pingmesh heatmap - -q -w"),
    ):
        assert shell.run(f"{words} {name}{suffix}")[0] == 0, name
        status, lines = shell.run(f"{unpack} {name}{suffix}")
        assert (status, lines[0][:4].lower()) in ((0, "<svg"), (0, "<!do")), name
