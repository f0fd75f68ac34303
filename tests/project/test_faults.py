"""Faults that span several subjects: several programs on one log while one of them dies, one of eight hosts that is
down, the units of systemd; and docs/faults.md names existing tests."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import remote_lab
from confluo_tools import multilog
from log_rows import SIGNED, signed_block
from monitor_lab import SECOND, kept
from netns import Lab
from nic_lab import Live, capture, end_all, frame, rows, send, table, wait_for
from running import BIN, ROOT, run

TRIGGERS = [
    "-t",
    "on: count > 5 over 100ms every 1ms",
    "-t",
    "off: count < 1 over 150ms every 1ms",
    "-t",
    "port: count > 3 over 80ms every 2ms by dst_port where udp",
]


def test_the_table_names_tests_that_there_are() -> None:
    """A row without a test is a wish."""
    text = (ROOT / "docs" / "faults.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ") and not re.match(r"\| (fault|-)", line)]
    assert len(lines) > 30
    for line in lines:
        found = re.findall(r"`(test_\w+)\.(\w+)`", line)
        assert found, line
        for file, name in found:
            (path,) = (ROOT / "tests").rglob(f"{file}.py")
            source = path.read_text()
            assert re.search(rf"^def {name}\(", source, re.MULTILINE), f"{file}.{name}"


@pytest.mark.parametrize("unit", sorted(p.stem for p in (ROOT / "examples").glob("*.service")))
def test_units_are_what_systemd_takes(tmp_path: Path, unit: str) -> None:
    """With the commands of this checkout; it says nothing at all when a unit is right."""
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("no systemd-analyze")
    text = (ROOT / "examples" / f"{unit}.service").read_text()
    assert f"ExecStart={unit.replace('pingmesh-', 'pingmesh ')}" in text
    copy = tmp_path / f"{unit}.service"
    copy.write_text(text.replace("ExecStart=", f"ExecStart={BIN}/"))
    done = subprocess.run([verify, "verify", "--man=no", copy], capture_output=True, text=True, check=False, timeout=60)
    if "Failed to initialize manager" in done.stderr or "Failed to setup working directory" in done.stderr:
        pytest.skip(f"systemd-analyze cannot work here: {done.stderr.strip()}")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    wrong = text.replace("ExecStart=", f"ExecStart={BIN}/").replace("NoNewPrivileges=yes", "NoNewPrivilege=perhaps")
    copy.write_text(wrong)
    done = subprocess.run([verify, "verify", "--man=no", copy], capture_output=True, text=True, check=False, timeout=60)
    assert "NoNewPrivilege" in done.stderr  # it does look


def test_a_question_to_eight_hosts_of_which_one_is_down(tmp_path: Path) -> None:
    """An error that names it; a partial answer only for who asks for one."""
    words = []
    for i in range(8):
        with multilog.create(tmp_path / f"{i}.ml", SIGNED) as log, log.writer(ahead=-1) as writer:
            writer.append(signed_block(i, 0, 10 + i))
        words += ["-r", f"{'down' if i == 5 else 'sw'}{i}:{tmp_path}/{i}.ml"]
    env = remote_lab.env(tmp_path)
    for question in (["--count"], ["seq < 3", "-o", "tsv"], ["--agg", "count", "-o", "tsv"]):
        done = run("confluo-query", *words, *question, env=env)
        line = b"confluo-query: down5: cannot be reached: ssh: connect to host down5 port 22: No route to host\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, b"", line)
    done = run("confluo-query", "--partial", *words, "--count", env=env)
    assert (done.returncode, done.stdout) == (0, b"93\n")
    assert done.stderr.count(b"\n") == 1
    assert b"down5: cannot be reached" in done.stderr
    assert b"going on without it" in done.stderr


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made
    end_all()


@pytest.mark.net
@pytest.mark.root
@pytest.mark.slow
def test_a_capture_is_killed_with_views_and_a_monitor_on_it(tmp_path: Path, lab: Lab) -> None:
    """Three times: views answer as the rows do, and the monitor, which goes on, prints what a replay prints."""
    a, b = lab.pair()
    log = tmp_path / "x.ml"
    first = capture(b, "-i", "v0", "-w", log, "--index", "dst_port", "--immediate", "--lanes", "2")
    assert run("confluo-index", log, "add", "filter", "low", "dst_port < 50").returncode == 0
    assert run("confluo-index", log, "add", "aggregate", "n", "count", "--by", "dst_port").returncode == 0
    monitor = Live(b, BIN / "confluo-monitor", log, *TRIGGERS, "-o", "ndjson", "--lag", "400ms", out=subprocess.PIPE)
    assert monitor.child.stdout is not None
    assert b'"off"' in monitor.child.stdout.readline()
    begin = time.time_ns()
    for turn in range(3):
        for i in range(30):
            send(a, [frame(dport=(turn * 30 + i) % 100, ident=i)] * 3)
            time.sleep(0.004)
            if turn < 2 and i == 20:
                seen = rows(log)
                assert first.end(signal.SIGKILL)[0] == -9
                assert rows(log) >= seen
                time.sleep(0.3)
                first = capture(b, "-i", "v0", "-w", log, "--append", "--immediate", "--lanes", "2")
        time.sleep(0.25)
    wait_for(log, rows(log))
    time.sleep(0.8)
    assert first.end()[0] == 130
    assert monitor.end()[0] == 130
    end = time.time_ns() - 2 * SECOND // 5
    assert run("confluo-info", "--verify", log).returncode == 0
    ports = [r[0] for r in table(log, "dst_port")]
    assert int(run("confluo-query", log, "filter low", "--count").stdout) == sum(p < 50 for p in ports)
    assert int(run("confluo-query", log, "dst_port == 7", "--count").stdout) == ports.count(7)
    live = [k[:6] for k in kept(tmp_path / "x.alerts.ml")]
    span = ["--since", f"@{begin // SECOND - 1}", "--until", f"@{end // SECOND}.{end % SECOND:09d}"]
    done = run("confluo-monitor", log, *TRIGGERS, *span, "--alerts", tmp_path / "again.ml", "-o", "ndjson")
    assert done.returncode == 0, done.stderr
    again = [k[:6] for k in kept(tmp_path / "again.ml")]
    start = min(int(k[0]) for k in live if k[1].startswith("b'off") and k[2] == "2")
    last = max(int(k[0]) for k in live)
    assert sorted(k for k in live if int(k[0]) >= start) == sorted(k for k in again if start <= int(k[0]) <= last)
    assert sum(k[1].startswith("b'on") and k[2] == "1" for k in live) >= 3
