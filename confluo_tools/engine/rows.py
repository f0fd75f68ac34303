"""Rows by an engine: selected where they are, merged by time here.

A run of units is a piece of one lane.  Pieces with times that overlap are streams that are merged; the others follow
one another, as blocks do on one core (time_order.py).  Runs go out in waves, by time: what waits here does not grow
with the input, and a limit ends it after the waves that it needs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING

from confluo_tools.engine.result import Result
from confluo_tools.engine.rows_partial import RowsPartial
from confluo_tools.engine.runner import ClusterRunner, Here
from confluo_tools.engine.task import Task
from confluo_tools.engine.unit import Unit, runs
from confluo_tools.engine.unit_plan import UnitPlan
from confluo_tools.formats.arrow import StreamReader
from confluo_tools.formats.bytestream import BytesInMemory
from confluo_tools.formats.merge import by_time as merged_by_time
from confluo_tools.multilog.query import time_order
from confluo_tools.multilog.query.time_order import Span

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.expr import Expr
    from confluo_tools.formats.merge import Ranked

MAX_ROWS = 1 << 19  # of a run, about: its rows are in the memory of a worker, and then here
MAX_STREAMS = 32  # runs that are here at the same time because their times overlap
WAVE = 2  # runs for each slot that go out together


class RowSelection:
    """The rows of ``plan`` for which ``expr`` holds, with ``columns`` (None: all), by time or in row order.

    ``limit``: no more are wanted.  ``possible``: False when too many runs overlap; one core then reads the input in
    slices.  ``found``: the results so far, without states.
    """

    def __init__(
        self, plan: UnitPlan, expr: Expr, columns: Sequence[int] | None, limit: int | None, by_time: bool
    ) -> None:
        self._schema = expr.schema
        self._by_time = by_time and expr.schema.time_field is not None
        self.partial = RowsPartial(expr.schema, columns, limit, self._by_time)
        self.task = Task(expr, self.partial)
        self.found: list[Result] = []
        spans = [[self._span(plan, run) for run in _runs(lane)] for lane in plan.lanes]
        if self._by_time:
            self._chains = [(i, chain) for i, lane in enumerate(spans) for chain in time_order.streams(lane)]
        else:
            self._chains = [(0, [span for lane in spans for span in lane])]
        self.possible = len(self._chains) <= MAX_STREAMS

    def _span(self, plan: UnitPlan, run: Sequence[Unit]) -> Span:
        first = getattr(run[0], "base", 0) + run[0].first  # ascending along a lane
        times = [plan.times(unit) for unit in run] if self._by_time else [(0, 0)]
        return Span(min(lo for lo, _ in times), max(hi for _, hi in times), first, run)

    def rows(self, runner: ClusterRunner, here: Here) -> Iterator[tuple[Block, Picks | None]]:
        """The rows.  ``here``: does units in this process.  Raises ConfluoError."""
        order = [span for _, chain in self._chains for span in chain]
        if self._by_time:
            order.sort(key=lambda span: span.lo)
        waves = _Waves(runner, self.task, order, here)

        def stream(lane: int, chain: Sequence[Span]) -> Iterator[Ranked]:
            for span in chain:
                result = waves.result(span)
                self.found.append(result._replace(state=b""))
                for block in StreamReader(BytesInMemory(result.dumped, runner.name)).blocks():
                    yield block.project(self._schema.layout), None, time_order.rank(lane, span.first)

        streams = [stream(lane, chain) for lane, chain in self._chains]
        with closing(waves):
            if self._by_time:
                yield from merged_by_time(self._schema, streams, self.partial.columns)
            else:
                for one in streams:
                    yield from ((block, None) for block, _, _ in one)


class _Waves:
    """Results of runs in the given order, some at a time; those that are not needed yet are done meanwhile."""

    def __init__(self, runner: ClusterRunner, task: Task, order: Sequence[Span], here: Here) -> None:
        self._runner, self._task, self._here = runner, task, here
        self._left = list(order)
        self._have: dict[int, Result] = {}
        self._wave: list[Span] = []  # what is still to come of the wave that is out
        self._results: Iterator[Result] = iter(())

    def result(self, span: Span) -> Result:
        while id(span) not in self._have:
            if not self._wave:
                self._wave = self._left[: self._runner.slots * WAVE]
                del self._left[: len(self._wave)]
                self.close()
                self._results = self._runner.map_runs(self._task, [one.item for one in self._wave], self._here)
            self._have[id(self._wave.pop(0))] = next(self._results)
        return self._have.pop(id(span))

    def close(self) -> None:
        """End the work on the wave that is out."""
        if isinstance(self._results, Generator):
            self._results.close()


def _runs(units: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
    # Neighbours of one lane that one worker can read together.
    for _, some in groupby(units, key=lambda unit: (unit.source, unit.travels)):
        own = list(some)
        yield from runs(own, max(sum(unit.size for unit in own) // MAX_ROWS, 1))
