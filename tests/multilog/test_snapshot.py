"""Snapshots are atomic: writers on several logs exchange messages, and no cut has an effect without its cause."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from confluo_tools import multilog
from confluo_tools.core.multilog.freeze import MAX_LOGS, LogFreeze
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.multilog.snapshot import Snapshot
from confluo_tools.remote.address import parse
from confluo_tools.remote.connect import RemoteError
from confluo_tools.remote.snapshot_coordinator import SnapshotCoordinator
from log_rows import SIGNED, signed_block
from real_time import in_real_time
from remote_lab import env, tool
from running import BIN, run

SUPPORT = Path(__file__).resolve().parents[1] / "support"
MS = 1_000_000


@contextmanager
def ring(folder: Path, n: int) -> Iterator[list[Path]]:
    """Logs with writers that exchange messages."""
    paths = [folder / f"{i}.ml" for i in range(n)]
    for path in paths:
        multilog.create(path, SIGNED)
    more = {**os.environ, "PYTHONPATH": f"{SUPPORT.parents[1]}{os.pathsep}{SUPPORT}"}
    writers = subprocess.Popen(
        [sys.executable, SUPPORT / "causal_writers.py", *paths],
        stdout=subprocess.PIPE,
        env=more,
        start_new_session=True,
    )
    try:
        assert writers.stdout is not None
        assert writers.stdout.readline() == b"ready\n"
        yield paths
    finally:
        os.killpg(writers.pid, signal.SIGKILL)
        writers.communicate()


def broken(rows: list[int]) -> bool:
    """Whether an effect is seen without its cause: a log is ahead of its sender."""
    return any(b > a for a, b in itertools.pairwise(rows)) or rows[0] > rows[-1] + 1


def rows_of(tails: list[tuple[int, ...]]) -> list[int]:
    return [sum(t) for t in tails]


def test_no_effect_without_its_cause_here(tmp_path: Path) -> None:
    with ring(tmp_path, 3) as paths:
        cut = LogFreeze([multilog.open(path).control for path in paths])
        seen = set()
        until = time.monotonic() + 20
        looks = 0
        while looks < 5000 or len(seen) < 1000:
            assert time.monotonic() < until, f"{looks} snapshots, {len(seen)} different ones"
            looks += 1
            if cut.snap():
                rows = rows_of(cut.tails())
                assert not broken(rows)
                seen.add(tuple(rows))
        assert any(len(set(rows)) > 1 for rows in seen), "no snapshot fell between a cause and its effect"


def test_no_effect_without_its_cause_elsewhere(tmp_path: Path) -> None:
    """Each log on its own host, through the whole protocol; one of them is local."""
    with ring(tmp_path, 4) as paths:
        names = [(str(p), parse(f"sw{i}:{p}") if i else None) for i, p in enumerate(paths)]
        with SnapshotCoordinator(names, tool(tmp_path), "here") as coordinator:
            seen: set[tuple[int, ...]] = set()
            until, looks = time.monotonic() + 20, 0
            while looks < 2000 or len(seen) < 300:
                assert time.monotonic() < until, f"{looks} snapshots, {len(seen)} different ones"
                looks += 1
                snapshot = coordinator.take(1000 * MS)
                rows = rows_of([log.tails for log in snapshot.logs])
                assert not broken(rows)
                seen.add(tuple(rows))
        assert any(len(set(rows)) > 1 for rows in seen), "no snapshot fell between a cause and its effect"
        assert [log.name for log in snapshot.logs] == ["here", "sw1", "sw2", "sw3"]


def test_unfrozen_tails_do_break_it(tmp_path: Path) -> None:
    """Reading one log after the other is not atomic: the writers continue in between."""
    with ring(tmp_path, 3) as paths:
        controls = [multilog.open(path).control for path in paths]

        def naive(wait: float) -> list[int]:
            rows = []
            for control in controls:
                rows.append(sum(control.tails()))
                time.sleep(wait)
            return rows

        assert broken(naive(0.05))
        until = time.monotonic() + 20  # eventually also without a wait
        while not broken(naive(0)):
            assert time.monotonic() < until


def test_a_lane_that_comes_to_be_makes_a_cut_void(tmp_path: Path) -> None:
    """Rows of a writer that started after the freeze may be causes of rows on a host that was not frozen yet."""
    log = multilog.create(tmp_path / "a.ml", SIGNED)
    with log.writer() as first:
        first.append(signed_block(1, 0, 5))
        cut = LogFreeze([log.control])
        cut.freeze(20_000 * MS)
        with multilog.open(tmp_path / "a.ml").writer() as second:
            assert cut.thaw()  # it has no rows yet
            second.append(signed_block(2, 0, 3))
            assert cut.snap()
            assert cut.tails() == [(5, 3)]
            cut.freeze(20_000 * MS)
            with multilog.open(tmp_path / "a.ml").writer() as third:
                third.append(signed_block(3, 0, 1))
                assert not cut.thaw()
                assert cut.snap()
                assert cut.tails() == [(5, 3, 1)]


def test_cuts_overlap_and_are_undone(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "a.ml", SIGNED)
    with log.writer() as writer:
        writer.append(signed_block(1, 0, 5))
        one, two = LogFreeze([log.control]), LogFreeze([log.control])
        one.freeze(20_000 * MS)
        two.freeze(20_000 * MS)
        with pytest.raises(ValueError, match="already"):
            one.snap()
        writer.append(signed_block(1, 5, 5))
        assert one.thaw()
        assert not one.thaw()
        assert log.version().rows == 5
        del two  # deleted: it thaws
        writer.flush()
        assert log.version().rows == 10
        late = LogFreeze([log.control])
        late.freeze(1)
        assert not late.thaw()
        many = [LogFreeze([log.control]) for _ in range(255)]
        for cut in many:
            cut.freeze(20_000 * MS)
        with pytest.raises(OverflowError):
            late.freeze(20_000 * MS)
        with pytest.raises(OverflowError):
            late.snap()
        del many, cut
        assert log.control.lane(0)["freezes"] == 0
    with pytest.raises(ValueError, match="at most"):
        LogFreeze([log.control] * (MAX_LOGS + 1))
    readonly = multilog.open(tmp_path / "a.ml", readonly=True)
    with pytest.raises(PermissionError):
        LogFreeze([readonly.control])


def wait_until(true: Any, what: str) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.005)


@pytest.mark.parametrize("who", ["coordinator", "both"])
@in_real_time
def test_the_coordinator_dies_while_frozen(tmp_path: Path, who: str) -> None:
    """A killed coordinator does not thaw; the server notices, and if it is killed too, the deadline ends the freeze."""
    log = multilog.create(tmp_path / "a.ml", SIGNED)
    multilog.create(tmp_path / "b.ml", SIGNED)
    with log.writer() as writer:
        writer.append(signed_block(1, 0, 5))
        deadline = "20s" if who == "coordinator" else "1500ms"
        command = subprocess.Popen(
            [BIN / "confluo-snapshot", f"sw1:{tmp_path}/a.ml", f"slow400:{tmp_path}/b.ml", "--deadline", deadline],
            env=env(tmp_path),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(lambda: log.control.lane(0)["freezes"], "was never frozen")
            writer.append(signed_block(1, 5, 5))
            assert log.version().rows == 5
            if who == "coordinator":
                command.kill()
                wait_until(lambda: not log.control.lane(0)["freezes"], "stayed frozen")
                assert log.control.lane(0)["broken"] == 0
            else:
                os.killpg(command.pid, signal.SIGKILL)  # with its shells and servers
                assert log.control.lane(0)["freezes"] == 1
            wait_until(lambda: log.version().rows == 10, "stayed frozen")
        finally:
            if command.poll() is None:
                os.killpg(command.pid, signal.SIGKILL)
            command.wait()


def test_a_slow_host_gets_more_time(tmp_path: Path) -> None:
    for name in "ab":
        multilog.create(tmp_path / f"{name}.ml", SIGNED)
    names = [(name, parse(name)) for name in (f"sw1:{tmp_path}/a.ml", f"slow30-x:{tmp_path}/b.ml")]
    with SnapshotCoordinator(names, tool(tmp_path)) as coordinator:
        snapshot = coordinator.take(20 * MS)
        assert coordinator.timing.tries > 1
        assert len(snapshot.logs) == 2
        assert coordinator.timing.total >= 120 * MS  # two round trips of 60 ms
        assert [log.tails for log in coordinator.take(10_000 * MS).logs] == [(), ()]
        assert coordinator.timing.tries == 1


def test_one_that_never_makes_it_is_named(tmp_path: Path) -> None:
    for name in "ab":
        multilog.create(tmp_path / f"{name}.ml", SIGNED)
    names = [(name, parse(name)) for name in (f"sw1:{tmp_path}/a.ml", f"slow300:{tmp_path}/b.ml")]
    with (
        SnapshotCoordinator(names, tool(tmp_path)) as coordinator,
        pytest.raises(RemoteError, match="slow300: did not freeze"),
    ):
        coordinator.take(MS)
    with SnapshotCoordinator(names, tool(tmp_path), partial=True) as coordinator:
        snapshot = coordinator.take(MS)  # 256 ms in the last try: enough for one, less than a round trip of the other
        assert [log.name for log in snapshot.logs] == ["sw1"]
        assert "did not freeze" in snapshot.missing[0].reason
        assert multilog.open(tmp_path / "a.ml").control.cut()[0] == ()


def test_one_of_eight_is_down(tmp_path: Path) -> None:
    words = []
    for i in range(8):
        with multilog.create(tmp_path / f"{i}.ml", SIGNED) as log, log.writer() as writer:
            writer.append(signed_block(i, 0, 10 + i))
        words.append(f"{'down' if i == 5 else 'sw'}{i}:{tmp_path}/{i}.ml")
    done = run("confluo-snapshot", *words, "-w", tmp_path / "s.yaml", env=env(tmp_path))
    assert done.returncode == 2
    line = b"confluo-snapshot: down5: cannot be reached: ssh: connect to host down5 port 22: No route to host\n"
    assert (done.stdout, done.stderr) == (b"", line)
    assert not (tmp_path / "s.yaml").exists()
    done = run("confluo-snapshot", "--partial", *words, "-w", tmp_path / "s.yaml", env=env(tmp_path))
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"down5:" in done.stderr
    assert b"the snapshot is partial" in done.stderr
    snapshot = Snapshot.load(str(tmp_path / "s.yaml"))
    assert [sum(log.tails) for log in snapshot.logs] == [10, 11, 12, 13, 14, 16, 17]
    assert [gone.where for gone in snapshot.missing] == [words[5]]
    done = run("confluo-query", "--at", tmp_path / "s.yaml", "--count", env=env(tmp_path))
    assert (done.returncode, done.stdout) == (0, b"93\n")
    assert b"the snapshot is partial: down5:" in done.stderr


def test_all_down_is_an_error_even_when_partial_will_do(tmp_path: Path) -> None:
    done = run("confluo-snapshot", "--partial", "down1:/a.ml", "down2:/b.ml", env=env(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert b"cannot be reached" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mute1:/a.ml", "--wait", "300ms"], b"mute1: did not answer within 0.3 s"),
        (["noisy1:/a.ml"], b"noisy1: answers with 'Welcome to the machine' instead of a greeting"),
        (["sw1:/nowhere.ml"], b"sw1:/nowhere.ml: there is no such MultiLog"),
        (["nowhere.ml"], b"nowhere.ml: there is no such MultiLog"),
        (["--", "-oProxyCommand=x:/a.ml"], b"is not a host name"),
        (["a.ml", "--deadline", "2h"], b"--deadline: '2h' is too long; 1m at most"),
        (["a.ml", "--deadline", "0s"], b"--deadline: '0s' is too short; more than 0"),
    ],
)
def test_trouble_is_one_line(tmp_path: Path, words: list[str], message: bytes) -> None:
    done = run("confluo-snapshot", *words, env=env(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert message in done.stderr


def test_the_same_log_twice(tmp_path: Path) -> None:
    multilog.create(tmp_path / "a.ml", SIGNED)
    (tmp_path / "b.ml").symlink_to(tmp_path / "a.ml")
    with pytest.raises(UsageError, match="are the same log"):
        SnapshotCoordinator([("a.ml", parse(f"sw1:{tmp_path}/a.ml")), (str(tmp_path / "b.ml"), None)], tool(tmp_path))


def test_a_log_that_may_only_be_read_is_not_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    multilog.create(tmp_path / "a.ml", SIGNED)
    monkeypatch.setattr(
        "confluo_tools.remote.snapshot_coordinator.Log", lambda path: multilog.open(path, readonly=True)
    )
    with pytest.raises(ConfluoError, match="cannot be frozen; freezing needs"):
        SnapshotCoordinator([(str(tmp_path / "a.ml"), None)], tool(tmp_path))


def test_a_snapshot_of_logs_here(tmp_path: Path) -> None:
    for i, name in enumerate("ab"):
        with multilog.create(tmp_path / f"{name}.ml", SIGNED) as log, log.writer() as writer:
            writer.append(signed_block(i, 0, 100))
    done = run("confluo-snapshot", "a.ml", "b.ml", "--stats", cwd=tmp_path, env=env(tmp_path))
    assert done.returncode == 0
    assert b"2 logs, 200 records" in done.stderr
    snapshot = Snapshot.parse(done.stdout)
    assert [(log.name, log.host, log.path) for log in snapshot.logs] == [
        (os.uname().nodename, "", str(tmp_path / f"{name}.ml")) for name in "ab"
    ]
    (tmp_path / "s.yaml").write_bytes(done.stdout)
    for name in "ab":
        with multilog.open(tmp_path / f"{name}.ml") as log, log.writer() as writer:
            writer.append(signed_block(7, 0, 1000))
    query = run("confluo-query", "--at", "s.yaml", "writer == 7 || seq < 10", "--count", cwd=tmp_path)
    assert (query.returncode, query.stdout, query.stderr) == (0, b"20\n", b"")
    convert = run("confluo-convert", "--at", "s.yaml", "-f", "host,writer", "-T", cwd=tmp_path)
    assert len(convert.stdout.splitlines()) == 202
    assert run("confluo-query", "--at", "-", "--count", stdin=done.stdout).stdout == b"200\n"
    again = run("confluo-snapshot", "a.ml", "-w", "s.yaml", cwd=tmp_path)
    assert again.returncode == 2
    assert b"--force" in again.stderr
