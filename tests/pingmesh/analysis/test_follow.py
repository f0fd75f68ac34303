"""Judgements as probes come: those of a run that nothing interrupts, whatever was killed, and when."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from confluo_tools import multilog
from confluo_tools.core.block.block import Picks
from confluo_tools.expr import compile
from confluo_tools.multilog import retain
from probe_records import Simulated, fault
from running import BIN, environment, popen, run

SECOND, MINUTE = 10**9, 60 * 10**9
FAULTS = (
    fault("tor_drops", "p003", 0.05, start=10 * MINUTE, length=15 * MINUTE),
    fault("blackhole1", "p006", 0.3, start=5 * MINUTE, length=20 * MINUTE),
    fault("spine_drops", "dc1/all", 0.5, start=27 * MINUTE, length=6 * SECOND),
    fault("podset_failure", "ps02", start=20 * MINUTE, length=5 * MINUTE),
)
GRID = (1, 3, 3, 4)
SPAN = 42 * MINUTE  # eight windows of five minutes, and what says that the last one is over
UNTIL = ["--until", "2026-01-01T00:40:00Z"]
WORDS: dict[str, list[str]] = {
    "drops": ["drops", "--window", "5m", "--top", "5", "--flows", "2"],
    "blackholes": ["blackholes", "--window", "5m"],
    "sla": ["sla", "--window", "5m", "--by", "pod"],
    "alerts": [
        "sla",
        "--window",
        "5m",
        "--by",
        "pod",
        "--alerts",
        "--rule",
        "drop > 1%",
        "--rule",
        "p99 > 5ms",
        "--calm",
        "1",
    ],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All probes, in the order of time; without the records of faults, which come first with times of their own."""
    path = tmp_path_factory.mktemp("follow") / "whole.ml"
    reader = Simulated(*FAULTS, seed=21, grid=GRID, span=SPAN)
    select = compile("kind != fault", reader.schema).program.select
    with multilog.create(str(path), reader.schema) as log, log.writer() as writer:
        for block in reader:
            writer.append(block.take(select(block)))
    return path


@pytest.fixture(scope="module")
def truth(whole: Path) -> dict[str, list[dict[str, Any]]]:
    """What is said of all of it at once."""
    return {name: ask(*words, *UNTIL, whole) for name, words in WORDS.items()}


def ask(verb: str, *words: Any) -> list[dict[str, Any]]:
    done = run("confluo-pingmesh", verb, *words, "-q", "-J")
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def kept(log: Path) -> list[dict[str, Any]]:
    done = run("confluo-query", log, "-J")
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    def rows(of: list[dict[str, Any]]) -> Counter[str]:
        return Counter(json.dumps(row, sort_keys=True) for row in of)

    more, less = rows(found) - rows(expected), rows(expected) - rows(found)
    assert (list(more), list(less)) == ([], [])


class Growing:
    """A log that gets the probes little by little."""

    def __init__(self, path: Path, whole: Path) -> None:
        self.source = multilog.open(str(whole), readonly=True)
        schema, self.parts = self.source.schema, list(self.source.blocks())
        self.path = path
        self.ts = schema.index("ts")
        self.log = multilog.create(str(path), schema)
        self.writer = self.log.writer()
        self.at = self.row = 0

    def until(self, minute: float) -> bool:
        """Those begun up to then (``minute`` of the simulation); False: there are no more."""
        first = memoryview(self.parts[0].buffer(self.ts)).cast("q")[0]
        end = first + int(minute * MINUTE)
        while self.at < len(self.parts):
            part = self.parts[self.at]
            times = memoryview(part.buffer(self.ts)).cast("q")
            stop = self.row
            while stop < part.rows and times[stop] < end:
                stop += 1
            if stop > self.row:
                self.writer.append(part.slice(self.row, stop - self.row))
            self.row = stop
            if stop < part.rows:
                self.writer.flush()
                return True
            self.at, self.row = self.at + 1, 0
        self.writer.flush()
        return False

    def next_writer(self) -> None:
        self.writer.close()
        self.writer = self.log.writer()

    def close(self) -> None:
        self.writer.close()
        self.log.close()
        self.source.close()


@pytest.fixture
def growing(whole: Path, tmp_path: Path) -> Iterator[Growing]:
    made = Growing(tmp_path / "probes.ml", whole)
    yield made
    made.close()


def following(name: str, log: Path, *words: Any, **env: str) -> subprocess.Popen[bytes]:
    """A follower of probes that are old: windows are over when those of 90 s later come."""
    argv = [BIN / "confluo-pingmesh", *WORDS[name], log, "--follow", "--lateness", "90s", *words]
    child = popen(
        list(map(str, argv)),
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    children.append(child)
    return child


children: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    """Whatever a test that fails has begun ends with it."""
    yield
    while children:
        with children.pop() as child:
            child.kill()


def ended(child: subprocess.Popen[bytes], *, within: float = 60) -> tuple[int, bytes, bytes]:
    out, err = child.communicate(timeout=within)
    return child.returncode, out, err


def settle(log: Path, done: int, child: subprocess.Popen[bytes], seconds: float = 60) -> None:
    """Wait until follow.json lists this number of windows."""
    until = time.monotonic() + seconds
    while True:
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < until, "it does not judge"
        if (told := state(log)) is not None and told >= done:
            return
        time.sleep(0.05)


def state(log: Path) -> int | None:
    try:
        data = json.loads((log / "follow.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return None if data["done"] is None else int(data["done"])


START = 1_767_225_600 * SECOND  # of the simulation


@pytest.mark.parametrize("name", WORDS)
def test_windows_are_judged_as_they_end(name: str, growing: Growing, truth: dict[str, Any], tmp_path: Path) -> None:
    """What a log that grows gets is what a log that is there gets; nothing of the window that is open."""
    out = tmp_path / "out.ml"
    growing.until(12)
    child = following(name, growing.path, "-w", out)
    settle(out, START + 10 * MINUTE, child)
    early = kept(out)
    growing.until(43)
    settle(out, START + 40 * MINUTE, child)
    child.send_signal(signal.SIGINT)
    status, said, _ = ended(child)
    assert (status, said) == (128 + signal.SIGINT, b"")
    same(kept(out), truth[name])
    same(early, [row for row in truth[name] if row["ts"] in {e["ts"] for e in early}])
    assert len(early) < len(truth[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
def test_killed_at_any_time(name: str, growing: Growing, truth: dict[str, Any], tmp_path: Path) -> None:
    """Follower after follower is killed while the log grows: no row twice, none missing, no alarm begun again."""
    out, rng = tmp_path / "out.ml", random.Random(name)
    minute, alive, deaths = 0.0, True, 0
    while alive:
        child = following(name, growing.path, "-w", out, "--append", "-q")
        for _ in range(3):
            minute += rng.uniform(0.5, 3)
            alive = growing.until(minute)
            time.sleep(rng.uniform(0.1, 0.5))
        child.send_signal(rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        status, _, err = ended(child)
        assert status in (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM), err
        deaths += 1
    assert deaths > 3
    child = following(name, growing.path, "-w", out, "--append", "-q")
    settle(out, START + 40 * MINUTE, child)
    child.terminate()  # which may have had nothing to do, and not even begun
    assert ended(child)[0] in (-signal.SIGTERM, 128 + signal.SIGTERM)
    same(kept(out), truth[name])
    assert run("confluo-info", "--verify", out).returncode == 0


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("point", ["follow-told", "follow-state", "append-stored", "publish-before", "publish-after"])
def test_killed_between_a_row_and_the_state(
    name: str, point: str, growing: Growing, truth: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out.ml"
    growing.until(43)
    growing.writer.flush()
    died = 0
    for count in (1, 2, 4):
        child = following(name, growing.path, "-w", out, "--append", "-q", CONFLUO_FAULT=f"{point}:{count}")
        while child.poll() is None and (state(out) or 0) < START + 40 * MINUTE:
            time.sleep(0.02)
        child.terminate()  # all windows are judged: it does not come to the fault again
        ended(child)
        died += child.returncode == -signal.SIGKILL
    assert died
    child = following(name, growing.path, "-w", out, "--append", "-q")
    settle(out, START + 40 * MINUTE, child)
    child.terminate()  # which may have had nothing to do, and not even begun
    assert ended(child)[0] in (-signal.SIGTERM, 128 + signal.SIGTERM)
    same(kept(out), truth[name])


def test_an_alarm_that_goes_on_is_not_begun_again(growing: Growing, truth: dict[str, Any], tmp_path: Path) -> None:
    """Raised by one process, which is killed; cleared by the next one, which says for how long it lasted."""
    out = tmp_path / "alarms.ml"
    words = ["-w", out, "--append", "-q"]
    growing.until(17)
    child = following("alerts", growing.path, *words)
    settle(out, START + 15 * MINUTE, child)
    child.kill()
    ended(child)
    [fired] = [row for row in kept(out) if row["key"] == "pod=p003" and row["trigger"] == "drop"]
    assert fired["event"] == "fire"
    growing.until(43)
    child = following("alerts", growing.path, *words)
    settle(out, START + 40 * MINUTE, child)
    child.terminate()
    ended(child)
    its = [row for row in kept(out) if row["key"] == "pod=p003" and row["trigger"] == "drop"]
    assert [row["event"] for row in its] == ["fire", "clear"]
    assert its[1]["lasted"] >= 15 * MINUTE


def test_the_budget_holds_over_windows_and_restarts(tmp_path: Path) -> None:
    """Three ToRs, a budget of two a day: the third is later, on all of that day."""
    reader = Simulated(
        *[fault("blackhole1", pod, 0.3) for pod in ("p001", "p005", "p009")],
        seed=22,
        grid=(1, 3, 4, 5),
        span=27 * MINUTE,
    )
    log, out = tmp_path / "p.ml", tmp_path / "holes.ml"
    with multilog.create(str(log), reader.schema) as made, made.writer() as writer:
        select = compile("kind != fault", reader.schema).program.select
        for part in reader:
            writer.append(part.take(select(part)))
            minute = round((part.get(reader.schema.index("ts"), 0) - START) / MINUTE)  # each minute is a block
            if minute in (7, 14):
                writer.flush()
                child = following("blackholes", log, "--budget", "2", "-w", out, "--append", "-q")
                settle(out, START + (minute - 2) // 5 * 5 * MINUTE, child)
                child.kill()
                ended(child)
        writer.flush()
        child = following("blackholes", log, "--budget", "2", "-w", out, "--append", "-q")
        settle(out, START + 25 * MINUTE, child)
        child.terminate()
        ended(child)
    rows = [row for row in kept(out) if row["what"] == "tor"]
    proposed = [row["pod"] for row in rows if row["action"] == "propose"]
    assert len(proposed) == len(set(proposed)) == 2
    assert {row["pod"] for row in rows if row["action"] == "later"} == {"p001", "p005", "p009"} - set(proposed)
    assert {row["pod"] for row in rows if row["action"] == "done"} == set(proposed)
    assert len(rows) == 15


@pytest.mark.parametrize("name", WORDS)
def test_a_pipe_gives_the_same(name: str, whole: Path, truth: dict[str, Any]) -> None:
    probes = run("confluo-query", whole, "-o", "stream").stdout
    done = run("confluo-pingmesh", *WORDS[name], "-", *UNTIL, "--follow", "-q", "-J", stdin=probes)
    assert done.returncode == (0 if truth[name] else 1), done.stderr
    same([json.loads(line) for line in done.stdout.splitlines()], truth[name])


@pytest.mark.parametrize("name", ["drops", "sla"])
def test_hosts_that_are_behind_in_the_log(name: str, whole: Path, truth: dict[str, Any], tmp_path: Path) -> None:
    """Lanes are read side by side: what one host wrote closes no window of another's."""
    log, out = tmp_path / "p.ml", tmp_path / "out.ml"
    with multilog.open(str(whole), readonly=True) as source, multilog.create(str(log), source.schema, lanes=4) as made:
        writers = [made.writer() for _ in range(3)]
        for part in source.blocks():  # each lane has every third row, in blocks of its own
            for lane, writer in enumerate(writers):
                writer.append(part.take(Picks.of(part.rows, range(lane, part.rows, 3))))
        for writer in writers:
            writer.close()
        assert len({block.lane for block in made.blocks()}) == 3
    child = following(name, log, "-w", out)
    settle(out, START + 40 * MINUTE, child)
    child.terminate()
    _, _, err = ended(child)
    assert b"after their window" not in err
    same(kept(out), truth[name])


@pytest.mark.parametrize("name", ["drops", "sla"])
def test_a_log_that_was_moved_away(name: str, growing: Growing, truth: dict[str, Any], tmp_path: Path) -> None:
    """As logrotate does it: what follows goes to a new log of the same name."""
    out = tmp_path / "out.ml"
    growing.until(17)
    child = following(name, growing.path, "-w", out)
    settle(out, START + 15 * MINUTE, child)
    growing.writer.close()
    growing.log.close()
    os.rename(growing.path, tmp_path / "old.ml")
    growing.log = multilog.create(str(growing.path), growing.log.schema)
    growing.writer = growing.log.writer()
    growing.until(43)
    settle(out, START + 40 * MINUTE, child)
    child.terminate()
    assert ended(child)[0] == 128 + signal.SIGTERM
    same(kept(out), truth[name])


def test_a_log_whose_first_rows_were_removed(growing: Growing, truth: dict[str, Any], tmp_path: Path) -> None:
    """Retention takes what is judged already; a follower that is restarted needs none of it."""
    out = tmp_path / "out.ml"
    growing.until(20)
    growing.next_writer()
    growing.until(22)
    child = following("sla", growing.path, "-w", out)
    settle(out, START + 20 * MINUTE, child)
    child.kill()
    ended(child)
    [first] = {part.base for part in growing.log.segments(growing.log.version()) if part.base}
    assert retain.remove(growing.log, {0: first})[0] > 0
    growing.until(43)
    child = following("sla", growing.path, "-w", out, "--append")
    settle(out, START + 40 * MINUTE, child)
    child.terminate()
    ended(child)
    same(kept(out), truth["sla"])


@pytest.mark.parametrize("name", ["drops", "sla"])
def test_a_log_of_one_writer_after_the_other(
    name: str, growing: Growing, truth: dict[str, Any], tmp_path: Path
) -> None:
    """Each leaves a segment that is not full."""
    for minute in (4, 11.5, 23, 43):
        growing.until(minute)
        growing.next_writer()
    child = following(name, growing.path, "-w", tmp_path / "out.ml")
    settle(tmp_path / "out.ml", START + 40 * MINUTE, child)
    child.terminate()
    _, _, err = ended(child)
    assert b"have no kind" not in err
    same(kept(tmp_path / "out.ml"), truth[name])


def test_one_follower_and_the_same_question(growing: Growing, tmp_path: Path) -> None:
    out = tmp_path / "out.ml"
    growing.until(11)
    child = following("drops", growing.path, "-w", out)
    settle(out, START + 5 * MINUTE, child)
    status, _, err = ended(following("drops", growing.path, "-w", out, "--append"))
    assert (status, b"another process follows into this log" in err) == (75, True)
    child.terminate()
    ended(child)
    status, _, err = ended(following("drops", growing.path, "-w", out, "--append", "--above", "1e-3"))
    assert (status, b"cannot continue: it was started with --above 0.0005" in err) == (2, True)
    status, _, err = ended(following("drops", growing.path, "-w", out))
    assert (status, b"--append adds to it" in err) == (2, True)
    (out / "follow.json").write_text("{")  # torn: all is judged again
    child = following("drops", growing.path, "-w", out, "--append")
    settle(out, START + 5 * MINUTE, child)
    child.terminate()
    assert ended(child)[0] == 128 + signal.SIGTERM


@pytest.mark.parametrize("verb", ["drops", "blackholes"])
def test_refusals(verb: str, whole: Path, tmp_path: Path) -> None:
    def refused(*words: Any) -> str:
        done = run("confluo-pingmesh", verb, *words)
        assert (done.returncode, done.stdout) == (2, b"")
        return done.stderr.decode()

    assert "--follow: needs --window TIME" in refused("x.ml", "--follow")
    assert "--lateness" in refused("x.ml", "--follow", "--window", "1m", "--lateness", "-1s")
    assert "--lateness has no effect without --follow" in refused("x.ml", "--lateness", "1s")
    assert "--append is for a MultiLog" in refused("x.ml", "--append")
    assert "--follow watches one MultiLog" in refused(whole, whole, "--follow", "--window", "1m")


@pytest.mark.parametrize("verb", ["sla", "drops", "blackholes"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_there_is_of_a_window_is_judged_when_a_signal_ends_a_pipe(whole: Path, verb: str, number: int) -> None:
    probes = run("confluo-query", whole, "-o", "stream").stdout
    expected = ask(verb, "--window", "1000d", whole)
    words = [BIN / "confluo-pingmesh", verb, "--follow", "--window", "1000d", "-J", "-"]
    with popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(probes[:-8])  # a stream that has not ended
        child.stdin.flush()
        wait_for_idle(child)
        child.send_signal(number)
        found = [json.loads(line) for line in child.stdout]
        assert child.wait(30) == 128 + number
    same(found, expected)


def wait_for_idle(child: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    """Until it waits for more: it has read all there is in the pipe, and used no CPU for a while."""
    assert child.stdin
    used, since = -1.0, time.monotonic()
    end = since + seconds
    while time.monotonic() < end:
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2].split()
        now = float(fields[11]) + float(fields[12])
        if now != used:
            used, since = now, time.monotonic()
        unread = int.from_bytes(fcntl.ioctl(child.stdin, termios.FIONREAD, b"\0" * 4), sys.byteorder)
        if unread:
            since = time.monotonic()
        elif fields[0] == "S" and time.monotonic() - since > 0.5:
            return
        time.sleep(0.05)
    raise AssertionError("it never waits")
