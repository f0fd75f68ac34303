"""Questions of triggers; the answers fill their windows: aggregates by step of time and key.

Each host answers them about its own new rows, and the answers are merged: the windows then have what the rows of all
hosts would give.  Paper: section 4.2, monitor module; section 4.1, distributed aggregates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.expr import parse_aggregates, parse_by
from confluo_tools.monitor.engine import LAST, TriggerEngine
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.multilog.query.rollup_slices import MAX_SHARES, cut, divided, starts

if TYPE_CHECKING:
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.monitor.tree_windows import RollupTree
    from confluo_tools.monitor.windows import KeyedRows, WindowGroup
    from confluo_tools.schema import Schema

MIN_STEP = 1_000_000  # ns of the steps by which rows are counted
MAX_AHEAD = 1 << 20  # groups of rows that are ahead of their time


class TextQuestion:
    """``agg`` by ``by`` of the rows for which ``where`` holds, as texts of a query; ``fine``: the same, parsed."""

    def __init__(self, schema: Schema, agg: str, by: str = "", where: str = "") -> None:
        self.where, self.agg, self.by = where, agg, by
        self.fine = Aggregation(schema, parse_aggregates(agg, schema), parse_by(by, schema) if by else [])


class PartialQuestion(TextQuestion):
    """What goes into windows: the first key is a step of time, of ``step`` ns."""

    def __init__(self, engine: TriggerEngine, where: str, agg: str, step: int, by: str = "") -> None:
        time = engine.schema.time_field
        assert time is not None
        steps = f"{time.name}/{step}ns as bucket_"
        super().__init__(engine.schema, agg, f"{steps}, {by}" if by else steps, where)

    def put(self, part: Rollup) -> None:
        """Put the rows of a roll-up into windows."""
        raise NotImplementedError


class RowCounts(PartialQuestion):
    """How many rows there are, and how many of them come too late."""

    def __init__(self, engine: TriggerEngine) -> None:
        step = max(math.gcd(*(t.grain for t in engine.triggers)), MIN_STEP)
        super().__init__(engine, "", "count as rows_", step)
        self.engine = engine

    def put(self, part: Rollup) -> None:
        engine = self.engine
        feed, oldest = engine.feed, engine.clock - max(t.window for t in engine.triggers)
        for block in part.finish(self.fine.result.layout, 1.0).blocks():
            for row in range(block.rows):
                start, rows = block.get(0, row), block.get(1, row)
                feed.rows += rows
                feed.newest = max(feed.newest, start + self.fine.step)
                if start < engine.clock:
                    feed.late += rows
                    feed.late_from = min(feed.late_from, start)
                if start < oldest:
                    feed.lost += rows


class KeyedQuestion(PartialQuestion):
    """What one filter adds to windows by key."""

    def __init__(self, engine: TriggerEngine, group: WindowGroup, source: KeyedRows, where: str) -> None:
        first = engine.triggers[group.tests[0]]
        agg = ", ".join(f"{a.text} as {a.label}" for a in source.question.aggs)
        super().__init__(engine, where, agg, first.grain, first.by)
        self.source = source

    def put(self, part: Rollup) -> None:
        if self.source.rollup is None:
            self.source.rollup = self.source.question.rollup()
        self.source.rollup.merge(part)


class TreeQuestion(PartialQuestion):
    """What one filter adds to windows of roll-ups."""

    def __init__(self, engine: TriggerEngine, group: WindowGroup, tree: RollupTree, where: str) -> None:
        trigger = engine.triggers[group.tests[0]]
        agg = ", ".join(f"{a.text} as {a.label}" for a in tree.question.aggs)
        super().__init__(engine, where, agg, trigger.grain, trigger.by)
        self.windows, self.tree = group.tree, tree

    def put(self, part: Rollup) -> None:
        step = self.fine.step
        steps = sorted(set(starts(part, self.fine)))
        while steps:
            end = steps[0] + (MAX_SHARES - 1) * step
            for start, some in divided(part, self.fine, self.tree.question, steps[0], end):
                self.windows.take_part(self.tree, start // step, some)
            steps = [start for start in steps if start >= end]


def questions(engine: TriggerEngine) -> list[PartialQuestion]:
    """All questions of the triggers of an engine that takes partials; the first counts the rows."""
    found: list[PartialQuestion] = [RowCounts(engine)]
    for group in engine.windows:
        kind: Any = TreeQuestion if group.tree is not None else KeyedQuestion
        found += [kind(engine, group, source, engine.texts[f]) for f, source in group.sources.items()]
    return found


class Ahead:
    """Answers that wait because their rows are ahead of the windows.  ``dropped``: groups that were too many."""

    def __init__(self, questions: Sequence[PartialQuestion]) -> None:
        self.questions = questions
        self._waiting: dict[int, Rollup] = {}
        self._first: dict[int, int] = {}
        self.dropped = 0

    def take(self, number: int, part: Rollup, until: int) -> None:
        """An answer to question ``number``; its rows before ``until`` go into the windows."""
        question = self.questions[number]
        due, rest = cut(part, question.fine, until)
        if due is not None:
            question.put(due)
        if rest is None:
            return
        known = self._waiting.get(number)
        if (0 if known is None else len(known)) + len(rest) > MAX_AHEAD:
            self.dropped += len(rest)
            return
        if known is None:
            self._waiting[number] = known = question.fine.rollup()
        known.merge(rest)
        self._first[number] = min(self._first.get(number, LAST), *starts(rest, question.fine))

    def release(self, until: int) -> None:
        """Put what is before ``until`` now into the windows."""
        for number in [n for n, first in self._first.items() if first < until]:
            del self._first[number]
            self.take(number, self._waiting.pop(number), until)

    @property
    def first(self) -> int:
        """The earliest time of what waits; `LAST`: nothing does."""
        return min(self._first.values(), default=LAST)

    def forget(self) -> None:
        self._waiting.clear()
        self._first.clear()
