"""Failures while archiving: killed, disk full, damage, concurrent retention.  No row is lost or duplicated."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

from archive_lab import QUESTIONS, SECOND, answers, columns, make, plain, rows_of, run_all
from confluo_tools import multilog
from confluo_tools.errors import BusyError, ConfluoError, DiskFullError, FormatError, StoreError, UsageError
from confluo_tools.expr import compile
from confluo_tools.multilog import lane_claim, retain
from confluo_tools.multilog.archive import parquet_parts
from confluo_tools.multilog.archive import writer as archive
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.archive.writer import ArchiveWriter
from confluo_tools.multilog.open_log import open_log
from confluo_tools.multilog.reader import LogReader
from confluo_tools.multilog.verify import verify
from confluo_tools.schema import Field, Schema
from log_rows import ALL_TYPES, block_of, random_columns
from running import ROOT, SUPPORT, environment, fill_disk, resize, script
from timed_rows import TIMED, fill

# -- errors -------------------------------------------------------------------------------------------------


def test_what_cannot_be_archived(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    with pytest.raises(UsageError, match="have no time"):
        ArchiveWriter(multilog.create(tmp_path / "n.ml", Schema("n", [Field("a", "u8")])), tmp_path / "x", "h")
    with pytest.raises(UsageError, match="is a MultiLog"):
        ArchiveWriter(log, tmp_path / "n.ml", "h")
    with pytest.raises(ConfluoError, match="log_row"):
        ArchiveWriter(
            multilog.create(tmp_path / "r.ml", Schema("r", [Field("ts", "time"), Field("log_row", "u8")])),
            tmp_path / "x",
            "h",
        )
    ArchiveWriter(log, tmp_path / "a", "h").close()
    with pytest.raises(UsageError, match=r"holds records of kind 'timed'; those of .* are of kind 'all_types'"):
        ArchiveWriter(multilog.create(tmp_path / "o.ml", ALL_TYPES), tmp_path / "a", "h")
    with ArchiveWriter(log, tmp_path / "a", "h"), pytest.raises(BusyError, match="another process is archiving"):
        ArchiveWriter(log, tmp_path / "a", "h")
    with pytest.raises(FormatError, match="contains no part of an archive"):
        ArchiveReader(str(tmp_path / "a"))


def test_times_that_cannot_be(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", ALL_TYPES)
    with log.writer(ahead=-1) as writer:
        writer.append(block_of(ALL_TYPES, random_columns(ALL_TYPES, 5000, 3, zero=0)))
    with pytest.raises(StoreError, match="more than 4,096 different hours"):
        run_all(log, tmp_path / "archive")
    assert log.version().kept == 5000
    few = multilog.create(tmp_path / "few.ml", ALL_TYPES)
    with few.writer(ahead=-1) as writer:
        extremes = np.array([-(1 << 63), -1, 0, (1 << 63) - 1], "<i8")
        writer.append(block_of(ALL_TYPES, columns(4, 1, extremes)))
    expected = rows_of(LogReader(few.path))
    run_all(few, tmp_path / "other")
    assert rows_of(open_log(few.path)) == expected
    assert len(list((tmp_path / "other").rglob("*.parquet"))) == 4


def test_what_is_not_read_back_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make(tmp_path / "t.ml")
    expected = answers(tmp_path / "t.ml", QUESTIONS[2:4])
    encode = parquet_parts.PartBuilder.encode

    def spoiled(self: parquet_parts.PartBuilder, table: Any, metadata: dict[str, str]) -> memoryview:
        d = pyarrow.compute.bit_wise_xor(
            table.column("d"), pyarrow.array([0] * 99 + [1] + [0] * (len(table) - 100), pyarrow.uint64())
        )
        at = table.column_names.index("d")
        return encode(self, table.set_column(at, table.schema.field("d"), d), metadata)

    monkeypatch.setattr(parquet_parts.PartBuilder, "encode", spoiled)
    with pytest.raises(StoreError, match="the file differs from the data written"):
        run_all(log, tmp_path / "archive")
    assert log.version().kept == 11_000
    assert list((tmp_path / "archive").rglob("*.parquet")) == []
    assert os.listdir(tmp_path / "archive/.confluo/tmp") == []
    monkeypatch.undo()
    run_all(log, tmp_path / "archive")
    assert answers(tmp_path / "t.ml", QUESTIONS[2:4]) == expected


def test_bytes_that_changed_after_the_writing_are_seen(tmp_path: Path) -> None:
    """Flipped bits of a written part are detected before rows are removed from the log."""
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (2000, 1000))
    data = parquet_parts.PartBuilder(TIMED)
    for b in log.blocks():
        data.add(b, b.base)
    _, ((_, table),) = data.split()
    written = data.encode(table, {"a": "b"})
    good = bytes(written)
    assert data.same(good, table, written)
    chance = np.random.default_rng(5)
    for at in chance.integers(0, len(good), 200):
        bad = bytearray(good)
        bad[at] ^= 1 << int(chance.integers(0, 8))
        assert not data.same(bytes(bad), table, written), at
    assert not data.same(good[:-1], table, written)


def test_a_damaged_segment_stays(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (1000, 1000), (1000, 2000), (1000, 3000))
    bad = lane_claim.list_segments(lane_claim.lane_folder(log.path, 0))[1][1]
    with open(bad, "r+b") as f:
        f.seek(9000)
        byte = f.read(1)
        f.seek(9000)
        f.write(bytes([byte[0] ^ 1]))
    log = multilog.open(log.path)
    with ArchiveWriter(log, tmp_path / "archive", "h") as a:
        ((batch, record),) = a.plan(None)
        with pytest.raises(
            archive.DamagedSegmentError, match=r"block 0: column .* is damaged; this segment and those after it stay"
        ) as caught:
            a.run(batch, record)
        assert caught.value.at == 1
        assert a.run(batch[:1], None).end == 1000
    assert log.control.first(0) == 1000
    assert plain(tmp_path / "archive") == [(0, n) for n in range(1000)]
    assert os.listdir(tmp_path / "archive/.confluo/tmp") == []


def test_a_damaged_part_is_left_out_with_a_warning(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (1000, 1000), (1000, 5000), (1000, 9000))
    run_all(log, tmp_path / "archive")
    first, second, third = sorted((tmp_path / "archive").rglob("*.parquet"))
    data = bytearray(second.read_bytes())
    data[100] ^= 1
    second.write_bytes(data)
    third.write_bytes(third.read_bytes()[:-20])
    (first.parent / "notes.parquet").write_bytes(b"not ours")
    told: list[str] = []
    assert len(rows_of(open_log(log.path, warn=told.append))[0]) == 8 * 1000
    assert len(told) == 2
    assert str(second) in told[0] and "is damaged" in told[0]  # noqa: PT018
    assert str(third) in told[1] and "is not a complete Parquet file" in told[1]  # noqa: PT018
    told.clear()
    assert open_log(log.path, warn=told.append).count(compile("seq >= 0 && seq != 5", TIMED)) == 1999
    assert len(told) == 1  # of the other only statistics were read


DISK = "64k"  # of small_disk
FOREIGN = {
    "another type": lambda t: t.set_column(2, "seq", t.column("seq").cast("int32")),
    "nulls": lambda t: t.set_column(2, "seq", pyarrow.array([None, *range(1, 1000)], "uint64")),
    "strings": lambda t: t.set_column(0, "ts", pyarrow.array(["x"] * 1000)),
    "lists": lambda t: t.set_column(1, "writer", pyarrow.array([[1]] * 1000)),
    "no numbers": lambda t: t.drop_columns(["log_row"]),
    "no times": lambda t: t.drop_columns(["ts"]),
    "no metadata": lambda t: t.replace_schema_metadata({}),
    "no rows": lambda t: t.slice(0, 0),
    "twice a name": lambda t: t.append_column("seq", t.column("seq")),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("ordered", ["0", "1"])
def test_parts_that_somebody_else_wrote(tmp_path: Path, kind: str, ordered: str) -> None:
    """A foreign file with the name of a part: read if its columns match, else left out with a warning."""
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (1000, 1000), (1000, 9000))
    run_all(log, tmp_path / "archive")
    path, _ = sorted((tmp_path / "archive").rglob("*.parquet"))
    table = pq.read_table(path, partitioning=None)
    table = FOREIGN[kind](table.replace_schema_metadata({**table.schema.metadata, b"confluo:ordered": ordered}))
    pq.write_table(table, path)
    for ask in (open_log(log.path), ArchiveReader(str(tmp_path / "archive"))):
        told: list[str] = []
        ask._warn = told.append
        rows = rows_of(ask)
        assert len({len(c) // w for c, w in zip(rows, (8, 4, 8), strict=True)}) == 1
        assert len(rows[0]) // 8 in (1000, 2000)
        assert told or len(rows[0]) == 16_000 or kind == "no rows"
        assert all(str(path) in line for line in told)


def test_a_file_of_the_archive_was_removed(tmp_path: Path) -> None:
    """A missing file: rows that are still in the log are archived again; otherwise only these rows are missing."""
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1000), (100, 5000))
    expected = rows_of(LogReader(log.path))
    run_all(log, tmp_path / "archive", remove=False)
    first, _ = sorted((tmp_path / "archive").rglob("*.parquet"))
    first.unlink()
    run_all(log, tmp_path / "archive")
    assert rows_of(open_log(log.path)) == expected
    first.unlink()
    assert (
        rows_of(open_log(log.path))[2] == np.arange(101, 200, dtype="<u8").tobytes()
        or len(rows_of(open_log(log.path))[2]) < 1600
    )


def test_retention_was_faster(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1000), (100, 2000), (100, 3000))
    with ArchiveWriter(log, tmp_path / "archive", "h") as a:
        ((batch, record),) = a.plan(None)
        assert retain.Keeper(log, 1, now=lambda: 1500 * SECOND).step() == 1
        with pytest.raises(archive.SegmentRemovedError):
            a.run(batch, record)
        ((batch, record),) = a.plan(None)
        a.run(batch, record, remove=False)
        retain.Keeper(log, 1, now=lambda: 2500 * SECOND).step()  # in the middle of the batch
    rows = rows_of(open_log(log.path, more=[str(tmp_path / "archive")]))
    assert rows[2] == np.arange(100, 300, dtype="<u8").tobytes()
    run_all(log, tmp_path / "archive")
    assert plain(tmp_path / "archive") == [(0, n) for n in range(100, 300)]


# -- killed at every step --------------------------------------------------------------------------------------------

ARCHIVE = """
import sys
from confluo_tools import multilog
from confluo_tools.multilog.archive.writer import ArchiveWriter
with multilog.open(sys.argv[1]) as log, ArchiveWriter(log, sys.argv[2], "h") as a:
    for batch, record in a.plan(None):
        a.run(batch, record)
"""


def points() -> list[str]:
    found = []
    for name in ("archive/writer", "archive/segment_source", "retain"):
        found += re.findall(r'fault\("([\w-]+)"\)', (ROOT / f"confluo_tools/multilog/{name}.py").read_text())
    found += ["archive-written", "archive-verified", "archive-placed"]  # of batches.py
    assert len(found) == len(set(found)) >= 11
    return [p for p in found if p != "retain-view"]  # tests/multilog/test_retain.py


@pytest.mark.parametrize("point", points())
def test_death_at_every_step(tmp_path: Path, point: str) -> None:
    log = make(tmp_path / "t.ml")
    question = QUESTIONS[len(point) % 4]
    expected = rows_of(LogReader(log.path), question)
    everything = sorted((lane, n) for lane, tail in enumerate(log.version().tails) for n in range(tail))
    deaths = 0
    for passing in (1, 2):
        env = environment(CONFLUO_FAULT=f"{point}:{passing}")
        deaths += script(ARCHIVE, log.path, tmp_path / "archive", env=env).wait() == -signal.SIGKILL
        assert rows_of(open_log(log.path), question) == expected
        assert rows_of(open_log(log.path, more=[str(tmp_path / "archive")]), question) == expected
        seen = plain(tmp_path / "archive")
        assert len(set(seen)) == len(seen)
        assert {*seen, *((p.lane, n) for p in log.segments() for n in range(p.base, p.base + p.rows))} == {*everything}
        assert [f for f in verify(log) if f.damage] == []
    assert deaths
    run_all(log, tmp_path / "archive")
    assert plain(tmp_path / "archive") == everything
    assert log.version().kept == 0
    assert rows_of(open_log(log.path), question) == expected
    assert os.listdir(tmp_path / "archive/.confluo/tmp") == []
    assert not [p for p in tmp_path.rglob("*") if p.name.endswith(".tmp")]


# -- a full disk -----------------------------------------------------------------------------------------------------


@pytest.mark.root
def test_the_disk_of_the_archive_is_full(tmp_path: Path, small_disk: Path) -> None:
    """At each size the disk is full at another step; the log loses no row that is not archived."""
    log = make(tmp_path / "t.ml")
    expected = answers(tmp_path / "t.ml", QUESTIONS[1:2])
    full: list[str] = []
    for kib in (4, 16, 24, *range(40, 1800, 160)):
        resize(small_disk, f"{kib}k")
        before = log.version().kept
        try:
            run_all(log, small_disk / "archive")
        except DiskFullError as e:
            full.append(str(e))
            assert log.version().kept == before or log.version().kept + len(plain(small_disk / "archive")) == 11_000
        if log.version().kept == before and (small_disk / "archive/.confluo/tmp").exists():
            assert os.listdir(small_disk / "archive/.confluo/tmp") == []
        assert answers(tmp_path / "t.ml", QUESTIONS[1:2]) == expected
        assert [f for f in verify(log) if f.damage] == []
    hint = "nothing was removed from the log; make room, then run it again"
    assert {*full} == {f"{small_disk}/archive: the disk is full; {hint}"}
    assert len(full) > 3
    assert log.version().kept == 0
    assert len(plain(small_disk / "archive")) == 11_000


@pytest.mark.root
def test_the_disk_of_the_log_is_full(tmp_path: Path, small_disk: Path) -> None:
    """The archive cannot be linked in the log: no rows are removed; with free space the next run completes."""
    resize(small_disk, "20m")
    log = multilog.create(small_disk / "t.ml", TIMED)
    fill(log, (1000, 1000), (1000, 9000))
    expected = rows_of(LogReader(log.path))
    fill_disk(small_disk)
    with pytest.raises(DiskFullError, match="the disk is full") as caught:
        run_all(log, tmp_path / "archive")
    assert str(small_disk / "t.ml") in str(caught.value)
    assert rows_of(open_log(log.path)) == expected
    assert log.version().kept == 2000
    os.unlink(small_disk / "ballast")
    run_all(log, tmp_path / "archive")
    assert log.version().kept == 0
    assert rows_of(open_log(log.path)) == expected
    assert len(plain(tmp_path / "archive")) == 2000


def test_a_file_may_not_grow(tmp_path: Path) -> None:
    log = make(tmp_path / "t.ml")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    done = subprocess.run(
        [sys.executable, "-c", ARCHIVE, log.path, tmp_path / "archive"],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=limited,
        check=False,
    )
    assert b"DiskFullError" in done.stderr
    assert log.version().kept == 11_000
    assert plain(tmp_path / "archive") == []


# -- concurrent writers, archiver and readers ------------------------------------------------------------------------

WRITE = """
import sys, time
sys.path.insert(0, sys.argv[2])
from timed_rows import block
from confluo_tools import multilog
log = multilog.open(sys.argv[1])
for k in range(40):
    with log.writer(ahead=-1) as w:
        for start in range(0, 2000 if k % 10 else 70000, 2000):
            w.append(block(w.number, w.base + start, 2000, 1 + k * 600))
    time.sleep(0.03)
"""


def test_the_first_rows_are_archived_while_a_reader_opens_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it has looked for archives, and before it takes its version."""
    module = sys.modules[open_log.__module__]

    log = multilog.create(tmp_path / "t.ml", TIMED, segment_blocks=1)
    fill(log, (4000, 10), (3000, 20))

    def late(path: str, **options: Any) -> Any:
        run_all(log, tmp_path / "archive")
        return LogReader(path, **options)

    monkeypatch.setattr(module, "LogReader", late)
    told: list[str] = []
    reader = open_log(log.path, warn=told.append)
    assert sum(reader.version.firsts) == 7000
    assert sum(b.rows for b in reader.blocks()) == 7000
    assert told == []
    reader.close()


def test_readers_meanwhile(tmp_path: Path) -> None:
    """Two processes write, one archives repeatedly: each reader sees every row of its version once."""
    log = multilog.create(tmp_path / "t.ml", TIMED, segment_blocks=1)
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, log.path, str(SUPPORT)], cwd=ROOT) for _ in range(2)]
    head, body = ARCHIVE.split("with multilog")
    body = ("with multilog" + body).replace("\n", "\n    ")
    loop = f"{head}import os\nwhile not os.path.exists(sys.argv[3]):\n    {body}"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    mover = subprocess.Popen([sys.executable, "-c", loop, log.path, tmp_path / "archive", tmp_path / "stop"], env=env)
    looks = joined = 0
    end = time.monotonic() + 60
    while any(p.poll() is None for p in writers) or (not joined and time.monotonic() < end):
        told: list[str] = []
        reader = open_log(log.path, warn=told.append)
        seq: dict[int, list[Any]] = {}
        for b, picks in reader.select(compile("", TIMED), by_time=False):
            taken = b.take(picks)
            assert taken.rows
            writer, numbers = np.frombuffer(taken.buffer(1), "<u4"), np.frombuffer(taken.buffer(2), "<u8")
            for lane in np.unique(writer):
                seq.setdefault(int(lane), []).append(numbers[writer == lane])
        for lane, tail in enumerate(reader.version.tails):
            there = np.concatenate(seq[lane]) if lane in seq else np.empty(0)
            assert (there == np.arange(tail)).all()
        assert told == []
        looks += 1
        joined += sum(reader.version.firsts) > 0
        reader.close()
    (tmp_path / "stop").touch()
    assert [p.wait() for p in (*writers, mover)] == [0, 0, 0]
    assert looks > 2
    assert joined
    run_all(log, tmp_path / "archive")
    assert len(plain(tmp_path / "archive")) == log.version().rows
