"""A cluster of Dask on loopback: a scheduler and workers, each a process, and a client that looks into them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from running import ROOT, SUPPORT, environment

DEADLINE = 60.0  # seconds for anything that is waited for
# A cluster stays until all tests of its worker have ended: it looks at itself less often while other tests run.
CALM = {
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "10s",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
}


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of ``condition``."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"never: {what}")


class DaskCluster:
    """A scheduler and ``workers`` workers with one thread each, in ``folder``.

    ``pem``: key and chain of all of them, for TLS; ``ca``: of its authority.  ``settings``: of its users.
    """

    def __init__(self, folder: Path, workers: int = 2, pem: Path | None = None, ca: Path | None = None) -> None:
        from distributed import Client
        from distributed.security import Security

        self.folder = folder
        self.settings = {} if pem is None else {"DASK_CONFIG": str(_settings(folder, pem, ca))}
        self.processes: list[subprocess.Popen[bytes]] = []
        file = folder / "scheduler.json"
        place = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
        try:
            self.scheduler = self._start("scheduler", *place)
            until(file.exists, "a scheduler")
            make: Any = Client
            keys = {"tls_ca_file": str(ca), "tls_client_cert": str(pem), "tls_client_key": str(pem)}
            secure: Any = None if pem is None else Security(require_encryption=True, **keys)
            self.client = make(scheduler_file=str(file), timeout=DEADLINE, set_as_default=False, security=secure)
            self.address = self.client.scheduler.address.partition("://")[2]
            self.engine = f"dask://{self.address}"
            started = [self._start_worker({}) for _ in range(workers)]
            self.workers = [self._joined(process) for process in started]
        except BaseException:
            self.close()
            raise

    def _start(self, kind: str, *words: str, **env: str) -> subprocess.Popen[bytes]:
        use = environment(PYTHONPATH=f"{ROOT}:{SUPPORT}", **CALM, **self.settings)
        argv = ["nice", sys.executable, "-m", f"distributed.cli.dask_{kind}", *words, "--no-dashboard"]
        log = open(self.folder / f"{kind}-{len(self.processes)}.log", "wb")
        with log:
            process = subprocess.Popen(argv, env={**use, **env}, cwd=self.folder, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def _start_worker(self, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        own = self.folder / f"worker-{len(self.processes)}"
        words = (
            "--no-nanny",
            "--death-timeout",
            "60",
            "--nthreads",
            "1",
            "--host",
            "127.0.0.1",
            "--local-directory",
            str(own),
        )
        return self._start("worker", self.client.scheduler.address, *words, **env)

    def _joined(self, process: subprocess.Popen[bytes]) -> DaskWorker:
        def find() -> str:
            pids = self.client.run(os.getpid, on_error="ignore")
            return next((address for address, pid in pids.items() if pid == process.pid), "")

        return DaskWorker(self, process, str(until(find, "a worker")))

    def worker(self, **env: str) -> DaskWorker:
        """One more worker, with an environment of its own."""
        return self._joined(self._start_worker(env))

    def tasks(self) -> int:
        """The number of tasks that the scheduler knows."""
        return int(self.client.run_on_scheduler(_tasks))

    @contextmanager
    def failures_allowed(self, number: int) -> Iterator[None]:
        """Meanwhile a task is given up after its workers died more than ``number`` times."""
        before = self.client.run_on_scheduler(_allow_failures, number)
        try:
            yield
        finally:
            self.client.run_on_scheduler(_allow_failures, before)

    def close(self) -> None:
        if hasattr(self, "client"):
            self.client.close(timeout=1)
        for process in self.processes:
            process.kill()
            process.wait(DEADLINE)


def _settings(folder: Path, pem: Path, ca: Path | None) -> Path:
    # The folder of settings of Dask for a cluster with TLS.
    import yaml

    own = {"cert": str(pem), "key": str(pem)}
    tls = {"ca-file": str(ca), "scheduler": own, "worker": own, "client": own}
    made = folder / "settings"
    made.mkdir()
    comm = {"default-scheme": "tls", "require-encryption": True, "tls": tls}
    (made / "dask.yaml").write_text(yaml.safe_dump({"distributed": {"comm": comm}}))
    return made


def _tasks(dask_scheduler: Any) -> int:
    return sum(key.startswith("run-") for key in dask_scheduler.tasks)


def _allow_failures(number: int, dask_scheduler: Any) -> int:
    before, dask_scheduler.allowed_failures = dask_scheduler.allowed_failures, number
    return int(before)


def hold(file: str) -> None:
    """Wait until a file is gone."""
    while os.path.exists(file):
        time.sleep(0.01)


def _executing(dask_worker: Any) -> list[str]:
    return [str(task.key) for task in dask_worker.state.executing]


def _done(dask_worker: Any) -> int:
    return int(dask_worker.state.executed_count)


class DaskWorker:
    """A worker process and its address."""

    def __init__(self, cluster: DaskCluster, process: subprocess.Popen[bytes], address: str) -> None:
        self.cluster, self.process, self.address = cluster, process, address

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Meanwhile it does a task that is not ours, and no other: it has one thread."""
        file = self.cluster.folder / f"busy-{self.process.pid}"
        file.touch()
        name = f"hold-{self.process.pid}-{time.monotonic_ns()}"
        task = self.cluster.client.submit(hold, str(file), key=name, workers=[self.address], pure=False)
        until(lambda: self.holding() == [name], "a busy worker")
        try:
            yield
        finally:
            task.cancel(force=True)
            file.unlink()

    def holding(self) -> list[str]:
        """Names of the tasks that it does at this moment."""
        found: list[str] = self.cluster.client.run(_executing, workers=[self.address])[self.address]
        return found

    def has_tasks(self) -> bool:
        """Whether the scheduler has given it tasks that are not done."""
        return any(key.startswith("run-") for key in self.cluster.client.processing()[self.address])

    def done(self) -> int:
        """The number of tasks that it has done."""
        return int(self.cluster.client.run(_done, workers=[self.address])[self.address])

    def __enter__(self) -> DaskWorker:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it, and wait until the scheduler has noticed."""
        self.process.kill()
        self.process.wait(DEADLINE)
        client = self.cluster.client
        until(lambda: self.address not in client.scheduler_info(n_workers=-1)["workers"], "the end of a worker")
