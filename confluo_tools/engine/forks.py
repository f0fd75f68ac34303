"""All cores of this host: forks of the process, which share its open files and the question.

Threads would wait for the interpreter lock between blocks.  What a process that died had to do is done again here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence

from confluo_tools.engine import result
from confluo_tools.engine.result import Result
from confluo_tools.engine.runner import Here, Runner
from confluo_tools.engine.task import Task
from confluo_tools.engine.unit import ArchiveBatch, Unit, runs
from confluo_tools.objects.address import is_url
from confluo_tools.objects.threads import WaitingThreads

FEW_ROWS = 3 << 19  # for fewer rows a fork costs more time than it saves


class Forks(Runner):
    """Local processes, ``slots`` with this one (None: one for each core, but no more than the rows are worth)."""

    def __init__(self, slots: int | None = None) -> None:
        self.slots = slots or len(os.sched_getaffinity(0))
        self._by_size = slots is None

    def map(self, task: Task, units: Sequence[Unit], here: Here) -> Iterator[Result]:
        """The first run is done by this process, the others by forks of it."""
        if any(isinstance(unit, ArchiveBatch) and is_url(unit.archive) for unit in units):
            yield from _in_threads(runs(units, self.slots), here)
            return
        shares = runs(units, self._processes(units))
        with _Processes() as processes:
            for share in shares[1:]:
                processes.start(share, here)
            for number, share in enumerate(shares):
                yield (processes.result(number - 1) if number else None) or here(share)

    def _processes(self, units: Sequence[Unit]) -> int:
        rows = sum(unit.size for unit in units)
        return min(self.slots, max(rows // FEW_ROWS, 1)) if self._by_size else self.slots


def _in_threads(shares: Sequence[Sequence[Unit]], here: Here) -> Iterator[Result]:
    # Parts in object stores: a fork could not go on with the connections, and threads wait for the store, not for
    # one another.
    yield from WaitingThreads(len(shares), "shares").map(here, shares)


class _Processes:
    """Processes that each do a share of the work; those that are left at the end are killed."""

    def __init__(self) -> None:
        self._running: list[tuple[int, int]] = []  # process, descriptor of its pipe

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for process, pipe in self._running:
            os.close(pipe)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def start(self, share: Sequence[Unit], here: Here) -> None:
        read, write = os.pipe()
        process = os.fork()
        if process:
            os.close(write)
            self._running.append((process, read))
            return
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            _send(write, here(share))
        finally:
            os._exit(0)  # whatever happened: this process has nothing of its own to end

    def result(self, number: int) -> Result | None:
        """What process ``number`` sent; None if it failed: its share is still to be done."""
        with open(self._running[number][1], "rb", buffering=1 << 16, closefd=False) as stream:
            data = stream.read()
        try:
            return result.decode(data)
        except ValueError:
            return None


def _send(pipe: int, found: Result) -> None:
    data = memoryview(found.encode())
    while data:
        data = data[os.write(pipe, data) :]
