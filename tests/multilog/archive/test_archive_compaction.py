"""Compaction of archives: the same rows in the same order, for every reader, at every instant and after every kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from archive_lab import HOUR, QUESTIONS, SECOND, answers, columns, plain, rows_of, run_all
from confluo_tools import multilog
from confluo_tools.expr import compile
from confluo_tools.multilog.add_columns import add_columns
from confluo_tools.multilog.archive.compaction import Compactor, MergedBatch
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.archive.retention import ArchiveKeeper
from confluo_tools.multilog.archive.writer import check
from confluo_tools.multilog.open_log import open_log
from confluo_tools.schema import Field
from log_rows import ALL_TYPES, block_of
from running import ROOT, environment, run, script
from s3_lab import S3Server
from timed_rows import TIMED, block

BATCHES = 8


def small_batches(
    path: Path, archive: str | Path, order: str = "forward", remove: bool = True, batches: int = BATCHES
) -> multilog.Log:
    """A log of two lanes in an archive, a batch of 200 rows for each quarter of an hour and lane."""
    log = multilog.create(path, ALL_TYPES, segment_blocks=1)
    chance = np.random.default_rng(1)
    for k in range(batches):
        with log.writer(ahead=-1) as one, log.writer(ahead=-1) as two:
            for lane, writer in enumerate((one, two)):
                ts = (k * 900 + np.linspace(0, 899, 200)).astype("<i8") * SECOND
                if order == "late" and k % 3 == 2:
                    ts -= 1200 * SECOND
                elif order == "shuffled":
                    chance.shuffle(ts)
                writer.append(block_of(ALL_TYPES, columns(200, k * 2 + lane, ts)))
        run_all(log, archive, remove=remove)
    return log


def compact(archive: str | Path, **options: Any) -> list[MergedBatch]:
    told: list[tuple[str, str]] = []
    done = list(Compactor(str(archive), warn=lambda *what: told.append(what), **options).run())
    assert told == []
    return done


def parts(archive: str | Path) -> list[Path]:
    return sorted(Path(archive).glob("host=*/*/*/*.parquet"))


@pytest.mark.parametrize("order", ["forward", "late", "shuffled"])
def test_the_rows_are_the_same(tmp_path: Path, order: str) -> None:
    archive = tmp_path / "a"
    log = small_batches(tmp_path / "t.ml", archive, order)
    before, every = answers(tmp_path / "t.ml", QUESTIONS[::3]), plain(archive)
    direct = [rows_of(ArchiveReader(str(archive)), q, by_time=way) for q in QUESTIONS[:2] for way in (True, False)]
    many = len(parts(archive))
    planned = Compactor(str(archive), warn=print).planned()
    done = compact(archive)
    assert [one[:4] for one in done] == [one[:4] for one in planned]
    assert len(parts(archive)) <= many / 2
    assert answers(tmp_path / "t.ml", QUESTIONS[::3]) == before
    assert [
        rows_of(ArchiveReader(str(archive)), q, by_time=way) for q in QUESTIONS[:2] for way in (True, False)
    ] == direct
    assert plain(archive) == every
    assert list(check(str(archive))) == []
    assert os.listdir(archive / ".confluo/tmp") == []
    for path in parts(archive):
        with pq.ParquetFile(path, page_checksum_verification=True) as part:
            times = part.read(["ts"]).column(0).to_numpy()
            assert (times[1:] >= times[:-1]).all()
            found = part.metadata.row_group(0).column(0)
            assert found.is_stats_set
            assert found.has_column_index
    assert compact(archive) == []
    assert run_all(log, archive) == []


def test_small_parts_only(tmp_path: Path) -> None:
    archive = tmp_path / "a"
    small_batches(tmp_path / "t.ml", archive)
    many = parts(archive)
    assert compact(archive, part_size=min(path.stat().st_size for path in many)) == []
    assert parts(archive) == many
    size = 3 * max(path.stat().st_size for path in many)
    compact(archive, part_size=size)
    assert len(parts(archive)) <= len(many) / 2
    assert max(path.stat().st_size for path in parts(archive)) <= size


def test_columns_that_came_later(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    for k in range(4):
        if k == 2:
            add_columns(log.path, [Field("extra", "text(4)"), Field("addr", "ip")])
            log = multilog.open(tmp_path / "t.ml")
        with log.writer(ahead=-1) as writer:
            rows = block(0, 10 * k, 10, HOUR * SECOND + 60 * k * SECOND)
            writer.append(rows if k < 2 else rows.project(log.schema.layout))
        run_all(log, tmp_path / "a")
    before = rows_of(open_log(str(tmp_path / "t.ml")))
    assert len(compact(tmp_path / "a")) == 1
    assert len(parts(tmp_path / "a")) == 2  # the newest row of a block is a second later than the others
    assert rows_of(open_log(str(tmp_path / "t.ml"))) == before


def test_a_damaged_part_stays(tmp_path: Path) -> None:
    archive = tmp_path / "a"
    small_batches(tmp_path / "t.ml", archive)
    bad = parts(archive)[3]
    data = bytearray(bad.read_bytes())
    data[100] ^= 1
    bad.write_bytes(data)
    told: list[str] = []
    done = list(Compactor(str(archive), warn=lambda where, what: told.append(f"{where}: {what}")).run())
    assert done
    hint = "its batch stays as it is; confluo-info --verify gives details"
    assert told == [f"{bad}: differs from the data written; {hint}"]
    assert bad.exists()


def test_rows_that_the_log_still_has(tmp_path: Path) -> None:
    """Merged batches are known to the archiver: it archives nothing twice, and removes from the log."""
    archive = tmp_path / "a"
    log = small_batches(tmp_path / "t.ml", archive, remove=False)
    every = plain(archive)
    compact(archive)
    run_all(log, archive, remove=False)
    assert plain(archive) == every
    run_all(log, archive)
    assert plain(archive) == every
    assert log.version().kept == 0
    assert ArchiveKeeper(str(archive), None, 1).run()
    assert parts(archive) == []
    assert compact(archive) == []


MERGE = """
import sys
from confluo_tools.multilog.archive.compaction import Compactor
for _ in Compactor(sys.argv[1], warn=print).run():
    pass
"""
POINTS = [
    "archive-written",
    "archive-verified",
    "merge-recorded",
    "archive-placed",
    "merge-placed",
    "archive-merged",
    "archive-forgotten",
]


@pytest.mark.parametrize("point", POINTS)
def test_death_at_every_step(tmp_path: Path, point: str) -> None:
    archive = tmp_path / "a"
    log = small_batches(tmp_path / "t.ml", archive, remove=False, batches=5)
    question = QUESTIONS[len(point) % 4]
    before, every = rows_of(ArchiveReader(str(archive)), question), plain(archive)
    deaths = 0
    for passing in (1, 2):
        deaths += script(MERGE, archive, env=environment(CONFLUO_FAULT=f"{point}:{passing}")).wait() == -signal.SIGKILL
        assert rows_of(ArchiveReader(str(archive)), question) == before
        assert {*plain(archive)} == {*every}
    assert deaths
    if "placed" in point:  # the archiver comes first
        run_all(log, archive)
        assert rows_of(ArchiveReader(str(archive)), question) == before
    compact(archive)
    assert plain(archive) == every
    assert list(check(str(archive))) == []
    assert rows_of(ArchiveReader(str(archive)), question) == before
    assert os.listdir(archive / ".confluo/tmp") == []
    run_all(log, archive)
    assert plain(archive) == every


def test_readers_and_kills_at_random(tmp_path: Path) -> None:
    """Readers that open the archive before or while parts are merged have each row once, in order."""
    archive = str(tmp_path / "a")
    small_batches(tmp_path / "t.ml", archive)
    expr = "d > 9 || a < 40"
    with ArchiveReader(archive) as reader:
        schema = reader.schema
    expected = rows_of(ArchiveReader(archive), expr)
    chance = random.Random(7)
    told: list[str] = []
    for _ in range(4):
        opened = ArchiveReader(archive, warn=told.append)
        stream = opened.select(compile(expr, schema))
        found = [next(stream)]
        process = subprocess.Popen([sys.executable, "-c", MERGE, archive], env=environment(PYTHONPATH=str(ROOT)))
        deadline = time.monotonic() + chance.uniform(0.2, 0.9)
        while process.poll() is None and time.monotonic() < deadline:
            assert rows_of(ArchiveReader(archive, warn=told.append), expr) == expected
        process.kill()
        process.wait()
        found += stream
        for i, column in enumerate(expected):
            assert b"".join(bytes((b if p is None else b.take(p)).buffer(i)) for b, p in found) == column
        opened.close()
    compact(archive)
    assert rows_of(ArchiveReader(archive), expr) == expected
    assert told == []


def test_a_reader_that_listed_the_old_parts(tmp_path: Path) -> None:
    """Parts that were merged after they were listed are read where their rows are now."""
    archive = tmp_path / "a"
    small_batches(tmp_path / "t.ml", archive)
    questions, ways = QUESTIONS[:3], (True, False)
    expected = [[rows_of(ArchiveReader(str(archive)), q, by_time=way) for way in ways] for q in questions]
    readers = [[ArchiveReader(str(archive)) for _ in ways] for _ in questions]
    listed = [[r.places(compile(q, r.schema).tree) for r in two] for q, two in zip(questions, readers, strict=True)]
    compact(archive)
    for q, pair, places, rows in zip(questions, readers, listed, expected, strict=True):
        for reader, place, way, expect in zip(pair, places, ways, rows, strict=True):
            reader.places = lambda tree, place=place: place  # type: ignore[method-assign]
            assert rows_of(reader, q, by_time=way) == expect


def test_the_command(tmp_path: Path) -> None:
    archive = tmp_path / "a"
    small_batches(tmp_path / "t.ml", archive)
    many = len(parts(archive))
    done = run("confluo-archive", "--compact", "--dry-run", "-T", "--no-header", archive)
    assert done.stdout.decode().startswith(f"{archive}\t{many}\t")
    done = run("confluo-archive", "--compact", "--stats", archive)
    assert (done.returncode, done.stdout) == (0, b"")
    assert f"files merged into {len(parts(archive))}, ".encode() in done.stderr
    assert run("confluo-archive", "--compact", archive).returncode == 1
    record = json.loads(next(archive.rglob("*.json")).read_text())
    assert record["merged"] > record["archived"]
    for words, complaint in (
        ((tmp_path / "t.ml",), "t.ml: is not an archive"),
        ((archive / "host=here",), "host=here: is a part of an archive; name the folder above"),
        ((archive, "--keep", "1d"), "--compact excludes --keep"),
        ((archive, "--part-size", "x"), "x"),
    ):
        done = run("confluo-archive", "--compact", *words)
        assert done.returncode == 2
        assert complaint in done.stderr.decode()


def test_in_a_store(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{s3.bucket()}/merged/"
    small_batches(tmp_path / "t.ml", url, batches=4)
    before = answers(tmp_path / "t.ml", QUESTIONS[:2])
    listed = ArchiveReader(url)
    places = listed.places(compile("", ALL_TYPES).tree)
    expected = rows_of(ArchiveReader(url))
    assert len(compact(url)) >= 2
    assert answers(tmp_path / "t.ml", QUESTIONS[:2]) == before
    listed.places = lambda tree: places  # type: ignore[method-assign]
    assert rows_of(listed) == expected
    assert compact(url) == []
