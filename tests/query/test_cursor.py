"""confluo-query --cursor: the next run goes on where the last one stopped, also when that was killed."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

import remote_lab
from confluo_tools import multilog, units
from confluo_tools.multilog import retain
from follow_lab import HEAD, PLAIN, ROWS, SECOND, following, frame, growing, rows
from running import BIN, environment, next_line, popen, run


def new(path: object, *words: str, env: Any = None, status: int = 0) -> list[int]:
    """The numbers that are new to the cursor."""
    done = run("confluo-query", str(path), *words, *PLAIN, env=env)
    assert done.returncode == status, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize("host", ["", "sw1:"])
def test_each_run_prints_what_is_new(host: str, tmp_path: Path) -> None:
    env, cursor = remote_lab.env(tmp_path) if host else None, ("--cursor", str(tmp_path / "cursor"))
    log = f"{host}{tmp_path}/a.ml"
    with growing(tmp_path / "a.ml") as append:
        append(1, 2, 3, 4)
        assert new(log, *cursor, "--last", "2", env=env) == [2, 3]
        append(5, 6)
        assert new(log, *cursor, "--last", "1", env=env) == [4, 5]  # those that were not printed, not the newest
        assert new(log, *cursor, env=env, status=1) == []
        append(7)
        assert new(log, *cursor, env=env) == [6]


def test_files_and_text_that_is_not_complete(tmp_path: Path) -> None:
    capture, cursor = tmp_path / "a.pcap", ("--cursor", str(tmp_path / "cursor"))
    words = ["-T", "--no-header", "-f", "src_port"]
    printed = []
    whole = HEAD + b"".join(frame(n) for n in range(40))
    for end in [*sorted(random.Random(5).sample(range(len(HEAD), len(whole)), 6)), len(whole)]:
        capture.write_bytes(whole[:end])
        done = run("confluo-query", capture, *cursor, *words)
        assert (done.returncode, done.stderr) in ((0, b""), (1, b""))
        printed += done.stdout.split()
    assert printed == [b"%d" % (1000 + n) for n in range(40)]
    text = tmp_path / "a.tsv"
    text.write_bytes(b"#fields\tn\n#types\tu64\n1\n2")
    assert new(text, "--cursor", str(tmp_path / "other")) == [1]
    text.write_bytes(b"#fields\tn\n#types\tu64\n1\n25\n")
    assert new(text, "--cursor", str(tmp_path / "other")) == [25]
    text.write_bytes(b"#fields\tn\n#types\tu64\n1\n")
    assert "written again" in refused(text, tmp_path / "other")


def refused(path: object, cursor: Path) -> str:
    done = run("confluo-query", str(path), "--cursor", cursor, *PLAIN)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1), done.stderr
    return done.stderr.decode()


def test_a_cursor_of_another_log_is_refused(tmp_path: Path) -> None:
    log, cursor = tmp_path / "a.ml", tmp_path / "cursor"
    with growing(log) as append:
        append(1, 2)
    assert new(log, "--cursor", str(cursor)) == [0, 1]
    log.rename(tmp_path / "moved.ml")
    assert new(tmp_path / "moved.ml", "--cursor", str(cursor), status=1) == []  # the log, not its path
    with growing(log) as append:
        append(1, 2, 3)
    assert "is not the log that the cursor was made for" in refused(log, cursor)
    known = json.loads(cursor.read_text())
    known["inputs"][0]["position"] = [5]
    cursor.write_text(json.dumps(known))
    assert "fewer records than the cursor says" in refused(tmp_path / "moved.ml", cursor)
    cursor.write_text(cursor.read_text()[:-9])
    assert "is not a cursor" in refused(log, cursor)
    with following(log, "--follow", "--cursor", tmp_path / "busy", *PLAIN) as process:
        assert int(next_line(process.stdout)) == 0
        assert run("confluo-query", log, "--cursor", tmp_path / "busy").returncode == 75


def test_rows_that_were_removed_are_counted(tmp_path: Path) -> None:
    size, path = 65536, tmp_path / "a.ml"
    with multilog.create(str(path), ROWS, segment_blocks=1) as log, log.writer() as writer:
        writer.append(rows(range(10), 0))
        writer.flush()
        words = [path, "--cursor", tmp_path / "cursor", "-T", "--no-header", "-f", "n"]
        assert len(run("confluo-query", *words).stdout.split()) == 10
        for first in range(10, 3 * size, size):
            writer.append(rows(range(first, first + size), first))
        writer.flush()
        end = time.monotonic() + 30
        while log.control.sealed(0) < size and time.monotonic() < end:
            time.sleep(0.01)
        with retain.removal_lock(log):
            retain.remove(log, {0: size})
        done = run("confluo-query", *words)
    assert (done.returncode, len(done.stdout.split())) == (2, 2 * size + 10)
    assert f"{size - 10} records were removed before they were read" in done.stderr.decode()


def test_a_window_is_printed_once_and_whole(tmp_path: Path) -> None:
    """Records of the last window wait for the next run while it has not ended."""
    now = time.time_ns()
    start = now // SECOND * SECOND - 60 * SECOND
    words = ["--agg", "count", "--by", "1s", "--cursor", str(tmp_path / "cursor"), "-T", "--no-header", "-f", "count"]
    with growing(tmp_path / "a.ml") as append:
        append(start, start + 1, start + SECOND, now + 3600 * SECOND)
        log = tmp_path / "a.ml"
        assert run("confluo-query", log, *words).stdout.split() == [b"2", b"1"]
        append(start + 5 * SECOND, start + 5 * SECOND, now + 3600 * SECOND)
        assert run("confluo-query", log, *words).stdout.split() == [b"2"]
        done = run("confluo-query", log, *words)
        assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
        append(start)
        assert b"1 record came late" in run("confluo-query", log, *words).stderr


@pytest.mark.parametrize("file", [False, True])
def test_a_cursor_moves_while_there_is_much_to_read(file: bool, tmp_path: Path) -> None:
    """A reader that is killed in the middle does not begin again, and leaves out nothing."""
    total, path = 5 * 65536, tmp_path / "a.ml"
    with multilog.create(str(path), ROWS) as log, log.writer() as writer:
        for first in range(0, total, 65536):
            writer.append(rows(range(first, first + 65536), first))
    if file:
        path = tmp_path / "a.arrows"
        run("confluo-convert", tmp_path / "a.ml", "-w", path)
    cursor = tmp_path / "cursor"
    words = [str(path), "--cursor", str(cursor), "-T", "--no-header", "-f", "n"]
    found = b""
    with popen([BIN / "confluo-query", *words, "--follow"], stdout=-1, stderr=-1, env=environment()) as process:
        assert process.stdout is not None
        end = time.monotonic() + 60
        while not cursor.exists() and time.monotonic() < end:
            found += process.stdout.read(4096)
            time.sleep(0.02)
        process.kill()
        found += process.stdout.read()
    assert found.count(b"\n") < total
    seen = set(found[: found.rindex(b"\n")].split())
    left = run("confluo-query", *words)
    assert left.stdout.count(b"\n") < total
    assert len(seen | set(left.stdout.split())) == total


@pytest.mark.parametrize("windows", [False, True])
def test_a_process_that_is_killed_leaves_out_nothing(windows: bool, tmp_path: Path) -> None:
    """Killed at random instants while rows come: what all runs printed together has each row, or each window."""
    rng = random.Random(11)
    log, cursor, out = tmp_path / "a.ml", tmp_path / "cursor", tmp_path / "out"
    words: list[object] = [log, "--follow", "--cursor", cursor, "-T", "--no-header", "-l"]
    words += ["--agg", "count", "--by", "1ms"] if windows else ["-f", "n"]
    start = time.time_ns() - 3600 * SECOND
    total, step = 0, 500
    with growing(log) as append, open(out, "ab") as into:
        for _ in range(6):
            given = {"stdout": into, "stderr": -1, "env": environment()}
            with popen([BIN / "confluo-query", *map(str, words)], **given) as process:
                before, end = out.stat().st_size, time.monotonic() + rng.uniform(0.05, 0.5)
                limit = time.monotonic() + 60
                while time.monotonic() < end or (out.stat().st_size == before and time.monotonic() < limit):
                    append(*[start + (total + i) * 1000 for i in range(step)])
                    total += step
                    time.sleep(0.005)
                process.kill()
    left = run("confluo-query", *(str(w) for w in words if w != "--follow"))
    printed = (out.read_bytes() + left.stdout).splitlines()
    if not windows:
        assert {int(line) for line in printed} == set(range(total))
        return
    found: dict[int, int] = {}
    for line in printed:
        at, n = units.time(line.split()[0].decode()), int(line.split()[1])
        assert found.setdefault(at, n) == n  # a window that comes again is the same
    wanted: dict[int, int] = {}
    for i in range(total):
        at = (start + i * 1000) // 10**6 * 10**6
        wanted[at] = wanted.get(at, 0) + 1
    assert found == wanted
