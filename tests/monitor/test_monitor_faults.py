"""What goes wrong under a monitor: rows that are removed before it sees them, disks that are full, archives."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools import multilog
from confluo_tools.errors import DiskFullError
from confluo_tools.multilog import retain
from confluo_tools.schema import builtin
from monitor_lab import END, MS, SECOND, START, Lab, Monitor, bursts, kept
from monitor_writer import rows_of
from running import BIN, environment, fill_disk, popen, resize, run

DISK = "256m"
PLAIN = [
    "a: count > 5 over 10ms every 1ms",
    "c: count < 1 over 12ms every 1ms",
    "d: distinct(dst_port) > 2 over 10ms every 5ms by src_ip",
    "e: count < 1 over 30ms every 3ms by src_ip",
    "f: sum(len) < 9000 over 300ms every 2ms",
]


def remove(log: multilog.Log, first: int, lane: int = 0) -> None:
    """As `--keep` does."""
    with retain.removal_lock(log):
        retain.remove(log, {lane: first})


def unread(lab: Lab, ms: int, rows: bool = True) -> int:
    """The monitor does not read for some milliseconds; then the rows written in that time are sealed and removed."""
    for _ in range(ms):
        lab.clocks.go(MS)
        if rows:
            lab.add(lab.clocks.now)
    lab.writer.close()
    lab.writer = lab.log.writer(ahead=-1)
    end = lab.log.version()[0]
    remove(lab.log, end)
    return ms if rows else 0


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(
        tmp_path,
        [
            "busy: count > 5 over 10ms every 1ms",
            "silent: count < 1 over 50ms every 1ms",
            "few: count < 5 over 200ms every 2ms repeat 20ms",
            "key: count < 3 over 20ms every 1ms by dst_port",
        ],
    )
    yield made
    made.close()


def test_rows_are_removed_before_they_are_seen(lab: Lab) -> None:
    """They are counted, it is said, and nothing is said to be silent that was not; what fired goes on firing."""
    lab.run(300)
    assert ("busy", 1) in [t[1:] for t in lab.told]
    lab.told.clear()
    lost = unread(lab, 400)
    lab.run(300)
    assert lab.said == ["400 records were removed before they were seen: windows start again; keep more of the log"]
    assert lab.watch.missed == lost
    assert lab.told == []  # neither a false end nor a second beginning
    lab.run(300, rows=False)
    events = [t[1:] for t in lab.told]
    assert events[:4] == [("busy", 2), ("key", 1), ("silent", 1), ("few", 1)]
    assert set(events[4:]) <= {("few", 3), ("key", 2)}


def test_what_ended_while_the_monitor_was_down_ends_when_the_window_is_full(lab: Lab) -> None:
    lab.run(300)
    lab.told.clear()
    unread(lab, 30)
    unread(lab, 100, rows=False)
    lab.run(9, rows=False)
    assert lab.told == []
    lab.run(300, rows=False)
    assert [t[1:] for t in lab.told][:3] == [("busy", 2), ("silent", 1), ("few", 1)]


def test_nothing_is_missed_when_the_old_rows_go(lab: Lab) -> None:
    """Seen and then removed is not missed: windows hold what they hold."""
    for _ in range(5):
        lab.run(100)
        lab.writer.close()
        lab.writer = lab.log.writer(ahead=-1)
        lab.live.step()
        remove(lab.log, lab.log.version()[0])
    assert (lab.said, lab.watch.missed) == ([], 0)
    assert [t[1:] for t in lab.told] == [("few", 1), ("busy", 1), ("few", 2)] or "busy" in str(lab.told)
    assert ("silent", 1) not in [t[1:] for t in lab.told][1:]


# -- started again, on what is left of the log


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """(trigger, key) -> (tick, event) of all, by a monitor to which nothing happens."""
    folder = tmp_path_factory.mktemp("truth")
    log, _ = segmented(folder / "x.ml")
    m = Monitor(folder / "x.ml", folder / "a.ml", texts=PLAIN)
    m.watch.advance(END)
    m.alerts.close()
    log.close()
    return histories(folder / "a.ml")


def histories(alerts: Path) -> dict[tuple[str, str], list[tuple[int, str]]]:
    out: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for tick, name, event, _, _, _, key in kept(alerts):
        out.setdefault((name[2:].split("\\x00")[0], key[2:].split("\\x00")[0]), []).append((int(tick), event))
    return out


def segmented(path: Path) -> tuple[multilog.Log, list[tuple[int, int]]]:
    """A log in sealed segments of some rows each, with one uuid; (rows up to the end, time of the last) of each."""
    log = multilog.create(path, builtin("header64"))
    rows, ends = bursts(7), []
    for at in range(0, len(rows), 40):
        some = rows[at : at + 40]
        with log.writer(ahead=-1) as writer:
            writer.append(rows_of(*([r[i] for r in some] for i in (0, 1, 2, 3))))
        ends.append((at + len(some), some[-1][0]))
    return log, ends


@settings(max_examples=40, deadline=None)
@given(died=st.integers(1, 900), gone=st.integers(0, 1000))
def test_started_again_when_rows_have_been_removed(
    truth: dict[tuple[str, str], list[tuple[int, str]]], tmp_path_factory: pytest.TempPathFactory, died: int, gone: int
) -> None:
    """All alerts are true for the whole log: a trigger with a fire alert fires there at that tick, and so on; no alert
    comes twice, and missing alerts are of windows that were incomplete."""
    folder = tmp_path_factory.mktemp("again")
    log, ends = segmented(folder / "x.ml")
    m = Monitor(folder / "x.ml", folder / "a.ml", texts=PLAIN)
    m.watch.advance(START + died * MS)
    if died % 2:
        m.alerts.save(m.engine.clock, m.engine)
    m.die()
    last = START
    for rows, ts in ends:
        if ts < START + gone * MS:
            remove(log, rows)
            last = ts
    m = Monitor(folder / "x.ml", folder / "a.ml", texts=PLAIN)
    short = m.watch.short
    m.watch.advance(END)
    m.alerts.close()
    log.close()
    assert (short is not None) >= (last > START + died * MS)
    for trigger, events in histories(folder / "a.ml").items():
        for tick, event in events:
            assert [e for t, e in truth[trigger] if t <= tick][-1:] == [event], (trigger, tick - START)
        assert [e for _, e in events] == ["1", "2"] * (len(events) // 2) + ["1"] * (len(events) % 2), trigger
    if short is None:
        assert histories(folder / "a.ml") == truth


# -- the command


def test_a_command_that_was_stopped_too_long(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "x.ml", builtin("header64"))
    text = "silent: count < 1 over 300ms every 1ms"
    with popen(
        [BIN / "confluo-monitor", tmp_path / "x.ml", "-t", text, "-J", "--lag", "50ms"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as child:
        try:
            assert child.stdout is not None
            assert b'"fire"' in child.stdout.readline()  # it is there

            def feed(seconds: float) -> None:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    with log.writer(ahead=-1) as writer:
                        writer.append(rows_of([time.time_ns()] * 2, [100] * 2, [80] * 2))
                    time.sleep(0.02)

            feed(0.5)
            os.kill(child.pid, signal.SIGSTOP)
            feed(1.0)
            remove(log, log.version()[0])
            os.kill(child.pid, signal.SIGCONT)
            feed(1.0)
        finally:
            os.kill(child.pid, signal.SIGCONT)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGINT
    assert out.count(b'"fire"') == 0
    assert out.count(b'"clear"') == 1
    assert b" records were removed before they were seen: windows start again; keep more of the log\n" in err
    assert b" removed unseen, " in err


def test_a_look_at_what_is_left(tmp_path: Path) -> None:
    log, ends = segmented(tmp_path / "x.ml")
    remove(log, ends[3][0])
    log.close()
    words = ["-t", "f: count < 1000000 over 10m every 1s", "-J"]
    done = run("confluo-monitor", tmp_path / "x.ml", "--once", *words)
    assert done.returncode == 0
    assert b"x.ml: records older than 2023-11-14T22:13:20." in done.stderr
    assert done.stderr.endswith(b"Z have been removed: windows see the remaining ones\n")
    done = run("confluo-monitor", tmp_path / "x.ml", "--since", f"@{START // SECOND}", *words)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.endswith(b"Z have been removed: triggers wait until their windows are full\n")


def test_records_that_went_into_an_archive_are_not_seen(tmp_path: Path) -> None:
    """A monitor reads the log only; the manual says so, and the command when it matters."""
    log, _ = segmented(tmp_path / "x.ml")
    log.close()
    text = "a: count > 5 over 10ms every 1ms"
    since = f"@{START // SECOND}"
    before = run("confluo-monitor", tmp_path / "x.ml", "--since", since, "-t", text, "-J").stdout
    done = run("confluo-archive", tmp_path / "x.ml", "--to", tmp_path / "archive", "--older-than", "1h")
    assert done.returncode == 0, done.stderr
    with multilog.open(tmp_path / "x.ml") as log, log.writer(ahead=-1) as writer:
        assert log.version().kept == 0
        writer.append(rows_of([END] * 9, [100] * 9, [80] * 9))
    done = run("confluo-monitor", tmp_path / "x.ml", "--since", since, "-t", text, "-J")
    assert b"have been removed: triggers wait until their windows are full" in done.stderr
    assert before.count(b'"fire"') > 10
    assert done.stdout.count(b'"fire"') == 1 or done.returncode == 1


# -- full disks


@pytest.mark.root
@pytest.mark.parametrize("kib", [80, 1_000, 4_000, 9_000])
def test_the_disk_of_the_alerts_is_full(small_disk: Path, tmp_path: Path, kib: int) -> None:
    """At any step: one line, status 2; with room again, and one more run, no alert is lost or doubled."""
    log, _ = segmented(tmp_path / "x.ml")
    log.close()
    words = [
        "--since",
        f"@{START // SECOND}",
        "--until",
        f"@{END // SECOND}.5",
        "-o",
        "ndjson",
        *(w for t in PLAIN for w in ("-t", t)),
    ]
    whole = run("confluo-monitor", tmp_path / "x.ml", *words, "--alerts", tmp_path / "whole.ml")
    assert whole.returncode == 0
    resize(small_disk, f"{kib}k")
    done = run("confluo-monitor", tmp_path / "x.ml", *words, "--alerts", small_disk / "a.ml")
    told = done.stderr.decode()
    assert done.returncode == 2, told
    assert told.startswith(f"confluo-monitor: {small_disk}/a.ml")
    assert told.count("\n") == 1
    assert "No space left" in told or "the disk is full; the rows before are kept; make room" in told
    resize(small_disk, "256m")
    done = run("confluo-monitor", tmp_path / "x.ml", *words, "--alerts", small_disk / "a.ml")
    assert done.returncode == 0, done.stderr
    assert sorted(kept(small_disk / "a.ml")) == sorted(kept(tmp_path / "whole.ml"))
    assert not list((small_disk / "a.ml").glob("*.tmp"))


@pytest.mark.root
def test_no_room_for_the_state_of_a_monitor(small_disk: Path, tmp_path: Path) -> None:
    """The disk is full to the last page when it wants to note how far it is: it ends; with room it goes on."""
    log, _ = segmented(tmp_path / "x.ml")
    log.close()
    m = Monitor(tmp_path / "x.ml", small_disk / "a.ml", texts=PLAIN)
    m.watch.advance(START + 700 * MS)
    m.alerts.save(m.engine.clock, m.engine)
    fill_disk(small_disk)
    m.watch.advance(START + 900 * MS)
    with pytest.raises(DiskFullError, match="disk is full"):
        m.alerts.save(m.engine.clock, m.engine)
    assert sorted(p.name for p in (small_disk / "a.ml").glob("monitor*")) == ["monitor.json", "monitor.lock"]
    m.die()
    os.unlink(small_disk / "ballast")
    m = Monitor(tmp_path / "x.ml", small_disk / "a.ml", texts=PLAIN)
    m.watch.advance(END)
    m.alerts.close()
    n = Monitor(tmp_path / "x.ml", tmp_path / "whole.ml", texts=PLAIN)
    n.watch.advance(END)
    n.alerts.close()
    assert sorted(kept(small_disk / "a.ml")) == sorted(kept(tmp_path / "whole.ml"))
