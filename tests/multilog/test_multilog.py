"""The MultiLog in one process: rows are read back at every size; opening and permissions."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.core.multilog.lane import append_repeatedly
from confluo_tools.errors import BusyError, SchemaError, StoreError
from confluo_tools.multilog.add_columns import add_columns
from confluo_tools.multilog.create import about, history
from confluo_tools.schema import Field, Schema, builtin
from log_rows import (
    ALL_TYPES,
    SIGNED,
    block_of,
    random_columns,
    read_columns,
    signed_block,
    signed_rows,
    zones_in,
    zones_of,
)
from running import CAMPUS, run

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


def disk(path: Path) -> int:
    """Disk space of the files under ``path`` in bytes."""
    return sum(f.stat().st_blocks * 512 for f in path.rglob("*"))


def test_an_empty_log_is_small_and_has_no_rows(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", builtin("packet"))
    assert disk(tmp_path / "t.ml") <= 200_000
    assert sorted(p.name for p in (tmp_path / "t.ml").iterdir()) == ["control", "multilog.yaml"]
    assert (log.version().rows, log.segments(), list(log.blocks())) == (0, [], [])
    with log.writer():  # a claim alone creates no segment
        pass
    assert disk(tmp_path / "t.ml") <= 200_000
    again = multilog.open(tmp_path / "t.ml")
    assert (again.schema, again.uuid) == (builtin("packet"), log.uuid)


def test_opening_imports_nothing_heavy(tmp_path: Path) -> None:
    multilog.create(tmp_path / "t.ml", builtin("packet"))
    code = f"""
import sys
import threading
from confluo_tools import multilog
multilog.open({str(tmp_path / "t.ml")!r}).version()
print(sorted({{"yaml", "rich", "typer", "pyarrow", "numpy", "dpkt", "zstandard", "asyncio"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@settings(max_examples=30, deadline=None)
@given(
    sessions=st.lists(st.lists(st.integers(0, 700), min_size=1, max_size=4), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_what_goes_in_comes_out(tmp_path_factory: pytest.TempPathFactory, sessions: list[list[int]], seed: int) -> None:
    path = tmp_path_factory.mktemp("log") / "t.ml"
    log = multilog.create(path, ALL_TYPES)
    expected = [b""] * ALL_TYPES.layout.n
    for session in sessions:
        with log.writer() as writer:
            for rows in session:
                seed += 1
                columns = random_columns(ALL_TYPES, rows, seed)
                writer.append(block_of(ALL_TYPES, columns))
                expected = [e + c.tobytes() for e, c in zip(expected, columns, strict=True)]
            assert writer.rows == sum(session)
            if expected[0]:
                assert read_columns(log) == [expected]  # unsealed
        assert read_columns(log) == ([expected] if expected[0] else [])
    assert read_columns(multilog.open(path)) == ([expected] if expected[0] else [])


@pytest.mark.parametrize("segment_blocks", [1, 2, 3])
@pytest.mark.parametrize("ahead", [-1, 0, 1, 5])
def test_across_blocks_and_segments(tmp_path: Path, segment_blocks: int, ahead: int) -> None:
    log = multilog.create(tmp_path / "t.ml", ALL_TYPES, segment_blocks=segment_blocks)
    expected = [b""] * ALL_TYPES.layout.n
    with log.writer(ahead=ahead) as writer:
        for k, rows in enumerate([65536, 65535, 2, 60000, 60000, 60000, 1, 33333]):
            columns = random_columns(ALL_TYPES, rows, k)
            writer.append(block_of(ALL_TYPES, columns))
            expected = [e + c.tobytes() for e, c in zip(expected, columns, strict=True)]
        assert read_columns(log) == [expected]
    assert read_columns(log) == [expected]
    assert all(p.sealed for p in log.segments())
    assert [p.base for p in log.segments()] == [k * segment_blocks * 65536 for k in range(len(log.segments()))]
    assert read_columns(multilog.open(tmp_path / "t.ml")) == [expected]


def test_single_rows_are_stored_as_batches_are(tmp_path: Path) -> None:
    columns = random_columns(ALL_TYPES, 300, 5, zero=0.3)
    block = block_of(ALL_TYPES, columns)
    logs = []
    for batch in (1, 7, 300):
        log = multilog.create(tmp_path / f"{batch}.ml", ALL_TYPES)
        with log.writer() as writer:
            append_repeatedly(writer, block, 300 // batch, batch)
            if 300 % batch:
                writer.append(block.slice(300 - 300 % batch, 300 % batch))
            assert zones_in(next(log.blocks()), ALL_TYPES) == zones_of(ALL_TYPES, columns)
        logs.append(log)
    assert read_columns(logs[0]) == read_columns(logs[1]) == read_columns(logs[2]) == [[c.tobytes() for c in columns]]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=5), st.integers(0, 2**32), st.booleans())
def test_zones_are_the_extremes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int, close: bool
) -> None:
    log = multilog.create(tmp_path_factory.mktemp("log") / "t.ml", ALL_TYPES)
    pieces = [random_columns(ALL_TYPES, rows, seed + k, zero=0.5) for k, rows in enumerate(sizes)]
    writer = log.writer()
    for piece in pieces:
        writer.append(block_of(ALL_TYPES, piece))
    if close:
        writer.close()
    block = next(log.blocks())
    whole = [np.concatenate([p[i] for p in pieces]) for i in range(ALL_TYPES.layout.n)]
    assert zones_in(block, ALL_TYPES) == zones_of(ALL_TYPES, whole)


def test_unused_columns_cost_no_disk(tmp_path: Path) -> None:
    """Only the columns in use are allocated, while writing and after."""
    schema = builtin("packet")
    log = multilog.create(tmp_path / "t.ml", schema)
    ts = np.arange(65536, dtype="<i8").tobytes()
    used = Block.wrap(schema.layout, 65536, [ts if c.name == "ts" else None for c in schema.columns])
    with log.writer(ahead=-1) as writer:
        for _ in range(3):
            writer.append(used)
        assert disk(tmp_path / "t.ml") < 3 * 600_000 + 300_000
    assert disk(tmp_path / "t.ml") < 3 * 600_000 + 300_000
    block = next(log.blocks())
    assert block.zones(1) == (0, 0)
    assert not any(bytes(block.buffer(1)))


def test_a_small_log_is_small(tmp_path: Path) -> None:
    schema = builtin("packet")
    log = multilog.create(tmp_path / "t.ml", schema)
    with log.writer() as writer:
        writer.append(block_of(schema, random_columns(schema, 100, 1, zero=0)))
    (segment,) = log.segments()
    assert os.path.getsize(segment.path) < 80_000
    assert disk(tmp_path / "t.ml") < 150_000


def test_versions_are_cuts_that_stay(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", SIGNED)
    versions = []
    with log.writer() as first, log.writer() as second:
        for k in range(5):
            first.append(signed_block(1, k * 10, 10))
            second.append(signed_block(2, k * 7, 7))
            versions.append(log.version())
    versions.append(log.version())
    for k, version in enumerate(versions[:5]):
        assert version.tails == ((k + 1) * 10, (k + 1) * 7)
        rows = [run for block in log.blocks(version) for run in signed_rows(block)]
        assert rows == [(1, 0, (k + 1) * 10), (2, 0, (k + 1) * 7)]
    assert versions == sorted(versions, key=lambda v: v.rows)
    assert all(a <= b for a, b in itertools.pairwise(versions))
    assert versions[4] == versions[5]
    assert not versions[1] <= versions[0]
    assert multilog.Version([3, 4]).meet(multilog.Version([4])) == multilog.Version([3])


def test_each_writer_has_a_lane_of_its_own(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", SIGNED, lanes=3)
    writers = [log.writer() for _ in range(3)]
    assert [w.number for w in writers] == [0, 1, 2]
    with pytest.raises(BusyError, match="all 3 lanes have a writer"):
        log.writer()
    writers[1].append(signed_block(5, 0, 50))
    writers[1].close()
    again = log.writer()  # the first free one
    assert (again.number, again.base) == (1, 50)
    again.append(signed_block(5, 50, 50))
    for w in (*writers, again):
        w.close()
    assert [run for block in log.blocks() for run in signed_rows(block)] == [(5, 0, 50), (5, 50, 50)]
    assert log.version().tails == (0, 100, 0)


def test_closed_writers_and_foreign_blocks(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", SIGNED)
    writer = log.writer()
    with pytest.raises(SchemaError, match="columns of the block are not those of the log"):
        writer.append(block_of(ALL_TYPES, random_columns(ALL_TYPES, 3, 1)))
    same = Schema("signed", [Field("writer", "u32"), Field("seq", "u64"), Field("check", "u64")])
    assert same.layout is not SIGNED.layout
    writer.append(Block.wrap(same.layout, 1, [b"\1\0\0\0", bytes(8), (1).to_bytes(8, "little")]))
    writer.close()
    writer.close()
    with pytest.raises(SchemaError, match="closed"):
        writer.append(signed_block(1, 0, 1))
    assert log.version().rows == 1


def test_a_child_after_fork_is_no_writer(tmp_path: Path) -> None:
    """A forked child shares the open lock file: it must neither write nor block the lane for the next writer."""
    log = multilog.create(tmp_path / "t.ml", SIGNED)
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[1] / "support")!r})
from log_rows import signed_block
from confluo_tools import multilog
log = multilog.open({str(tmp_path / "t.ml")!r})
writer = log.writer()
writer.append(signed_block(1, 0, 10))
ready, done = os.pipe(), os.pipe()
if os.fork() == 0:
    try:
        writer.append(signed_block(1, 10, 10))
        os.write(ready[1], b"wrote")
    except Exception as e:
        os.write(ready[1], str(e).encode())
    os.read(done[0], 1)
    os._exit(0)
print(os.read(ready[0], 100).decode())
writer.append(signed_block(1, 10, 10))
writer.stop()
again = multilog.open({str(tmp_path / "t.ml")!r}).writer()   # while the child lives
print(again.number, again.rows, again.base)
again.close()
os.write(done[1], b"x")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"{log.path}: the writer is closed\n0 0 20\n", done.stderr


def test_names_of_all_kinds(tmp_path: Path) -> None:
    for name in ["with space", "snow☃", os.fsdecode(b"not-utf8-\xff\xfe"), "-dash", "new\nline"]:
        log = multilog.create(tmp_path / name, SIGNED, argv=["confluo-capture", "-w", name])
        with log.writer() as writer:
            writer.append(signed_block(1, 0, 10))
        assert multilog.open(tmp_path / name).version().rows == 10
        assert len(list(multilog.open(str(tmp_path / name)).blocks())) == 1
        assert len(history(tmp_path / name)) == 1


def test_history_and_about(tmp_path: Path) -> None:
    odd = ["a b", 'quote " and \\', "tab\t\x07\x7f\x85\u2028", "😀", "- {x: 1}", "# no", os.fsdecode(b"\xff")]
    log = multilog.create(tmp_path / "t.ml", builtin("packet"), argv=["confluo-capture", *odd])
    log.remember(["confluo-capture", "--append"])
    first, second = history(tmp_path / "t.ml")
    assert first["argv"] == ["confluo-capture", *odd[:-1], "\\xff"]
    assert second["argv"] == ["confluo-capture", "--append"]
    assert set(first) == {"time", "host", "argv"}
    told = about(tmp_path / "t.ml")
    assert Schema.from_dict(told["schema"]) == builtin("packet")
    assert told["uuid"] == log.uuid.hex()
    assert told["options"] == {"sync": "none", "lanes": 256, "block_rows": 65536, "segment_blocks": 16}


def test_columns_added_later(tmp_path: Path) -> None:
    """Rows of older segments and of open writers read as zero in new columns; readers use the new column order."""
    path = tmp_path / "t.ml"
    log = multilog.create(path, SIGNED)
    with log.writer() as writer:
        writer.append(signed_block(1, 0, 40))
    old_writer = log.writer()
    old_writer.append(signed_block(1, 40, 10))
    wider = add_columns(path, [Field("extra", "i16"), Field("tag", "bytes(3)")])
    old_writer.append(signed_block(1, 50, 10))
    new = multilog.open(path)
    assert new.schema == wider
    assert [c.name for c in new.schema.columns] == ["writer", "seq", "check", "extra", "tag"]
    with new.writer() as writer:
        assert writer.number == 1
        writer.append(
            block_of(
                wider,
                [
                    *(np.ones(5, t) for t in ("<u4", "<u8", "<u8")),
                    np.full(5, -3, "<i2"),
                    np.frombuffer(b"abc" * 5, "V3"),
                ],
            )
        )
    old_writer.close()
    for reader in (new, multilog.open(path)):
        blocks = list(reader.blocks())
        assert [b.rows for b in blocks] == [40, 20, 5]
        assert all(b.check() for b in blocks)
        assert [b.get(3, 0) for b in blocks] == [0, 0, -3]
        assert [b.get(4, 4) for b in blocks] == [bytes(3), bytes(3), b"abc"]
        assert [b.zones(3) for b in blocks] == [(1 << 63, 1 << 63)] * 2 + [((1 << 63) - 3,) * 2]
        assert [b.get(1, 9) for b in blocks[:2]] == [9, 49]
        assert reader.damage == []
    assert [b.rows for b in log.blocks(multilog.Version([60]))] == [40, 20]  # the old reader continues
    with pytest.raises(SchemaError, match="twice"):
        add_columns(path, [Field("seq", "u8")])


def test_rows_by_number(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", SIGNED, segment_blocks=1)
    with log.writer() as writer:
        for k in range(4):
            writer.append(signed_block(3, k * 50_000, 50_000))
    for row in (0, 65535, 65536, 131072, 199_999):
        block, inside = log.row_block(0, row)  # type: ignore[misc]
        assert block.get(1, inside) == row == block.base + inside
    assert log.row_block(0, 200_000) is None
    assert log.row_block(1, 0) is None
    part = log.segments()[1]
    assert part.find(65536 + 7) == (0, 7)
    with pytest.raises(IndexError):
        part.find(65535)
    with pytest.raises(IndexError):
        part.block(1)


def test_reading_only(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", SIGNED)
    with log.writer() as writer:
        writer.append(signed_block(1, 0, 10))
    reader = multilog.open(tmp_path / "t.ml", readonly=True)
    assert reader.version().rows == 10
    with pytest.raises(StoreError, match="you have no write permission"):
        reader.writer()
    with pytest.raises(PermissionError):
        reader.control.set_sealed(0, 1, 1)


def test_what_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    with pytest.raises(StoreError, match="there is no such MultiLog"):
        multilog.open(tmp_path / "nothing")
    for name in ("file", "folder"):
        with pytest.raises(StoreError, match="is not a MultiLog"):
            multilog.open(tmp_path / name)
    with pytest.raises(StoreError, match="is not empty"):
        multilog.create(tmp_path / "full", SIGNED)
    with pytest.raises(StoreError, match="cannot be created"):
        multilog.create(tmp_path / "file" / "x", SIGNED)
    multilog.create(tmp_path / "folder", SIGNED)
    with pytest.raises(StoreError, match="is a MultiLog already"):
        multilog.create(tmp_path / "folder", SIGNED)
    with pytest.raises(StoreError, match="unknown sync mode"):
        multilog.create(tmp_path / "new", SIGNED, sync="often")
    with pytest.raises(StoreError, match="1000000 lanes"):
        multilog.create(tmp_path / "new", SIGNED, lanes=1_000_000)


@pytest.mark.parametrize("sync", ["none", "seal", "batch"])
def test_every_sync_stores_the_same(tmp_path: Path, sync: str) -> None:
    log = multilog.create(tmp_path / "t.ml", SIGNED, sync=sync, segment_blocks=1)
    assert log.sync == sync
    with log.writer() as writer:
        for k in range(3):
            writer.append(signed_block(1, k * 40_000, 40_000))
    assert [run for block in log.blocks() for run in signed_rows(block)] == [(1, 0, 65536), (1, 65536, 54464)]


def test_a_reader_between_claim_and_first_append(tmp_path: Path) -> None:
    """The cached listing has no segment for the new rows."""
    log = multilog.create(tmp_path / "t.ml", SIGNED, segment_blocks=1)
    reader = multilog.open(tmp_path / "t.ml")
    rows = 0
    for session in (10, 70_000, 65_536, 3, 131_072, 1):
        writer = log.writer()
        assert sum(p.rows for p in reader.segments()) == rows
        for start in range(0, session, 50_000):
            writer.append(signed_block(1, rows + start, min(50_000, session - start)))
            assert sum(b.rows for b in reader.blocks()) == rows + min(start + 50_000, session)
        rows += session
        if session != 3:
            writer.close()
            assert [p.sealed for p in reader.segments()] == [True] * len(reader.segments())
        else:
            writer.stop()  # as if it had died
        assert sum(p.rows for p in reader.segments()) == rows
    assert reader.damage == []


def test_one_of_many_makes_the_log(tmp_path: Path) -> None:
    """Of several processes that create one log at once, exactly one succeeds."""
    path = tmp_path / "t.ml"
    code = f"""
import sys
import threading
from confluo_tools import multilog
from confluo_tools.errors import StoreError
from confluo_tools.schema import builtin
schema = builtin("header64")
sys.stdin.readline()
try:
    print(multilog.create({str(path)!r}, schema, argv=["x"]).uuid.hex())
except StoreError as e:
    print(e)
"""
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for p in running:
        assert p.stdin is not None
        p.stdin.write("go\n")
        p.stdin.flush()
    said = [p.communicate()[0].strip() for p in running]
    made = [s for s in said if s == multilog.open(path).uuid.hex()]
    assert len(made) == 1
    assert all("is a MultiLog already" in s for s in said if s not in made), said
    assert sorted(os.listdir(path)) == ["control", "multilog.yaml"]
    assert about(path)["uuid"] == made[0]
    assert len(history(path)) == 1


def test_a_writer_is_for_one_thread(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", SIGNED, sync="batch")
    block = signed_block(1, 0, 65_536)
    refused = []

    def append(writer: multilog.LogWriter) -> None:
        for _ in range(20):
            try:
                writer.append(block)
            except SchemaError as e:
                refused.append(str(e))

    with log.writer() as writer:
        threads = [threading.Thread(target=append, args=(writer,)) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        rows = writer.rows
    assert rows == log.version().rows == (80 - len(refused)) * 65_536
    assert set(refused) <= {f"{log.path}: another thread uses the writer: each needs its own"}
    assert [b.rows for b in log.blocks()] == [65_536] * (80 - len(refused))


def test_a_writer_may_be_closed_while_others_use_it(tmp_path: Path) -> None:
    """By several threads at once, while one appends: all that was taken is in the log."""
    log = multilog.create(tmp_path / "t.ml", SIGNED)
    block = signed_block(1, 0, 1)
    taken = 0

    def append(writer: multilog.LogWriter, begun: threading.Event) -> None:
        nonlocal taken
        while True:
            try:
                writer.append(block)
            except (SchemaError, ValueError):
                if writer.closed:
                    return
                continue
            taken += 1
            begun.set()

    for _ in range(10):
        writer, begun, errors = log.writer(), threading.Event(), []

        def close(writer: multilog.LogWriter = writer, errors: list[BaseException] = errors) -> None:
            try:
                writer.close()
            except BaseException as e:
                errors.append(e)

        closers = [threading.Thread(target=close) for _ in range(3)]
        appender = threading.Thread(target=append, args=(writer, begun))
        appender.start()
        begun.wait()
        for one in closers:
            one.start()
        for one in (*closers, appender):
            one.join()
        assert errors == []
    assert log.version().rows == taken


def test_what_cannot_be_in_a_store(tmp_path: Path) -> None:
    for argv, hint in [
        (("confluo-capture", "-r", CAMPUS, "-w", "s3://b/t.ml"), b"a MultiLog is a folder of this host"),
        (("confluo-archive", "s3://b/t.ml", "--to", "a"), b"a MultiLog is a folder of this host"),
        (("confluo-query", "--at", "s3://b/cut.yaml", "--count"), b"copy it here: a snapshot is a file of this host"),
        (("confluo-query", CAMPUS, "-w", "s3://b/x.tsv"), b"confluo-archive --to writes to stores"),
    ]:
        done = run(*map(str, argv), cwd=tmp_path)
        assert (done.returncode, done.stderr.count(b"\n"), list(tmp_path.iterdir())) == (2, 1, []), argv
        assert b": is in an object store; " + hint in done.stderr
