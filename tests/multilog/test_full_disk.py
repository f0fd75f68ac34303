"""A full disk is reported as such: earlier rows stay readable, no SIGBUS, and writing continues once there is room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from confluo_tools import multilog
from confluo_tools.errors import DiskFullError, StoreError
from confluo_tools.multilog.verify import verify
from log_rows import ALL_TYPES, SIGNED, block_of, random_columns, read_columns, signed_block, signed_rows
from running import fill_disk, resize

pytestmark = pytest.mark.root
DISK = "400k"  # of small_disk


@pytest.mark.parametrize("ahead", [-1, 1])
def test_at_every_size_of_disk(small_disk: Path, ahead: int) -> None:
    """The disk is full at a different step each time: in a column, a head, a segment, a seal."""
    log = multilog.create(small_disk / "t.ml", SIGNED, segment_blocks=1, lanes=8)
    writer, base, failures, kib = log.writer(ahead=ahead), 0, 0, 420
    for step in range(60):
        while True:
            before = writer.rows
            try:
                writer.append(signed_block(1, base + before, 20_001))
            except DiskFullError:
                failures += 1
                assert before <= writer.rows < before + 20_001
                break
        rows = base + writer.rows
        assert log.version().rows == rows
        at = 0
        for block in log.blocks():
            for _, first, n in signed_rows(block):
                assert first == at
                at += n
        assert at == rows
        assert log.damage == []
        kib += 149
        resize(small_disk, f"{kib}k")
        if step % 7 == 3:
            try:
                writer.close()
            except DiskFullError:
                failures += 1
            kib += 2000
            resize(small_disk, f"{kib}k")
            writer, base = log.writer(ahead=ahead), rows
            assert writer.base == rows
    assert failures > 3
    assert [f for f in verify(log) if f.damage] == []
    assert log.version().rows == rows


def test_rows_before_stay_and_room_lets_it_go_on(small_disk: Path) -> None:
    kib, failures = 3000, 0
    resize(small_disk, f"{kib}k")
    log = multilog.create(small_disk / "t.ml", ALL_TYPES, segment_blocks=2)
    expected = [b""] * ALL_TYPES.layout.n
    writer = log.writer()
    for k in range(1000):
        columns = random_columns(ALL_TYPES, 1000, k, zero=0.7)
        done = 0
        while done < 1000:
            before = writer.rows
            try:
                writer.append(block_of(ALL_TYPES, [c[done:] for c in columns]))
                done = 1000
            except DiskFullError:
                # The space of one step may be used by the block that a helper prepares; that is bounded.
                failures += 1
                kib += 700
                assert kib <= 3000 + 700 * 10 + len(expected[0]) // 8
                resize(small_disk, f"{kib}k")
                done += writer.rows - before
                assert read_columns(log)[0][0] == expected[0] + columns[0][:done].tobytes()
        expected = [e + c.tobytes() for e, c in zip(expected, columns, strict=True)]
        if len(expected[0]) > 100_000 * 8:
            break
    assert failures > 3
    resize(small_disk, "100000k")
    assert read_columns(log) == [expected]
    writer.close()
    assert read_columns(multilog.open(small_disk / "t.ml")) == [expected]
    assert list(verify(log)) == []


@pytest.mark.parametrize("rows", [100, 40_000, 70_000])
def test_closing_on_a_full_disk(small_disk: Path, rows: int) -> None:
    resize(small_disk, "8000k")
    log = multilog.create(small_disk / "t.ml", SIGNED)
    writer = log.writer(ahead=-1)
    for start in range(0, rows, 50_000):
        writer.append(signed_block(1, start, min(50_000, rows - start)))
    fill_disk(small_disk)
    try:
        writer.close()
        closed = True
    except DiskFullError:
        closed = False
    for reader in (log, multilog.open(small_disk / "t.ml")):
        assert sum(n for b in reader.blocks() for _, _, n in signed_rows(b)) == rows
        assert reader.damage == []
    with pytest.raises(DiskFullError, match="the disk is full"), multilog.open(small_disk / "t.ml").writer() as again:
        again.append(signed_block(2, 0, 50_000))
    os.unlink(small_disk / "ballast")
    with multilog.open(small_disk / "t.ml").writer() as again:
        again.append(signed_block(2, 0, 10))
    log = multilog.open(small_disk / "t.ml")
    runs = [run for b in log.blocks() for run in signed_rows(b)]
    assert sum(n for w, _, n in runs if w == 1) == rows
    assert runs[-1] == (2, 0, 10)
    assert all(p.sealed for p in log.segments())
    assert list(verify(log)) == []
    assert closed in (True, False)


def test_making_a_log_on_a_full_disk(small_disk: Path) -> None:
    fill_disk(small_disk)
    with pytest.raises(StoreError, match="No space left"):
        multilog.create(small_disk / "t.ml", SIGNED)
    os.unlink(small_disk / "ballast")
    log = multilog.create(small_disk / "t.ml", SIGNED)  # over the remains of the first attempt
    fill_disk(small_disk)
    try:
        writer = log.writer()
    except DiskFullError:
        return
    with pytest.raises(DiskFullError):
        writer.append(signed_block(1, 0, 1))
    os.unlink(small_disk / "ballast")
    resize(small_disk, "4000k")
    writer.append(signed_block(1, 0, 1))
    writer.close()
    assert log.version().rows == 1


def test_reading_and_checking_on_a_full_disk(small_disk: Path) -> None:
    """Holes of a mapped tmpfs file need pages when they are read: readers must not read holes."""
    resize(small_disk, "20000k")
    log = multilog.create(small_disk / "t.ml", ALL_TYPES, segment_blocks=2)
    with log.writer() as writer:
        columns = random_columns(ALL_TYPES, 65_000, 1, zero=0.8)
        for _ in range(2):
            writer.append(block_of(ALL_TYPES, columns))
    fill_disk(small_disk)
    for reader in (log, multilog.open(small_disk / "t.ml")):
        (read,) = read_columns(reader)
        assert read == [c.tobytes() * 2 for c in columns]
    assert list(verify(log)) == []
