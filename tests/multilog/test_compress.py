"""Compressed segments: the same rows, readable by other programs, whole after every death, bounded when damaged."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools import multilog
from confluo_tools.core.multilog import column_codec
from confluo_tools.core.multilog.control import crc, page
from confluo_tools.errors import StoreError
from confluo_tools.multilog import compress, lane_claim, retain, views
from confluo_tools.multilog.add_columns import add_columns
from confluo_tools.multilog.compress import CODECS, Compressor
from confluo_tools.multilog.query.plan import QueryPlan
from confluo_tools.multilog.tails import Tails
from confluo_tools.multilog.verify import verify
from confluo_tools.schema import Field
from log_rows import ALL_TYPES, block_of, random_columns, read_columns
from running import ROOT, completed, environment, script
from timed_rows import SECOND, TIMED, block, fill

CODEC = pytest.mark.parametrize("codec", sorted(CODECS))


def pack(log: multilog.Log, codec: str = "lz4", **options: Any) -> int:
    """Compress all; returns the number of segments."""
    compressor = Compressor(log, codec, **options)
    return sum(compressor.run(segment) is not None for segment in compressor.planned())


def codecs(log: multilog.Log) -> list[str | None]:
    return [part.segment.codec for part in log.segments()]


def mixed(path: Path, rows: tuple[int, ...] = (100, 150_000, 300)) -> multilog.Log:
    """A log of all types with segments of these rows, some columns of each random and some zero."""
    log = multilog.create(path, ALL_TYPES, segment_blocks=2, sync="seal")
    for seed, n in enumerate(rows):
        with log.writer(ahead=-1) as writer:
            for at in range(0, n, 65_000):
                columns = random_columns(ALL_TYPES, min(65_000, n - at), seed, zero=0.5)
                writer.append(block_of(ALL_TYPES, [c & 3 if c.dtype.kind == "u" else c for c in columns]))
    return multilog.open(path)


def values(table: pa.Table) -> list[bytes]:
    """The bytes of each column of each block, as pyarrow reads them.  (A NaN equals nothing, so not the values.)"""
    return [
        bytes(array.buffers()[-1])[: len(array) * column.size * column.count]
        for column, chunks in zip(ALL_TYPES.columns, table.columns, strict=True)
        for array in chunks.chunks
    ]


# -- buffers -------------------------------------------------------------------------------------------------------

SHAPES = st.one_of(
    st.binary(min_size=1, max_size=400),
    st.builds(lambda word, n: word * n, st.binary(min_size=1, max_size=40), st.integers(1, 20_000)),
    st.builds(
        lambda seed, n, most: np.random.default_rng(seed).integers(0, most, n, dtype="<u4").tobytes(),
        st.integers(0, 99), st.integers(1, 30_000), st.sampled_from([2, 300, 1 << 31]),
    ),
)  # fmt: skip


@CODEC
@settings(deadline=None, max_examples=60)
@given(data=SHAPES)
def test_buffers_are_those_of_arrow(codec: str, data: bytes) -> None:
    number = CODECS[codec]
    ours = column_codec.pack(number, data)
    assert column_codec.unpacked(number, ours, len(data)) == data
    if ours[:8] != b"\xff" * 8:
        assert pa.Codec(codec).decompress(ours[8:], len(data)).to_pybytes() == data
    theirs = len(data).to_bytes(8, "little") + pa.Codec(codec).compress(data).to_pybytes()
    assert column_codec.unpacked(number, theirs, len(data)) == data


@CODEC
@settings(deadline=None, max_examples=60)
@given(data=SHAPES, at=st.integers(0, 1 << 20), bit=st.integers(0, 7), cut=st.booleans())
def test_damaged_buffers_are_refused_or_have_the_same_size(
    codec: str, data: bytes, at: int, bit: int, cut: bool
) -> None:
    number = CODECS[codec]
    stored = bytearray(column_codec.pack(number, data))
    at %= len(stored)
    stored[at] ^= 1 << bit
    if cut:
        del stored[at:]
    with contextlib.suppress(ValueError):
        assert len(column_codec.unpacked(number, bytes(stored), len(data))) == len(data)


@CODEC
def test_a_size_that_lies(codec: str) -> None:
    number = CODECS[codec]
    stored = column_codec.pack(number, bytes(100_000))
    for claimed in (1 << 60, -2, 0, 99_999, 100_001, -1):
        with pytest.raises(ValueError, match="damaged"):
            column_codec.unpacked(number, struct.pack("<q", claimed) + stored[8:], 100_000)
    with pytest.raises(ValueError, match="damaged"):  # the frame has more than it should
        column_codec.unpacked(number, struct.pack("<q", 1000) + stored[8:], 1000)


# -- logs ----------------------------------------------------------------------------------------------------------


@CODEC
def test_the_same_rows(tmp_path: Path, codec: str) -> None:
    log = mixed(tmp_path / "t.ml")
    before = read_columns(log)
    tables = [values(pa.ipc.open_file(part.path).read_all()) for part in log.segments()]
    sizes = retain.disk_use(log.path)
    assert pack(log, codec) == len(tables)
    assert retain.disk_use(log.path) < sizes
    again = multilog.open(log.path)
    assert codecs(again) == [codec] * len(tables)
    assert read_columns(again) == before
    assert read_columns(log) == before  # it has mapped the old files
    assert list(verify(again)) == []
    for part, table in zip(again.segments(), tables, strict=True):
        assert values(pa.ipc.open_file(part.path).read_all()) == table
        stream = pa.BufferReader(Path(part.path).read_bytes()[8:])
        assert values(pa.ipc.open_stream(stream).read_all()) == table
    assert pack(again, codec) == 0
    assert pack(again, "lz4") == pack(again, "zstd") == 0  # the codec is not chosen: compressed is compressed
    other = next(c for c in CODECS if c != codec)
    assert pack(again, other, again=True) == len(tables)
    assert codecs(multilog.open(log.path)) == [other] * len(tables)
    assert read_columns(multilog.open(log.path)) == before


def test_writers_go_on_and_columns_are_added(tmp_path: Path) -> None:
    log = mixed(tmp_path / "t.ml", (70_000,))
    writer = log.writer(ahead=-1)
    writer.append(block_of(ALL_TYPES, random_columns(ALL_TYPES, 500, 9)))
    assert pack(log) == 1
    writer.append(block_of(ALL_TYPES, random_columns(ALL_TYPES, 500, 10)))
    writer.close()
    add_columns(log.path, [Field("later", "u32")])
    assert multilog.open(log.path).control.version == 2
    log = multilog.open(log.path)
    assert codecs(log) == ["lz4", None]
    before = read_columns(log)
    assert pack(log) == 1
    assert read_columns(multilog.open(log.path)) == before
    with multilog.open(log.path).writer(ahead=-1) as more:
        assert more.rows == 0
    assert list(verify(multilog.open(log.path))) == []


def test_older_programs_refuse(tmp_path: Path) -> None:
    """They compare the version; so does this one with the next."""
    log = mixed(tmp_path / "t.ml", (500,))
    assert log.control.version == 1
    assert pack(log) == 1
    assert log.control.version == 2
    control = log.control
    text = page(
        log.uuid, segment_blocks=2, lanes=control.lanes, sync=1, message_bytes=control.message_bytes,
        schema=control.schema, created=0, schema_offset=control.schema_offset, version=3,
    )  # fmt: skip
    with open(tmp_path / "t.ml" / "control", "r+b") as f:
        f.write(text)
    with pytest.raises(StoreError, match="format version 3; this program reads versions 1 and 2"):
        multilog.open(log.path)


def test_blocks_that_are_held_stay_valid(tmp_path: Path) -> None:
    log = mixed(tmp_path / "t.ml")
    want = [bytes(b.buffer(4)) for b in log.blocks() if b.check()]
    pack(log)
    held = [b.buffer(4) for b in multilog.open(log.path).blocks() if b.check([4])]  # nothing else keeps the blocks
    assert [bytes(h) for h in held] == want


def test_memory_is_that_of_a_block(tmp_path: Path) -> None:
    """A scan of 64 blocks, of 1.25 MiB each, does not keep them."""
    log = multilog.create(tmp_path / "t.ml", TIMED, segment_blocks=32)
    with log.writer() as writer:
        for k in range(64):
            writer.append(block(0, k * 65536, 65536, SECOND))
    assert pack(multilog.open(log.path), "lz4") == 2
    code = (
        "import sys, resource; from confluo_tools import multilog; log = multilog.open(sys.argv[1])\n"
        "one = next(log.blocks()); one.check(); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert all(b.check() for b in log.blocks()); assert not log.damage\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run([sys.executable, "-c", code, log.path], env=env, check=True, capture_output=True, text=True)
    assert int(out.stdout) < 16 << 10  # KiB; all blocks would be 80 MiB


@CODEC
def test_threads_share_a_block(tmp_path: Path, codec: str) -> None:
    log = mixed(tmp_path / "t.ml", (60_000,))
    want = read_columns(log)
    pack(log, codec)
    for _ in range(5):
        (one,) = multilog.open(log.path).blocks()
        found: list[bool] = []
        threads = [threading.Thread(target=lambda b=one, to=found: to.append(b.check())) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == [True] * 6
        assert [bytes(one.buffer(i)) for i in range(one.layout.n)] == want[0]


def test_followers_read_compressed_rows(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (300, 1), (400, 2))
    pack(log)
    tails = Tails(log.path, rows=[0])
    seq = [n for part, _ in tails.take() for n in np.frombuffer(part.buffer(2), "<u8").tolist()]
    assert seq == list(range(700))


def test_views_and_retention(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, *[(1000, t) for t in range(1, 6)])
    views.build(log, views.add_index(log, "seq"))
    assert pack(log, before=4 * SECOND) == 3
    log = multilog.open(log.path)
    assert codecs(log) == ["lz4"] * 3 + [None] * 2
    plan = QueryPlan(log)
    assert sum(len(picks) for _, picks in plan) == 5000
    assert plan.warnings == []
    views.build(log, views.add_index(log, "writer"))
    assert list(views.check(log, next(v for v in views.views(log, lambda *_: None) if v.label == "seq"))) == []
    assert retain.Keeper(log, 2 * SECOND, now=lambda: 5 * SECOND).step() == 2
    assert sum(len(b) for b in multilog.open(log.path).blocks()) == 3000
    assert list(verify(multilog.open(log.path))) == []


def test_a_segment_that_retention_removed(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, *[(1000, t) for t in range(1, 4)])
    compressor = Compressor(log, "lz4")
    planned = compressor.planned()
    assert retain.Keeper(multilog.open(log.path), 1, now=lambda: 3 * SECOND).step() == 2
    assert [compressor.run(s) is not None for s in planned] == [False, False, True]
    assert len(list((tmp_path / "t.ml" / "lane-000").glob("*seg*"))) == 1


PACK = """
import sys
from confluo_tools import multilog
from confluo_tools.multilog.compress import Compressor
c = Compressor(multilog.open(sys.argv[1]), "lz4")
for s in c.planned(): c.run(s)
"""
SOURCES = "".join((ROOT / p).read_text() for p in ("confluo_tools/multilog/compress.py", "pyx/multilog/c_seal.pxd"))
POINTS = sorted(set(re.findall(r'fault(?:_point)?\("([\w-]+)"\)', SOURCES)))


@pytest.mark.parametrize("point", POINTS)
def test_death_at_every_step(tmp_path: Path, point: str) -> None:
    log = mixed(tmp_path / "t.ml")
    want = read_columns(log)
    deaths = 0
    for passing in (1, 2, 3, 4):
        status = script(PACK, log.path, env=environment(CONFLUO_FAULT=f"{point}:{passing}")).wait()
        deaths += status == -signal.SIGKILL
        assert status in (0, -signal.SIGKILL)
        now = multilog.open(log.path)
        assert read_columns(now) == want
        assert [f for f in verify(now) if f.damage] == []
        if status == 0:
            break
    assert deaths
    pack(multilog.open(log.path))
    assert set(codecs(multilog.open(log.path))) == {"lz4"}
    names = os.listdir(lane_claim.lane_folder(log.path, 0))
    assert len(names) == len(log.segments()) + 1  # and the lock
    assert list(verify(multilog.open(log.path))) == []


# -- damage --------------------------------------------------------------------------------------------------------


@CODEC
def test_every_flipped_bit_is_found(tmp_path: Path, codec: str) -> None:
    log = mixed(tmp_path / "t.ml", (3000,))
    want = read_columns(log)
    pack(log, codec)
    (part,) = multilog.open(log.path).segments()
    whole = Path(part.path).read_bytes()
    rng = np.random.default_rng(5)
    places = [
        *rng.integers(0, len(whole), 120),
        *range(len(whole) - 20, len(whole)),
        *range(len(whole) - 900, len(whole), 31),
    ]
    for at in places:
        bad = bytearray(whole)
        bad[at] ^= 1 << int(rng.integers(0, 8))
        Path(part.path).write_bytes(bad)
        now = multilog.open(log.path)
        assert [f for f in verify(now) if f.damage], at
        for b in now.blocks():  # what is read is right
            for i in range(b.layout.n):
                if b.check([i]):
                    assert bytes(b.buffer(i)) == want[0][i], at


def _resealed(path: str, change: Any) -> None:
    # Change the data of a compressed segment, with right checksums: what only a program with bad intentions does.
    data = bytearray(Path(path).read_bytes())
    footer = int.from_bytes(data[-10:-6], "little")
    end = int.from_bytes(data[-10 - footer - 8 : -10 - footer], "little")
    change(data, end)
    seal, sums = end + 64, end + 64 + 128
    for k in range(end // 4096):
        struct.pack_into("<I", data, sums + 4 * k, crc(bytes(data[k * 4096 : (k + 1) * 4096])))
    trailer = sums + -(-(end // 4096 * 4) // 64) * 64
    size = len(data) - trailer
    places = size - 10 - footer - 16
    struct.pack_into("<I", data, trailer, crc(bytes(data[trailer + 4 : trailer + places])))
    struct.pack_into("<II", data, seal + 64, crc(bytes(data[trailer:])), crc(bytes(data[sums:trailer])))
    struct.pack_into("<I", data, seal + 124, crc(bytes(data[end : seal + 124])))
    Path(path).write_bytes(data)


@CODEC
def test_lies_with_right_checksums(tmp_path: Path, codec: str) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (5000, 1))
    pack(log, codec)
    (part,) = multilog.open(log.path).segments()
    keep = Path(part.path).read_bytes()
    at = struct.unpack_from("<Q", keep, _places(keep) + 32 + 16)[0]  # where the first column is stored
    lies = [
        (lambda d, end: struct.pack_into("<q", d, at, 1 << 60), "column ts is damaged"),
        (lambda d, end: struct.pack_into("<q", d, at, -1), "column ts is damaged"),
        (lambda d, end: d.__setitem__(slice(at + 8, at + 40), b"\xff" * 32), "column ts is damaged"),
        (lambda d, end: struct.pack_into("<Q", d, _places(d) + 32 + 16, 1 << 60), "the places of its columns"),
        (lambda d, end: struct.pack_into("<Q", d, _places(d) + 32 + 24, 1 << 60), "the places of its columns"),
        (lambda d, end: struct.pack_into("<Q", d, _places(d) + 8, 1 << 60), "the places of its columns"),
        (lambda d, end: struct.pack_into("<I", d, _places(d) + 16, 1 << 31), "the places of its columns"),
        (lambda d, end: struct.pack_into("<I", d, _places(d) + 20, 1 << 31), "the places of its columns"),
        (lambda d, end: struct.pack_into("<I", d, _places(d) + 4, 7), "the places of its columns"),
    ]
    for change, what in lies:
        Path(part.path).write_bytes(keep)
        _resealed(part.path, change)
        now = multilog.open(log.path)
        assert not any(b.check() for b in now.blocks())
        assert what in now.damage[0][2]
        assert [f.what for f in verify(multilog.open(log.path)) if what in f.what]
    Path(part.path).write_bytes(keep)
    _resealed(part.path, lambda d, end: None)
    assert list(verify(multilog.open(log.path))) == []


def _places(data: bytes | bytearray) -> int:
    footer = int.from_bytes(data[-10:-6], "little")
    end = int.from_bytes(data[-10 - footer - 8 : -10 - footer], "little")
    return end + 64 + 128 + -(-(end // 4096 * 4) // 64) * 64


def test_damaged_segments_are_left(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (5000, 1), (5000, 2))
    path = log.segments()[0].path
    data = bytearray(Path(path).read_bytes())
    data[data.find(np.arange(1000, 1100, dtype="<u8").tobytes())] ^= 1
    Path(path).write_bytes(data)
    compressor = Compressor(multilog.open(log.path), "lz4")
    first, second = compressor.planned()
    with pytest.raises(compress.UnsoundSegmentError, match="is damaged"):
        compressor.run(first)
    assert Path(path).read_bytes() == data
    assert compressor.run(second) is not None


# -- the command ---------------------------------------------------------------------------------------------------

QUESTIONS = [
    ["query", "t.ml", "--count"],
    ["query", "t.ml", "dst_port == 80", "-o", "tsv"],
    ["query", "t.ml", "--agg", "count, sum(len), max(ts)", "--by", "src_ip,proto", "-o", "tsv"],
    ["query", "t.ml", "--agg", "count, sum(len)", "--by", "dst_port", "--engine", "local", "-o", "tsv"],
    ["query", "t.ml", "--last", "20", "-o", "ndjson"],
    ["query", "t.ml", "--flows", "-o", "tsv"],
    ["query", "t.ml", "--analyze", "tcp", "--agg", "count(retransmission)", "--by", "src_ip", "-o", "tsv"],
    ["query", "t.ml", "-o", "arrow"],
    ["convert", "t.ml", "-o", "csv"],
    ["info", "t.ml", "--verify"],
    ["archive", "t.ml", "--to", "archive", "--host", "h", "--keep-log"],
    ["query", "archive", "-o", "tsv"],
]


def test_the_same_answers(tmp_path: Path) -> None:
    """Each command on the plain and on the compressed log; reading an unchecked column would end the process."""
    plain = tmp_path / "plain"
    plain.mkdir()
    source = str(ROOT / "examples/data/campus.pcap.gz")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CONFLUO_GUARD_COLUMNS": "1", "SOURCE_DATE_EPOCH": "0"}

    def run(folder: Path, *args: str) -> tuple[int, bytes, bytes]:
        done = subprocess.run(
            [sys.executable, "-m", "confluo_tools", *args], cwd=folder, env=env, check=False, capture_output=True
        )
        return done.returncode, done.stdout, done.stderr

    assert run(plain, "convert", source, "-w", "t.ml")[0] == 0
    assert run(plain, "index", "t.ml", "add", "dst_port")[0] == 0
    for codec in CODECS:
        shutil.copytree(plain / "t.ml", tmp_path / codec / "t.ml")
        assert run(tmp_path / codec, "archive", "--compress", "t.ml", "--codec", codec, "--stats")[0] == 0
        assert codecs(multilog.open(tmp_path / codec / "t.ml")) == [codec]
    for question in QUESTIONS:
        want = run(plain, *question)
        assert want[0] == 0, want
        for codec in CODECS:
            assert run(tmp_path / codec, *question) == want, question


def command(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    return completed([str(ROOT / f"bin/confluo-{name}"), *args], capture_output=True, text=True)


def test_the_command(tmp_path: Path) -> None:
    path = str(tmp_path / "t.ml")
    log = multilog.create(path, TIMED)
    fill(log, (5000, 1), (5000, 2))
    for args, what in ((["--to", "x"], "--compress excludes --to"), (["--codec", "gzip"], "unknown codec 'gzip'")):
        done = command("archive", "--compress", path, *args)
        assert done.returncode == 2
        assert what in done.stderr
    assert command("archive", "--codec", "lz4", path, "--to", "x").returncode == 2
    planned = command("archive", "--compress", path, "--dry-run", "-T", "--no-header")
    assert planned.returncode == 0
    assert planned.stdout == "".join(f"{part.path}\t5000\n" for part in log.segments())
    assert codecs(multilog.open(path)) == [None, None]
    assert command("archive", "--compress", path, "--older-than", "1h", "--stats").returncode == 0
    assert codecs(multilog.open(path)) == ["zstd", "zstd"]
    assert "zstd" in command("info", path).stdout
    files = {p: p.read_bytes() for p in Path(path).rglob("*") if p.is_file()}
    assert command("archive", "--compress", path).returncode == 1  # nothing to do
    assert {p: p.read_bytes() for p in Path(path).rglob("*") if p.is_file()} == files
