"""Commands that tests run as forks do what the same commands do when they are started."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

import running
from netns import Lab
from running import BIN, CAMPUS, environment, run

STARTED = {**environment(), "STARTED": "1"}  # an unknown variable: no fork


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (["confluo-query", CAMPUS, "--count"], None),
        (["confluo-query", CAMPUS, "dst_port == 443", "--agg", "count", "--by", "src_ip", "-o", "table"], None),
        (["confluo-query", "-", "-f", "ts,len"], CAMPUS.read_bytes()),
        (["confluo-query", "-"], b""),
        (["confluo-query", "-"], b"not a capture"),
        (["confluo-query", b"/n\xff\n"], None),
        (["confluo-query", "--help"], None),
        (["confluo-query", "--nonsense"], None),
        (["confluo-info", CAMPUS], None),
        (["confluo-pingmesh", "--help"], None),
        (["confluo-stream", "nothing"], None),
        (["confluo", "--version"], None),
    ],
)
def test_the_same_output_and_status(words: list[str | bytes], stdin: bytes | None) -> None:
    given = subprocess.DEVNULL if stdin is None else stdin
    fork, started = run(*words, stdin=given), run(*words, stdin=given, env=STARTED)
    assert (fork.returncode, fork.stdout, fork.stderr) == (started.returncode, started.stdout, started.stderr)


def test_its_state_is_that_of_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors, directory, variables, and what signals do, as a program that it executes sees them."""
    text = """
import os, sys
print(sorted(os.listdir("/proc/self/fd"))[:-1], os.getcwd(), sorted({*os.environ} - {"STARTED"}), sys.argv, sys.path[0])
print([l for l in open("/proc/self/status") if l.startswith(("Sig", "Umask", "CapEff", "Threads"))])
"""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "confluo-state"
    program.write_text(f"#!/bin/sh\nexec {running.ROOT}/.venv/bin/python -c '{text}'\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    monkeypatch.chdir(tmp_path)
    fork = run("confluo", "state", "x", env=environment(PATH=path), stdin=b"")
    started = run("confluo", "state", "x", env={**environment(PATH=path), "STARTED": "1"}, stdin=b"")
    assert fork.stderr == b""
    assert (fork.returncode, fork.stdout) == (started.returncode, started.stdout)


def test_it_ends_by_a_signal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.pcap")
    done: list[subprocess.CompletedProcess[bytes]] = []
    waits = threading.Thread(target=lambda: done.append(run("confluo-query", tmp_path / "p.pcap")))
    waits.start()
    with open(tmp_path / "p.pcap", "wb"):  # it has opened the other end
        (pid,) = (p for p in children(running._forks()._process.pid) if opened(p, tmp_path / "p.pcap"))
        os.kill(pid, signal.SIGKILL)
        waits.join(60)
    assert done[0].returncode == -signal.SIGKILL


def test_another_namespace_means_no_fork() -> None:
    forks = running._forks()
    assert forks.takes(environment())
    with Lab() as lab, lab.space().inside():
        assert not forks.takes(environment())
    assert not forks.takes(STARTED)
    assert BIN.is_dir()


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def opened(pid: int, path: Path) -> bool:
    return any(os.path.realpath(f) == os.path.realpath(path) for f in Path(f"/proc/{pid}/fd").iterdir())
