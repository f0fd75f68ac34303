"""A cluster of Dask that is there already (`dask.distributed`), as an engine.

Who may connect, TLS and timeouts are settings of Dask: in its files of settings, or in the environment.  Dask does the
tasks of a lost worker again, on another one, and gives tasks to workers that come late.  Tasks that hang are also given
to other workers (`dask_watch`).
"""

from __future__ import annotations

import logging
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from confluo_tools import hidden_numpy
from confluo_tools.engine import worker
from confluo_tools.engine.dask_watch import LATE, DaskWatch
from confluo_tools.engine.runner import ClusterRunner
from confluo_tools.engine.task import unlike
from confluo_tools.errors import ConfluoError

TICK = 0.25  # seconds between two looks at the tasks
REACH = 10.0  # seconds to reach the scheduler
MISSING = "No module named 'confluo_tools"  # Dask wraps the exception of a worker
ALONE = 30.0  # seconds to wait for a first or a next worker


class DaskRunner(ClusterRunner):
    """The cluster with its scheduler at ``host`` and ``port``.  Raises ConfluoError if it cannot be reached."""

    def __init__(self, host: str, port: int) -> None:
        self.name = f"dask://{f'[{host}]' if ':' in host else host}:{port}"
        hidden_numpy.show()
        try:
            from distributed import Client
        except ImportError:
            hint = "install it: pip install 'confluo-tools[dask]'"
            raise ConfluoError("needs the package distributed", where=self.name, hint=hint) from None
        _be_quiet()
        try:
            socket.create_connection((host, port), REACH).close()  # the client would go on trying
            make: Any = Client
            self._client = make(self.name.removeprefix("dask://"), timeout=REACH, set_as_default=False)
        except (OSError, ValueError, RuntimeError, ImportError) as e:
            hint = "is a scheduler there? TLS is a setting of Dask: distributed.comm"
            what = (getattr(e, "strerror", None) or str(e) or type(e).__name__).strip().splitlines()[0]
            raise ConfluoError(f"cannot be reached: {what}", where=self.name, hint=hint) from None
        self.slots = max(sum(self._workers().values()), 1)

    def _workers(self) -> dict[str, int]:
        """Address and threads of each worker."""
        try:
            found: dict[str, int] = self._client.nthreads()
        except Exception as e:
            raise self._lost(e) from None
        return found

    def _lost(self, e: BaseException) -> ConfluoError:
        what = f"the connection to the scheduler was lost ({type(e).__name__})"
        return ConfluoError(what, where=self.name, hint="start the cluster again, and then this command")

    def check(self) -> None:
        """Raises ConfluoError: a worker lacks confluo-tools, or has another version.

        Workers that come later, or take long to answer, check each task themselves.
        """
        try:
            found = self._client.sync(self._client._run, worker.version, on_error="return", callback_timeout=REACH)
        except TimeoutError:
            return
        except Exception as e:
            raise self._lost(e) from None
        for address, pins in sorted(found.items()):
            if isinstance(pins, dict):
                differs = unlike(pins)
                if differs:
                    hint = "install the same version there"
                    raise ConfluoError(f"worker {address} has {differs}", where=self.name, hint=hint)
            elif MISSING in str(pins):
                raise ConfluoError(f"worker {address} has no confluo-tools", where=self.name, hint="install it there")
            else:
                raise ConfluoError(f"worker {address} does not answer: {_line(pins)}", where=self.name)

    def results(self, task: bytes, runs: Sequence[bytes]) -> Iterator[bytes]:
        """See `ClusterRunner.results`; a result is kept by its worker until its turn comes."""
        futures = self._client.map(worker.run, [task] * len(runs), list(runs), pure=False, batch_size=64)
        tries = [[one] for one in futures]  # of each run; none once its result is here
        watch = DaskWatch(self._client, self.name)
        try:
            for run, own in zip(runs, tries, strict=True):
                yield self._first(task, run, own, tries, watch)
                if len(own) > 1:
                    self._client.cancel(own, force=True)
                own[0].release()
                own.clear()
        finally:
            left = [one for own in tries for one in own]
            if left and self._client.status == "running":
                self._client.cancel(left, force=True)

    def _first(
        self, task: bytes, run: bytes, own: list[Any], tries: Sequence[Sequence[Any]], watch: DaskWatch
    ) -> bytes:
        """The first result of ``own``, futures that do the same run; one more where a worker hangs.

        Raises ConfluoError.
        """
        alone = time.monotonic()
        while True:
            done = sum(not each or any(one.status == "finished" for one in each) for each in tries)
            self.progress(done, len(tries))
            for future in own:
                # A result that is there is only to be sent, which may take longer than a tick.
                found = self._result(future, LATE if future.status == "finished" else TICK)
                if found is not None:
                    self.progress(done, len(tries))
                    return found
            if self._workers():
                alone = time.monotonic()
            elif time.monotonic() - alone > ALONE:
                what = f"has had no worker for {ALONE:g} s"
                raise ConfluoError(what, where=self.name, hint="start one: dask worker HOST:PORT")
            try:
                places = watch.places(own, done)
            except (OSError, RuntimeError) as e:
                raise self._lost(e) from None
            if places:
                own.append(self._client.submit(worker.run, task, run, workers=places, pure=False, priority=1))

    def _result(self, future: Any, seconds: float) -> bytes | None:
        """What ``future`` gives within ``seconds``; None: it takes longer.  Raises ConfluoError."""
        from concurrent.futures import CancelledError

        from distributed import KilledWorker

        try:
            data: bytes = future.result(timeout=seconds)
            return data
        except TimeoutError:
            return None
        except (CancelledError, OSError) as e:
            raise self._lost(e) from None
        except KilledWorker as e:
            what = f"several workers died doing the same task, the last of them {e.last_worker.address}"
            raise ConfluoError(what, where=self.name, hint="have they enough memory?") from None
        except Exception as e:
            if MISSING in str(e):
                raise ConfluoError("a worker has no confluo-tools", where=self.name, hint="install it there") from None
            raise ConfluoError(f"a task failed: {_line(e)}", where=self.name) from None

    def close(self) -> None:
        if self._client.status not in ("closed", "closing"):
            self._client.close(timeout=2)


def _line(e: BaseException) -> str:
    return " ".join(f"{type(e).__name__}: {e}".split())[:300]


def _be_quiet() -> None:
    # What matters of what Dask logs and warns of comes as an exception, too.
    for name in [
        n for n in logging.root.manager.loggerDict if n.split(".")[0] in ("distributed", "tornado", "asyncio")
    ]:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    from distributed.versions import VersionMismatchWarning

    warnings.simplefilter("ignore", VersionMismatchWarning)
