"""The interface of all engines: a task over units, results in the order of the units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any

from confluo_tools.engine import result, unit
from confluo_tools.engine.result import Result
from confluo_tools.engine.task import Task
from confluo_tools.engine.unit import Unit, runs

Here = Callable[[Iterable[Unit]], Result]
Progress = Callable[[int, int], None]


class Runner:
    """What does a task over units.  ``slots``: how many runs of units it does at once."""

    slots = 1

    def map(self, task: Task, units: Sequence[Unit], here: Here) -> Iterator[Result]:
        """A result for each run of neighbouring units, in the order of the units; closing the iterator ends the work.

        ``here``: does units in this process, with what it has open.  Raises ConfluoError.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End the connection to the engine, if there is one."""


class InProcess(Runner):
    """This process alone."""

    def map(self, task: Task, units: Sequence[Unit], here: Here) -> Iterator[Result]:
        if units:
            yield here(units)


class ClusterRunner(Runner):
    """An engine with workers that share only files with this process.  A subclass has `results`, `slots` and `check`.

    What a worker may not read is done here, as is what came back damaged twice.
    """

    name = ""  # in messages
    progress: Progress = staticmethod(lambda done, total: None)  # called with the number of runs, now and then
    runs_per_slot = 4  # so that a worker that comes late gets some, and a lost one has lost little
    _fits = False  # the workers were checked
    damaged = 0  # results that were done again

    def check(self) -> None:
        """Whether all workers can do tasks of this process.  Raises ConfluoError, naming the worker."""
        raise NotImplementedError

    def results(self, task: bytes, runs: Sequence[bytes]) -> Iterator[bytes]:
        """`worker.run` of the task and of each encoded run, in the order of the runs, all of them begun at once.

        Closing the iterator cancels what is left.  Raises ConfluoError.
        """
        raise NotImplementedError

    def map(self, task: Task, units: Sequence[Unit], here: Here) -> Iterator[Result]:
        yield from self.map_runs(task, self._runs(units), here)

    def map_runs(self, task: Task, plan: Sequence[Sequence[Unit]], here: Here) -> Iterator[Result]:
        """`map` for runs that the caller made; in each, all units travel, or none."""
        if not self._fits:
            self.check()
            self._fits = True
        data = task.encode()
        sent = [unit.encode(run) for run in plan if run[0].travels]
        with closing(_close(self.results(data, sent) if sent else iter(()))) as found:
            for run in plan:
                yield self._checked(next(found), data, run, here) if run[0].travels else here(run)

    def _runs(self, units: Sequence[Unit]) -> list[Sequence[Unit]]:
        total = sum(one.size for one in units) or 1
        out: list[Sequence[Unit]] = []
        for travels, some in groupby(units, key=lambda one: one.travels):
            own = list(some)
            share = sum(one.size for one in own) / total
            out += runs(own, max(round(share * self.slots * self.runs_per_slot), 1) if travels else 1)
        return out

    def _checked(self, data: bytes, task: bytes, run: Sequence[Unit], here: Here) -> Result:
        try:
            return result.decode(data)
        except ValueError:
            self.damaged += 1
        with closing(_close(self.results(task, [unit.encode(run)]))) as again:
            try:
                return result.decode(next(again))
            except ValueError:
                return here(run)


def _close(iterator: Iterator[bytes]) -> Any:
    # An iterator that can be closed: a generator is one.
    return iterator if hasattr(iterator, "close") else (one for one in iterator)
