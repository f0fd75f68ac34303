"""No thread dies with a traceback: it reports an error on one line and goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from confluo_tools import cli, multilog
from confluo_tools.cli import log_output
from confluo_tools.console import state
from confluo_tools.formats.block_builder import block_of_rows
from confluo_tools.monitor.exec import CommandRunner
from confluo_tools.multilog import views
from confluo_tools.pingmesh.agent.background import HttpProbes, PinglistFetcher
from confluo_tools.pingmesh.probe.responder import ListenAddress, Responder
from confluo_tools.pingmesh.probe.targets import TargetLookups, parse_target
from confluo_tools.schema import builtin
from log_rows import SIGNED, signed_block
from running import BIN, CAMPUS, environment


def until(held: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not held():
        assert time.monotonic() < end
        time.sleep(0.005)


def fail(*words: object, **more: object) -> Any:
    raise ZeroDivisionError("what was not foreseen")


def said(capsys: pytest.CaptureFixture[str], *doing: str) -> None:
    """One line for each, and no more, however often it failed."""
    lines = capsys.readouterr().err.splitlines()
    rest = "internal error: ZeroDivisionError: what was not foreseen; CONFLUO_DEBUG=1 shows where"
    assert lines == [f"{state.prog}: {one}: {rest}" for one in doing]


@pytest.mark.root
def test_a_nice_process_keeps_its_priority_and_its_indexes(tmp_path: Path) -> None:
    """As under cron: a user may not raise the priority of a process again."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, and root to give up the right to raise priorities")
    log = tmp_path / "x.ml"
    words = "setpriv", "--bounding-set=-sys_nice", "nice", "-n", "10", BIN / "confluo-capture"
    rest = "-q", "-r", CAMPUS, "-w", log, "--index", "src_port"
    done = subprocess.run([*words, *rest], capture_output=True, env=environment(), timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("refused", [True, False])
def test_maintenance_goes_on(
    refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a priority is refused as in a sandbox, and after an error that nobody foresaw."""

    def refuse(*words: int) -> int:
        raise PermissionError(13, "Permission denied")

    step, failures = views.Maintainer.step, [fail, fail]
    if refused:
        monkeypatch.setattr(os, "getpriority", refuse)
    else:
        monkeypatch.setattr(log_output, "PERIOD", 0.01)
        monkeypatch.setattr(views.Maintainer, "step", lambda *a, **k: (failures.pop() if failures else step)(*a, **k))
    with log_output.LogOutput(str(tmp_path / "x.ml"), SIGNED, index="seq") as out:
        out.write(signed_block(1, 0, 65_536), None)
        with multilog.open(out.path, readonly=True) as log:
            view = views.views(log)[0]
            until(lambda: views.coverage(log, view, log.version()).covered == 65_536)
    said(capsys, *() if refused else ["the maintenance of the log failed, and is tried again"])


def test_a_thread_that_ends_is_reported_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    app = cli.command_app()

    @app.command()
    def work() -> int:
        thread = threading.Thread(target=fail, name="worker")
        thread.start()
        thread.join()
        return 0

    assert cli.run(app, "confluo-test", []) == 2
    said(capsys, "the thread 'worker' has ended")


def test_commands_for_alerts(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    runner = CommandRunner(["true"], 1, notes.append)
    run = runner._run
    monkeypatch.setattr(runner, "_run", fail)
    runner.put(b"{}", "a")
    assert runner.wait(30)
    monkeypatch.setattr(runner, "_run", run)
    runner.put(b"{}", "a")
    assert runner.wait(30)
    assert (runner.done, runner.failed, len(notes)) == (2, 1, 1)


def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_commands_for_alerts_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    runner = CommandRunner(["true"], 1, notes.append)
    no_thread(monkeypatch)
    runner.put(b"{}", "a")
    assert runner.wait(30)
    why = "cannot start a thread; raise the limit of processes (ulimit -u)"
    assert (runner.failed, notes) == (1, [f"--exec: true: {why}, for a"])


def test_a_responder_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("confluo_tools.pingmesh.probe.responder.PAUSE", 0.01)
    responder = Responder([ListenAddress("127.0.0.1", 0)])
    engine, failures = responder._answerer, [fail, fail]

    class Failing:
        def run(self) -> None:
            (failures.pop() if failures else engine.run)()

        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

    monkeypatch.setattr(responder, "_answerer", Failing())
    with responder:
        from confluo_tools.pingmesh.probe.targets import ask_counters

        assert ask_counters("127.0.0.1", responder.port, 20.0) is not None
    said(capsys, "answering failed, and is tried again")


def test_every_lookup_gets_an_answer() -> None:
    lookups = TargetLookups(lookup=fail)
    lookups.start(parse_target("a.example", "tcp"), counters=False)
    assert "ZeroDivisionError" in lookups.found(30)[0].problem


def test_threads_of_an_agent_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("confluo_tools.pingmesh.agent.background.PAUSE", 0.01)
    woken = threading.Semaphore(0)
    fetcher = PinglistFetcher(fail, lambda first: 0.0, woken.release)
    fetcher.start()
    for _ in range(3):
        assert woken.acquire(timeout=30)
        reply = fetcher.take()
        assert reply is not None
        assert reply.kind == "lost"
        fetcher.follow("")
    fetcher.end()
    said(capsys, "fetching the list failed, and is tried again")

    tried = threading.Semaphore(0)

    def refuse(self: HttpProbes) -> None:
        tried.release()
        fail()

    monkeypatch.setattr(HttpProbes, "_probe", refuse)
    probes = HttpProbes([], False)
    assert all(tried.acquire(timeout=30) for _ in range(3))
    probes.end()
    said(capsys, "probing by HTTP failed, and is tried again")


def test_records_that_cannot_be_sent_wait(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from confluo_tools.pingmesh.agent import controller_client as client
    from confluo_tools.pingmesh.agent.background import RecordSender

    monkeypatch.setattr("confluo_tools.pingmesh.agent.background.MAX_RETRY_PAUSE", 0.01)
    failures = [fail]
    taken = client.ControllerReply("taken", "")
    monkeypatch.setattr(client, "send", lambda *a: failures.pop()() if failures else taken)
    schema = builtin("probe")
    sender = RecordSender(client.Controller(("http://127.0.0.1:9",)), schema, 60.0, "a1")
    sender.add(block_of_rows(schema, [{"src_port": 7}]))
    sender.step(all=True)
    until(lambda: sender.sent == 1)
    sender.end(5.0)
    said(capsys, "sending records failed, and is tried again")
