"""The process that talks to a Spark cluster: `engine.spark_runner` starts it and sends it tasks.

PySpark needs a process of its own.  It starts a Java machine, takes over SIGINT, changes the environment and warns on
stderr; and a process can have one session only, which may be the user's.  Here all of that stays outside: what Java
prints goes to the descriptor 2 that the parent chose, and the end of the parent is the end of standard input, which
ends this process and Java.

Frames go both ways: a letter, the size of what follows, and that.

    to here      H  the master and a name for the session: JSON
                 C  what versions do the workers have
                 T U... G  a task, its runs of units, and go
    from here    S  the session exists
                 V  JSON: the number of cores, and for each task its host and versions, {} without confluo-tools
                 P  progress: JSON, tasks done and workers
                 R  a result, in the order of the runs
                 F  the request failed: JSON, what is wrong and what to do
                 E  the same, and the session ends

The parent sends nothing between G or C and the last answer, so input that can be read there is its end.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, BinaryIO

FRAME = struct.Struct("<cQ")
CONNECT = 5.0  # s for a master to answer a connection
JAVA = 60.0  # s until Java has started
REGISTER = 30.0  # s for a master to accept the session
WORKERS = 60.0  # s without any worker, at the start or later, until the session is given up
PATIENCE = "spark.scheduler.maxRegisteredResourcesWaitingTime"  # the setting of Spark that replaces WORKERS
MORE = "CONFLUO_DEBUG=1 shows what Spark says"
STOP = 10.0  # s to end the session
POLL = 0.05  # s between looks at running jobs
REPORT = 0.5  # s between reports of progress
# Tasks that hang are done by another worker, too, as tasks of the same job take seconds to minutes.  The default of
# Spark is never.
COPIES = {
    "spark.speculation": "true",
    "spark.speculation.minTaskRuntime": "60s",
    "spark.speculation.quantile": "0.25",  # of the tasks of a job that are done: a host that hangs may have most
    "spark.speculation.task.duration.threshold": "60s",  # of a job that has no more tasks than an executor has places
}
AHEAD = 2  # waves of tasks at a time: the next one runs on what the end of the other leaves idle


Report = Callable[[int, int], None]


class Failed(Exception):
    """A request that cannot be done.  ``hint``: what the user can do."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what, self.hint = what, hint

    def encode(self) -> bytes:
        return json.dumps([self.what, self.hint]).encode()


class Lost(Failed):
    """The session cannot go on."""


def send(stream: BinaryIO, kind: bytes, *parts: bytes) -> None:
    stream.write(FRAME.pack(kind, sum(map(len, parts))))
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[bytes, bytes] | None:
    """A frame; None at the end of the stream, also in the middle of a frame."""
    head = stream.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    kind, size = FRAME.unpack(head)
    data = stream.read(size)
    return (kind, data) if len(data) == size else None


def in_thread(work: Callable[[], Any], seconds: float, late: Callable[[], Failed], *, forever: bool = False) -> Any:
    """The result of ``work``, which cannot be interrupted; raises ``late()`` if it takes longer.

    ``forever``: also if the parent has gone.
    """
    out: list[Any] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            out.append(work())
        except BaseException as e:
            raised.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    end = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < end:
        thread.join(POLL)
        stop_if_alone()
    if thread.is_alive():
        raise late()
    if raised:
        raise raised[0]
    return out[0]


def stop_if_alone() -> None:
    """End this process if the parent has closed the pipe: it sends nothing while a job runs."""
    if select.select([0], [], [], 0)[0]:
        raise EOFError


# ---------------------------------------------------------------- the session


class Session:
    """A Spark context in a Java machine that ends with this process.

    ``master``: one or more as Spark writes them; ``name``: of the session.  Raises Failed.
    """

    def __init__(self, master: str, name: str) -> None:
        own = _reach(master)
        self.java = Java()
        try:
            self._begin(master, name, own)
        except BaseException:
            self.java.kill()
            raise

    def _begin(self, master: str, name: str, own: str) -> None:
        port, secret = in_thread(self.java.address, JAVA, lambda: Failed(f"Java did not start within {JAVA:.0f} s"))
        os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        from pyspark import SparkConf, SparkContext, java_gateway

        connect: Any = java_gateway.launch_gateway
        gateway = connect()
        conf = SparkConf(_jvm=gateway.jvm)  # with the settings of spark-defaults.conf
        conf.setMaster(master).setAppName(name)
        conf.set("spark.ui.showConsoleProgress", "false")
        conf.setIfMissing("spark.ui.enabled", "false")
        conf.setIfMissing("spark.executor.memory", "512m")  # of Java; tasks run in Python, outside it
        for key, value in COPIES.items():
            conf.setIfMissing(key, value)
        if "SPARK_LOCAL_IP" not in os.environ:
            conf.setIfMissing("spark.driver.host", own)
        os.environ.setdefault("PYSPARK_PYTHON", conf.get("spark.pyspark.python", sys.executable))
        self.context = in_thread(
            lambda: _context(SparkContext, gateway, conf),
            REGISTER,
            lambda: Failed(
                f"the master did not accept a session within {REGISTER:.0f} s",
                f"look whether it runs Spark {version()} as here, and whether it wants a secret",
            ),
        )
        self.tracker = self.context.statusTracker()
        waiting = self.context._jsc.sc().conf().getTimeAsMs(PATIENCE, f"{WORKERS:.0f}s")
        self._patience = waiting / 1000
        self._seen = time.monotonic()  # when there was a worker last
        self._looked = 0.0  # when the master was looked for last

    @property
    def cores(self) -> int:
        """Of the workers that have come, at least 2."""
        return int(self.context.defaultParallelism)

    def workers(self) -> int:
        """The number of executors.  Raises Failed: there was none for long, or there is no master either."""
        found = len(self.tracker.getExecutorInfos()) - 1  # the driver is among them
        now = time.monotonic()
        if found > 0:
            self._seen = now
            return found
        if now - self._seen > 1 and now - self._looked > 1:
            self._looked = now
            try:
                _reach(self.context.master)  # it alone can give us workers
            except Failed as e:
                raise Lost(e.what, e.hint) from None
        if now - self._seen > self._patience:
            raise Lost(
                f"no worker has had a place for this session for {self._patience:.0f} s",
                "look at the web page of the master: are there workers with free cores and memory",
            )
        return 0

    def map(self, work: Callable[[Any], Any], items: Sequence[Any], report: Report) -> Generator[Any]:
        """What ``work`` gives for each item, in their order; ``report``: called with the tasks done and the workers.

        An item is a task.  They run in waves, so that results wait for the parent here and not all in memory.
        """
        waves: deque[Wave] = deque()
        try:
            yield from self._waves(waves, work, items, report)
        finally:
            if waves:
                self.context.cancelAllJobs()

    def _waves(
        self, waves: deque[Wave], work: Callable[[Any], Any], items: Sequence[Any], report: Report
    ) -> Iterator[Any]:
        begun = done = 0
        told = time.monotonic()
        while begun < len(items) or waves:
            if begun < len(items) and len(waves) < AHEAD:
                waves.append(Wave(self.context, work, items[begun : begun + 2 * self.cores]))
                begun += len(waves[-1].items)
                continue
            waves[0].thread.join(POLL)
            stop_if_alone()
            workers = self.workers()
            if time.monotonic() - told > REPORT:
                told = time.monotonic()
                report(done + self._tasks_done(), workers)
            if not waves[0].thread.is_alive():
                yield from self._results(waves[0])
                done += len(waves.popleft().items)

    def _results(self, wave: Wave) -> list[Any]:
        if wave.raised is None:
            return wave.found
        if not self.java.runs():
            raise Lost("Java has ended", MORE) from wave.raised
        raise _explained(wave.raised) from wave.raised

    def _tasks_done(self) -> int:
        stages = (self.tracker.getStageInfo(stage) for stage in self.tracker.getActiveStageIds())
        return sum(stage.numCompletedTasks for stage in stages if stage is not None)

    def stop(self) -> None:
        """End the session, with what still runs, and Java."""
        with suppress(Exception):
            in_thread(self.context.stop, STOP, lambda: Failed("late"), forever=True)
        self.java.end()


class Wave:
    """Items that run as one job of Spark, in a thread."""

    def __init__(self, context: Any, work: Callable[[Any], Any], items: Sequence[Any]) -> None:
        self.items = items
        self.found: list[Any] = []
        self.raised: BaseException | None = None

        def run() -> None:
            try:
                self.found = context.parallelize(items, len(items)).map(work).collect()
            except BaseException as e:
                self.raised = e

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()


# What a worker runs is a nested function: PySpark sends those with their code, so they also run without confluo-tools.
# PySpark itself compares the versions of Python.


def _versions() -> Callable[[int], tuple[str, dict[str, str]]]:
    def run(number: int) -> tuple[str, dict[str, str]]:
        from importlib import import_module
        from socket import gethostname

        try:
            return gethostname(), import_module("confluo_tools.engine.worker").version()
        except ImportError:
            return gethostname(), {}

    return run


def _work(task: bytes) -> Callable[[bytes], tuple[str, bytes]]:
    def run(units: bytes) -> tuple[str, bytes]:
        from importlib import import_module
        from socket import gethostname

        try:
            worker = import_module("confluo_tools.engine.worker")
        except ImportError:  # a worker that came after the versions were compared
            return gethostname(), b""
        return "", worker.run(task, units)

    return run


def _context(make: Any, gateway: Any, conf: Any) -> Any:
    try:
        return make(gateway=gateway, conf=conf)
    except Exception as e:
        raise Failed(f"there is no session: {last_line(_text(e))}", MORE) from e


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # Java has the text, and may have ended
        return type(error).__name__


def _explained(error: BaseException) -> Failed:
    """One line of what Spark says in pages."""
    text = _text(error)
    if found := re.search(r"Python in worker has different version: (\S+) than that in driver: (\d+\.\d+)", text):
        return Failed(f"a worker has Python {found[1]}, here {found[2]}", "set PYSPARK_PYTHON to one of this version")
    if found := re.search(r'Cannot run program "([^"]*)"', text):
        return Failed(f"a worker has no {found[1]}", "set PYSPARK_PYTHON to the Python of the workers")
    return Failed(f"a task failed: {last_line(text)}", MORE)


class Java:
    """The Java machine.  It ends when the pipe to it is closed, so also when this process is killed."""

    def __init__(self) -> None:
        from pyspark.find_spark_home import _find_spark_home

        self._folder = tempfile.TemporaryDirectory()
        self._file = os.path.join(self._folder.name, "address")
        environment = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": self._file, "SPARK_CONNECT_MODE": "0"}
        command = [os.path.join(_find_spark_home(), "bin", "spark-submit"), "pyspark-shell"]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, env=environment)
        except OSError as e:
            raise Failed(f"Spark cannot be started: {e.strerror}: {command[0]}", "look at SPARK_HOME") from e

    def address(self) -> tuple[int, str]:
        """Port and secret, once it has written them."""
        while not os.path.exists(self._file):  # it is renamed to this name when it is complete
            if self._process.poll() is not None:
                raise Failed("Java ended before it had started")
            time.sleep(POLL)
        with open(self._file, "rb") as stream:
            port, size = struct.unpack(">II", stream.read(8))
            secret = stream.read(size).decode()
        self._folder.cleanup()
        return port, secret

    def runs(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Close the pipe; it ends by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def _reach(master: str) -> str:
    """The address of this host that a master of ``spark://HOST:PORT[,HOST:PORT...]`` sees."""
    why = ""
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), CONNECT) as connection:
                return str(connection.getsockname()[0])
        except OSError as e:
            why = e.strerror or "no answer"
    raise Failed(f"cannot be reached: {why}", "is the master of a Spark cluster there?")


def version() -> str:
    import pyspark

    return str(pyspark.__version__)


def last_line(text: str) -> str:
    """The line of a traceback of Python, or of the Java machine, that says most."""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    others = [line for line in lines if line and not line.startswith("An error occurred while calling")]
    return (named[-1] if named else others[0] if others else "no message")[:300]


# ---------------------------------------------------------------- the process


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Start the session of the first frame, then serve requests until the end of the stream.  Raises Failed."""
    first = receive(requests)
    if first is None:
        return
    session = Session(*json.loads(first[1]))
    try:
        send(answers, b"S")
        task, units = b"", list[bytes]()
        while (frame := receive(requests)) is not None:
            kind, data = frame
            if kind == b"T":
                task, units = data, []
            elif kind == b"U":
                units.append(data)
            else:
                try:
                    _answer(session, answers, kind, task, units)
                except Lost:
                    raise
                except Failed as e:
                    send(answers, b"F", e.encode())
    except Lost:
        session.java.kill()  # a master that has gone cannot hear of the end
        raise
    finally:
        session.stop()


def _answer(session: Session, answers: BinaryIO, kind: bytes, task: bytes, units: Sequence[bytes]) -> None:
    def report(done: int, workers: int) -> None:
        send(answers, b"P", json.dumps([done, workers]).encode())

    if kind == b"C":
        found = list(session.map(_versions(), range(session.cores), report))
        send(answers, b"V", json.dumps([session.cores, found]).encode())
        return
    with closing(session.map(_work(task), units, report)) as results:
        for without, result in results:
            if without:
                raise Failed(f"the worker on {without} has no confluo-tools of this version", "install it there")
            send(answers, b"R", result)


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is not an answer
    warnings.simplefilter("ignore")
    try:
        serve(os.fdopen(0, "rb", closefd=False), answers)
    except (EOFError, BrokenPipeError):
        pass  # the parent has gone
    except Failed as e:
        send(answers, b"E", e.encode())
    except Exception as e:
        traceback.print_exc()
        send(answers, b"E", Failed(last_line(f"{type(e).__name__}: {_text(e)}"), MORE).encode())
    sys.stderr.flush()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # what Java has started, and the script that starts Java
    os._exit(0)  # threads may still wait for Java


if __name__ == "__main__":
    main()
