"""Rows come by time, then lane, then number, in whatever order they were written."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from archive_lab import run_all
from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.expr import compile
from confluo_tools.multilog.archive import writer
from confluo_tools.multilog.archive.log_with_archive import LogWithArchiveReader
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.log import Log
from confluo_tools.multilog.query import time_order
from confluo_tools.multilog.query.plan import QueryPlan
from confluo_tools.schema import Field, Schema
from running import run

SCHEMA = Schema("toy", [Field("ts", "time"), Field("lane", "u16"), Field("row", "u32")])
START = 1_700_000_000 * 10**9
Row = tuple[int, int, int]  # time, lane, number


def block_of(rows: list[Row]) -> Block:
    columns = [struct.pack(f"<{len(rows)}{c}", *(r[i] for r in rows)) for i, c in enumerate("qHI")]
    return Block.wrap(SCHEMA.layout, len(rows), columns)


def write(path: Path, lanes: list[list[list[int]]]) -> list[Row]:
    """A log; of each lane the times of each segment.  Returns its rows in the order in which they are read."""
    rows: list[Row] = []
    with multilog.create(path, SCHEMA, segment_blocks=1) as log:
        for k in range(max(map(len, lanes))):
            writers = [log.writer(ahead=-1) for _ in lanes]  # a new writer, a new segment
            for lane, segments in enumerate(lanes):
                if k < len(segments):
                    done = sum(map(len, segments[:k]))
                    new = [(START + t, writers[lane].number, done + i) for i, t in enumerate(segments[k])]
                    writers[lane].append(block_of(new))
                    rows += new
            for writer in writers:
                writer.close()
    return sorted(rows)


def read(blocks: Any) -> list[Row]:
    found = (block.take(picks) for block, picks in blocks)
    return [
        row
        for block in found
        for row in zip(*(memoryview(block.buffer(i)).cast(c) for i, c in enumerate("qHI")), strict=True)
    ]


def shapes(rng: random.Random) -> dict[str, list[list[list[int]]]]:
    def rising(start: int, n: int, step: int = 3) -> list[int]:
        return [start + step * i + rng.randrange(step) for i in range(n)]

    return {
        "in order": [[rising(100 * k, 30) for k in range(6)], [rising(100 * k, 20) for k in range(4)]],
        "equal times": [[[5] * 20, [5] * 20, [4] * 20], [[5] * 30, [5] * 3]],
        "second part first": [[rising(5000, 40), rising(9000, 40), rising(0, 40)]],
        "ends meet": [[[10, 20], [0, 10], [20, 30], [10, 10]]],
        "a row of the future": [
            [[0, 1, 2, 10**15, 3, 4], *(rising(100 * k, 20) for k in range(1, 6))],
            [rising(0, 90)],
        ],
        "a row of the past": [[rising(0, 3000), [-(10**15)], rising(9000, 3000)]],
        "small steps back": [[[t + rng.randrange(-9, 9) for t in rising(90 * k, 30)] for k in range(9)]],
        "no order at all": [[[rng.randrange(5000) for _ in range(200)] for _ in range(9)] for _ in range(3)],
        "one time": [[[7] * 50 for _ in range(9)]],
    }


@pytest.mark.parametrize("shape", shapes(random.Random(0)))
@pytest.mark.parametrize("limit", [16, 2])
def test_rows_come_by_time_then_lane_then_number(
    tmp_path: Path, shape: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where more blocks overlap than are merged at once: then the lane is read in slices."""
    monkeypatch.setattr(time_order, "MAX_STREAMS", limit)
    monkeypatch.setattr(time_order, "SLICE_BYTES", 0)  # 4096 rows or more
    want = write(tmp_path / "t.ml", shapes(random.Random(1))[shape])
    with Log(tmp_path / "t.ml", readonly=True) as log:
        assert read(QueryPlan(log).ordered()) == want
        even = compile("row in 0..9 or row == 15", SCHEMA)
        assert read(QueryPlan(log, None, even).ordered()) == [r for r in want if r[2] <= 9 or r[2] == 15]
        since, until = START + 20, START + 3000
        assert read(QueryPlan(log, since=since, until=until).ordered()) == [r for r in want if since <= r[0] < until]
        assert sorted(read(QueryPlan(log))) == want


def test_slices_are_small_and_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many slices, one of them of a single instant with more rows than a slice may have."""
    rng = random.Random(2)
    times = [[rng.choice([7777, rng.randrange(10_000)]) for _ in range(1500)] for _ in range(30)]
    want = write(tmp_path / "t.ml", [times])
    monkeypatch.setattr(time_order, "MAX_STREAMS", 4)
    monkeypatch.setattr(time_order, "SLICE_BYTES", 0)
    slices = list(
        time_order._slices(
            0,
            [],
            lambda *_: iter([(block_of(want[at : at + 1500]), None, 0) for at in range(0, len(want), 1500)]),
            4096,
        )
    )
    assert len(slices) > 4
    assert (START + 7777, START + 7777) in slices
    assert all(a[1] < b[0] for a, b in pairwise(slices))
    with Log(tmp_path / "t.ml", readonly=True) as log:
        assert read(QueryPlan(log).ordered()) == want


def test_full_blocks_that_go_back(tmp_path: Path) -> None:
    """Blocks of 65,536 rows: those that come next as they are, and one that must be sorted."""
    later = list(range(100_000, 165_536))
    want = write(tmp_path / "t.ml", [[later, list(range(1000, 66_536)), [5, 4, 3]], [list(range(0, 40_000, 2))]])
    with Log(tmp_path / "t.ml", readonly=True) as log:
        assert read(QueryPlan(log).ordered()) == want


@pytest.mark.parametrize("limit", [16, 1])
@pytest.mark.parametrize("shape", ["second part first", "ends meet", "small steps back", "no order at all"])
def test_archives_come_in_the_same_order(
    tmp_path: Path, shape: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_order, "MAX_STREAMS", limit)
    monkeypatch.setattr(writer, "BATCH_ROWS", 1)
    want = write(tmp_path / "t.ml", shapes(random.Random(3))[shape])
    with multilog.open(tmp_path / "t.ml") as log:
        assert len(run_all(log, tmp_path / "archive")) > 2
    with LogWithArchiveReader(str(tmp_path / "t.ml")) as reader:
        assert read(reader.select(compile("", SCHEMA))) == want
    with ArchiveReader(str(tmp_path / "archive")) as reader:
        assert read(reader.select(compile("", SCHEMA))) == want


@pytest.mark.parametrize("back", [False, True])
def test_rows_that_are_equally_early_go_by_input(tmp_path: Path, back: bool) -> None:
    """`first` and `last` over several logs: the lane and the number of a row count within its log only."""
    a = [[[5, 9], [3]], [[3, 9]]]
    b = [[[3, 9]], [[9, 9]]]
    names = []
    for name, lanes in sorted({"a": a, "b": b}.items(), reverse=back):
        write(tmp_path / f"{name}.ml", lanes)
        names += ["-r", str(tmp_path / f"{name}.ml")]
    shown = ("-o", "tsv", "--no-header")
    rows = run("confluo-query", *names, "-f", "lane,row", *shown).stdout.split(b"\n")
    done = run("confluo-query", *names, "--agg", "first(lane),first(row),last(lane),last(row)", *shown)
    assert done.stdout == rows[0] + b"\t" + rows[-2] + b"\n"
    assert rows[0] == (b"0\t0" if back else b"0\t2")
