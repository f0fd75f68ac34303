"""--engine dask://: a real scheduler with two worker processes gives the answers of one core, whatever happens."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from broker_certificates import Authority
from confluo_tools.engine import dask_watch
from confluo_tools.engine.dask_runner import DaskRunner
from confluo_tools.engine.reader import EngineReader
from confluo_tools.errors import ConfluoError
from confluo_tools.expr import compile
from dask_lab import DEADLINE, DaskCluster, until
from engine_lab import KINDS, Inputs, aggregated, make_inputs, rows_of, same
from running import BIN, ROOT, SUPPORT, environment, popen, run
from s3_lab import S3Server

QUESTIONS = [("", None), ("a < 3 and b in 5..60000", "kind, 1h"), ("not (ts in @3600..@10000)", "a")]


@pytest.fixture(scope="module")
def runner(dask: DaskCluster) -> Iterator[DaskRunner]:
    host, port = dask.address.split(":")
    made = DaskRunner(host, int(port))
    yield made
    made.close()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return make_inputs(tmp_path_factory.mktemp("engine"))


def asked(dask: DaskCluster, path: str, *words: str, **env: str) -> subprocess.Popen[bytes]:
    """A question to the cluster, by the command, which goes on."""
    argv = [BIN / "confluo-query", path, *words, "--engine", dask.engine]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return popen(argv, stdin=subprocess.DEVNULL, env=environment(**dask.settings, **env), **pipes)


def own_worker(folder: Path, text: str) -> str:
    """The PYTHONPATH of workers with ``text`` at the end of `engine.worker`."""
    own = folder / "confluo_tools" / "engine"
    own.mkdir(parents=True)
    for package, real in ((own.parent, ROOT / "confluo_tools"), (own, ROOT / "confluo_tools" / "engine")):
        paths = [str(package), str(real)]
        (package / "__init__.py").write_text((real / "__init__.py").read_text() + f"\n__path__ = {paths}\n")
    whole = (ROOT / "confluo_tools" / "engine" / "worker.py").read_text()
    (own / "worker.py").write_text(f"{whole}\n\n{text}")
    return str(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_one_core(inputs: Inputs, runner: DaskRunner, kind: str) -> None:
    for text, by in QUESTIONS:
        one, several = inputs.open(kind), EngineReader(inputs.open(kind), runner)
        expr = compile(text, one.schema)
        assert several.count(expr) == one.count(expr) > 0
        mine, expected = (aggregated(reader, text, by) for reader in (several, inputs.open(kind)))
        assert mine[1] == expected[1]
        assert same(mine[0], expected[0])
        assert rows_of(EngineReader(inputs.open(kind), runner), text) == rows_of(inputs.open(kind), text)


def test_the_command(dask: DaskCluster, inputs: Inputs) -> None:
    for path, *words in [
        (inputs.log, "--count"),
        (inputs.moved, "a < 9", "--agg", "count, p99(c), last(b)", "--by", "kind, 1h", "--top", "7"),
        (inputs.moved, "--agg", "count, max(c)", "--by", "d", "--top", "9", "--memory-limit", "300K"),
        (inputs.archive, "-f", "ts,a,name", "--limit", "50"),
    ]:
        one = run("confluo-query", path, "-J", *words)
        several = run("confluo-query", path, "-J", *words, "--engine", dask.engine)
        assert (several.returncode, several.stdout, several.stderr) == (0, one.stdout, b"")
    refused = run("confluo-query", inputs.log, "--analyze", "tcp", "--engine", dask.engine)
    assert refused.returncode == 2
    assert b"follow all records in the order of time, which one core does" in refused.stderr


def test_a_damaged_part_is_left_out_and_reported(dask: DaskCluster, inputs: Inputs, tmp_path: Path) -> None:
    shutil.copytree(inputs.log, tmp_path / "bad.ml")
    shutil.copytree(inputs.archive, tmp_path / "archive")
    for file in (
        sorted((tmp_path / "bad.ml").glob("lane-000/*.arrow"))[1],
        sorted((tmp_path / "archive").rglob("*.parquet"))[1],
    ):
        data = bytearray(file.read_bytes())
        data[4096:-16384] = bytes(byte ^ 255 for byte in data[4096:-16384])
        file.write_bytes(data)
    for path in ("bad.ml", "archive"):
        words = ("confluo-query", path, "--agg", "count, sum(c), max(h), last(name)", "--by", "a")
        one, several = run(*words, cwd=tmp_path), run(*words, "--engine", dask.engine, cwd=tmp_path)
        assert several.stdout == one.stdout
        assert several.stderr == one.stderr != b""
        assert several.returncode == one.returncode == 2


def test_a_killed_worker_and_a_late_one(dask: DaskCluster, inputs: Inputs) -> None:
    words = ("--agg", "count, sum(c), first(b), last(name)", "--by", "a")
    with dask.workers[0].busy(), dask.workers[1].busy():
        with dask.worker() as lost, lost.busy():
            question = asked(dask, inputs.log, *words)
            until(lost.has_tasks, "tasks for a worker")
        with dask.worker() as late:
            until(late.done, "tasks for a late worker")
    out, err = question.communicate(timeout=DEADLINE)
    expected = run("confluo-query", inputs.log, *words)
    assert (question.returncode, out, err) == (0, expected.stdout, b"")


@pytest.mark.parametrize("how", ["stopped", "never ends"])
def test_tasks_that_hang_are_done_by_another_worker(
    dask: DaskCluster, runner: DaskRunner, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(dask_watch, "LATE", 1.0)
    path = own_worker(tmp_path, "def run(task, units):\n    __import__('time').sleep(1e6)\n")
    found: list[Any] = []

    def ask() -> None:
        found.append(aggregated(EngineReader(inputs.open("log"), runner), *QUESTIONS[1]))

    runner.check()
    question = threading.Thread(target=ask, daemon=True)
    with (
        ExitStack() as busy,
        dask.worker(**({"PYTHONPATH": f"{path}:{SUPPORT}"} if how == "never ends" else {})) as hung,
    ):
        for one in (*dask.workers, hung):
            busy.enter_context(one.busy())
        question.start()
        until(hung.has_tasks, "tasks for a worker")
        if how == "stopped":
            hung.process.send_signal(signal.SIGSTOP)
        busy.close()
        question.join(DEADLINE)
    mine, expected = found[0], aggregated(inputs.open("log"), *QUESTIONS[1])
    assert same(mine[0], expected[0])
    assert mine[1] == expected[1]


def test_all_workers_hang(
    dask: DaskCluster, runner: DaskRunner, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_watch, "LATE", 1.0)
    runner.check()
    runner._fits = True
    for one in dask.workers:
        one.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(ConfluoError, match=r"dask://127\S+: no worker has answered for 1 s; are their hosts"):
            aggregated(EngineReader(inputs.open("log"), runner), "", "a")
    finally:
        for one in dask.workers:
            one.process.send_signal(signal.SIGCONT)
    assert same(
        aggregated(EngineReader(inputs.open("log"), runner), "", "a")[0], aggregated(inputs.open("log"), "", "a")[0]
    )


def test_an_interrupt_cancels_the_tasks(dask: DaskCluster, inputs: Inputs) -> None:
    with dask.workers[0].busy(), dask.workers[1].busy():
        question = asked(dask, inputs.log, "--count")
        until(dask.tasks, "tasks")
        question.send_signal(signal.SIGINT)
        out, err = question.communicate(timeout=DEADLINE)
        assert (question.returncode, out, err) == (128 + signal.SIGINT, b"", b"")
        until(lambda: dask.tasks() == 0, "the end of the tasks")


def test_a_scheduler_with_tls_that_dies(inputs: Inputs, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    dask = DaskCluster(tmp_path, 1, authority.certify("host", "127.0.0.1"), authority.path)
    try:
        found = asked(dask, inputs.log, "--count").communicate(timeout=DEADLINE)
        assert found == (b"11000\n", b"")
        refused = run("confluo-query", inputs.log, "--count", "--engine", dask.engine)  # without the settings
        assert f"{dask.engine}: cannot be reached: ".encode() in refused.stderr
        with dask.workers[0].busy():
            question = asked(dask, inputs.log, "--count")
            until(dask.tasks, "tasks")
            dask.scheduler.kill()
            out, err = question.communicate(timeout=DEADLINE)
    finally:
        dask.close()
    assert (question.returncode, out) == (2, b"")
    assert f"{dask.engine}: the connection to the scheduler was lost" in err.decode()
    assert err.count(b"\n") == 1


def test_a_worker_that_lacks_what_it_needs(dask: DaskCluster, inputs: Inputs, tmp_path: Path) -> None:
    other = tmp_path / "confluo_tools"
    other.mkdir()
    text = (ROOT / "confluo_tools" / "__init__.py").read_text()
    where = f"\n__version__ = '0.0.1'\n__path__ = [{str(ROOT / 'confluo_tools')!r}]\n"
    (other / "__init__.py").write_text(text + where)
    for path, what in [
        (str(tmp_path), "has confluo-tools 0.0.1, here "),
        ("/nonexistent", "has no confluo-tools; install it there"),
    ]:
        worker = dask.worker(PYTHONPATH=path)
        refused = run("confluo-query", inputs.log, "--count", "--engine", dask.engine)
        worker.kill()
        assert refused.returncode == 2
        line = refused.stderr.decode()
        assert f"{dask.engine}: worker {worker.address} {what}" in line
        assert line.count("\n") == 1


def test_tasks_that_kill_their_worker(dask: DaskCluster, inputs: Inputs, tmp_path: Path) -> None:
    path = own_worker(tmp_path, "def run(task, units):\n    os._exit(1)\n")
    busy = dask.workers[0].busy(), dask.workers[1].busy()
    with busy[0], busy[1], dask.failures_allowed(0), dask.worker(PYTHONPATH=path) as worker:
        out, err = asked(dask, inputs.log, "--count").communicate(timeout=DEADLINE)
    line = (
        f"{dask.engine}: several workers died doing the same task, the last of them {worker.address}; have they enough"
    )
    assert (out, err.count(b"\n")) == (b"", 1)
    assert line in err.decode()


def test_an_archive_in_a_store(dask: DaskCluster, s3: S3Server, inputs: Inputs) -> None:
    url = s3.put_archive(s3.bucket(), "a", inputs.archive)
    words = ("--agg", "count, sum(c), last(name)", "--by", "a")
    with dask.workers[0].busy(), dask.workers[1].busy(), dask.worker(**s3.env) as worker:
        question = asked(dask, url, *words, **s3.env)
        out, err = question.communicate(timeout=DEADLINE)
        expected = run("confluo-query", inputs.archive, *words).stdout
        assert (question.returncode, out, err) == (0, expected, b"")
        assert worker.done() > 0


def test_no_cluster(inputs: Inputs) -> None:
    bound = socket.socket()  # and not listening
    bound.bind(("127.0.0.1", 0))
    for engine, what in [
        (f"dask://127.0.0.1:{bound.getsockname()[1]}", "cannot be reached: Connection refused; is a scheduler there?"),
        ("dask://127.0.0.1", "is not the address of a cluster; use dask://HOST:PORT"),
        ("dask://me:secret@127.0.0.1:1", "credentials have no place in an address"),
    ]:
        refused = run("confluo-query", inputs.log, "--count", "--engine", engine)
        assert refused.returncode == 2
        assert what in refused.stderr.decode()
        assert refused.stderr.count(b"\n") == 1
        assert b"secret" not in refused.stderr
    bound.close()
