"""One flipped bit in a lane's line of the control page: the answer is right or the damage is named; no segment goes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from confluo_tools import multilog
from confluo_tools.multilog.retain import Keeper, SegmentCatalog, removal_lock, remove
from confluo_tools.multilog.verify import verify
from log_rows import SIGNED, signed_block, signed_rows

PAGE, LINE = 4096, 64
WORDS = {"tail": 0, "sealed": 16, "first": 24}


def make(path: Path, sessions: int, removed: int) -> multilog.Log:
    """A log of one lane with small sealed segments, of which retention removed the first ones."""
    log = multilog.create(path, SIGNED, segment_blocks=1, sync="none")
    for k in range(sessions):
        with log.writer(ahead=-1) as writer:
            writer.append(signed_block(1, k * 64, 64))
    if removed:
        with removal_lock(log):
            remove(log, {0: SegmentCatalog(log).lane(0)[removed].base})
    return log


def rows(log: multilog.Log) -> list[tuple[int, int, int]]:
    return [row for block in log.blocks() for row in signed_rows(block)]


def segments(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(path.glob("lane-*/seg-*"))}


def flip(path: Path, bit: int) -> None:
    with open(path / "control", "r+b") as f:
        f.seek(PAGE + bit // 8)
        byte = f.read(1)[0]
        f.seek(PAGE + bit // 8)
        f.write(bytes([byte ^ 1 << bit % 8]))


@pytest.mark.parametrize("removed", [0, 2])
def test_every_bit_for_a_reader(removed: int, tmp_path: Path) -> None:
    path = tmp_path / "t.ml"
    expected = rows(make(path, 4, removed))
    wrong = []
    for bit in range(LINE * 8):
        flip(path, bit)
        log = multilog.open(path)
        found = rows(log)
        if found != expected and not log.damage:
            wrong.append(bit)
        flip(path, bit)
    assert wrong == []


@pytest.mark.parametrize("removed", [0, 2])
def test_every_bit_for_the_next_writer_and_for_retention(removed: int, tmp_path: Path) -> None:
    original = tmp_path / "original.ml"
    expected = rows(make(original, 4, removed))
    before = segments(original)
    for name, at in WORDS.items():
        for bit in range(at * 8, at * 8 + (64 if removed else 12)):  # higher bits are the same with and without
            path = tmp_path / "t.ml"
            shutil.copytree(original, path)
            flip(path, bit)
            log = multilog.open(path)
            Keeper(log, size=1 << 40).step()
            with log.writer(ahead=-1) as writer:
                writer.append(signed_block(2, 0, 64))
            after = segments(path)
            assert {n: after.get(n) for n in before} == before, f"bit {bit - at * 8} of {name}"
            log = multilog.open(path)
            found = rows(log)
            new = signed_rows(signed_block(2, 0, 64))
            assert sorted(found) == sorted(expected + new) or log.damage, f"bit {bit - at * 8} of {name}"
            shutil.rmtree(path)


def test_a_tail_that_lost_a_bit_is_raised_by_the_seals(tmp_path: Path) -> None:
    path = tmp_path / "t.ml"
    make(path, 3, 1)
    flip(path, 7)  # 192 -> 64
    assert multilog.open(path).control.rows(0) == 64
    with multilog.open(path).writer(ahead=-1) as writer:
        writer.append(signed_block(2, 0, 64))
        assert writer.number == 0
    log = multilog.open(path)
    assert log.version().tails == (256,)
    assert rows(log) == [(1, 64, 64), (1, 128, 64), (2, 0, 64)]
    assert [f for f in verify(log) if f.damage] == []


def test_a_first_that_hides_rows_is_named_and_the_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.ml"
    expected = rows(make(path, 4, 0))
    flip(path, 24 * 8 + 7)  # 0 -> 128: the first row of a segment, below `sealed`
    log = multilog.open(path)
    assert rows(log) == expected
    assert any("the line of lane 0 is damaged" in reason for _, _, reason in log.damage)
    assert any("the line of lane 0 is damaged" in f.what for f in verify(multilog.open(path)))


def test_files_of_an_interrupted_retention_go_only_if_it_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "t.ml"
    log = make(path, 4, 0)
    shutil.copytree(path / "lane-000", tmp_path / "kept")
    with removal_lock(log):
        remove(log, {0: 128})
    for name in os.listdir(tmp_path / "kept"):
        shutil.copy(tmp_path / "kept" / name, path / "lane-000" / name)  # as if the unlinks had not happened
    Keeper(multilog.open(path), size=1 << 40).step()
    assert len(segments(path)) == 2
    assert multilog.open(path).damage == []
