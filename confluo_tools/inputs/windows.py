"""Aggregates of an input that grows, by windows of time: each is given when it has ended."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from confluo_tools.errors import UsageError
from confluo_tools.inputs.late_records import LateRecords

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.formats.growing import Place
    from confluo_tools.inputs.grouped_rows import GroupedRows

FIRST = -(1 << 63)


class GroupWindows:
    """The groups of ``groups``, which have a step of time, in a window for each step.

    A window ends when records, or the clock while no record comes, are ``lag`` ns after its end; later records of it
    are not counted, and reported to ``late``.  ``write`` gets the rows.
    ``done``: windows up to this time were given by an earlier run.  ``again``: rows that were also read by that run.
    ``places``: where this run begins.
    """

    def __init__(
        self,
        groups: GroupedRows,
        lag: int,
        write: Callable[[Block, None], object],
        late: LateRecords,
        *,
        done: int | None = None,
        again: int = 0,
        places: Sequence[Place] | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._groups, self._lag, self._write, self._late, self._clock = groups, lag, write, late, clock
        self._schema = groups.selection.schema
        self._ts = self._schema.index(groups.question.time_key_field)
        assert groups.question.steps is not None
        self._steps = groups.question.steps
        self._open: dict[int, tuple[int, Rollup]] = {}  # by start: the end, and the groups
        self.done = FIRST if done is None else done
        self._newest, self._came = FIRST, 0
        self._by_clock = False  # the last windows ended by the clock
        self._rounds: deque[tuple[Sequence[Place], int, int]] = deque()  # places, the newest time, rows
        self._again, self._rows, self._settled_rows = again, 0, 0
        self.late = 0
        self.settled = places  # all rows before these places are in windows that were given

    def add(self, block: Block, picks: Picks | None, mark: int) -> None:
        """Take rows.  No later row is older than ``mark`` (ns), as far as known."""
        block = block if picks is None else block.take(picks)
        known = min(max(self._again - self._rows, 0), block.rows)  # rows that the run before has counted
        for piece, late in ((block.slice(0, known), False), (block.slice(known, block.rows - known), True)):
            for part in self._in_order(piece) if piece.rows else ():
                self._take(part, late)
        self._rows += block.rows
        self._came = now = self._clock()
        self._end(min(self._newest, mark, now) - self._lag)

    def _in_order(self, block: Block) -> Iterator[Block]:
        """The rows in the order of time."""
        from confluo_tools.core.block.block import Picks as Make
        from confluo_tools.core.multilog.log_scan import in_time_order
        from confluo_tools.formats.merge import by_time

        every = Make.of(block.rows)
        if in_time_order(block, every, self._ts):
            yield block
            return
        for part, rows in by_time(self._schema, [iter([(block, every, 0)]), iter(())], None):
            yield part.take(rows)

    def _take(self, block: Block, late: bool) -> None:
        times = memoryview(block.buffer(self._ts)).cast("q")[: block.rows]
        at = bisect_left(times, self.done)
        if at and late:
            self.late += at
            reached = self._clock() if self._by_clock else self._newest
            self._late.add(self.late, reached - times[0], time.monotonic_ns())
        while at < block.rows:
            start = self._steps.start(times[at])
            if start not in self._open:
                self._open[start] = self._steps.after(start), self._groups.question.rollup()
            stop, rollup = self._open[start]
            end = bisect_left(times, stop, at)
            rollup.update(block.slice(at, end - at))
            at = end
        if block.rows and times[block.rows - 1] > self._newest:
            self._newest, self._by_clock = times[block.rows - 1], False

    @property
    def again(self) -> int:
        """Rows after the ``settled`` places that were taken: the next run reads them again."""
        return self._rows - self._settled_rows

    def look(self, places: Sequence[Place] | None) -> None:
        """Called when all rows up to ``places`` were taken: give the windows that have ended by the clock."""
        now = self._clock()
        if self._open and now >= self._came + self._lag:
            self._by_clock = True
            self._end(now - self._lag)
        if places is not None:
            self._rounds.append((places, self._newest, self._rows))
            self._settle()

    def finish(self, *, keep_open: bool) -> None:
        """Give the windows that are left.  ``keep_open``: only those that have ended by the clock."""
        self._end(self._clock() - self._lag if keep_open else None)
        self._settle()
        self._late.end()

    def _settle(self) -> None:
        while self._rounds and (self._rounds[0][1] < self.done or not self._open):
            self.settled, _, self._settled_rows = self._rounds.popleft()

    def _end(self, limit: int | None) -> None:
        # The windows that end at or before `limit`; None: all.
        for start in sorted(self._open):
            stop, rollup = self._open[start]
            if limit is not None and stop > limit:
                return
            del self._open[start]
            self.done = max(self.done, stop)
            groups = self._groups
            for block in groups.question.answer(rollup, having=groups.having, order=groups.order):
                self._write(block, None)


def check_windows(groups: GroupedRows, *, top: int | None, memory: str | None) -> bool:
    """Whether groups of an input that grows are given by windows.  Raises UsageError where it is not clear how."""
    question = groups.question
    field = groups.selection.schema.time_field
    if not question.step or field is None or question.time_key_field != field.name:
        return False
    hint = "leave it out, or leave the step of time out of --by"
    if top is not None:
        raise UsageError("ranks all groups, and windows end one after the other", where="--top", hint=hint)
    if memory is not None:
        raise UsageError("is for the groups of a whole input, not of windows", where="--memory-limit", hint=hint)
    if groups.fill:
        raise UsageError("needs all groups, and windows end one after the other", where="--fill", hint=hint)
    return True
