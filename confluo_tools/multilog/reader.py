"""Reader of a MultiLog: its rows at one version, through a query plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.multilog.log import Log
from confluo_tools.multilog.views.filter import FilterNames

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.multilog.query.plan import QueryPlan
    from confluo_tools.multilog.snapshot import LogCut
    from confluo_tools.multilog.version import Version
    from confluo_tools.multilog.views.aggregate import AggregateView
    from confluo_tools.multilog.views.aggregate_lookup import AggregateLookup

Problems = list[tuple[str, str]]  # (path, what is wrong)
SECOND = 1_000_000_000
MAX_REPORTED = 5  # damaged parts that are reported one by one
LEFT_OUT, UNUSED = (
    "damaged parts are left out; confluo-info --verify lists them",
    "damaged parts of indexes are not used; confluo-index check lists them",
)


class LogReader(Reader):
    """The rows of a MultiLog by time (lanes merged), at its current version, at ``version``, or at that of a snapshot.

    ``at``: the cut of the snapshot through this log.

    Damaged blocks are left out, with a warning; damaged views are not used, with a note, and the result stays exact.
    ``rows`` counts the rows of the version.  ``timed``: measure each step, for `explain`.
    """

    format = "multilog"
    by_time = True
    timed = False

    def __init__(
        self,
        path: str,
        *,
        warn: Warn | None = None,
        note: Warn | None = None,
        at: LogCut | None = None,
        version: Version | None = None,
    ) -> None:
        super().__init__(path, warn)
        self._note = note
        self.log = version.log if version is not None and version.log is not None else Log(path, readonly=True)
        if version is not None:
            self.version = version if version.pinned is not None else self.log.pin(version)
        elif at is None:
            self.version = self.log.version(pin=True)
        else:
            from confluo_tools.multilog.snapshot import check_log

            self.version = self.log.pin(check_log(at, self.log.uuid, self.log.version().tails, path))
        self.schema = self.log.schema
        self._plan: QueryPlan | None = None
        self._lookup: AggregateLookup | None = None
        self.filters = FilterNames(self.log)

    def aggregate(self, name: str) -> AggregateView | None:
        from confluo_tools.multilog.views.aggregate import find_aggregate

        return find_aggregate(self.log, name)

    def plan(self, expr: Any = None, columns: Sequence[int] | None = None) -> QueryPlan:
        from confluo_tools.multilog.query.plan import QueryPlan

        self._plan = QueryPlan(self.log, self.version, expr, columns=columns, timed=self.timed)
        return self._plan

    def blocks(self) -> Iterator[Block]:
        plan = self.plan()
        for block, picks in plan.ordered():
            yield block.take(picks)
        self.report(plan.left_out, plan.unused)

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        plan = self.plan(expr, columns)
        self.rows += self.version.kept
        yield from plan.ordered() if by_time else plan
        self.report(plan.left_out, plan.unused)

    def count(self, expr: Any) -> int:
        plan = self.plan(expr, [])
        self.rows += self.version.kept
        found = plan.count()
        self.report(plan.left_out, plan.unused)
        return found

    def newest(self, expr: Any, most: int) -> Any:
        if self.schema.time_field is None:
            return expr
        ts, bias = self.schema.index(self.schema.time_field.name), 1 << 63
        zones = [zone for block in self.log.blocks(self.version) if (zone := block.zones(ts)) is not None]
        if not zones:
            return expr
        first, last = min(zone[0] for zone in zones) - bias, max(zone[1] for zone in zones) - bias
        span = SECOND
        while last - span > first:
            part = expr.within(last - span, None)
            if self.plan(part, []).count() >= most:
                return part
            span *= 8
        return expr

    def fold(self, expr: Any, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> tuple[Rollup, int]:
        from confluo_tools.multilog.views.aggregate_lookup import find_lookup

        found = find_lookup(self.log, expr.tree, make)
        if found is None:
            return super().fold(expr, columns, make)
        self.rows += self.version.kept
        rollup = found.fold(self.version, make, timed=self.timed)
        self._lookup, self._plan = found, found.plan
        self.report(found.plan.left_out, found.plan.unused)
        report_some(self._note, self.name, found.unused, UNUSED)
        return rollup, found.found + found.scanned

    def stored_rollups(self, expr: Any, make: Callable[[], Rollup]) -> bool:
        """Whether an aggregate view has what `fold` would compute."""
        from confluo_tools.multilog.views.aggregate_lookup import find_lookup

        return find_lookup(self.log, expr.tree, make) is not None

    def explain(self) -> dict[str, Any] | None:
        if self._plan is None:
            return None
        used = self._lookup
        views = [] if used is None else [{"name": used.view.name, "blocks": used.blocks}]
        return self._plan.explain() | {"aggregates": views}

    def report(self, left_out: Problems, unused: Problems) -> None:
        """Report damaged parts, (path, what is wrong): of segments, and of views."""
        report_some(self._warn, self.name, left_out, LEFT_OUT)
        report_some(self._note, self.name, unused, UNUSED)

    def close(self) -> None:
        self.log.close()


def report_some(report: Warn | None, name: str, problems: Problems, rest: str) -> None:
    """Report the first problems of the log ``name``, and how many there are."""
    if report is None:
        return
    for path, what in problems[:MAX_REPORTED]:
        report(f"{path}: {what}")
    if len(problems) > MAX_REPORTED:
        report(f"{name}: {len(problems)} {rest}")
