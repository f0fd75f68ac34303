"""Monitors that die, and start again: in the log of alerts nothing is lost and nothing is doubled."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools import multilog
from confluo_tools.errors import BusyError
from confluo_tools.schema import builtin
from monitor_lab import END, MS, SECOND, START, TEXTS, Lab, Monitor, TornError, bursts, kept
from monitor_writer import rows_of
from running import BIN, ROOT, environment, listens, popen, run


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("restart") / "x.ml"
    made = multilog.create(path, builtin("header64"))
    rows = bursts(7)
    with made.writer(ahead=-1) as writer:
        writer.append(rows_of(*([r[i] for r in rows] for i in (0, 1, 2, 3))))
    made.close()
    return path


class AlertList(list[tuple[Any, ...]]):
    """Alerts, without a repr of half a megabyte."""

    def __repr__(self) -> str:
        return f"{len(self)} alerts"


@pytest.fixture(scope="module")
def whole(log: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """The alerts of a run that nothing interrupts."""
    path = tmp_path_factory.mktemp("whole") / "alerts.ml"
    m = Monitor(log, path)
    m.watch.advance(END)
    m.alerts.close()
    found = kept(path)
    assert len(found) > 100
    assert len({f[1] for f in found}) == len(TEXTS)
    return AlertList(found)


@settings(max_examples=50, deadline=None)
@given(
    deaths=st.lists(
        st.tuples(st.integers(1, 400), st.sampled_from([0, 0, 1, 3]), st.sampled_from([-1, -1, 0, 1, 2, 5])), max_size=8
    ),
    lost=st.booleans(),
)
def test_a_run_in_pieces_is_a_whole_run(
    log: Path,
    whole: list[tuple[Any, ...]],
    tmp_path_factory: pytest.TempPathFactory,
    deaths: list[tuple[int, int, int]],
    lost: bool,
) -> None:
    """Killed after any tick, or when a part of its alerts was kept, with a state file of any age (or ``lost``): what
    is kept is the same."""
    path = tmp_path_factory.mktemp("pieces") / "alerts.ml"
    for ticks, save, tear in deaths:
        m = Monitor(log, path)
        for i in range(ticks):
            if m.engine.next > END:
                break
            m.watch.advance(m.engine.next)
            if save and i % (10 * save) == 0:
                m.alerts.save(m.engine.clock, m.engine)
        m.tear = tear
        with pytest.raises(TornError) if tear >= 0 and m.engine.next < END - 200 * MS else suppress(TornError):
            m.watch.advance(END if tear >= 0 else m.engine.next - 1)
        m.die()
        if lost:
            (path / "monitor.json").unlink(missing_ok=True)
    m = Monitor(log, path)
    m.watch.advance(END)
    m.alerts.close()
    got = kept(path)
    assert sorted(set(whole) - set(got)) == []  # lost
    assert sorted(set(got) - set(whole)) == []  # reported by none
    assert len(got) == len(whole)


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b'{"format": 1}', b"\xff\xfe", b'{"format": 99, "tick": 5}'])
def test_a_state_file_that_is_none(log: Path, whole: list[tuple[Any, ...]], tmp_path: Path, torn: bytes) -> None:
    m = Monitor(log, tmp_path / "a.ml")
    m.watch.advance(START + 700 * MS)
    m.alerts.save(m.engine.clock, m.engine)
    m.die()
    (tmp_path / "a.ml" / "monitor.json").write_bytes(torn)
    m = Monitor(log, tmp_path / "a.ml")
    m.watch.advance(END)
    m.alerts.close()
    assert sorted(kept(tmp_path / "a.ml")) == sorted(whole)


@pytest.mark.parametrize(
    "point", ["alert-append", "alert-appended", "publish-before", "publish-after", "append-stored", "monitor-state"]
)
def test_killed_at_a_fault_point(log: Path, tmp_path: Path, point: str) -> None:
    """Real processes that kill themselves between the steps of keeping an alert."""
    texts = [w for t in TEXTS for w in ("-t", t)]
    argv = [log, *texts, "--since", f"@{START // SECOND}", "--until", f"@{END // SECOND}.5", "-o", "tsv"]
    assert run("confluo-monitor", *argv, "--alerts", tmp_path / "whole.ml").returncode == 0
    died = 0
    for count in (1, 3, 17):
        fault = environment(CONFLUO_FAULT=f"{point}:{count}")
        done = run("confluo-monitor", *argv, "--alerts", tmp_path / "a.ml", env=fault)
        died += done.returncode == -signal.SIGKILL
    assert died
    assert run("confluo-monitor", *argv, "--alerts", tmp_path / "a.ml").returncode in (0, 1)
    assert sorted(kept(tmp_path / "a.ml")) == sorted(kept(tmp_path / "whole.ml"))
    assert run("confluo-info", "--verify", tmp_path / "a.ml").returncode == 0


@pytest.mark.slow
def test_following_monitors_are_killed_at_any_time(tmp_path: Path) -> None:
    """A writer goes on while monitor after monitor is killed: together their alerts are those of a replay."""
    log = tmp_path / "x.ml"
    multilog.create(log, builtin("header64")).close()
    texts = [
        "-t",
        "on: count > 5 over 100ms every 1ms",
        "-t",
        "off: count < 1 over 150ms every 1ms",
        "-t",
        "key: count > 9 over 60ms every 5ms by src_ip for 20ms",
        "-t",
        "long: count < 1 over 80ms every 2ms for 90ms",
    ]
    argv = [BIN / "confluo-monitor", log, *texts, "-o", "ndjson", "-q", "--lag", "300ms"]
    rng = random.Random(11)
    script = ROOT / "tests" / "support" / "monitor_writer.py"
    first = time.time_ns()
    with subprocess.Popen(
        [sys.executable, script, log, "5", "5", "3", "1.5", "2.2"],
        stdout=subprocess.DEVNULL,
        env=environment(PYTHONPATH=str(ROOT)),
    ) as writer:
        deaths = 0
        while writer.poll() is None:
            with popen(argv, stdout=subprocess.DEVNULL, env=environment()) as child:
                time.sleep(rng.uniform(0.1, 1.1))
                child.kill()
            deaths += 1
    assert deaths > 3
    with popen(argv, stdout=subprocess.DEVNULL, env=environment()) as child:
        listens(child, signal.SIGTERM)
        time.sleep(1.5)
        child.terminate()
        assert child.wait(30) == 128 + signal.SIGTERM
    live = [k[:6] for k in kept(tmp_path / "x.alerts.ml")]
    last = max(int(k[0]) for k in live)
    span = ["--since", f"@{first // SECOND - 2}", "--until", f"@{last // SECOND}.{last % SECOND:09d}"]
    done = run("confluo-monitor", log, *texts, *span, "--alerts", tmp_path / "again.ml", "-o", "ndjson")
    assert done.returncode == 0
    again = [k[:6] for k in kept(tmp_path / "again.ml")]
    # The replay begins before the first monitor did: both begin to be compared where records come first.
    start = min(int(k[0]) for k in live if k[1].startswith("b'off") and k[2] == "2")
    assert sorted(k for k in live if int(k[0]) >= start) == sorted(k for k in again if int(k[0]) >= start)
    assert sum(k[1].startswith("b'on") for k in live) >= 3


def test_alerts_of_another_log_are_not_gone_on_with(log: Path, tmp_path: Path) -> None:
    m = Monitor(log, tmp_path / "a.ml")
    m.watch.advance(START + 100 * MS)
    m.alerts.save(m.engine.clock, m.engine)
    with pytest.raises(BusyError):
        Monitor(log, tmp_path / "a.ml")
    m.alerts.close()
    multilog.create(tmp_path / "other.ml", builtin("header64")).close()
    done = run("confluo-monitor", tmp_path / "other.ml", "-t", TEXTS[0], "--alerts", tmp_path / "a.ml")
    assert (done.returncode, b"has the alerts of another log" in done.stderr) == (2, True)


# ---------------------------------------------------------------- clocks


@pytest.fixture
def lab(tmp_path: Path) -> Any:
    made = Lab(tmp_path, ["busy: count > 5 over 10ms every 1ms", "silent: count < 1 over 50ms every 1ms for 5ms"])
    yield made
    made.close()


@pytest.mark.parametrize("hours", [1, 24 * 365, -1, -24 * 365])
def test_the_clock_is_set(lab: Any, hours: int) -> None:
    """No loop for hours, no alert about a time in which nothing was, and the watch goes on at the new time."""
    lab.run(200)
    lab.told.clear()
    lab.clocks.now += hours * 3600 * SECOND
    before = lab.watch.ticks
    lab.run(200)
    assert lab.watch.ticks - before < 500
    assert len(lab.said) == 1
    assert "the clock was set" in lab.said[0]
    # Windows start again: the trigger that held holds again when its window has filled; silence is none.
    assert [t[1:] for t in lab.told] == [("busy", 1)]
    lab.run(120, rows=False)
    assert [t[1:] for t in lab.told] == [("busy", 1), ("busy", 2), ("silent", 1)]


def test_a_machine_that_slept_is_no_clock_that_was_set(lab: Any) -> None:
    lab.run(100)
    lab.clocks.go(3600 * SECOND)
    lab.run(100)
    assert lab.said == []
    events = [t[1:] for t in lab.told]
    assert events[-3:] == [("busy", 2), ("silent", 1), ("silent", 2)] or ("silent", 1) in events
    assert lab.watch.ticks < 10_000  # of three and a half million: what holds no record is not looked at again


def test_small_steps_and_late_records(lab: Any) -> None:
    lab.run(100)
    lab.clocks.now -= 300 * MS  # less than a second: ticks wait for the clock
    lab.run(250)
    assert lab.said == ["1 record came late, by up to 299ms: alerts may differ; use --lag 500ms"]
    assert lab.watch.late > 200
    lab.run(100)
    late = lab.watch.late
    lab.run(100)
    assert lab.watch.late == late
    lab.add(lab.clocks.now - 15 * MS)  # later than the lag
    lab.run(1)
    assert lab.watch.late == late + 1


def test_late_records_are_reported_at_most_every_ten_seconds(lab: Any) -> None:
    """At the first one with the largest lateness and a lag that is enough, then every ten seconds, then in all."""
    lab.run(100)
    assert lab.said == []
    lab.add(lab.clocks.now - 15 * MS, 3)
    lab.run(1)
    assert lab.said == ["3 records came late, by up to 16ms: alerts may differ; use --lag 20ms"]
    for _ in range(98):
        lab.clocks.go(98 * MS)
        lab.run(1)
        lab.add(lab.clocks.now - 14 * MS)
        lab.run(1)
    assert len(lab.said) == 1
    for _ in range(10):
        lab.clocks.go(98 * MS)
        lab.run(1)
        lab.add(lab.clocks.now - 39 * MS)
        lab.run(1)
    assert lab.said[1:] == ["100 records came late, by up to 40ms: alerts may differ; use --lag 50ms"]
    lab.add(lab.clocks.now - 3600 * SECOND)
    lab.run(1)
    lab.live.late.end()
    assert lab.watch.late == 112
    last = "112 records came late in all, by up to 1h1s; compare the clocks of the writers with this one"
    assert lab.said[2:] == [last]


@pytest.mark.parametrize("skew", [900 * MS, 5 * SECOND, 3600 * SECOND, 10**17])
def test_records_from_the_future_wait(lab: Any, skew: int) -> None:
    """They count when their time has come, not before, and however far away that is costs nothing."""
    lab.run(60, rows=False)
    lab.told.clear()
    lab.run(30, skew=skew)
    lab.run(30, rows=False)
    assert [t[1:] for t in lab.told] == []  # still silent
    lab.clocks.go(min(skew, 3600 * SECOND) - 60 * MS)
    lab.run(100, rows=False)
    events = [t[1:] for t in lab.told]
    assert (("busy", 1) in events) == (skew <= 3600 * SECOND)


def test_record_times_that_jump_back_are_counted(lab: Any) -> None:
    lab.run(100)
    lab.run(50, skew=-3600 * SECOND)
    assert lab.watch.lost >= 50
    assert lab.watch.late >= 50


def test_a_lane_with_changing_writers_and_segments_that_end(tmp_path: Path) -> None:
    """Rows are found wherever writers put them: new lanes, segments closed early, full blocks."""
    made = Lab(tmp_path, ["all: count > 0 over 1ms every 1ms"])
    total = 0
    for turn in range(4):
        with made.log.writer(ahead=-1) as second:
            for _ in range(3):
                made.clocks.go(MS)
                n = 30_000 if turn == 1 else 3
                second.append(rows_of([made.clocks.now] * n, [1] * n, [2] * n))
                made.add(made.clocks.now, 2)
                total += n + 2
                made.live.step()
    made.run(30, rows=False)
    assert made.engine.feed.rows == total
    made.close()
