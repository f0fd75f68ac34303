"""Aggregate lookup: compute a roll-up from the stored roll-ups of an aggregate view.

A view can be used if it has the same aggregates, the same rows (apart from the time range), and the same or finer
keys.  The result is exact: the rows are read for blocks without a stored roll-up, and for blocks that the time range
covers only partly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError
from confluo_tools.expr import leaves
from confluo_tools.multilog.views import base
from confluo_tools.multilog.views.aggregate import AggregateView, aggregates

if TYPE_CHECKING:
    from confluo_tools.core.multilog.segment import SegmentPart
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.expr.leaves import Tree
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.query.plan import QueryPlan
    from confluo_tools.multilog.version import Version

MAX_STATE_BYTES = 12  # per row: above this size, reading the rows is faster than merging the stored groups
MIN_TIME, MAX_TIME = -(1 << 63), (1 << 63) - 1


def find_lookup(log: Log, tree: Tree, make: Callable[[], Rollup]) -> AggregateLookup | None:
    """The best view for roll-ups of ``make`` over the rows of ``tree``; None: the rows must be read."""
    if not base.names(log, "aggregate-"):
        return None
    wanted = make()
    found: list[tuple[int, int, AggregateLookup]] = []
    for view in aggregates(log):
        try:
            span = _span(tree, view.tree, wanted.time)
            if span is not None and view.state().aggs == wanted.aggs and view.can_fill(make):
                found.append((len(view.aggregation.keys), -view.bucket, AggregateLookup(log, view, *span)))
        except (ConfluoError, ValueError):
            continue  # an unusable view: `confluo-index list` reports the reason
    return min(found, key=lambda one: one[:2])[2] if found else None  # the view with the fewest groups


def _span(tree: Tree, stored: Tree, time: int) -> tuple[int | None, int | None] | None:
    # (since, until) if `tree` is `stored` and a time range, else None.
    if tree == stored:
        return None, None
    items = tree.items if isinstance(tree, leaves.And) else (tree,)
    wanted = stored.items if isinstance(stored, leaves.And) else () if stored == leaves.TRUE else (stored,)
    rest = [i for i in items if i not in wanted]
    if len(rest) != 1 or any(w not in items for w in wanted):
        return None
    when = rest[0]
    if not isinstance(when, leaves.Range) or when.col != time or when.mask is not None:
        return None
    return (when.lo if when.lo > MIN_TIME else None), (when.hi + 1 if when.hi < MAX_TIME else None)


class AggregateLookup:
    """One use of ``view`` for since <= time < until: call `fold` once.

    Then ``blocks`` is the number of blocks taken from stored roll-ups, ``found`` the rows in these, ``scanned`` the
    rows read by ``plan``, and ``unused`` lists (path, problem) of damaged files.
    """

    plan: QueryPlan

    def __init__(self, log: Log, view: AggregateView, since: int | None = None, until: int | None = None) -> None:
        self.log, self.view, self.since, self.until = log, view, since, until
        self.blocks = self.found = self.scanned = 0
        self.unused: list[tuple[str, str]] = []
        self._part: SegmentPart | None = None
        self._file: Any = None
        self._usable = False
        self._rollup: Rollup | None = None

    def fold(self, version: Version, make: Callable[[], Rollup], *, timed: bool = False) -> Rollup:
        """Fold the rows at ``version`` into a roll-up of ``make``."""
        from confluo_tools.multilog.query.plan import QueryPlan

        rollup = self._rollup = make()
        self._usable = self.view.can_fill(make)
        self.plan = QueryPlan(
            self.log,
            version,
            self.view.expr,
            self.since,
            self.until,
            columns=self.view.columns,
            skip=self.stored,
            timed=timed,
        )
        for block, picks in self.plan:
            rollup.update(block, picks)
            self.scanned += len(picks)
        return rollup

    def stored(self, part: SegmentPart, number: int) -> bool:
        """Merge the stored roll-up of a block.  False: none, or the time range covers the block only partly."""
        from confluo_tools.core.query.rollup_coarsening import absorb
        from confluo_tools.core.query.rollup_codec import load

        if not self._usable or self._rollup is None:
            return False
        if part is not self._part:
            self._part, self._file = part, self._open(part)
        capacity = part.segment.capacity
        rows = min(part.rows - number * capacity, capacity)
        if (
            self._file is None
            or self._file.rows(number) != rows
            or self._file.size(number) > MAX_STATE_BYTES * rows + 8192
        ):
            return False
        data = self._file.read(number, part.base + number * capacity)
        state = self.view.state()
        try:
            if data is None:
                raise ValueError("its checksum is wrong")
            load(state, data)
        except ValueError as e:
            what = f"the state of block {number} is not used: {e}"
            self.unused.append((self._file.path, f"{what}; confluo-index rebuild {self.view.spec} repairs it"))
            return False
        if state.rows == 0:
            self.blocks += 1
            return True
        span = state.span
        if (self.since is not None or self.until is not None) and (
            span is None
            or (self.since is not None and span[0] < self.since <= span[1])
            or (self.until is not None and span[0] < self.until <= span[1])
        ):
            return False
        self.blocks += 1
        if span is None or (
            (self.since is None or span[0] >= self.since) and (self.until is None or span[1] < self.until)
        ):
            absorb(self._rollup, state)
            self.found += state.rows
        return True

    def _open(self, part: SegmentPart) -> Any:
        try:
            return self.view.open(part)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as e:
            reason = e.strerror if isinstance(e, OSError) else str(e)
            what = f"is not used: {reason}; confluo-index rebuild {self.view.spec} repairs it"
            self.unused.append((self.view.file(part), what))
            return None
