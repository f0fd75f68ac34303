"""Triggers over the logs of several hosts: what they find, and what happens when a host dies, hangs and comes back."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from confluo_tools import multilog
from confluo_tools.schema import builtin
from hosts_lab import HostsLab, WatchLab, remote_shell, server, signal_server
from monitor_lab import MS, SECOND, START, TEXTS, bursts
from running import BIN, environment, next_line, popen, run

BEGIN = f"@{START // SECOND}"
MORE = [
    "f: p90(len) > 1300 or avg(len) > 900 over 40ms every 10ms by dst_port",
    "g: distinct(src_ip) == 3 and max(len) > 1400 over 30ms every 10ms where dst_port < 443",
    "h: sum(len * 8) / count > 6000 over 50ms every 10ms",
]


def environ(folder: Path) -> dict[str, str]:
    return environment(CONFLUO_RSH=remote_shell(folder), CONFLUO_REMOTE=f"{BIN / 'confluo-serve'} --stdio")


def alerts(folder: Path, *words: Any, status: int = 0) -> list[dict[str, Any]]:
    done = run("confluo-monitor", *words, "-J", env=environ(folder))
    assert done.returncode == status, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[HostsLab]:
    made = HostsLab(tmp_path)
    yield made
    made.close()


def test_three_hosts_give_the_alerts_of_one_log_with_all_rows(lab: HostsLab, tmp_path: Path) -> None:
    lab.append(bursts(11))
    words = [word for text in TEXTS + MORE for word in ("-t", text)]
    words += ["--since", BEGIN, "-f", "-key_id"]  # numbers of keys belong to the log
    one, many = (sorted(map(str, alerts(tmp_path, *names, *words))) for names in ([lab.whole], lab.names))
    assert len(one) > 100
    assert {json.loads(a.replace("'", '"').replace("None", "null"))["trigger"] for a in one} == set("abcdefgh")
    assert many == one


def test_a_replay_of_quiet_years_by_host(lab: HostsLab, tmp_path: Path) -> None:
    """The field `host` is a key; years without a record are skipped; --once sees the newest record."""
    years = 3 * 10**17
    lab.append([(START + i * MS, 100, 80, 1) for i in range(30)])
    lab.append([(START + years + i * MS, 100, 80, 1) for i in range(30)])
    found = alerts(tmp_path, *lab.names, "-t", "n: count >= 10 over 1s every 100ms by host", "--since", BEGIN)
    assert {(a["key"], a["event"]) for a in found if a["key"] != f"host={found[0]['host']}"} == {
        (f"host={name}", event) for name in ("alpha", "beta") for event in ("fire", "clear")
    }
    assert len(found) == 9
    assert found[-1]["ts"] > "2033"
    assert alerts(tmp_path, *lab.names, "-t", "n: count == 30 over 1s", "--once")[0]["value"] == 30
    (tmp_path / "down-beta").touch()
    alerts(tmp_path, *lab.names, "-t", "n: count == 30 over 1s", "--once", status=2)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchLab]:
    made = WatchLab(tmp_path, ["n: count > 0 over 100s every 100s repeat 1s"], monkeypatch)
    yield made
    made.close()


def test_a_killed_server_changes_nothing_when_it_is_back_in_time(watched: WatchLab, tmp_path: Path) -> None:
    """kill -9 of a server, before and after it has answered: the windows have every row, each once."""
    tick = 100 * SECOND
    for number in range(4):
        watched.append([(START + number * tick + i * MS, 100, 80, i) for i in range(30 + number)])
        if number == 2:  # a part of the rows has come
            watched.step_until(lambda: watched.watch.engine.feed.rows > 70, go=100 * MS)
        before = server(tmp_path, "beta")
        signal_server(tmp_path, "beta", signal.SIGKILL)
        watched.clocks.go(tick + 10 * MS - (watched.clocks.now - START) % tick)
        watched.step_until(watched.evaluated((number + 1) * tick), go=50 * MS)
        assert server(tmp_path, "beta") != before
    assert [value for _, _, _, value in watched.fired] == [30, 31, 32, 33]
    assert (watched.watch.late, watched.watch.changes, watched.said) == (0, [], [])


def test_a_host_that_hangs_is_missing_until_it_answers(watched: WatchLab, tmp_path: Path) -> None:
    """Ticks wait for it once, then go on without it; its late records count in later windows, and are reported."""
    tick = 100 * SECOND
    watched.append([(START + i * MS, 100, 80, i) for i in range(30)])
    signal_server(tmp_path, "alpha", signal.SIGSTOP)
    watched.clocks.go(tick + 10 * MS)
    here, alpha, beta = watched.watch.feeds
    watched.step_until(lambda: min(here.mark, beta.mark) >= START + tick and here.since is beta.since is None)
    assert alpha.asking
    assert not watched.fired
    watched.watch.patience = 5 * SECOND
    watched.clocks.go(6 * SECOND)
    watched.step_until(watched.evaluated(tick))
    name = watched.names[1]
    (gone,) = watched.watch.changes
    assert (gone.name, gone.reason, watched.fired[0][3]) == (name, "it does not answer", 20)
    watched.watch.changes.clear()
    watched.append([(START + tick + i * MS, 100, 80, i) for i in range(30)])
    watched.watch.patience = 10**6 * SECOND
    watched.clocks.go(tick)
    watched.step_until(watched.evaluated(2 * tick))  # nothing waits for it now
    assert watched.fired[-1][3] == 20
    signal_server(tmp_path, "alpha", signal.SIGCONT)
    watched.step_until(lambda: bool(watched.watch.changes), go=100 * MS)
    (back,) = watched.watch.changes
    assert (back.name, back.reason, back.late, watched.watch.late) == (name, "", 20, 20)
    watched.append([(START + 2 * tick + i * MS, 100, 80, i) for i in range(30)])
    watched.clocks.go(tick)
    watched.step_until(watched.evaluated(3 * tick))
    assert watched.fired[-1][3] == 30
    assert watched.said == []


def test_a_missing_host_is_an_alert_over_a_restart(tmp_path: Path) -> None:
    """It is reported and kept when a host is away at the beginning; the next monitor, after kill -9, writes the end."""
    lab = HostsLab(tmp_path)
    lab.append([(time.time_ns(), 100, 80, 1)])
    lab.close()
    (tmp_path / "down-beta").touch()
    words = [BIN / "confluo-monitor", *lab.names, "-t", "n: count > 10 over 1s", "--alerts", tmp_path / "alerts.ml"]
    words += ["-J", "-f", "trigger,event,key"]
    for event in ("fire", "clear"):
        with popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ(tmp_path)) as monitor:
            try:
                found = json.loads(next_line(monitor.stdout))
                if event == "fire":
                    end = time.monotonic() + 60
                    while not (tmp_path / "alerts.ml" / "monitor.json").exists():
                        assert time.monotonic() < end
                        time.sleep(0.02)
            finally:
                monitor.kill()
                said = monitor.stderr.read().decode()
        assert found == {"trigger": "host-missing", "event": event, "key": f"log={lab.names[2]}"}
        if event == "fire":
            assert said.endswith("connect to host beta port 22: No route to host; triggers go on without it\n")
            (tmp_path / "down-beta").unlink()
    with multilog.open(tmp_path / "alerts.ml", readonly=True) as log:
        assert log.version().rows == 2


def test_what_several_logs_cannot_be(lab: HostsLab, tmp_path: Path) -> None:
    votes = tmp_path / "votes.ml"
    multilog.create(votes, builtin("vote")).close()
    known = run("confluo-index", lab.paths[1], "add", "filter", "web", "dst_port == 80", env=environ(tmp_path))
    assert known.returncode == 0
    run("confluo-index", lab.paths[2], "add", "filter", "web", "dst_port == 443", env=environ(tmp_path))
    for words, said in (
        ([*lab.names, "--analyze", "tcp"], "--analyze: needs the packets of one log of this host"),
        ([*lab.names, lab.names[1]], f"{lab.names[1]}: is given twice"),
        ([lab.paths[0], votes], f"{votes}: holds records of kind 'vote', {lab.paths[0]} of kind 'header64'"),
        ([*lab.names, "-t", "w: count > 1 over 1s where filter web"], f"'web' than {lab.names[1]}"),
        ([*lab.names, "-t", "host-missing: count > 1 over 1s"], "is the trigger of hosts that do not answer"),
        (["down:x.ml", "kafka://a/b"], "kafka://a/b: a topic is read alone"),
    ):
        done = run("confluo-monitor", *words, "-t", "n: count > 1 over 1s", env=environ(tmp_path))
        assert (done.returncode, said in done.stderr.decode()) == (2, True), done.stderr.decode()
        assert done.stderr.count(b"\n") == 1
