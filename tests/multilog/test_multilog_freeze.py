"""Atomic cuts and freezes: consistency of versions, and effect of a coordinator on writers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from confluo_tools import multilog
from log_rows import SIGNED, signed_block, signed_rows


def visible(log: multilog.Log) -> int:
    return sum(b.rows for b in log.blocks())


def wait_for(log: multilog.Log, rows: int) -> None:
    until = time.monotonic() + 20
    while log.version().rows != rows:
        assert time.monotonic() < until, f"{log.version()} instead of {rows} rows"
        time.sleep(0.001)


@pytest.mark.parametrize("ahead", [-1, 1])
def test_frozen_rows_wait_and_then_appear(tmp_path: Path, ahead: int) -> None:
    log = multilog.create(tmp_path / "t.ml", SIGNED, segment_blocks=1)
    writer = log.writer(ahead=ahead)
    writer.append(signed_block(1, 0, 10))
    token = log.control.freeze(20_000_000_000)
    for k in range(5):  # also across blocks and segments
        writer.append(signed_block(1, 10 + k * 50_000, 50_000))
        assert (log.version().rows, visible(log), writer.rows) == (10, 10, 10 + (k + 1) * 50_000)
        assert not writer.poll()
    assert log.control.thaw(token)
    wait_for(log, 250_010)  # without another append
    assert writer.poll()
    writer.close()
    assert next(run for b in log.blocks() for run in signed_rows(b)) == (1, 0, 65536)
    assert visible(log) == 250_010
    assert log.damage == []


def test_freezes_overlap(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", SIGNED)
    with log.writer() as a, log.writer() as b:
        first, second = log.control.freeze(20_000_000_000), log.control.freeze(20_000_000_000)
        a.append(signed_block(1, 0, 5))
        b.append(signed_block(2, 0, 5))
        assert log.control.lane(0)["freezes"] == log.control.lane(1)["freezes"] == 2
        assert log.control.thaw(first)
        a.append(signed_block(1, 5, 5))
        assert log.version().rows == 0
        assert log.control.thaw(second)
        a.flush()
        b.flush()
        assert log.version().tails == (10, 5)
        many = [log.control.freeze() for _ in range(255)]
        with pytest.raises(OverflowError, match="255 freezes"):
            log.control.freeze()
        assert all(log.control.thaw(t) for t in many)


def test_a_freeze_ends_by_itself(tmp_path: Path) -> None:
    """A dead coordinator must not stop a log: the deadline breaks its freeze, and a late thaw reports it."""
    log = multilog.create(tmp_path / "t.ml", SIGNED)
    code = f"""
from confluo_tools import multilog
import os, signal
log = multilog.open({str(tmp_path / "t.ml")!r})
log.control.freeze(300_000_000)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with log.writer() as writer:
        writer.append(signed_block(1, 0, 5))
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
        assert log.control.lane(0)["freezes"] == 1
        writer.append(signed_block(1, 5, 5))
        wait_for(log, 10)
        late = log.control.freeze(1_000_000)
        writer.append(signed_block(1, 10, 5))
        wait_for(log, 15)
        assert log.control.lane(0)["broken"] == 2
        assert not log.control.thaw(late)
        assert log.control.lane(0)["freezes"] == 0
        writer.append(signed_block(1, 15, 5))
        assert log.version().rows == 20


def test_a_leftover_freeze_is_not_prolonged_by_others(tmp_path: Path) -> None:
    """Later coordinators do not change the deadline of a dead one."""
    log = multilog.create(tmp_path / "t.ml", SIGNED)
    with log.writer() as writer:
        log.control.freeze(200_000_000)  # never thawed
        until = time.monotonic() + 10
        while log.control.lane(0)["freezes"]:
            log.control.thaw(log.control.freeze(5_000_000_000))
            writer.append(signed_block(1, writer.rows, 1))
            assert time.monotonic() < until


def test_closing_waits_for_the_thaw(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", SIGNED)
    writer = log.writer()
    token = log.control.freeze(10_000_000_000)
    writer.append(signed_block(1, 0, 100))
    threading.Timer(0.05, log.control.thaw, [token]).start()
    writer.close()
    assert visible(log) == 100
    assert log.segments()[0].sealed


def test_dying_while_frozen_loses_what_nobody_saw(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", SIGNED, segment_blocks=1)
    writer = log.writer()
    writer.append(signed_block(1, 0, 60_000))
    token = log.control.freeze(20_000_000_000)
    for k in range(4):
        writer.append(signed_block(1, 60_000 + k * 60_000, 60_000))
    writer.stop()
    assert log.control.thaw(token)
    assert visible(log) == 60_000
    with log.writer() as again:
        assert again.base == 60_000
        again.append(signed_block(1, 60_000, 10))
    assert [run for b in log.blocks() for run in signed_rows(b)] == [(1, 0, 60_000), (1, 60_000, 10)]
    assert log.damage == []


PAIR = """
import sys
from log_rows import signed_block
from confluo_tools import multilog
log = multilog.open(sys.argv[1])
a, b = log.writer(), log.writer()
blocks = [signed_block(w, 0, 1) for w in (1, 2)]
print("ready", flush=True)
for _ in range(10**9):
    a.append(blocks[0])
    a.flush()
    b.append(blocks[1])
    b.flush()
"""


@pytest.mark.parametrize("readonly", [False, True])
def test_a_version_is_an_atomic_cut(tmp_path: Path, readonly: bool) -> None:
    """Lane 0 always publishes its row before lane 1: no version may show lane 1 ahead, or lane 0 two ahead."""
    multilog.create(tmp_path / "t.ml", SIGNED)
    here = Path(__file__).resolve().parents[1] / "support"
    env = {**os.environ, "PYTHONPATH": f"{here.parents[1]}{os.pathsep}{here}"}
    writer = subprocess.Popen([sys.executable, "-c", PAIR, tmp_path / "t.ml"], stdout=subprocess.PIPE, env=env)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        log = multilog.open(tmp_path / "t.ml", readonly=readonly)
        before = multilog.Version()
        looks = 0
        while looks < 3000 or before.rows < 5000:
            looks += 1
            version = log.version()
            assert 0 <= version[0] - version[1] <= 1, version
            assert before <= version
            before = version
        if not readonly:
            for _ in range(300):  # always by a freeze
                token = log.control.freeze()
                tails = log.control.tails()
                again = log.control.tails()
                assert log.control.thaw(token)
                assert tails == again
                assert 0 <= tails[0] - tails[1] <= 1
    finally:
        writer.kill()
        writer.communicate()
    assert before.rows > 0
