"""Archives: a log and its archive have the same rows in the same order as the log before."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archive_lab import HOUR, QUESTIONS, SECOND, answers, columns, make, plain, rows_of, run_all, times
from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.engine.unit_plan import UnitPlan
from confluo_tools.expr import compile
from confluo_tools.multilog import retain
from confluo_tools.multilog.add_columns import add_columns
from confluo_tools.multilog.archive import links, parquet_parts
from confluo_tools.multilog.archive import reader as archive_reader
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.archive.writer import ArchiveWriter
from confluo_tools.multilog.open_log import open_log
from confluo_tools.multilog.reader import LogReader
from confluo_tools.multilog.snapshot import LogCut
from confluo_tools.multilog.verify import verify
from confluo_tools.schema import Field, Schema
from log_rows import ALL_TYPES, block_of
from timed_rows import TIMED, block, fill

# -- the same rows ---------------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 70, 700, 3000]),
            st.integers(-3, 5),
            st.sampled_from(["forward", "forward", "shuffled", "backwards"]),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(-2, 10), min_size=1, max_size=3),
    st.booleans(),
)
def test_a_log_and_its_archive_are_the_log_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int, str, int]], cuts: list[int], keep: bool
) -> None:
    folder = tmp_path_factory.mktemp("same")
    log = multilog.create(folder / "t.ml", ALL_TYPES, segment_blocks=1)
    for i, (rows, hour, order, lane) in enumerate(parts):
        writers = [log.writer(ahead=-1) for _ in range(lane + 1)]
        writers[lane].append(block_of(ALL_TYPES, columns(rows, i, times(rows, hour * HOUR, order, i))))
        for w in writers:
            w.close()
    questions = [QUESTIONS[(len(parts) * 7 + k) % len(QUESTIONS)] for k in (0, 3, 4)]
    before = [rows_of(LogReader(str(folder / "t.ml"))), *answers(folder / "t.ml", questions)]
    total = log.version().rows
    for cut in [*cuts, None]:
        run_all(log, folder / "archive", None if cut is None else cut * HOUR * SECOND, remove=not keep)
        joined = {"more": [str(folder / "archive")] if keep else []}
        assert [rows_of(open_log(log.path, **joined)), *answers(folder / "t.ml", questions, **joined)] == before
        assert len(set(plain(folder / "archive"))) == len(plain(folder / "archive"))
        assert [f for f in verify(log) if f.damage] == []
    assert len(plain(folder / "archive")) == total
    assert log.version().kept == (total if keep else 0)
    assert rows_of(ArchiveReader(str(folder / "archive"))) == before[0]
    assert ArchiveReader(str(folder / "archive")).schema == log.schema


def test_other_programs_read_the_same(tmp_path: Path) -> None:
    log = make(tmp_path / "t.ml")
    kept = [{n: bytes(b.buffer(i)) for i, n in enumerate(log.schema.layout.names)} for b in log.blocks()]
    numbers = [(b.lane, b.base) for b in log.blocks()]
    run_all(log, tmp_path / "archive")
    table = pyarrow.dataset.dataset(tmp_path / "archive", partitioning="hive").to_table()
    assert table.num_rows == 11_000
    assert set(table.column("host").to_pylist()) == {"here"}
    assert set(table.column("date").to_pylist()) == {"1970-01-01"}
    assert table.schema.field("addr6").type == pyarrow.binary(16)
    with duckdb.connect() as db:
        glob = f"{tmp_path}/archive/**/*.parquet"
        found = db.execute(
            f"select cast(hour as int), count(*), sum(a)::bigint from read_parquet('{glob}', hive_partitioning=true)"
            " group by all order by all"
        ).fetchall()
        ts = np.concatenate([np.frombuffer(k["ts"], "<i8") for k in kept]) // (HOUR * SECOND)
        a = np.concatenate([np.frombuffer(k["a"], "u1") for k in kept])
        assert found == [(h, int((ts == h).sum()), int(a[ts == h].sum())) for h in range(6)]
    for path in (tmp_path / "archive").rglob("*.parquet"):
        file = pq.ParquetFile(path)
        stamps = file.read(["ts"]).column(0).cast("int64").to_pylist()
        assert stamps == sorted(stamps)
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
        assert file.metadata.row_group(0).column(0).statistics.has_min_max
        meta = {k.decode(): v.decode() for k, v in file.schema_arrow.metadata.items()}
        assert meta["confluo:uuid"] == log.uuid.hex()
        assert meta["confluo:lane"] in "01"
        assert {"kind": "all_types", "fields": len(log.schema.fields) + 1} == {
            "kind": json.loads(meta["confluo:schema"])["schema"],
            "fields": len(json.loads(meta["confluo:schema"])["fields"]),
        }
        # each row has the bytes of its row number
        whole = file.read()
        lane = int(meta["confluo:lane"])
        for i in range(0, whole.num_rows, 97):
            row = whole.column("log_row")[i].as_py()
            at = max(k for k, (n, base) in enumerate(numbers) if n == lane and base <= row)
            inside = row - numbers[at][1]
            assert whole.column("d")[i].as_py() == int.from_bytes(kept[at]["d"][inside * 8 : inside * 8 + 8], "little")
            assert whole.column("name")[i].as_py() == kept[at]["name"][inside * 5 : inside * 5 + 5]
            assert whole.column("path")[i].as_py() == list(
                np.frombuffer(kept[at]["path"][inside * 6 : inside * 6 + 6], "<u2")
            )


def test_many_small_segments_become_one_file(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, *[(100, 1000 + k) for k in range(40)])
    run_all(log, tmp_path / "archive")
    assert len(list((tmp_path / "archive").rglob("*.parquet"))) == 1
    assert retain.disk_use(log.path) < 60_000


def test_only_what_is_older(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1000), (100, 3000), (100, 2000), (100, 9000))
    assert run_all(log, tmp_path / "archive", 2500 * SECOND)[0].end == 100
    assert run_all(log, tmp_path / "archive", 2500 * SECOND) == []
    (done,) = run_all(log, tmp_path / "archive", 3001 * SECOND)
    assert (done.first, done.end, done.newest) == (100, 300, 3000 * SECOND)
    writer = log.writer(ahead=-1)
    writer.append(block(0, 400, 10, SECOND))
    assert [d.end for d in run_all(log, tmp_path / "archive")] == [400]
    numbers = np.arange(410, dtype="<u8")
    by_time = np.concatenate([numbers[s] for s in np.s_[400:410, 0:100, 200:300, 100:200, 300:400]])
    assert rows_of(open_log(log.path))[2] == by_time.tobytes()
    assert rows_of(ArchiveReader(str(tmp_path / "archive")))[2] == by_time[10:].tobytes()
    writer.close()


def test_partitions_and_row_groups_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    for k in range(6):  # one hour each, a million rows in total
        with log.writer(ahead=-1) as writer:
            for j in range(3):
                writer.append(block(0, (k * 3 + j) * 60_000, 60_000, (k * HOUR + 600 + j) * SECOND))
    run_all(log, tmp_path / "archive")
    scans: list[archive_reader.ArchiveScan] = []
    made = archive_reader.ArchiveScan.__init__
    monkeypatch.setattr(archive_reader.ArchiveScan, "__init__", lambda s, *a: (scans.append(s), made(s, *a))[1])
    for text, parts, groups, skipped, found in [
        ("ts in @3600..@7199", 1, 2, 0, 180_000),
        ("ts > @80000", 0, 0, 0, 0),
        ("seq < 1000", 6, 12, 11, 1000),
        ("writer == 7", 6, 12, 12, 0),
        ("writer == 0", 6, 12, 0, 1_080_000),
        ("seq == 200000 && ts > @9", 6, 12, 11, 1),
    ]:
        for got in (lambda r, t: r.count(compile(t, r.schema)), lambda r, t: len(rows_of(r, t)[0]) // 8):
            scans.clear()
            assert got(open_log(log.path), text) == found, text
            assert [(s.parts, s.groups, s.skipped) for s in scans] == [(parts, groups, skipped)], text
    reads: list[Any] = []
    read = parquet_parts.ParquetPart.read
    monkeypatch.setattr(
        parquet_parts.ParquetPart, "read", lambda s, g, *a: (reads.append(list(a[2])), read(s, g, *a))[1]
    )
    open_log(log.path).count(compile("", TIMED))
    assert [c for c in reads if c] == []  # statistics suffice
    assert len(rows_of(open_log(log.path), "seq == 5", columns=[2])[2]) == 8
    assert [c for c in reads if c] == [[2]]


def test_parts_are_passed_over_by_the_times_in_their_records(tmp_path: Path) -> None:
    """Parts of one hour: those of another time are not opened; an archive of an earlier program is read as before."""
    log = multilog.create(tmp_path / "t.ml", TIMED)
    for k in range(6):
        with log.writer(ahead=-1) as writer:
            writer.append(block(0, k * 500, 500, 100 * (k + 1) * SECOND))
        run_all(log, tmp_path / "archive")

    def answers(text: str) -> tuple[int, list[bytes], int, int, dict[str, int]]:
        reader = ArchiveReader(str(tmp_path / "archive"))
        condition = compile(text, TIMED)
        rows = rows_of(reader, text)
        count = reader.count(condition)
        plan = reader.explain()
        assert plan is not None
        return count, rows, reader.rows, len(UnitPlan(reader, condition, 2).units), plan["archive"]

    conditions = {  # files that are opened, and those that statistics leave
        "ts in @200..@298": (1, 1),
        "ts < @150 or ts >= @550": (2, 2),
        "ts >= @250 && seq < 1400": (4, 1),
        "ts in @1000..@2000": (0, 0),
    }
    found = {text: answers(text) for text in conditions}
    for text, files in conditions.items():
        assert (found[text][4]["files"], found[text][3]) == files, text
    for record in (tmp_path / "archive/.confluo").rglob("*-*.json"):
        old = json.loads(record.read_text())
        first, last = old["files"][0].pop("times")
        assert first + SECOND == last == (old["end"] // 500) * 100 * SECOND
        record.write_text(json.dumps(old))
    for text in conditions:
        before, after = found[text], answers(text)
        assert (after[:4], after[4]["files"]) == (before[:4], 6), text
        assert before[4]["groups"] == after[4]["groups"], text


def test_columns_that_came_later(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1000))
    run_all(log, tmp_path / "archive")
    add_columns(log.path, [Field("more", "u16")])
    late = multilog.open(log.path)
    with late.writer(ahead=-1) as writer:
        writer.append(block(0, 100, 50, 2000 * SECOND).project(late.schema.layout))
    assert late.schema.layout.n == 4
    assert rows_of(open_log(log.path), "more == 0")[2] == np.arange(150, dtype="<u8").tobytes()
    run_all(late, tmp_path / "archive")
    reader = ArchiveReader(str(tmp_path / "archive"))
    assert [f.name for f in reader.schema.fields] == ["ts", "writer", "seq", "more"]
    assert rows_of(reader)[2:] == [np.arange(150, dtype="<u8").tobytes(), bytes(300)]


def test_fields_that_are_called_like_partitions(tmp_path: Path) -> None:
    """Other programs see both columns; the reader restores the field."""
    names = ["ts", "host", "host_", "hour", "date6"]
    schema = Schema(
        "odd",
        [
            Field("ts", "time"),
            Field("host", "text(4)"),
            Field("host_", "u8"),
            Field("hour", "u16"),
            Field("date6", "u8"),
        ],
    )
    log = multilog.create(tmp_path / "t.ml", schema)
    data = [np.arange(9, dtype="<i8").tobytes(), b"ab\0\0" * 9, bytes(range(9)), bytes(18), bytes(9)]
    with log.writer(ahead=-1) as writer:
        writer.append(Block.wrap(schema.layout, 9, data))
    run_all(log, tmp_path / "archive")
    table = pyarrow.dataset.dataset(tmp_path / "archive", partitioning="hive").to_table()
    assert table.schema.names == ["ts", "host_", "host__", "hour_", "date6", "log_row", "host", "date", "hour"]
    assert table.column("host").to_pylist() == ["here"] * 9
    for reader in (open_log(log.path), ArchiveReader(str(tmp_path / "archive"))):
        assert [f.name for f in reader.schema.fields] == names
        assert rows_of(reader, "host == ab && host_ < 20") == data
    assert open_log(log.path).count(compile("host_ == 3", schema)) == 1


def test_several_hosts_in_one_archive(tmp_path: Path) -> None:
    logs = [multilog.create(tmp_path / f"{k}.ml", TIMED) for k in range(3)]
    for k, log in enumerate(logs):
        fill(log, *[(50, t * 100 + k) for t in range(1, 5)])
        with ArchiveWriter(log, tmp_path / "archive", f"host {k % 2}") as a:
            for batch, record in a.plan(None):
                a.run(batch, record, remove=k != 1)
    whole = ArchiveReader(str(tmp_path / "archive"))
    assert whole.hosts() == ["host 0", "host 1"]
    assert whole.logs() == sorted(log.uuid.hex() for log in logs)
    ts = np.frombuffer(rows_of(whole)[0], "<i8")
    assert len(ts) == 600
    alone = ArchiveReader(str(tmp_path / "archive"), host="host 1")
    assert alone.metadata["confluo:host"] == "host 1"
    assert rows_of(alone) == rows_of(LogReader(logs[1].path))
    rest = ArchiveReader(str(tmp_path / "archive"), without=[logs[0].uuid.hex(), logs[1].uuid.hex()])
    assert rows_of(rest) == rows_of(open_log(logs[2].path))
    assert sum(len(b) for b in ArchiveReader(str(tmp_path / "archive"))) == 600


def test_copies_of_partitions_count_once(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1000), (100, 5000))
    expected = rows_of(LogReader(log.path))
    run_all(log, tmp_path / "a", 4000 * SECOND, remove=False)
    run_all(log, tmp_path / "b")
    both = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert rows_of(open_log(log.path, more=both)) == expected
    subprocess.run(["cp", "-r", *(str(p) for p in (tmp_path / "b").glob("host=*")), tmp_path / "a"], check=True)
    assert rows_of(ArchiveReader(str(tmp_path / "a"))) == expected  # overlapping batches
    assert open_log(log.path, archives=False, more=both[:1]).count(compile("", TIMED)) == 200


def test_rows_that_only_retention_removed_are_missed(tmp_path: Path) -> None:
    """At an older version: archived rows are read, rows that are lost are counted."""
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, *[(100, 1000 * k) for k in range(1, 6)])
    cut = LogCut("t", "", log.path, log.uuid.hex(), "timed", log.version().tails)
    told: list[str] = []
    run_all(log, tmp_path / "archive", 1500 * SECOND)
    run_all(log, tmp_path / "archive", 2500 * SECOND)
    assert rows_of(open_log(log.path, at=cut, warn=told.append))[2] == np.arange(500, dtype="<u8").tobytes()
    assert told == []
    retain.Keeper(log, 1, now=lambda: 4 * 1000 * SECOND).step()  # the third segment is not archived
    run_all(log, tmp_path / "archive", 4500 * SECOND)
    there = np.concatenate([np.arange(200), np.arange(300, 500)]).astype("<u8")
    assert rows_of(open_log(log.path, at=cut, warn=told.append))[2] == there.tobytes()
    assert told == [f"{log.path}: 100 rows of lane 0 were removed by retention in the meantime"]


# -- archives linked in a log ----------------------------------------------------------------------------------------


def test_where_the_archive_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    log = multilog.create(home / "t.ml", TIMED)
    fill(log, (100, 1000), (100, 20_000), (100, 90_000))
    expected = rows_of(LogReader(log.path))
    assert links.linked_archives(log) == []
    run_all(log, home / "archive", 30_000 * SECOND)
    (entry,) = links.linked_archives(log)
    assert entry[:2] == ("../archive", str(home / "archive"))
    assert entry.oldest <= 999 * SECOND <= 20_000 * SECOND <= entry.newest < 22_000 * SECOND
    (tmp_path / "moved").mkdir()
    home.rename(tmp_path / "moved" / "home")  # both together
    told: list[str] = []
    assert rows_of(open_log(str(tmp_path / "moved/home/t.ml"), warn=told.append)) == expected
    (tmp_path / "moved/home").rename(home)
    (home / "t.ml").rename(tmp_path / "elsewhere.ml")  # the log alone
    assert rows_of(open_log(str(tmp_path / "elsewhere.ml"), warn=told.append)) == expected
    assert told == []
    (home / "archive").rename(home / "lost")
    assert len(rows_of(open_log(str(tmp_path / "elsewhere.ml"), warn=told.append))[0]) == 800
    (what,) = told
    assert f"older rows were moved to {home}/archive, which does not exist" in what
    told.clear()
    assert len(rows_of(open_log(str(tmp_path / "elsewhere.ml"), warn=told.append), "ts > @80000")[0]) == 800
    assert told == []  # these rows never existed
    assert len(rows_of(open_log(str(tmp_path / "elsewhere.ml"), warn=told.append, archives=False))[0]) == 800
    assert told == []
    (home / "archive").mkdir()  # another archive at the same path
    other = multilog.create(home / "o.ml", TIMED)
    fill(other, (5, 1))
    run_all(other, home / "archive")
    open_log(str(tmp_path / "elsewhere.ml"), warn=told.append).count(compile("", TIMED))
    assert len(told) == 1


def test_a_damaged_list_of_archives_is_damage(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1))
    run_all(log, tmp_path / "archive")
    path = tmp_path / "t.ml" / "archives"
    good = path.read_bytes()
    assert open_log(log.path).count(compile("", TIMED)) == 100
    silent = []
    for bit in range(len(good) * 8):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        if not links.read_links(log.path)[1]:
            silent.append(bit)
    assert silent == []
    path.write_bytes(good[: len(good) // 3])
    told: list[str] = []
    open_log(log.path, warn=told.append).count(compile("", TIMED))
    assert any("may be missing" in line and str(path) in line for line in told)
    assert any("may be missing" in f.what and f.damage for f in verify(multilog.open(log.path)))
    path.write_bytes(b"".join(good.splitlines(keepends=True)[:-1]))  # of an earlier program: no checksum
    assert open_log(log.path).count(compile("", TIMED)) == 100


@pytest.mark.parametrize("text", ["", "[", "[1, 2]\n", '["a"]\n["a", 5, 1, 1]', '["\\u0000", "/x", 1, 2]', "\xff"])
def test_a_list_that_cannot_be_read_is_damage(tmp_path: Path, text: str) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    (tmp_path / "t.ml" / "archives").write_bytes(text.encode("latin-1"))
    assert links.linked_archives(log) == []
    assert len(log.damage) == 1
    told: list[str] = []
    assert open_log(log.path, warn=told.append).count(compile("", TIMED)) == 0
    assert len(told) == 1
