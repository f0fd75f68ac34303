"""Following logs: every row once, in time order as far as available, also when the log is moved or replaced."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.formats.block_builder import block_of
from confluo_tools.multilog import retain
from confluo_tools.multilog import tails as module
from confluo_tools.multilog.tails import LAST, Tails
from confluo_tools.schema import Field, Schema

ROWS = Schema("rows", [Field("ts", "time"), Field("n", "u64")])


def rows(times: list[int], first: int) -> Block:
    return block_of(ROWS, {"ts": times, "n": list(range(first, first + len(times)))}, len(times))


def taken(tails: Tails, grown: list[tuple[int, int]]) -> None:
    """The new rows; no block is older than the mark before it."""
    mark = -LAST
    for part, after in tails.take():
        its = [(part.get(0, r), part.get(1, r)) for r in range(part.rows)]
        assert min(its)[0] >= mark
        mark = -LAST if after == LAST else after
        grown += its


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 700), st.booleans()), max_size=25), st.randoms())
def test_every_row_comes_once(steps: list[tuple[int, int, bool]], rng: random.Random) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        log = stack.enter_context(multilog.create(f"{folder}/x.ml", ROWS, segment_blocks=2))
        lanes = [stack.enter_context(log.writer()) for _ in range(4)]
        clocks = [rng.randrange(10**6) for _ in lanes]
        tails = stack.enter_context(Tails(f"{folder}/x.ml"))
        wanted: list[tuple[int, int]] = []
        found: list[tuple[int, int]] = []
        for lane, count, look in steps:
            times = [clocks[lane] + i for i in range(count)]
            clocks[lane] += count + rng.randrange(100)
            block = rows(times, len(wanted))
            wanted += zip(times, range(len(wanted), len(wanted) + count), strict=True)
            lanes[lane].append(block)
            lanes[lane].flush()
            if look:
                taken(tails, found)
        taken(tails, found)
        assert Counter(found) == Counter(wanted)
        assert tails.missed == 0


def test_a_log_that_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rows of the moved log come before the first of its replacement; logs of other kinds are ignored."""
    monkeypatch.setattr(module, "MOVED", 0.0)
    path = tmp_path / "x.ml"

    def begin(schema: Schema = ROWS) -> Any:
        return multilog.create(str(path), schema)

    found: list[tuple[int, int]] = []
    with begin() as first, Tails(str(path)) as tails:
        with first.writer() as writer:
            writer.append(rows([1, 2], 0))
            writer.flush()
            taken(tails, found)
            assert not tails.moved()
            writer.append(rows([3], 2))
        path.rename(tmp_path / "away.ml")
        assert not tails.moved()  # no log at the path yet
        with begin() as second:
            assert not tails.moved()  # one row was not read yet
            taken(tails, found)
            assert tails.moved()
            with second.writer() as writer:
                writer.append(rows([4, 5], 3))
            taken(tails, found)
        path.rename(tmp_path / "too.ml")
        with begin(Schema("other", [Field("ts", "time")])):
            assert not tails.moved()
        taken(tails, found)
    assert found == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]


def gone(log: Any, first: int) -> None:
    end = time.monotonic() + 30
    while log.control.sealed(0) < first and time.monotonic() < end:
        time.sleep(0.01)
    with retain.removal_lock(log):
        retain.remove(log, {0: first})


def test_rows_that_are_gone_are_counted_and_old_parts_are_left_out(tmp_path: Path) -> None:
    size = 65536  # rows of a block, here also of a segment
    path = str(tmp_path / "x.ml")
    with (
        multilog.create(path, ROWS, segment_blocks=1) as log,
        Tails(path) as all_,
        Tails(path, after=size + 10) as some,
    ):
        with log.writer() as writer:
            for first in range(0, 3 * size, size):
                writer.append(rows(list(range(first, first + size)), first))
            writer.flush()
            found: list[tuple[int, int]] = []
            taken(some, found)
            assert [found[0], found[-1], len(found)] == [(size, size), (3 * size - 1, 3 * size - 1), 2 * size]
            gone(log, size)
            found = []
            taken(all_, found)
        assert [found[0], len(found)] == [(size, size), 2 * size]
        # New cursors do not count rows that were removed before.
        assert (all_.missed, some.missed) == (0, 0)


def test_rows_that_go_before_they_are_seen(tmp_path: Path) -> None:
    size = 65536
    path = str(tmp_path / "x.ml")
    with multilog.create(path, ROWS, segment_blocks=1) as log, Tails(path) as tails:
        found: list[tuple[int, int]] = []
        with log.writer() as writer:
            writer.append(rows([0], 0))
            writer.flush()
            taken(tails, found)
            writer.append(rows(list(range(1, size)), 1))
            writer.append(rows(list(range(size, 2 * size)), size))
            writer.flush()
            gone(log, size)
            taken(tails, found)
        assert [found[0], found[1], len(found)] == [(0, 0), (size, size), size + 1]
        assert tails.missed == size - 1
