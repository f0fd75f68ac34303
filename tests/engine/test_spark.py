"""Questions on a Spark cluster: what one core answers, whatever happens to the workers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from confluo_tools.engine import result, task
from confluo_tools.engine.reader import EngineReader
from confluo_tools.engine.rollup_partial import CountPartial
from confluo_tools.engine.spark_runner import SparkRunner
from confluo_tools.errors import ConfluoError
from confluo_tools.expr import compile
from confluo_tools.formats.reader import Reader
from confluo_tools.inputs.open import open_one
from confluo_tools.multilog.reader import LogReader
from engine_lab import KINDS, Inputs, aggregated, make_inputs, rows_of, same
from kafka_lab import free_ports
from running import BIN, environment, popen, run
from s3_lab import S3Server
from spark_lab import START, SparkCluster, missing, running, until

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

WORKER_KEY = "workerkey"  # signs what workers read from a store
QUESTIONS = ["", "a < 40 and kind == one", "a == 7 or c > 1000"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return make_inputs(tmp_path_factory.mktemp("engine"))


class Session:
    """A cluster of two workers, which may read a store, and one session with it."""

    def __init__(self, folder: Path, s3: S3Server) -> None:
        self.cluster = SparkCluster(folder, env={**s3.env, "AWS_ACCESS_KEY_ID": WORKER_KEY})
        self._before = dict(os.environ)
        os.environ.update(self.cluster.settings())
        self.spark = SparkRunner(self.cluster.address)

    def close(self) -> None:
        self.spark.close()
        os.environ.clear()
        os.environ.update(self._before)
        self.cluster.close()


@pytest.fixture(scope="module")
def sessions() -> Iterator[list[Session]]:
    """The session that tests share, when there is one: a test that ends it takes it away."""
    made: list[Session] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def session(sessions: list[Session], tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Session:
    if not sessions:
        sessions.append(Session(tmp_path_factory.mktemp("spark"), s3))
    assert len(sessions[0].cluster.workers) == 2, "a test left other workers"
    return sessions[0]


@pytest.fixture
def cluster(session: Session) -> SparkCluster:
    return session.cluster


@pytest.fixture
def spark(session: Session) -> SparkRunner:
    return session.spark


def answer(reader: Reader, spark: SparkRunner | None = None) -> Any:
    """Groups, and the number of rows."""
    return aggregated(reader if spark is None else EngineReader(reader, spark), QUESTIONS[-1], "kind, 1h")


class Later:
    """An answer that comes while the test does other things."""

    def __init__(self, inputs: Inputs, spark: SparkRunner) -> None:
        self.done = 0  # tasks
        self._found: Any = None
        spark.progress = self._progress  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._ask, args=(inputs, spark), daemon=True)
        self._thread.start()

    def _progress(self, done: int, total: int) -> None:
        self.done = done

    def _ask(self, inputs: Inputs, spark: SparkRunner) -> None:
        self._found = answer(inputs.open("archive"), spark)

    def get(self) -> Any:
        self._thread.join(START)
        return self._found


def test_answers_are_those_of_one_core(inputs: Inputs, spark: SparkRunner) -> None:
    assert spark.slots == 2
    for kind, text, by in zip(KINDS, QUESTIONS, ("kind, 1h", "addr", None), strict=True):
        expr = compile(text, inputs.open(kind).schema)
        assert EngineReader(inputs.open(kind), spark).count(expr) == inputs.open(kind).count(expr) > 0
        expected, found = aggregated(inputs.open(kind), text, by)
        mine, count = aggregated(EngineReader(inputs.open(kind), spark), text, by)
        assert count == found
        assert same(mine, expected), (kind, by)
        assert rows_of(EngineReader(inputs.open(kind), spark), text) == rows_of(inputs.open(kind), text)


def test_an_archive_in_a_store(
    inputs: Inputs,
    spark: SparkRunner,
    s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command and the workers each read the store with the credentials of their own environment."""
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    url = s3.put_archive(s3.bucket(), "a", inputs.archive)
    before, given, results = len(s3.relay.log), list[bytes](), spark.results

    def watched(task: bytes, runs: Sequence[bytes]) -> Iterator[bytes]:
        given.extend([task, *runs])
        return results(task, runs)

    monkeypatch.setattr(spark, "results", watched)
    for text in QUESTIONS:
        expr = compile(text, inputs.open("archive").schema)
        assert EngineReader(open_one(url), spark).count(expr) == inputs.open("archive").count(expr) > 0
        assert rows_of(EngineReader(open_one(url), spark), text) == rows_of(inputs.open("archive"), text)
    mine, expected = answer(open_one(url), spark), answer(inputs.open("archive"))
    assert mine[1] == expected[1]
    assert same(mine[0], expected[0])
    read = [request for request in s3.relay.log[before:] if request.method == "GET"]
    assert {request.key for request in read} == {s3.env["AWS_ACCESS_KEY_ID"], WORKER_KEY}
    sent = {key: sum(r.sent for r in read if r.key == key) for key in (WORKER_KEY, s3.env["AWS_ACCESS_KEY_ID"])}
    assert sent[WORKER_KEY] > 2 * sent[s3.env["AWS_ACCESS_KEY_ID"]]  # the command reads the ends of the files only
    assert given
    assert not any(s3.env["AWS_SECRET_ACCESS_KEY"].encode() in piece for piece in given)
    capsys.readouterr()
    monkeypatch.setattr(s3.relay, "denied", {WORKER_KEY})
    assert answer(open_one(url), spark)[1] == 0
    told = capsys.readouterr().err
    line = rf"^confluo\S*(?: \w+)?: ({url}\S+): cannot be opened: access is denied \(403 AccessDenied\)$"
    parts = {f"{url}{path.relative_to(inputs.archive)}" for path in Path(inputs.archive).rglob("*.parquet")}
    assert {*re.findall(line, told, re.MULTILINE)} == parts, told  # Spark may say more on a busy machine


def test_a_damaged_segment_is_left_out_and_reported(inputs: Inputs, spark: SparkRunner, tmp_path: Path) -> None:
    shutil.copytree(inputs.log, tmp_path / "bad.ml")
    segment = sorted((tmp_path / "bad.ml").glob("lane-000/*.arrow"))[1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8192] = bytes(x ^ 255 for x in data[len(data) // 2 : len(data) // 2 + 8192])
    segment.write_bytes(data)
    said: tuple[list[str], list[str]] = [], []
    one, several = (LogReader(str(tmp_path / "bad.ml"), warn=lines.append) for lines in said)  # type: ignore[arg-type]
    expected, found = aggregated(one, "", "a")
    mine, count = aggregated(EngineReader(several, spark), "", "a")
    assert same(mine, expected)
    assert count == found < 11_000
    assert said[0] == said[1] != []


def test_a_damaged_result_is_done_again(inputs: Inputs, spark: SparkRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    decode = result.decode

    def damaging(data: bytes) -> Any:
        nonlocal calls
        calls += 1
        return decode(data[:-1] + bytes([data[-1] ^ 1]) if calls == 2 else data)

    monkeypatch.setattr(result, "decode", damaging)
    before = spark.damaged
    found = answer(inputs.open("log"), spark)
    assert spark.damaged == before + 1
    assert same(found[0], answer(inputs.open("log"))[0])


def test_tasks_that_hang_are_done_by_another_worker(inputs: Inputs, cluster: SparkCluster, spark: SparkRunner) -> None:
    spark.check()
    hung = cluster.workers[0]
    hung.stop_tasks()
    found = answer(inputs.open("log"), spark)
    hung.go_on()  # what it still gives counts no more
    expected = answer(inputs.open("log"))
    for mine, count in (found, answer(inputs.open("log"), spark)):
        assert same(mine, expected[0])
        assert count == expected[1]


def test_a_worker_is_killed_and_another_one_comes(inputs: Inputs, cluster: SparkCluster, spark: SparkRunner) -> None:
    spark.check()
    first, second = cluster.workers
    for worker in (first, second):
        worker.stop_tasks()
    later = Later(inputs, spark)
    cluster.add_worker()
    first.kill()
    cluster.workers.remove(first)
    # Only the new worker can do a task.
    mine, count = later.get()
    second.go_on()
    expected, found = answer(inputs.open("archive"))
    assert same(mine, expected)
    assert count == found


def test_versions_that_do_not_fit(inputs: Inputs, spark: SparkRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    question = task.Task(compile("", inputs.open("log").schema), CountPartial(inputs.open("log").schema))
    monkeypatch.setattr(task, "__version__", "99.1")
    differ = r"has confluo-tools \S+, here 99\.1"
    with pytest.raises(ConfluoError, match=rf"spark://127\S+: the worker on \S+ {differ}; install the same there"):
        spark.check()
    (found,) = spark.results(question.encode(), [b"[]"])  # of a worker that came after the others were compared
    with pytest.raises(ConfluoError, match=r"the question comes from confluo-tools 99\.1, here "):
        result.decode(found)


def test_a_late_worker_without_confluo_tools(
    inputs: Inputs, cluster: SparkCluster, spark: SparkRunner, tmp_path: Path
) -> None:
    spark.check()
    rest = list(cluster.workers)
    for worker in rest:
        worker.stop_tasks()
    (tmp_path / "confluo_tools").mkdir()
    (tmp_path / "confluo_tools" / "__init__.py").write_text("")
    empty = cluster.add_worker(tmp_path)
    with pytest.raises(ConfluoError, match=r"the worker on \S+ has no confluo-tools of this version; install it there"):
        answer(inputs.open("log"), spark)
    empty.kill()
    cluster.workers.remove(empty)
    for worker in rest:
        worker.go_on()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_ends_leaves_no_java(inputs: Inputs, cluster: SparkCluster, number: int) -> None:
    words = [BIN / "confluo-query", inputs.log, "--count", "--engine", cluster.address]
    with popen(words, env=environment(**cluster.settings()), stderr=subprocess.PIPE) as process:

        def session() -> dict[int, str]:
            drivers = [pid for pid, (parent, _, _) in running().items() if parent == process.pid]
            return {pid: words for pid, (_, own, words) in running().items() if own in drivers}

        until(lambda: any("SparkSubmit" in words for words in session().values()), "no Java")
        left = session()
        process.send_signal(number)
        assert process.wait(START) == (130 if number == signal.SIGINT else -number)
        assert process.stderr.read() == b""
        until(lambda: not left.keys() & running().keys(), "Java goes on")


def test_a_cluster_that_dies(inputs: Inputs, sessions: list[Session], session: Session) -> None:
    cluster, spark = session.cluster, session.spark
    expected = answer(inputs.open("log"))
    spark.check()
    cluster.master.kill()
    assert same(answer(inputs.open("log"), spark)[0], expected[0])  # its workers are enough
    for worker in cluster.workers:
        worker.kill()
    with pytest.raises(ConfluoError, match=r"spark://127\S+: cannot be reached: Connection refused"):
        answer(inputs.open("log"), spark)
    sessions.remove(session)
    session.close()


def test_no_cluster(inputs: Inputs) -> None:
    address = f"spark://127.0.0.1:{free_ports(1)[0]}"
    refused = run("confluo-query", inputs.log, "--count", "--engine", address)
    assert refused.returncode == 2
    expected = (
        f"confluo-query: {address}: cannot be reached: Connection refused; is the master of a Spark cluster there?\n"
    )
    assert refused.stderr == expected.encode()
