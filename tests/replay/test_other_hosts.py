"""Replays on hosts that are not that of the recording or lack rights, and what remains of replays that were killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from confluo_tools.replay.command import main as replay
from confluo_tools.replay.engine.network import missing
from confluo_tools.replay.engine.replay_command import main
from free_run import FreeRun, Traffic, record, write_recording

pytestmark = [
    pytest.mark.root,
    pytest.mark.net,
    pytest.mark.skipif(missing() != "", reason=f"no network for a replay: {missing()}"),
]
PROGRAM = "import sys; from confluo_tools.replay.command import main; sys.exit(main())"
INSTANCES = Path("/sys/kernel/tracing/instances")


def changed(path: Path, settings: dict[str, int | str]) -> str:
    """A recording of a host with other settings."""
    run = FreeRun(Traffic(10_000))
    done = run.run()
    for end in run.ends:
        end.settings |= settings
    return str(write_recording(path, done))


def test_another_kernel_and_another_tick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path / "c.ml", {"kernel": "2.4.37", "tick": 10_000_000})
    assert main([path, "--tries", "3"]) in (0, 3)
    printed = capsys.readouterr().err
    assert f"the client was recorded on Linux 2.4.37, this is {os.uname().release}" in printed
    assert "the server was recorded with HZ=100, this kernel has HZ=" in printed
    assert "try 1: " in printed


def test_quiet_says_what_differs_here_where_the_replay_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path / "c.ml", {"kernel": "2.4.37", "mss": 500})
    assert main([path, "-q"]) == 3
    assert "recorded on Linux 2.4.37" in capsys.readouterr().err


def test_a_setting_that_this_kernel_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path / "c.ml", {"tcp_of_tomorrow": 1, "tcp_/../x": 7})
    assert main([path, "--tries", "5"]) == 0
    printed = capsys.readouterr().err
    assert "this kernel has no net.ipv4.tcp_of_tomorrow, which was 1 at the client" in printed
    assert "this kernel has no net.ipv4.tcp_/../x, which was 7 at the server" in printed


def test_a_congestion_control_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path / "c.ml", {"tcp_congestion_control": "nonesuch"})
    for engine in ("serial", "decoupled", "naive"):
        assert main([path, "--engine", engine]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "congestion control 'nonesuch', this kernel has" in line
        assert "modprobe tcp_nonesuch; confluo-replay explain, diff and --as-packetdrill need none" in line
    assert replay(["explain", path, "-q", "-w", str(tmp_path / "labels.tsv")]) == 0
    assert replay(["diff", path, path]) == 0
    assert replay([path, "--as-packetdrill", "-w", str(tmp_path / "c.pkt")]) == 0


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_root_without_capabilities(tmp_path: Path) -> None:
    path = str(record(tmp_path / "c.ml", Traffic(10_000)))
    bare = ["setpriv", "--bounding-set", "-sys_admin,-net_admin", sys.executable, "-c", PROGRAM]
    done = subprocess.run([*bare, path], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "no network for a replay can be made" in line
    assert "run it as root; confluo-replay explain and diff need no rights" in line
    for words in (["diff", path, path], [path, "--as-packetdrill"], ["explain", path, "-q", "-T"]):
        assert subprocess.run([*bare, *words], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("engine", ["serial", "decoupled", "naive"])
def test_nothing_is_left_after_a_kill(engine: str, tmp_path: Path) -> None:
    path = changed(tmp_path / "c.ml", {"mss": 500})  # it differs, so it is tried again and again
    words = [path, "--tries", "1000", "--engine", engine, "--trace", "tcp_probe"]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        command = [sys.executable, "-c", PROGRAM, *words]
        child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert child.stderr is not None
        assert "try 1" in child.stderr.readline()  # the next try runs
        child.send_signal(number)
        child.communicate(timeout=60)
        assert child.returncode in (-number, 128 + number)
        links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
        spaces = subprocess.run(["lsns", "-t", "net", "-n", "-o", "PID"], capture_output=True, text=True, check=True)
        assert f"confluo-{child.pid}" not in links
        assert str(child.pid) not in spaces.stdout.split()
        deadline = time.monotonic() + 30
        while any(re.search(rf"-{child.pid}-", entry.name) for entry in INSTANCES.iterdir()):
            assert time.monotonic() < deadline, "an instance of tracefs is left"
            time.sleep(0.05)
