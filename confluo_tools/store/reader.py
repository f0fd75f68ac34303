"""A MultiLog as an input like any other: its rows at one version, found by plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.store.log import Log
from confluo_tools.store.views.filter import Names

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.core.rollup import Rollup
    from confluo_tools.store.plan import Plan
    from confluo_tools.store.snapshot import LogCut
    from confluo_tools.store.views.aggregate import AggregateView
    from confluo_tools.store.views.answer import Answering

TOLD = 5  # damaged parts that are named one by one
LEFT_OUT, UNUSED = (
    "damaged parts are left out; confluo-info --verify names them",
    "damaged parts of indexes are not used; confluo-index check names them",
)


class LogReader(Reader):
    """The rows of a MultiLog at the version of its opening, or at that of a snapshot (``at``), by time (lanes merged).

    Damaged blocks are left out, with a warning; damaged views are not used, with a note: the answer is exact.
    ``rows`` counts those of the version that were in question.
    ``timed``: `explain` measures each step.
    """

    format = "multilog"
    timed = False

    def __init__(
        self, path: str, *, warn: Warn | None = None, note: Warn | None = None, at: LogCut | None = None
    ) -> None:
        super().__init__(path, warn)
        self._note = note
        self.log = Log(path, readonly=True)
        if at is None:
            self.version = self.log.version(pin=True)
        else:
            from confluo_tools.store.snapshot import check_log

            self.version = self.log.pin(check_log(at, self.log.uuid, self.log.version().tails, path))
        self.schema = self.log.schema
        self._plan: Plan | None = None
        self._answering: Answering | None = None
        self.filters = Names(self.log)

    def aggregate(self, name: str) -> AggregateView | None:
        from confluo_tools.store.views.aggregate import find_aggregate

        return find_aggregate(self.log, name)

    def plan(self, expr: Any = None, columns: Sequence[int] | None = None) -> Plan:
        from confluo_tools.store.plan import Plan

        self._plan = Plan(self.log, self.version, expr, columns=columns, timed=self.timed)
        return self._plan

    def blocks(self) -> Iterator[Block]:
        plan = self.plan()
        for block, picks in plan.ordered():
            yield block.take(picks)
        self._tell(plan)

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        plan = self.plan(expr, columns)
        self.rows += self.version.kept
        yield from plan.ordered() if by_time else plan
        self._tell(plan)

    def count(self, expr: Any) -> int:
        plan = self.plan(expr, [])
        self.rows += self.version.kept
        found = plan.count()
        self._tell(plan)
        return found

    def fold(self, expr: Any, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> tuple[Rollup, int]:
        from confluo_tools.store.views.answer import answering

        found = answering(self.log, expr.tree, make)
        if found is None:
            return super().fold(expr, columns, make)
        self.rows += self.version.kept
        rollup = found.fold(self.version, make, timed=self.timed)
        self._answering, self._plan = found, found.plan
        self._tell(found.plan)
        self._tell_some(self._note, found.unused, UNUSED)
        return rollup, found.found + found.scanned

    def explain(self) -> dict[str, Any] | None:
        if self._plan is None:
            return None
        used = self._answering
        views = [] if used is None else [{"name": used.view.name, "blocks": used.blocks}]
        return self._plan.explain() | {"aggregates": views}

    def _tell(self, plan: Plan) -> None:
        self._tell_some(self._warn, plan.left_out, LEFT_OUT)
        self._tell_some(self._note, plan.unused, UNUSED)

    def _tell_some(self, tell: Warn | None, told: list[tuple[str, str]], rest: str) -> None:
        if tell is None:
            return
        for path, what in told[:TOLD]:
            tell(f"{path}: {what}")
        if len(told) > TOLD:
            tell(f"{self.name}: {len(told)} {rest}")

    def close(self) -> None:
        self.log.close()
