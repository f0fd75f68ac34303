"""confluo-monitor as users run it: replays against plain Python over the same records, --once, --exec, bad input."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from confluo_tools import multilog
from confluo_tools.monitor.trigger_list import trigger_schema
from confluo_tools.schema import builtin
from monitor_writer import rows_of
from running import BIN, CAMPUS, DATA, ROOT, environment, run

MS, SECOND = 10**6, 10**9
START = 1_700_000_000 * SECOND


@pytest.fixture(scope="module")
def campus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("campus") / "campus.ml"
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", path).returncode == 0
    return path


def made(path: Path, rows: list[tuple[int, int, int]]) -> Path:
    """A log of header64 with (ts, len, dst_port)."""
    log = multilog.create(path, builtin("header64"))
    with log.writer(ahead=-1) as writer:
        if rows:
            writer.append(rows_of([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]))
    log.close()
    return path


def alerts(*argv: Any, status: int = 0) -> list[dict[str, Any]]:
    done = run("confluo-monitor", *argv, "-J")
    assert done.returncode == status, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def ns(text: str) -> int:
    whole, part = text.rstrip("Z").split(".")
    return int(time.mktime(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))) * SECOND + int(part.ljust(9, "0"))


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_replay_finds_what_plain_python_finds_in_the_same_records(campus: Path) -> None:
    done = run("confluo-query", campus, "-f", "ts,src_ip,len,proto", "-J")
    rows = [(ns(r["ts"]), r["src_ip"], r["len"], r["proto"]) for r in map(json.loads, done.stdout.splitlines())]
    begin = min(r[0] for r in rows) // SECOND * SECOND
    text = "heavy: sum(len) > 20k over 1s every 50ms by src_ip where tcp"
    got = [
        (ns(a["ts"]), a["event"], a["src_ip"], a["value"], a["rows"], a["threshold"])
        for a in alerts(campus, "--since", f"@{begin // SECOND}", "-t", text)
    ]
    expected, firing = [], set()
    for t in range(begin + 50 * MS, max(r[0] for r in rows) + 51 * MS, 50 * MS):
        inside: dict[str, list[int]] = {}
        for at, ip, length, proto in rows:
            if t - SECOND <= at < t and proto == "tcp" and ip is not None:
                inside.setdefault(ip, []).append(length)
        for ip in {*inside, *firing}:
            total = sum(inside.get(ip, []))
            if (total > 20_000) != (ip in firing):
                firing ^= {ip}
                expected.append((t, "fire" if ip in firing else "clear", ip, total, len(inside.get(ip, [])), 20_000))
    assert len(expected) > 20
    assert sorted(got) == sorted(expected)


def test_records_in_any_order_over_several_lanes_replay_alike(tmp_path: Path) -> None:
    """The replay goes by the times of the records, not by their places; quiet years cost nothing."""
    rows = [(START + i * 7 * MS % (900 * MS), 100 + i % 900, 80) for i in range(400)]
    rows += [(START + 10**17 + i * MS, 100, 443) for i in range(50)]  # three years later
    one = made(tmp_path / "one.ml", sorted(rows))
    many = multilog.create(tmp_path / "many.ml", builtin("header64"))
    for lane in range(3):
        with many.writer(ahead=-1) as writer:
            part = rows[lane::3][::-1]
            writer.append(rows_of([r[0] for r in part], [r[1] for r in part], [r[2] for r in part]))
    texts = [
        "-t",
        "a: count > 5 over 10ms every 1ms",
        "-t",
        "b: max(len) > 450 over 20ms every 2ms by dst_port",
        "-t",
        "c: count < 1 over 50ms every 1ms for 20ms rearm 30ms",
    ]
    fields = ["-f", "-key_id"]
    first = alerts(one, "--since", f"@{START // SECOND}", *texts, *fields)
    assert first == alerts(tmp_path / "many.ml", "--since", f"@{START // SECOND}", *texts, *fields)
    assert {a["trigger"] for a in first} == {"a", "b", "c"}
    assert first[-1]["ts"].startswith("2027-01")


def test_times_at_both_ends(tmp_path: Path) -> None:
    """Records of 1677, 1970 and 2262: no overflow, no loop of centuries."""
    log = made(tmp_path / "x.ml", [(t, 1, 80) for t in (-(1 << 63), -5, 0, START, (1 << 63) - 1)])
    texts = [
        "-t",
        "a: count > 0 over 10ms",
        "-t",
        "k: count > 0 over 10ms by dst_port",
        "-t",
        "d: distinct(len) > 0 over 1s",
    ]
    for since, years in (("2000-01-01", {"2023"}), ("1677-09-22", {"1970", "2023"}), ("@0", {"1970", "2023"})):
        found = alerts(log, "--since", since, *texts)
        assert {a["ts"][:4] for a in found} == years
        assert [a["event"] for a in found].count("fire") == [a["event"] for a in found].count("clear")
    assert alerts(log, "--once", *texts, status=1) == []
    assert len(alerts(log, "--once", "--until", f"@{START // SECOND}.01", *texts)) == 3


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("count > 4 over 10ms", 0),
        ("count > 5 over 10ms", 1),
        ("count > 4 over 10ms for 1ms", 1),
        ("avg(len) == 12 over 1s", 0),
    ],
)
def test_once_looks_at_the_newest_record(tmp_path: Path, condition: str, status: int) -> None:
    log = made(tmp_path / "x.ml", [(START + i * 2 * MS, 10 + i, 80) for i in range(4)] + [(START, 14, 1)])
    found = alerts(log, "--once", "-t", f"x: {condition}", status=status)
    assert [a["event"] for a in found] == ["fire"] * (1 - status)
    assert not (tmp_path / "x.alerts.ml").exists()


def test_alerts_of_a_tick_are_in_the_order_of_triggers_and_keys(tmp_path: Path) -> None:
    """Hashes of keys differ between logs: their order is that of no reader."""
    log = made(tmp_path / "x.ml", [(START + i, 10 + i, port) for i, port in enumerate((443, 80, 9, 8080, 22, 5201))])
    found = alerts(
        log, "--once", "-t", "b: max(len) > 1 over 1s by dst_port", "-t", "a: count > 0 over 1s by dst_port,len"
    )
    assert [(a["trigger"], a["key"]) for a in found] == [
        *(("b", f"dst_port={port}") for port in (9, 22, 80, 443, 5201, 8080)),
        *(("a", f"dst_port={p} len={n}") for p, n in ((9, 12), (22, 14), (80, 11), (443, 10), (5201, 15), (8080, 13))),
    ]


def test_once_at_a_time_sees_absence(tmp_path: Path) -> None:
    log = made(tmp_path / "x.ml", [(START, 10, 80)])
    text = "silent: count < 1 over 5m every 1s"
    assert alerts(log, "--once", "-t", text, status=1) == []
    assert len(alerts(log, "--once", "--until", "now", "-t", text)) == 1
    assert alerts(log, "--once", "--until", f"@{START // SECOND + 1}", "-t", text, status=1) == []
    empty = made(tmp_path / "empty.ml", [])
    assert alerts(empty, "--once", "-t", text, status=1) == []
    assert alerts(empty, "--since", "@1", "-t", text, status=1) == []


def test_each_trigger_of_once_has_its_own_tick(tmp_path: Path) -> None:
    """The tick of a long period must not move the windows of a short one."""
    log = made(tmp_path / "x.ml", [(START + 1, 10, 80)])
    found = alerts(log, "--once", "-t", "short: count > 0 over 2ms every 1ms", "-t", "long: count > 0 over 1h every 1h")
    assert {a["trigger"]: ns(a["ts"]) - START for a in found} == {
        "short": MS,
        "long": 3600 * SECOND - START % (3600 * SECOND),
    }


def test_alerts_are_a_log_like_any_other(campus: Path, tmp_path: Path) -> None:
    kept = tmp_path / "alerts.ml"
    shown = alerts(campus, "--since", "2026-11-21", "--alerts", kept, "-t", "x: count > 9 over 20ms every 5ms by flow")
    done = run("confluo-query", kept, "-J")
    assert [json.loads(line) for line in done.stdout.splitlines()] == shown
    a = shown[0]
    key = dict(word.split("=") for word in a["key"].split())
    assert (key["src_ip"], key["dst_ip"], key["src_port"], key["proto"]) == (
        a["src_ip"],
        a["dst_ip"],
        str(a["src_port"]),
        a["proto"],
    )
    flow = f"flow == {key['src_ip']}:{key['src_port']}-{key['dst_ip']}:{key['dst_port']}/{key['proto']}"
    done = run("confluo-query", kept, flow, "--count")
    assert int(done.stdout) == sum(b["key"] == a["key"] for b in shown)
    assert run("confluo-info", "--verify", kept).returncode == 0


def test_fields_of_an_analysis(tmp_path: Path) -> None:
    """Fields of --analyze can be used, and a window over everything counts what a query finds."""
    log = tmp_path / "loss.ml"
    assert run("confluo-capture", "-q", "-r", DATA / "loss.pcap.gz", "-w", log).returncode == 0
    where = "tcp_analysis has retransmission"
    count = int(run("confluo-query", log, "--analyze", "tcp", where, "--count").stdout)
    (found,) = alerts(log, "--analyze", "tcp", "--once", "-t", f"x: count > 3 over 365d every 1d where {where}")
    assert found["value"] == count > 50
    # In pieces it is the same: rows go through the analysis once, however often windows take them up.
    pieces = alerts(
        log,
        "--analyze",
        "tcp",
        "--since",
        "2026-11-21T01:18:51",
        "-t",
        f"x: count > 3 over 100ms every 10ms where {where}",
    )
    done = run("confluo-query", log, "--analyze", "tcp", where, "-f", "ts", "-J")
    times = [ns(json.loads(line)["ts"]) for line in done.stdout.splitlines()]
    on, expected = False, []
    for t in range(ns("2026-11-21T01:18:51.010"), max(times) + 10 * MS, 10 * MS):
        n = sum(t - 100 * MS <= at < t for at in times)
        if (n > 3) != on:
            on = not on
            expected.append((t, "fire" if on else "clear", n))
    assert [(ns(a["ts"]), a["event"], a["value"]) for a in pieces] == expected


def test_exec_gets_each_alert_and_no_shell(tmp_path: Path) -> None:
    log = made(tmp_path / "x.ml", [(START + i * 10 * MS, 10, 80) for i in range(0, 60, 3)])
    script = tmp_path / "note it"
    script.write_text(f"#!/bin/sh\necho printed\ncat >> {tmp_path}/lines\nexit $(grep -c clear {tmp_path}/lines)\n")
    script.chmod(0o755)
    text = "x: count > 0 over 5ms every 1ms"
    done = run(
        "confluo-monitor",
        log,
        "--since",
        f"@{START // SECOND}",
        "-t",
        text,
        "-J",
        "--exec-max",
        "1",
        "--exec",
        f"'{script}'",
        "--stats",
    )
    assert done.returncode == 0
    assert (tmp_path / "lines").read_bytes() == done.stdout
    said = done.stderr.decode()
    assert "printed" in said
    assert f"--exec: {script}: exit status 1, for x" in said
    assert "39 commands" in said


@contextmanager
def started(*argv: Any) -> Iterator[subprocess.Popen[bytes]]:
    """confluo-monitor as a process, in a group of its own; killed at the end if it is still there."""
    with subprocess.Popen(
        [BIN / "confluo-monitor", *argv, "-J", "-q"], stdout=subprocess.PIPE, env=environment(), start_new_session=True
    ) as child:
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def first_line(child: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert child.stdout is not None
    return dict(json.loads(child.stdout.readline()))


def test_a_slow_command_holds_nothing_up(tmp_path: Path) -> None:
    """39 alerts, commands of a second each, two at once: judging is over long before the first ends."""
    log = made(tmp_path / "x.ml", [(START + i * 10 * MS, 10, 80) for i in range(0, 60, 3)])
    text = "x: count > 0 over 5ms every 1ms"
    since = f"@{START // SECOND}"
    with started(log, "--since", since, "-t", text, "--exec", "sleep 100", "--exec-max", "2") as child:
        assert child.stdout is not None
        assert len([child.stdout.readline() for _ in range(39)]) == 39


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 2, "no trigger"),
        (("-t", "x: count > 1 over"), 2, "column 18"),
        (("-t", "x: cnt > 1 over 1s"), 2, "no aggregate 'cnt'"),
        (("-t", "x: count > 1 over 1s", "-t", "x: count > 2 over 1s"), 2, "two triggers are called 'x'"),
        (("-t", "x: count > 1 over 1s", "--until", "now"), 2, "--until needs"),
        (("-t", "x: count > 1 over 1s", "--once", "--since", "now"), 2, "exclude"),
        (("-t", "x: count > 1 over 1s", "--lag", "5"), 2, "is not a duration"),
        (("-t", "x: count > 1 over 1s", "--once", "--exec", "no-such-command"), 2, "there is no command"),
        (("-t", "x: count > 1 over 1s", "--once", "--exec", "'"), 2, "--exec: no closing quotation"),
        (("--triggers", "gone.yaml"), 2, "gone.yaml: cannot be read"),
        (("--triggers", "bad.yaml"), 2, "bad.yaml: is not a file"),
        (("--triggers", "wrong.yaml"), 2, "wrong.yaml: trigger 2, trigger, column 4: no aggregate 'cnt'"),
        (("--triggers", "odd.yaml"), 2, "odd.yaml: trigger 1: a trigger has no 'whn'"),
        (("-t", "x: count > 1 over 1s", "--check"), 0, ""),
        (("--triggers", "good.yaml", "--list"), 0, ""),
        (("-t", "x: count > 1 over 1s", "--since", "@1", "--alerts", "x.ml"), 2, "x.ml: is not a log of alerts"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, words: tuple[str, ...], status: int, said: str) -> None:
    made(tmp_path / "x.ml", [(START, 10, 80)])
    (tmp_path / "bad.yaml").write_text("just: words\n")
    (tmp_path / "wrong.yaml").write_text("- 'a: count > 1 over 1s'\n- 'b: cnt > 1 over 1s'\n")
    (tmp_path / "odd.yaml").write_text("triggers:\n- {name: x, whn: count > 1, over: 1s}\n")
    good = "triggers:\n- a: count > 1 over 1s\n- {name: b, when: sum(len) > 1k, over: 1s}\n"
    (tmp_path / "good.yaml").write_text(good)
    done = run("confluo-monitor", "x.ml", *words, cwd=tmp_path)
    assert done.returncode == status, done.stderr.decode()
    first = done.stderr.decode().split("\n")[0]
    assert said in first
    assert not first or first.startswith("confluo-monitor: ")
    assert "Traceback" not in done.stderr.decode()


def test_list_writes_records_as_other_commands_do(tmp_path: Path) -> None:
    made(tmp_path / "x.ml", [])
    every = "a: count > 1 over 1m every 1s by dst_port where len > 9 for 2s clear  count<1 rearm 3s repeat 5s"
    (tmp_path / "t.yaml").write_text(
        "- {name: b, when: count > 2, over: 1s, severity: low, labels: {team: net, site: x}, text: '{value} rows'}"
    )
    words = ["confluo-monitor", tmp_path / "x.ml", "--list", "-t", every, "--triggers", tmp_path / "t.yaml"]
    one = {"trigger": "a", "condition": "count > 1", "window": "1m", "period": "1s", "by": "dst_port"}
    one |= {"where": "len > 9", "for": "2s", "rearm": "3s", "clear": "count<1", "repeat": "5s"}
    two = {"trigger": "b", "condition": "count > 2", "window": "1s", "period": "10ms"}
    two |= {"severity": "low", "labels": "team=net site=x", "text": "{value} rows"}
    names = [f.name for f in trigger_schema().fields]
    assert names == list(one | two)
    wanted = [{name: part.get(name) for name in names} for part in (one, two)]

    assert [json.loads(line) for line in run(*words, "-J").stdout.splitlines()] == wanted
    found = csv.DictReader(io.StringIO(run(*words, "-o", "csv").stdout.decode()))
    assert [{name: text or None for name, text in row.items()} for row in found] == wanted
    assert run(*words, "-w", tmp_path / "list.parquet").stdout == b""
    assert pq.read_table(tmp_path / "list.parquet").to_pylist() == wanted
    assert run(*words, "-T", "--no-header", "-f", "repeat,trigger").stdout == b"5s\ta\n-\tb\n"
    table = run(*words[:5], "-o", "table", "-W", "-f", "-by").stdout.decode().splitlines()
    assert table[0].split() == [name for name in names if name != "by"]
    usual = run(*words[:3], "-t", "a: count > 1 over 1m repeat 5s", "-o", "table").stdout.decode().splitlines()
    assert usual[0].split() == ["trigger", "condition", "window", "period", "repeat"]
    assert run(*words, "-f", "help").stdout.splitlines()[10].startswith(b"repeat ")


def test_logs_that_cannot_be_watched(tmp_path: Path) -> None:
    done = run("confluo-monitor", tmp_path / "gone.ml", "-t", "x: count > 1 over 1s")
    assert (done.returncode, b"there is no such MultiLog" in done.stderr) == (2, True)
    from confluo_tools.schema import Field, Schema

    multilog.create(tmp_path / "timeless.ml", Schema("timeless", [Field("a", "u8")])).close()
    done = run("confluo-monitor", tmp_path / "timeless.ml", "-t", "x: count > 1 over 1s", "--once")
    assert (done.returncode, b"has no time" in done.stderr) == (2, True)


def test_two_monitors_on_one_log(tmp_path: Path) -> None:
    log = made(tmp_path / "x.ml", [])
    text = "silent: count < 1 over 20ms every 1ms"
    with started(log, "-t", text) as first:
        assert first_line(first)["trigger"] == "silent"
        done = run("confluo-monitor", log, "-t", text, "-J")
        assert done.returncode == 75
        assert b"x.alerts.ml: another monitor writes these alerts; --wait" in done.stderr
        with started(log, "-t", text, "--alerts", tmp_path / "o.ml") as other:
            assert first_line(other)["event"] == "fire"
            other.terminate()
            assert other.wait(30) == 128 + signal.SIGTERM
        with started(log, "-t", "b: count < 2 over 20ms every 1ms", "--wait", "60s") as waiting:
            time.sleep(0.3)
            first.send_signal(signal.SIGINT)
            assert first.wait(30) == 128 + signal.SIGINT
            gone = first_line(waiting)
            assert (gone["trigger"], gone["event"]) == ("silent", "clear")  # it fired, and was removed
            assert first_line(waiting)["trigger"] == "b"


def test_following_a_log_finds_what_a_replay_finds(tmp_path: Path) -> None:
    """The writer goes by the clock; the same ticks, the same alerts."""
    log = made(tmp_path / "x.ml", [])
    texts = [
        "-t",
        "on: count > 5 over 100ms every 1ms",
        "-t",
        "off: count < 1 over 200ms every 1ms",
        "-t",
        "key: sum(len) > 1k over 50ms every 5ms by src_ip",
        "-t",
        "slow: p50(len) >= 99 over 100ms every 10ms",
    ]
    with started(log, *texts, "--lag", "300ms", "--alerts", "none") as watcher:
        assert first_line(watcher)["trigger"] == "off"  # it is running
        script = ROOT / "tests" / "support" / "monitor_writer.py"
        subprocess.run(
            [sys.executable, script, log, "2", "4", "3", "0.7", "1.3"],
            check=True,
            timeout=60,
            stdout=subprocess.DEVNULL,
            env=environment(PYTHONPATH=str(ROOT)),
        )
        time.sleep(0.8)
        watcher.send_signal(signal.SIGINT)
        rest, _ = watcher.communicate(timeout=60)
    live = [json.loads(line) for line in rest.splitlines()]
    again = alerts(log, "--since", "2m", "--until", "now", *texts)
    names = [(a["trigger"], a["event"]) for a in live]
    assert ("on", "clear") in names
    assert ("off", "fire") in names
    again = again[next(i for i, a in enumerate(again) if (a["trigger"], a["event"]) == ("off", "clear")) :]
    live = live[next(i for i, a in enumerate(live) if (a["trigger"], a["event"]) == ("off", "clear")) :]
    assert [a | {"lasted": 0} for a in again[: len(live)]] == [a | {"lasted": 0} for a in live]
