"""Commands that tests run as forks do what the same commands do when they are started."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

import running
from command_forks import ForkedCommand, ForkedCommands
from netns import Lab
from running import BIN, CAMPUS, completed, environment, forks_with, popen, run, shell

STARTED = {**environment(), "PYTHONSTARTED": "1"}  # a variable that Python may read: no fork


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (["confluo-query", CAMPUS, "--count"], None),
        (["confluo-query", CAMPUS, "dst_port == 443", "--agg", "count", "--by", "src_ip", "-o", "table"], None),
        (["confluo-query", "-", "-f", "ts,len", "-T"], CAMPUS.read_bytes()),  # batches depend on when the bytes come
        (["confluo-query", "-"], b""),
        (["confluo-query", "-"], b"not a capture"),
        (["confluo-query", b"/n\xff\n"], None),
        (["confluo-query", "--help"], None),
        (["confluo-query", "--nonsense"], None),
        (["confluo-info", CAMPUS], None),
        (["confluo-pingmesh", "--help"], None),
        (["confluo-stream", "nothing"], None),
        (["confluo", "--version"], None),
        (["confluo-query", CAMPUS, "-o", "parquet"], None),  # these are forks of the process that has loaded Arrow
        (["confluo-query", "-", "-i", "arrow"], b"not Arrow"),
        (["confluo-sql", "select 1 as one"], None),
        (["confluo-sql", "nonsense"], None),
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
print(sorted(os.listdir("/proc/self/fd"))[:-1], os.getcwd(), sys.argv, sys.path[0])
print(sorted({*os.environ} - {"PYTHONSTARTED"}))
print([l for l in open("/proc/self/status") if l.startswith(("SigP", "SigB", "SigI", "SigC", "Um", "CapEff", "Thr"))])
"""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "confluo-state"
    program.write_text(f"#!/bin/sh\nexec {running.ROOT}/.venv/bin/python -c '{text}'\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    monkeypatch.chdir(tmp_path)
    fork = run("confluo", "state", "x", env=environment(PATH=path), stdin=b"")
    started = run("confluo", "state", "x", env={**environment(PATH=path), "PYTHONSTARTED": "1"}, stdin=b"")
    assert fork.stderr == b""
    assert (fork.returncode, fork.stdout) == (started.returncode, started.stdout)


@pytest.mark.parametrize("format", ["pcap", "arrow"])
def test_it_ends_by_a_signal(tmp_path: Path, format: str) -> None:
    os.mkfifo(tmp_path / "p")
    done: list[subprocess.CompletedProcess[bytes]] = []
    waits = threading.Thread(target=lambda: done.append(run("confluo-query", tmp_path / "p", "-i", format)))
    waits.start()
    with open(tmp_path / "p", "wb"):  # it has opened the other end
        (pid,) = (p for p in children(forks()._process.pid) if opened(p, tmp_path / "p"))
        os.kill(pid, signal.SIGKILL)
        waits.join(60)
    assert done[0].returncode == -signal.SIGKILL


def test_another_thread_may_be_in_a_namespace() -> None:
    assert forks().here()
    with Lab() as lab, lab.space().inside():
        assert not forks().here()


def test_in_a_namespace(tmp_path: Path) -> None:
    """As by ip-netns(8): its network, and /sys with its interfaces and nothing else."""
    program = tmp_path / "confluo-state"
    program.write_text("#!/bin/sh\nreadlink /proc/self/ns/net; ls /sys /sys/class/net; tail -n +3 /proc/net/dev\n")
    program.chmod(0o755)
    env = environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    with Lab() as lab:
        space = lab.pair()[0]
        words = space.argv(BIN / "confluo", "state")
        fork = completed(words, env=env, capture_output=True)
        started = subprocess.run(words, env=env, capture_output=True, check=False)
        shells = space.argv("sh", "-c", f"PATH={forks().folder}:$PATH; confluo state; ls -d /run/netns")
        in_shell = subprocess.run(shells, env=env, capture_output=True, check=False)
    assert b"v0" in fork.stdout
    assert (fork.returncode, fork.stdout, fork.stderr) == (0, started.stdout, b"")
    assert (in_shell.stdout, in_shell.stderr) == (started.stdout + b"/run/netns\n", b"")


def test_a_process_in_the_background() -> None:
    """With the methods of Popen."""
    process = popen([BIN / "confluo-query", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert isinstance(process, ForkedCommand)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.communicate(timeout=60)[1] == b""
    assert process.poll() == process.wait() == -signal.SIGKILL
    ended = popen([BIN / "confluo-query", "-", "--count"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert ended.communicate("not a capture", timeout=60)[0] == ""
    assert ended.returncode == 2


@pytest.mark.parametrize(
    "text",
    [
        'confluo-query "$1" --count; confluo-query "$1" -c 3 -o stream | confluo-query - -f ts,len',
        'cd "${1%/*}"; confluo-query ./"${1##*/}" --nonsense; echo $?; confluo-query nothing',
        "printf x | confluo-query -; confluo-query - <&-",
        '(ulimit -n 30; confluo-query "$1" --count); cat <(confluo --version)',
        "confluo-query - & kill $!; wait $!",
        "exec confluo query --version",
        'confluo-query "$1" -c 3 -o arrow | confluo-query - -f ts,len | wc -l; confluo-sql nonsense; confluo-archive',
    ],
)
def test_the_same_in_a_shell(text: str) -> None:
    """What shells find is a program that asks for a fork, or starts the command where a fork would differ."""
    fork = shell(text, CAMPUS)
    path = f"{BIN}:{os.environ['PATH']}"
    words = ["bash", "-o", "pipefail", "-c", text, "bash", CAMPUS]
    started = subprocess.run(words, env=environment(PATH=path), capture_output=True, stdin=subprocess.DEVNULL)
    assert (fork.returncode, fork.stdout, fork.stderr) == (started.returncode, started.stdout, started.stderr)


def test_a_program_in_a_shell_passes_signals_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.pcap")
    path = f"{forks().folder}:{os.environ['PATH']}"
    words = ["bash", "-c", 'exec confluo-query "$0"', tmp_path / "p.pcap"]
    process = subprocess.Popen(words, env=environment(PATH=path), stderr=subprocess.PIPE)
    with open(tmp_path / "p.pcap", "wb"):  # it has opened the other end
        (pid,) = (p for p in children(forks()._process.pid) if opened(p, tmp_path / "p.pcap"))
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[1] == b""
    assert process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert not Path(f"/proc/{pid}").exists()


def forks() -> ForkedCommands:
    return forks_with(environment())


def children(pid: int) -> list[int]:
    """Those of a process, and theirs."""
    try:
        found = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:  # it has ended
        return []
    return [*found, *(p for one in found for p in children(one))]


def opened(pid: int, path: Path) -> bool:
    return any(os.path.realpath(f) == os.path.realpath(path) for f in Path(f"/proc/{pid}/fd").iterdir())
