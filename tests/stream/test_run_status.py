"""confluo-stream status and set, as users run them, with runs that a test controls."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from confluo_tools.stream.operation.control_messages import Look
from confluo_tools.stream.operation.control_server import ControlSocket
from confluo_tools.stream.operation.rates import RateMeter
from confluo_tools.stream.stage_counts import StageCount
from running import BIN, environment, lines, run
from stream_runs import ROWS, ScriptedRun

PATIENCE = 60.0  # s
QUICK = ("--every", "100ms")
STYLE = r"\x1b\[[0-9;]*m"


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of commands with control sockets of this test only."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return environment(XDG_RUNTIME_DIR=str(tmp_path))


@pytest.fixture
def eth0(runtime: dict[str, str]) -> Iterator[ScriptedRun]:
    yield from serving("eth0")


@pytest.fixture
def eth1(runtime: dict[str, str]) -> Iterator[ScriptedRun]:
    yield from serving("eth1")


def serving(name: str) -> Iterator[ScriptedRun]:
    control, scripted = ControlSocket(name), ScriptedRun()
    control.serve(scripted)
    yield scripted
    control.close()


def test_status_prints_each_stage(eth0: ScriptedRun, runtime: dict[str, str]) -> None:
    done = run("confluo-stream", "status", *QUICK, "-J", env=runtime)
    assert (done.returncode, done.stderr) == (0, b"")
    found = [json.loads(line) for line in lines(done)]
    assert [{k: v for k, v in row.items() if k in StageCount._fields} for row in found] == [r._asdict() for r in ROWS]
    assert {(row["run"], row["host"], row["rate"]) for row in found} == {("eth0", os.uname().nodename, 0.0)}


def test_status_as_a_table(eth0: ScriptedRun, runtime: dict[str, str]) -> None:
    done = run("confluo-stream", "status", "eth0", *QUICK, "-o", "table", env=runtime)
    found = [" ".join(line.split()) for line in lines(done)]
    assert found[0] == "stage name pipeline taken rate given filtered dropped queued space"
    assert found[2] == "receive eth0 0 1000 0 990 0 10 4096 1048576"
    assert len(lines(done)) == 2 + len(ROWS)
    assert max(map(len, lines(done))) < 80


def test_status_of_several_runs(eth0: ScriptedRun, eth1: ScriptedRun, runtime: dict[str, str]) -> None:
    done = run("confluo-stream", "status", *QUICK, "-f", "run", "-T", "--no-header", env=runtime)
    assert lines(done) == ["eth0"] * len(ROWS) + ["eth1"] * len(ROWS)
    done = run("confluo-stream", "status", "eth1", *QUICK, "-f", "run", "-T", "--no-header", env=runtime)
    assert lines(done) == ["eth1"] * len(ROWS)
    assert lines(run("confluo-stream", "status", *QUICK, "-o", "table", env=runtime))[0].split()[0] == "run"


def test_status_without_a_run(runtime: dict[str, str]) -> None:
    done = run("confluo-stream", "status", env=runtime)
    assert (done.returncode, done.stdout) == (1, b"")
    hint = "confluo-stream publish -i or --follow begins one"
    assert done.stderr.decode() == f"confluo-stream status: no run goes on; {hint}\n"
    done = run("confluo-stream", "set", os.devnull, env=runtime)
    assert (done.returncode, done.stderr.decode()) == (2, f"confluo-stream set: no run goes on; {hint}\n")


def test_status_of_a_run_that_does_not_exist(eth0: ScriptedRun, runtime: dict[str, str]) -> None:
    done = run("confluo-stream", "status", "eth7", env=runtime)
    assert done.returncode == 2
    assert done.stderr == b"confluo-stream status: eth7: there is no such run; those that go on: eth0\n"


def test_status_of_a_socket_by_its_path(eth0: ScriptedRun, runtime: dict[str, str]) -> None:
    path = f"{runtime['XDG_RUNTIME_DIR']}/confluo/eth0.sock"
    elsewhere = environment(XDG_RUNTIME_DIR="/nonexistent")
    done = run("confluo-stream", "status", path, *QUICK, "-f", "run", "-T", "--no-header", env=elsewhere)
    assert lines(done) == ["eth0"] * len(ROWS)
    done = run("confluo-stream", "status", f"{path}x", env=elsewhere)
    assert (done.returncode, done.stderr) == (2, b"confluo-stream status: eth0.sockx: the run has ended\n")


def test_rates_are_those_between_two_looks() -> None:
    meter = RateMeter()

    def rates(at: int, *taken: int, pid: int = 1) -> list[float]:
        rows = [StageCount("receive", f"eth{i}", 0, n) for i, n in enumerate(taken)]
        return meter.rates(Look("r", "h", pid, 0, at, rows))

    assert str(rates(10**9, 5, 7)) == "[nan, nan]"
    assert rates(3 * 10**9, 2_000_005, 7) == [1.0, 0.0]
    assert rates(4 * 10**9, 2_000_006, 3, 40) == [1e-6, 3e-6, 4e-5]  # the second began again, the third is new
    assert str(rates(5 * 10**9, 9, pid=2)) == "[nan]"  # another run with this name


def test_set_prints_what_changed(eth0: ScriptedRun, runtime: dict[str, str], tmp_path: Path) -> None:
    flows = tmp_path / "flows.yaml"
    flows.write_text("flows:\n- syn\n- größe\n", encoding="utf-8")
    done = run("confluo-stream", "set", flows, env=runtime)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode() == "confluo-stream set: - syn: now runs\nconfluo-stream set: - größe: now runs\n"
    done = run("confluo-stream", "set", "-", "eth0", stdin=b"flows:", env=runtime)
    assert (done.returncode, done.stderr) == (0, b"confluo-stream set: no change\n")
    assert eth0.flows == [flows.read_text(encoding="utf-8"), "flows:"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"flow: []", "flows.yaml: has no list 'flows'; see confluo-stream-publish(1)"),
        (b"\xff", "-: is not UTF-8 text"),
        (b"flows:" + b"x" * (1 << 20), "-: is longer than 131072 bytes"),
    ],
)
def test_set_is_refused_whole(eth0: ScriptedRun, runtime: dict[str, str], text: bytes, error: str) -> None:
    done = run("confluo-stream", "set", "-", stdin=text, env=runtime)
    assert (done.returncode, done.stderr.decode()) == (2, f"confluo-stream set: {error}\n")
    assert eth0.flows == []


def test_set_names_the_file_that_is_refused(eth0: ScriptedRun, runtime: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("flow: []")
    done = run("confluo-stream", "set", tmp_path / "other.yaml", env=runtime)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"confluo-stream set: {tmp_path}/other.yaml: has no list 'flows'; ")


def test_set_needs_to_know_which_run(eth0: ScriptedRun, eth1: ScriptedRun, runtime: dict[str, str]) -> None:
    done = run("confluo-stream", "set", "-", stdin=b"flows:", env=runtime)
    assert done.returncode == 2
    assert done.stderr == b"confluo-stream set: there are several runs; name one of eth0, eth1\n"
    assert run("confluo-stream", "set", "-", "eth1", stdin=b"flows:", env=runtime).returncode == 0
    assert (eth0.flows, eth1.flows) == ([], ["flows:"])


class Watching:
    """`confluo-stream status` on a terminal, keyboard included."""

    def __init__(self, env: dict[str, str], *, colour: bool = False) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "-c", BIN / "confluo-stream", "status", *QUICK],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "TERM": "xterm", **({} if colour else {"NO_COLOR": "1"})},
        )
        os.close(slave)
        self.text = ""

    def until(self, word: str) -> None:
        """Read until the word is on the screen after what was read before."""
        end = time.monotonic() + PATIENCE
        read = ""
        while word not in read:
            assert select.select([self.master], [], [], max(end - time.monotonic(), 0))[0], self.text
            read += os.read(self.master, 65536).decode(errors="replace")
            self.text += read

    def end(self) -> int:
        """The exit status."""
        try:
            while data := os.read(self.master, 65536):
                self.text += data.decode(errors="replace")
        except OSError:
            pass  # the other side is closed
        os.close(self.master)
        return self.process.wait(PATIENCE)


def test_a_terminal_is_drawn_again_until_q(eth0: ScriptedRun, runtime: dict[str, str]) -> None:
    watching = Watching(runtime)
    watching.until("deliver")
    eth0.stages = [*ROWS, StageCount("deliver", "late", 0, 123456)]
    watching.until("late")
    os.write(watching.master, b"q")
    assert watching.end() == 0
    assert "123456" in watching.text
    assert watching.text.endswith("\x1b[?25h")  # the cursor is back


def test_a_terminal_shows_sums_and_what_was_lost(eth0: ScriptedRun, runtime: dict[str, str]) -> None:
    eth0.stages = [StageCount("queue", f"flow{i}", i, 1000 + i, 1000, 0, i, 5) for i in range(3)]
    eth0.stages.append(StageCount("deliver", "telemetry", 0, 3000, 3000))
    watching = Watching({k: v for k, v in runtime.items() if k != "NO_COLOR"}, colour=True)
    watching.until("deliver")
    os.write(watching.master, b"q")
    assert watching.end() == 0
    by_name = {
        words[1]: line for line in watching.text.splitlines() if len(words := re.sub(STYLE, "", line).split()) > 3
    }
    assert "\x1b[1;31m" in by_name["sum"]
    assert re.sub(STYLE, "", by_name["sum"]).split()[2:] == ["0", "3003", "0", "3000", "0", "3", "15", "0"]
    assert "\x1b[31m" in by_name["flow2"]
    assert "\x1b[31m" not in by_name["flow0"] + by_name["telemetry"]


def test_a_terminal_until_the_run_ends(runtime: dict[str, str]) -> None:
    control = ControlSocket("short")
    control.serve(ScriptedRun())
    watching = Watching(runtime)
    watching.until("deliver")
    control.close()
    assert watching.end() == 2
    assert "confluo-stream status: short: the run has ended" in watching.text
