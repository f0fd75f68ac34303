"""Retention: removes whole segments, oldest first; readers with a version lose nothing; no silent errors."""

from __future__ import annotations

import errno
import gc
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.errors import BusyError, StoreError, UsageError
from confluo_tools.multilog import lane_claim, removal_record, retain, views
from confluo_tools.multilog.query.plan import QueryPlan
from confluo_tools.multilog.reader import LogReader
from confluo_tools.multilog.tails import Tails
from confluo_tools.multilog.verify import verify
from confluo_tools.schema import Field, Schema
from running import ROOT, SUPPORT, environment, run, script
from timed_rows import SECOND, TIMED, block, fill

UNTIMED = Schema("untimed", [Field("seq", "u64")])


def sealed_up_to(log: multilog.Log, lane: int, row: int) -> None:
    """Full segments are sealed by a thread of the writer: wait for it."""
    for _ in range(2000):
        if log.control.sealed(lane) >= row:
            return
        time.sleep(0.005)
    pytest.fail(f"lane {lane} is not sealed up to row {row}")


def rows_of(log: multilog.Log, version: multilog.Version | None = None) -> dict[int, list[tuple[int, int]]]:
    """Lane -> runs (first seq, rows) of what can be read; every block is checked."""
    out: dict[int, list[tuple[int, int]]] = {}
    for b in log.blocks(version):
        assert b.check()
        seq = np.frombuffer(b.buffer(2), "<u8")
        assert (np.diff(seq) == 1).all()
        assert seq[0] == b.base
        runs = out.setdefault(b.lane, [])
        if runs and sum(runs[-1]) == seq[0]:
            runs[-1] = (runs[-1][0], runs[-1][1] + len(seq))
        else:
            runs.append((int(seq[0]), len(seq)))
    assert log.damage == []
    return out


def files(log: multilog.Log) -> list[str]:
    return sorted(str(p.relative_to(log.path)) for p in Path(log.path).rglob("seg-*"))


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("1h,10G", (3600 * SECOND, 10**10)),
        ("10G,1h", (3600 * SECOND, 10**10)),
        ("90s", (90 * SECOND, None)),
        ("10Gi", (None, 10 << 30)),
        (",64MiB", (None, 64 << 20)),
        ("10m", (600 * SECOND, None)),
        ("10M", (None, 10**7)),
    ],
)
def test_what_keep_says(text: str, meaning: tuple[int | None, int | None]) -> None:
    assert retain.parse_keep(text) == meaning


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "neither a time nor a size"),
        ("soon", "neither a time nor a size"),
        ("1h,2h", "two times"),
        ("1G,1G", "two sizes"),
        ("-1h", "is not a retention time"),
        ("10", "'10' has no unit"),
        ("1h,0", "'0' has no unit"),
    ],
)
def test_what_keep_cannot_say(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        retain.parse_keep(text)


def test_by_time_of_the_rows_not_of_the_files(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1000), (100, 2000), (100, 1500), (100, 3000))
    now = 0
    keeper = retain.Keeper(log, 100 * SECOND, now=lambda: now * SECOND)
    for now, first in ((1100, 0), (1101, 100), (1600, 100), (2100, 100), (2101, 300), (3100, 300), (3101, 400)):
        keeper.step()
        assert log.control.first(0) == first, now
        assert rows_of(log) == ({0: [(first, 400 - first)]} if first < 400 else {})
        assert list(verify(log)) == []
    assert files(log) == []
    fill(log, (50, 9000))  # row numbers continue
    assert rows_of(multilog.open(log.path)) == {0: [(400, 50)]}
    assert log.version().rows == 450
    assert log.version().kept == 50


def test_age_of_old_records_counts_from_the_newest(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1000), (100, 2000), (100, 1500), (100, 3000))
    assert retain.Keeper(log, 2001 * SECOND, from_newest=True).step() == 0  # by the clock all are decades old
    keeper = retain.Keeper(log, 1500 * SECOND, from_newest=True)
    assert [s.base for s in keeper.planned_removals()] == [0]
    assert keeper.step() == 1
    assert rows_of(log) == {0: [(100, 300)]}
    assert retain.Keeper(log, 500 * SECOND, from_newest=True, now=lambda: 2100 * SECOND).step() == 0  # of the future
    assert retain.Keeper(log, 500 * SECOND, from_newest=True, now=lambda: 2600 * SECOND).step() == 2


def test_the_growing_segment_stays(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED, segment_blocks=1)
    writer = log.writer(ahead=-1)
    for start in range(0, 150_000, 10_000):
        writer.append(block(0, start, 10_000, SECOND))
    keeper = retain.Keeper(log, 1, 0)
    sealed_up_to(log, 0, 131_072)
    assert keeper.step() == 2
    assert rows_of(log) == {0: [(131_072, 150_000 - 131_072)]}
    writer.append(block(0, 150_000, 10, SECOND))
    assert keeper.step() == 0
    writer.close()
    assert keeper.step() == 1
    assert rows_of(log) == {}
    assert list(verify(log)) == []


def test_by_size_the_oldest_of_any_lane_goes_first(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    writers = [log.writer(ahead=-1) for _ in range(3)]
    newest = {0: 500, 1: 100, 2: 300}
    for lane, writer in enumerate(writers):
        writer.append(block(lane, 0, 40_000, newest[lane] * SECOND))
        writer.close()
    views.build(log, views.add_index(log, "seq"))
    used = retain.disk_use(log.path)
    assert used == int(
        subprocess.run(["du", "-s", "-B1", log.path], capture_output=True, text=True, check=True).stdout.split()[0]
    ) - sum(p.stat().st_blocks * 512 for p in [Path(log.path), *Path(log.path).rglob("*")] if p.is_dir())
    gone: list[int] = []
    for _ in range(3):
        keeper = retain.Keeper(log, None, retain.disk_use(log.path) - 1)
        assert keeper.step() == 1
        assert keeper.bytes > 40_000 * 8
        gone += [lane for lane in range(3) if log.control.first(lane) and lane not in gone]
        assert {lane for lane, _ in rows_of(log).items()} == set(range(3)) - set(gone)
        assert not any(f"lane-{lane:03d}/seg-" in f for lane in gone for f in files(log))
    assert gone == [1, 2, 0]
    assert retain.Keeper(log, None, 0).step() == 0


def test_without_times_there_is_a_size(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", UNTIMED)
    with pytest.raises(UsageError, match="have no time"):
        retain.Keeper(log, 5)
    for k in range(3):
        with log.writer(ahead=-1) as writer:
            writer.append(Block.wrap(UNTIMED.layout, 1000, [np.arange(1000, dtype="<u8").tobytes()]))
        os.utime(lane_claim.list_segments(lane_claim.lane_folder(log.path, 0))[-1][1], (k, k))
    assert retain.Keeper(log, None, retain.disk_use(log.path) - 1).step() == 1
    assert [p.base for p in log.segments()] == [1000, 2000]


def test_readers_that_hold_a_version(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1), (200, 2), (300, 3))
    views.build(log, views.add_index(log, "seq"))
    other = multilog.open(log.path, readonly=True)
    pinned, loose = other.version(pin=True), multilog.open(log.path).version()
    told: list[str] = []
    reader = LogReader(log.path, warn=told.append, note=told.append)
    begun = iter(reader)
    first = next(begun)
    assert retain.Keeper(log, 1, now=lambda: 3 * SECOND).step() == 2
    assert rows_of(other, pinned) == {0: [(0, 600)]}
    assert [len(first), *map(len, begun)] == [100, 200, 300]
    assert told == []
    assert [len(b) for b, _ in QueryPlan(other, pinned)] == [100, 200, 300]

    late = multilog.open(log.path)
    plan = QueryPlan(late, loose)
    assert [len(b) for b, _ in plan] == [300]
    assert plan.left_out == [(log.path, "300 rows of lane 0 were removed by retention in the meantime")]
    assert late.damage == []
    fresh = QueryPlan(late)
    assert [len(b) for b, _ in fresh] == [300]
    assert fresh.left_out == []
    assert late.row_block(0, 299) is None
    assert late.row_block(0, 300) is not None
    assert sorted(Path(log.path, "views").rglob("seg-*")) == sorted(Path(log.path, "views").rglob("seg-*0300.idx"))


def test_a_log_of_which_everything_went_is_searched_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "t.ml"
    fill(multilog.create(path, TIMED), (1000, 1), (1000, 2), (1000, 2_000_000_000))
    assert retain.Keeper(multilog.open(path), 1).step() == 2
    assert run("confluo-query", path, "--count").stdout == b"1000\n"
    assert run("confluo-query", path, "seq < 2000", "--count").stdout == b"0\n"
    assert run("confluo-info", "--verify", path).stdout.decode() == f"{path}: 1,000 rows, whole\n"
    facts = json.loads(run("confluo-info", "-J", path).stdout)
    assert facts["rows"] == 1000
    assert facts["lanes"][0] | {"rows": 3000, "removed": 2000, "segments": 1} == facts["lanes"][0]


def test_missing_files_are_still_damage(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1), (100, 2), (100, 3), (100, 4))
    retain.Keeper(log, 1, now=lambda: 2 * SECOND).step()
    os.unlink(lane_claim.list_segments(lane_claim.lane_folder(log.path, 0))[1][1])
    assert [str(f).split(": ")[1] for f in verify(log)] == ["rows 200 to 299 are missing"]
    late = multilog.open(log.path)
    assert [len(b) for b in late.blocks()] == [100, 100]
    assert [reason for _, _, reason in late.damage] == ["rows 200 to 299 are missing"]


def test_a_damaged_segment_goes_with_the_next(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1), (100, 2), (100, 3))
    with open(lane_claim.list_segments(lane_claim.lane_folder(log.path, 0))[0][1], "r+b") as f:
        f.truncate(5000)
    keeper = retain.Keeper(log, 1, now=lambda: 2 * SECOND)
    assert keeper.step() == 0  # the second is not old enough, the first has no known time
    keeper = retain.Keeper(log, 1, now=lambda: 3 * SECOND)
    assert keeper.step() == 2
    assert list(verify(log)) == []


def test_two_keepers(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1))
    with retain.removal_lock(log):
        assert retain.Keeper(log, 1).step() == 0
        with pytest.raises(BusyError, match="another process is removing"):
            retain.Keeper(log, 1).step(wait=0.01)
    assert retain.Keeper(log, 1).step() == 1
    with pytest.raises(StoreError, match="cannot remove segments"):
        retain.Keeper(multilog.open(log.path, readonly=True), 1)
    with pytest.raises(ValueError, match="is not sealed"):
        log.control.set_first(0, 101)


# -- killed at every step ------------------------------------------------------------------------------------------

STEP = """
import sys
from confluo_tools import multilog
from confluo_tools.multilog import retain
print(retain.Keeper(multilog.open(sys.argv[1]), 1, now=lambda: int(sys.argv[2])).step())
"""


def step(path: Path, now: int, fault: str = "") -> int:
    return script(STEP, path, str(now * SECOND), stdout=subprocess.DEVNULL, env=environment(CONFLUO_FAULT=fault)).wait()


POINTS = sorted(set(re.findall(r'fault\("([\w-]+)"\)', (ROOT / "confluo_tools/multilog/retain.py").read_text())))


@pytest.mark.parametrize("point", POINTS)
def test_death_at_every_step(tmp_path: Path, point: str) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, *[(100, t) for t in range(1, 6)])
    views.build(log, views.add_index(log, "seq"))
    before = log.version(pin=True)
    deaths = 0
    for passing in (1, 2, 3, 4):
        status = step(Path(log.path), 5, f"{point}:{passing}")
        deaths += status == -signal.SIGKILL
        assert rows_of(multilog.open(log.path)) == {0: [(400, 100)]}
        assert rows_of(log, before) == {0: [(0, 500)]}
        assert [f for f in verify(log) if f.damage] == []
        if status == 0:
            break
    assert deaths
    assert step(Path(log.path), 5) == 0
    assert files(log) == ["lane-000/seg-0000000000000400.arrow", "views/index-seq/lane-000/seg-0000000000000400.idx"]
    assert list(verify(log)) == []
    fill(log, (10, 9))
    assert rows_of(multilog.open(log.path)) == {0: [(400, 110)]}


# -- writers, readers and a keeper at once -------------------------------------------------------------------------

WRITE = """
import sys
sys.path.insert(0, sys.argv[2])
from timed_rows import block
from confluo_tools import multilog
log = multilog.open(sys.argv[1])
for k in range(30):
    sys.stdout.write("1")
    sys.stdout.flush()
    sys.stdin.read(1)
    with log.writer(ahead=-1) as w:
        base = w.base
        for start in range(0, 2000 if k % 10 else 70000, 2000):
            w.append(block(w.number, base + start, 2000, 1))
"""


def go_on(writer: subprocess.Popen[bytes]) -> None:
    """Let it write its next segments, if it waits."""
    assert writer.stdin is not None
    assert writer.stdout is not None
    with suppress(BrokenPipeError):  # it has ended
        writer.stdin.write(writer.stdout.read() or b"")


def test_readers_meanwhile(tmp_path: Path) -> None:
    """Two writers add segments, a keeper removes them: each reader sees one contiguous range of rows per lane."""
    log = multilog.create(tmp_path / "t.ml", TIMED, segment_blocks=1)
    words = [sys.executable, "-c", WRITE, log.path, str(SUPPORT)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    processes = [subprocess.Popen(words, cwd=ROOT, **pipes) for _ in range(2)]
    for p in processes:
        assert p.stdout is not None
        os.set_blocking(p.stdout.fileno(), False)
    keeper = retain.Keeper(multilog.open(log.path), 1)
    gone = seen = 0
    slow = multilog.open(log.path, readonly=True)
    for turn in itertools.count():
        if all(p.poll() is not None for p in processes):
            break
        for p in processes:
            go_on(p)
        fresh = slow if turn % 2 else multilog.open(log.path, readonly=True)
        version = fresh.version(pin=turn % 4 < 2)
        gone += keeper.step()
        removed = len(fresh.removed)
        runs = rows_of(fresh, version)
        missing = {lane: end - start for lane, start, end in fresh.removed[removed:]}
        assert version.pinned is None or not missing
        for lane, tail in enumerate(version.tails):
            ((first, n),) = runs.get(lane, [(tail, 0)])
            assert first + n == tail
            assert n + missing.get(lane, 0) == tail - version.firsts[lane]
            seen += n
    for p in processes:
        p.communicate()
    assert [p.returncode for p in processes] == [0, 0]
    keeper.step()
    assert rows_of(log) == {}
    assert gone > 50
    assert seen > 1000
    assert [f for f in verify(log) if f.damage] == []


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("append"), st.integers(0, 1), st.sampled_from([1, 50, 30_000, 60_000]), st.integers(1, 40)
            ),
            st.tuples(st.just("close"), st.integers(0, 1)),
            st.tuples(st.just("time"), st.integers(1, 45)),
            st.tuples(st.just("size"), st.integers(0, 5)),
            st.tuples(st.just("hold")),
        ),
        max_size=14,
    )
)
def test_against_a_model(tmp_path_factory: pytest.TempPathFactory, does: list[Any]) -> None:
    """A model with plain lists; a pinned version reads the same at the end, after any removals."""
    log = multilog.create(tmp_path_factory.mktemp("model") / "t.ml", TIMED, segment_blocks=1, lanes=2)
    writers: dict[int, Any] = {}
    sealed: dict[int, list[list[int]]] = {0: [], 1: []}  # lane -> [first, end, newest] of each sealed segment
    grown: dict[int, list[list[int]]] = {0: [], 1: []}  # the last of them grows
    held = []

    def expected() -> dict[int, list[tuple[int, int]]]:
        runs = {}
        for lane in (0, 1):
            kept = sealed[lane] + grown[lane]
            if kept:
                runs[lane] = [(kept[0][0], kept[-1][1] - kept[0][0])]
        return runs

    def take(lane: int) -> None:
        sealed[lane] += grown[lane]
        grown[lane] = []

    for what, *args in does:
        if what == "append":
            lane, rows, ts = args
            if lane not in writers:
                taken = [log.writer(ahead=-1)]
                while taken[-1].number != lane:
                    taken.append(log.writer(ahead=-1))
                writers[lane] = taken.pop()
                for w in taken:
                    w.close()
                grown[lane] = []
            at = log.version()[lane]
            writers[lane].append(block(lane, at, rows, ts * SECOND))
            end = at + rows
            while at < end:  # like the log: 65,536 rows per segment, sealed when the next one starts
                if not grown[lane] or grown[lane][-1][1] - grown[lane][-1][0] == 65536:
                    take(lane)
                    grown[lane].append([at, at, 0])
                last = grown[lane][-1]
                at = last[1] = min(end, last[0] + 65536)
                last[2] = max(last[2], ts if at == end else ts - 1)
            sealed_up_to(log, lane, grown[lane][-1][0])
        elif what == "close" and args[0] in writers:
            writers.pop(args[0]).close()
            take(args[0])
        elif what == "time":
            retain.Keeper(log, 1 * SECOND, now=lambda now=args[0]: now * SECOND).step()
            for lane in (0, 1):
                while sealed[lane] and sealed[lane][0][2] < args[0] - 1:
                    sealed[lane].pop(0)
        elif what == "size":
            for _ in range(args[0]):
                heads = [(s[0][2], lane) for lane, s in sealed.items() if s]
                keeper = retain.Keeper(log, None, 0)
                looks = itertools.chain([1], itertools.repeat(0))  # too large once
                keeper._used_bytes = looks.__next__  # type: ignore[method-assign]
                assert keeper.step() == bool(heads)
                if heads:
                    sealed[min(heads)[1]].pop(0)
        elif what == "hold":
            held.append((log.version(pin=True), expected()))
        assert rows_of(log) == expected()
    for version, was in held:
        assert rows_of(log, version) == was
    for w in writers.values():
        w.close()
    assert list(verify(log)) == []


def test_a_step_with_nothing_to_do_is_cheap(tmp_path: Path) -> None:
    """No folder is read again while nothing is sealed; counts system calls."""
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, *[(10, 5)] * 20)
    keeper = retain.Keeper(log, 10**9, 1 << 40, now=lambda: 0)
    keeper.step()
    keeper._due = time.monotonic() + 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_claim, "list_segments", lambda *_: pytest.fail("looked at the folder"))
        patch.setattr(log, "open_segment", lambda *_: pytest.fail("opened a segment"))
        assert keeper.step() == 0


@pytest.mark.parametrize("limits", [(None, 1), (SECOND, None), (SECOND, 1)])
def test_a_full_disk_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: tuple[int | None, int | None]
) -> None:
    """The record of what is removed needs a block of the disk.  Without it each segment goes once, all the same."""
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (100, 1000), (100, 2000), (100, 3000))
    tries = []

    def full(path: str, firsts: dict[int, int]) -> None:
        tries.append(firsts)
        assert len(tries) <= 3
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(removal_record, "record", full)
    assert retain.Keeper(log, *limits).step() == 3
    assert log.version().kept == 0
    assert log.damage == []
    fill(log, (100, 4000))
    assert retain.Keeper(log, None, 10**9).step() == 0
    assert rows_of(log) == {0: [(300, 100)]}


def test_removed_segments_give_their_space_back(tmp_path: Path) -> None:
    """A process that goes on keeps no map of them, without waiting for the garbage collector of Python."""

    def removed() -> int:
        maps = Path("/proc/self/maps").read_text().splitlines()
        return sum(str(tmp_path) in line and line.endswith(".arrow (deleted)") for line in maps)

    gc.collect()
    gc.disable()
    try:
        with multilog.create(tmp_path / "t.ml", TIMED) as log, Tails(str(tmp_path / "t.ml")) as tails:
            keeper = retain.Keeper(log, SECOND)
            reader = multilog.open(log.path)
            for second in range(1000, 5000, 1000):
                fill(log, (100, second))
                assert sum(block.rows for block in reader.blocks()) == 100
                assert [block.rows for stream in tails.streams() for block in stream] == [100]
                assert keeper.step() == 1
            fill(log, (100, 9000))
            assert sum(block.rows for block in reader.blocks()) == 100
            assert [block.rows for stream in tails.streams() for block in stream] == [100]
            assert removed() <= 1  # that of the follower, until it reads on
    finally:
        gc.enable()
