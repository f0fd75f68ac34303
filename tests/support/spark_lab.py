"""A Spark cluster for tests: a master and workers from the PySpark package, on loopback, small and soon there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from running import ROOT

START = 120.0  # s that a step may take on a busy machine
JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # one collector thread and the first compiler only
# Tasks that hang are given out again, as always, but soon: the tests stop processes.
SETTINGS = {
    "spark.master.rest.enabled": "false",
    "spark.driver.extraJavaOptions": JVM,
    "spark.executor.extraJavaOptions": JVM,
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "1s",
}
SPARK = "org.apache.spark.deploy"


def missing() -> str:
    """Why there can be no cluster; '' if there can."""
    if find_spec("pyspark") is None:
        return "pyspark is not installed"
    return "" if shutil.which("java") else "java is not installed"


def until(done: Callable[[], object], what: str, seconds: float = START) -> None:
    """Wait for an event."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class Daemon:
    """A master or a worker, with the processes that it starts, in a session of their own.

    They are nice: tests that watch real time run at the side.
    """

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        with open(log, "wb") as out:
            self._process = subprocess.Popen(
                ["nice", *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
            )

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until it writes a line of its log."""
        found: list[re.Match[str]] = []

        def written() -> bool:
            assert self._process.poll() is None, self.log.read_text()[-2000:]
            found.extend(re.finditer(pattern, self.log.read_text(errors="replace")))
            return bool(found)

        until(written, f"{self.log.name}: {pattern}")
        return found[0]

    def processes(self) -> dict[int, str]:
        """{process: its command line}, of the daemon and what it started."""
        return {pid: words for pid, (_, session, words) in running().items() if session == self._process.pid}

    def pythons(self) -> list[int]:
        """The processes in which tasks run."""
        return sorted(pid for pid, words in self.processes().items() if "pyspark.daemon" in words)

    def stop_tasks(self) -> None:
        """Tasks there hang from now on, running ones too.  One must have run there: it started what is stopped."""
        found = self.pythons()
        assert found, "no task has run there"
        for pid in found:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in self.pythons():
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """As the end of its host; nothing of it is left afterwards."""

        def gone() -> bool:
            for pid in self.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.poll()
            return not self.processes()

        until(gone, "processes that cannot be killed")
        self._process.wait(START)


def running() -> dict[int, tuple[int, int, str]]:
    """{process: its parent, its session and its command line}, without those that have ended."""
    out = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if fields[0] not in "ZX":
                out[int(folder.name)] = int(fields[1]), int(fields[3]), words
    return out


class SparkCluster:
    """A master and ``workers`` of one core each, whose Python has this checkout.

    ``env``: of the workers, beside the environment of the tests.
    """

    def __init__(self, folder: Path, workers: int = 2, env: Mapping[str, str] | None = None) -> None:
        import pyspark

        self._env = dict(env or {})
        self._folder, self._home = folder, Path(pyspark.__file__).parent
        lines = [f"{name} {value}" for name, value in {**SETTINGS, "spark.local.dir": str(folder / "tmp")}.items()]
        (folder / "conf").mkdir()
        (folder / "conf" / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
        self.daemons: list[Daemon] = []
        try:
            self.master = self._daemon("master.Master", "--port", "0")
            found = self.master.says(r"Starting Spark master at (spark://\S+)")
            self.address = found[1]
            self.workers = [self._worker() for _ in range(workers)]
            for worker in self.workers:
                worker.says("Successfully registered")
        except BaseException:
            self.close()
            raise

    def settings(self) -> dict[str, str]:
        """The environment of programs that use the cluster."""
        return {
            "SPARK_CONF_DIR": str(self._folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LAUNCHER_OPTS": JVM,
            "PYSPARK_PYTHON": sys.executable,
        }

    def add_worker(self, path: Path = ROOT) -> Daemon:
        """One that comes late.  ``path``: where its Python finds confluo-tools."""
        self.workers.append(self._worker(path))
        return self.workers[-1]

    def _worker(self, path: Path = ROOT) -> Daemon:
        number = len(self.daemons)
        words = ["-c", "1", "-m", "512m", "-d", str(self._folder / f"work{number}"), self.address]
        # Each has an address of its own: Spark repeats no task on the host where it hangs.
        return self._daemon("worker.Worker", *words, host=f"127.0.0.{1 + number}", path=path)

    def _daemon(self, name: str, *words: str, host: str = "127.0.0.1", path: Path = ROOT) -> Daemon:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
        env = {**kept, **self._env, **self.settings(), "SPARK_LOCAL_IP": host, "PYTHONPATH": str(path)}
        env |= {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": JVM}
        command = [str(self._home / "bin" / "spark-class"), f"{SPARK}.{name}", "--host", host]
        log = self._folder / f"{name}{len(self.daemons)}.log"
        made = Daemon([*command, "--webui-port", "0", *words], log, env)
        self.daemons.append(made)
        return made

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
