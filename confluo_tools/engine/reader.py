"""A log or an archive with counts and aggregates by an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from confluo_tools.engine.partial import Partial
from confluo_tools.engine.result import Problems, Result
from confluo_tools.engine.rollup_partial import CountPartial, RollupPartial
from confluo_tools.engine.rows import MAX_ROWS, RowSelection
from confluo_tools.engine.runner import ClusterRunner, Runner
from confluo_tools.engine.task import Task
from confluo_tools.engine.unit import Unit
from confluo_tools.engine.unit_plan import UnitPlan
from confluo_tools.engine.worker import run_units
from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.formats.merge import Merged
from confluo_tools.formats.reader import Reader, Wrapper
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.reader import LogReader

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.multilog.segment import SegmentPart
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.expr import Expr
    from confluo_tools.multilog.log import Log


def gather(reader: Reader, expr: Expr, partial: Partial) -> int:
    """Add the rows of ``reader`` for which ``expr`` holds to ``partial``, by its engine or here; returns their number.

    The order is that of the rows, lane by lane, not that of time.
    """
    if isinstance(reader, EngineReader):
        return reader.gather(expr, partial)
    if isinstance(reader, Merged):
        return sum([gather(one, expr, partial) for one in reader.readers])
    if partial.counted:
        return reader.count(expr)
    rows = 0
    for block, picks in reader.select(expr, partial.columns, by_time=False):
        partial.update(block, picks)
        rows += block.rows if picks is None else len(picks)
    return rows


def with_engine(reader: Reader, runner: Runner, limit: int | None = None) -> Reader:
    """``reader`` on ``runner``; of several logs, each is.  ``limit``: no more rows are wanted.  Raises UsageError."""
    if isinstance(reader, Merged):
        reader.readers = [with_engine(one, runner, limit) for one in reader.readers]
        return reader
    found = EngineReader(reader, runner)
    found.limit = limit
    return found


def waves(units: Sequence[Unit], most_rows: int | None) -> Iterator[Sequence[Unit]]:
    """Neighbouring units, one after the other, with about ``most_rows`` rows together; None: all."""
    wave: list[Unit] = []
    rows = 0
    for one in units:
        if wave and most_rows is not None and rows + one.size > most_rows:
            yield wave
            wave, rows = [], 0
        wave.append(one)
        rows += one.size
    yield wave


class EngineReader(Wrapper):
    """``reader`` with counts and aggregates by ``runner``; rows, too, if that is a cluster.

    Forks send no rows: on this host that is slower than one core.  ``limit``: no more rows are wanted.
    Raises UsageError for an input that has no units.
    """

    limit: int | None = None

    def __init__(self, reader: Reader, runner: Runner) -> None:
        super().__init__(reader, reader._warn)
        self.schema, self.by_time, self.chosen = reader.schema, reader.by_time, reader.chosen
        self.filters, self.aggregate = reader.filters, reader.aggregate  # type: ignore[method-assign]
        if not isinstance(reader, LogReader | ArchiveReader):
            hint = "it takes a MultiLog or an archive that this host has"
            raise UsageError(f"{reader.name} is read by one core", where="--engine", hint=hint)
        self.input: LogReader | ArchiveReader = reader
        self.runner = runner

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        if isinstance(self.runner, ClusterRunner):
            plan = UnitPlan(self.input, expr, self.runner.slots, MAX_ROWS)
            chosen = RowSelection(plan, expr, columns, self.limit, by_time)
            if chosen.possible:
                yield from chosen.rows(self.runner, lambda run: self._here(chosen.task, run))
                self._report(plan, chosen.found)
                return
        before = self.reader.rows
        yield from self.reader.select(expr, columns, by_time=by_time)
        self.rows += self.reader.rows - before

    def blocks(self) -> Iterator[Block]:
        return self.reader.blocks()

    def count(self, expr: Any) -> int:
        return self.gather(expr, CountPartial(self.schema))

    def fold(self, expr: Any, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> tuple[Rollup, int]:
        if isinstance(self.input, LogReader) and self.input.stored_rollups(expr, make):
            whole, total = self.input.fold(expr, columns, make)  # only blocks at the edges are read
            self.rows += self.input.rows
            return whole, total
        partial = RollupPartial(self.schema, columns, make)
        total = self.gather(expr, partial, getattr(make, "most_rows", None))
        return partial.rollup, total

    def gather(self, expr: Expr, partial: Partial, most_rows: int | None = None) -> int:
        """Add the rows for which ``expr`` holds to ``partial``; returns their number.

        ``most_rows``: the workers do about this many at a time, so their states have no more groups.
        """
        plan = UnitPlan(self.input, expr, self.runner.slots, most_rows, look=self._looks(partial))
        task = Task(expr, partial.fresh())
        found: list[Result] = []
        for wave in waves(plan.units, most_rows):
            with closing(self.runner.map(task, wave, lambda run: self._here(task, run))) as results:  # type: ignore[type-var]
                for one in results:
                    try:
                        one.merge_into(partial)
                    except ValueError as e:
                        raise ConfluoError(f"a worker gave a state that is not valid: {e}", where="--engine") from None
                    found.append(one._replace(state=b""))
        self._report(plan, found)
        return sum(one.rows for one in found)

    def _looks(self, partial: Partial) -> bool:
        # Parts of archives cost more to open than the shares of processes of this host can differ.
        if isinstance(self.runner, ClusterRunner):
            return True
        return isinstance(self.input, LogReader) and not partial.any_order

    def _here(self, task: Task, run: Iterable[Unit]) -> Result:
        return run_units(task, run, self._opened)

    def _opened(self) -> tuple[Log, list[SegmentPart]]:
        # The segments of the version: retention cannot remove them.
        assert isinstance(self.input, LogReader)
        return self.input.log, self.input.log.segments(self.input.version)

    def _report(self, plan: UnitPlan, found: Sequence[Result]) -> None:
        left_out = plan.left_out + [plan.as_given(one) for each in found for one in each.left_out]
        unused = list(dict.fromkeys(plan.as_given(one) for each in found for one in each.unused))
        self.rows += plan.passed + sum(one.scanned for one in found)
        if isinstance(self.input, LogReader):
            self.rows += self.input.version.kept
            log, others = _split(list(dict.fromkeys(left_out)), self.input.log.path)
            self.input.report(log, unused)
        else:
            others = list(dict.fromkeys(left_out))
        for path, what in others:
            if self._warn is not None:
                self._warn(f"{path}: {what}")

    def close(self) -> None:
        self.runner.close()
        super().close()


def _split(problems: Problems, log: str) -> tuple[Problems, Problems]:
    # Those of the log itself, and those of its archives.
    own = os.path.join(log, "")
    inside = [one for one in problems if one[0] == log or one[0].startswith(own)]
    return inside, [one for one in problems if one not in inside]
