"""An existing Spark cluster (standalone): each run of units is a task.

What travels is a function that calls `worker.run`, and bytes: no rows go through Java.  Spark does tasks of lost
workers again, and gives tasks to workers that come late.  `spark_driver` is the process that holds the session; its
end, also by a signal, cancels what still runs and ends Java.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import IO, Any

from confluo_tools.console import state
from confluo_tools.engine import spark_driver, task
from confluo_tools.engine.runner import ClusterRunner
from confluo_tools.errors import ConfluoError, UsageError

STOP = 15.0  # s for the session to end before it is killed


class SparkRunner(ClusterRunner):
    """A session on the cluster ``name``, ``spark://HOST:PORT[,HOST:PORT...]``; it begins when it is needed.

    Raises UsageError: PySpark or Java is not installed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._process: Driver | None = None
        self._versions: list[tuple[str, dict[str, str]]] = []
        self._slots = 0
        self._asked: Asked | None = None
        if find_spec("pyspark") is None:
            raise UsageError("needs PySpark", where=name, hint="install it: pip install 'confluo-tools[spark]'")
        java = os.environ.get("JAVA_HOME")
        if shutil.which(os.path.join(java, "bin", "java") if java else "java") is None:
            raise UsageError("needs Java 17 or newer", where=name, hint="install it, or set JAVA_HOME")

    @property
    def slots(self) -> int:  # type: ignore[override]
        """Cores of the workers that came at the beginning.  Raises ConfluoError."""
        self._driver()
        return self._slots

    def check(self) -> None:
        self._driver()
        for host, theirs in self._versions:
            if differs := task.unlike(theirs):
                what, hint = f"has {differs}", "install the same there"
                if not theirs:
                    what, hint = "has no confluo-tools of this version", "install it there"
                raise ConfluoError(f"the worker on {host} {what}", where=self.name, hint=hint)

    def results(self, task: bytes, runs: Sequence[bytes]) -> Iterator[bytes]:
        driver = self._driver()
        if self._asked is not None:  # a run is done again while others are not over
            self._asked.collect()
        driver.send(b"T", task)
        for run in runs:
            driver.send(b"U", run)
        driver.send(b"G")
        asked = self._asked = Asked(len(runs), lambda: self._answer(driver, len(runs)))
        try:
            yield from asked
        finally:
            self.progress(len(runs), len(runs))
            if self._asked is asked and asked.left:  # the tasks that are left end with the session
                self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = self._asked = None

    def _driver(self) -> Driver:
        if self._process is None:
            self._process = Driver([self.name, state.prog])
            self._answer(self._process)
            self._process.send(b"C")
            self._slots, found = json.loads(self._answer(self._process))
            self._versions = [(host, versions) for host, versions in found]
        return self._process

    def _answer(self, driver: Driver, total: int = 0) -> bytes:
        """The next answer that is not a report of progress, of ``total`` tasks.  Raises ConfluoError."""
        while True:
            kind, data = driver.receive()
            if kind in b"EF":
                self._asked = None
                if kind == b"E":
                    self.close()
                what, hint = json.loads(data)
                raise ConfluoError(what, where=self.name, hint=hint)
            if kind != b"P":
                return data
            if total:
                self.progress(min(json.loads(data)[0], total), total)


class Asked:
    """The results of one request that are still to come: ``left`` of them, which ``receive`` gets."""

    def __init__(self, left: int, receive: Callable[[], bytes]) -> None:
        self.left, self._receive = left, receive
        self._kept: deque[bytes] = deque()

    def collect(self) -> None:
        """Keep what is to come, so that another request can be sent."""
        while self.left:
            self._kept.append(self._next())

    def _next(self) -> bytes:
        self.left -= 1
        return self._receive()

    def __iter__(self) -> Iterator[bytes]:
        while self._kept or self.left:
            yield self._kept.popleft() if self._kept else self._next()


class Driver:
    """The process of the session.  What Java prints is dropped, or with CONFLUO_DEBUG goes to stderr."""

    def __init__(self, request: Sequence[str]) -> None:
        self._log: IO[bytes] | None = None if os.environ.get("CONFLUO_DEBUG") else tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-P", spark_driver.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ,  # without the zone of --tz
            start_new_session=True,  # Ctrl-C is for this process, which then ends that one
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: Any = self._process.stdin
        self._answers: Any = self._process.stdout
        self.send(b"H", json.dumps(request).encode())

    def send(self, kind: bytes, data: bytes = b"") -> None:
        """Send a frame.  If the process has ended, `receive` says why."""
        with suppress(BrokenPipeError):
            spark_driver.send(self._requests, kind, data)

    def receive(self) -> tuple[bytes, bytes]:
        """The next frame."""
        frame = spark_driver.receive(self._answers)
        if frame is not None:
            return frame
        return b"E", json.dumps([f"the session has ended: {self._last_words()}", spark_driver.MORE]).encode()

    def _last_words(self) -> str:
        if self._log is None:
            return "see above"
        self._log.seek(max(self._log.seek(0, os.SEEK_END) - 4096, 0))
        return spark_driver.last_line(self._log.read().decode(errors="replace"))

    def close(self) -> None:
        """End the session: what still runs is cancelled."""
        for stream in (self._requests, self._answers):
            with suppress(BrokenPipeError):
                stream.close()
        try:
            self._process.wait(STOP)
        finally:  # also if a second signal arrives meanwhile
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            if self._log is not None:
                self._log.close()
