"""Answers from the states of aggregates: a merge of states where there are any, and a look at the other rows.

A question is answered so when a view has its aggregates, its rows (but for the range of time) and keys that are the
same or finer.  Exact: of blocks without a state, and those of which the range wants only a part, the rows are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError
from confluo_tools.expr import leaves
from confluo_tools.store.views import base
from confluo_tools.store.views.aggregate import AggregateView, aggregates

if TYPE_CHECKING:
    from confluo_tools.core.rollup import Rollup
    from confluo_tools.core.segment import Part
    from confluo_tools.expr.leaves import Tree
    from confluo_tools.store.log import Log
    from confluo_tools.store.plan import Plan
    from confluo_tools.store.version import Version

MANY = 12  # bytes of state a row: from here on the rows are read faster than so many groups are merged
LEAST, MOST = -(1 << 63), (1 << 63) - 1


def answering(log: Log, tree: Tree, make: Callable[[], Rollup]) -> Answering | None:
    """What answers the roll-ups of ``make`` over the rows of ``tree``; None: nothing but the rows themselves."""
    if not base.names(log, "aggregate-"):
        return None
    asked = make()
    found: list[tuple[int, int, Answering]] = []
    for view in aggregates(log):
        try:
            span = _span(tree, view.tree, asked.time)
            if span is not None and view.state().aggs == asked.aggs and view.follows(make):
                found.append((len(view.question.keys), -view.bucket, Answering(log, view, *span)))
        except (ConfluoError, ValueError):
            continue  # a view that cannot be used: `confluo-index list` says why
    return min(found, key=lambda one: one[:2])[2] if found else None  # the one with the fewest groups


def _span(tree: Tree, stored: Tree, time: int) -> tuple[int | None, int | None] | None:
    # (since, until) when `tree` is `stored` and a range of time; None: it is something else.
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
    return (when.lo if when.lo > LEAST else None), (when.hi + 1 if when.hi < MOST else None)


class Answering:
    """The answer of ``view`` for since <= time < until, once: `fold`.

    Then ``blocks`` is how many were answered by states, ``found`` the rows in these, ``scanned`` the others; ``plan``
    found the latter, and ``unused`` is (path, what is wrong) of states that are not to be trusted.
    """

    plan: Plan

    def __init__(self, log: Log, view: AggregateView, since: int | None = None, until: int | None = None) -> None:
        self.log, self.view, self.since, self.until = log, view, since, until
        self.blocks = self.found = self.scanned = 0
        self.unused: list[tuple[str, str]] = []
        self._part: Part | None = None
        self._chunks: Any = None
        self._usable = False
        self._rollup: Rollup | None = None

    def fold(self, version: Version, make: Callable[[], Rollup], *, timed: bool = False) -> Rollup:
        """The rows at ``version``, in a roll-up of ``make``."""
        from confluo_tools.store.plan import Plan

        rollup = self._rollup = make()
        self._usable = self.view.follows(make)
        self.plan = Plan(
            self.log, version, self.view.expr, self.since, self.until, columns=self.view.columns, skip=self.stored,
            timed=timed,
        )  # fmt: skip
        for block, picks in self.plan:
            rollup.update(block, picks)
            self.scanned += len(picks)
        return rollup

    def stored(self, part: Part, number: int) -> bool:
        """Take a block from its state.  False: it has none, or the time range wants only a part of it."""
        from confluo_tools.core.partial import load
        from confluo_tools.core.regroup import absorb

        if not self._usable or self._rollup is None:
            return False
        if part is not self._part:
            self._part, self._chunks = part, self._open(part)
        capacity = part.segment.capacity
        rows = min(part.rows - number * capacity, capacity)
        if self._chunks is None or self._chunks.rows(number) != rows or self._chunks.size(number) > MANY * rows + 8192:
            return False
        data = self._chunks.read(number, part.base + number * capacity)
        state = self.view.state()
        try:
            if data is None:
                raise ValueError("its checksum is another")
            load(state, data)
        except ValueError as e:
            what = f"the state of block {number} is not used: {e}"
            self.unused.append((self._chunks.path, f"{what}; confluo-index rebuild {self.view.words} mends it"))
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

    def _open(self, part: Part) -> Any:
        try:
            return self.view.open(part)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as e:
            reason = e.strerror if isinstance(e, OSError) else str(e)
            what = f"is not used: {reason}; confluo-index rebuild {self.view.words} mends it"
            self.unused.append((self.view.file(part), what))
            return None
