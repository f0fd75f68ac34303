"""Aggregate views: aggregates of the rows of a filter, by keys and time steps.  Paper: Table 2, section 4.

    views.add_aggregate(log, "web_bytes", "sum(len)", filter="web", by="dst_ip")
    confluo-query LOG --agg web_bytes --by '10ms, dst_ip'

The view stores one roll-up per block (pyx/query/rollup_codec.pyx), grouped by time step and keys.  A query with the
same, coarser or fewer keys merges the stored roll-ups (pyx/query/rollup_coarsening.pyx).  The rows are read for blocks
without a roll-up, and for blocks that a time range covers only partly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from confluo_tools.errors import StoreError, UsageError
from confluo_tools.multilog.views import base
from confluo_tools.multilog.views.filter import check_name, compiled, digest, filters, find_filter, make

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Picks
    from confluo_tools.core.multilog.segment import SegmentBlock
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.expr import Expr
    from confluo_tools.expr.aggregates import Result
    from confluo_tools.expr.group_keys import GroupKey
    from confluo_tools.expr.leaves import Tree
    from confluo_tools.multilog.log import Log
    from confluo_tools.multilog.query.aggregation import Aggregation

MS = 1_000_000
MAX_BUCKET = 1 << 62
STATES = 2  # version of the stored roll-ups, part of the digest


class AggregateView(base.View):
    """``agg`` (as in --agg) of the rows of ``filter`` (the name of a filter, or None) and ``where`` (an expression).

    Grouped ``by`` (as in --by, '' for none) and time steps of ``bucket`` ns (0 without a time field).  ``filter_text``:
    expression of the filter.  Compiled on first use, with ExprError or UsageError.
    """

    kind = "aggregate"

    def __init__(
        self,
        log: Log,
        name: str,
        agg: str,
        filter: str | None,
        where: str,
        by: str,
        bucket: int,
        path: str,
        filter_text: str = "",
    ) -> None:
        super().__init__(name, path)
        self.name, self.agg, self.filter, self.where, self.by, self.bucket = name, agg, filter, where, by, bucket
        self.filter_text = filter_text
        self._schema = log.schema
        self._aggregation: Aggregation | None = None
        self._expr: Expr | None = None

    @property
    def definition(self) -> str:
        parts = [self.agg]
        parts += [f"of filter {self.filter}"] if self.filter else []
        parts += [f"where {self.where}"] if self.where else []
        return " ".join(parts + ([f"by {self.by}"] if self.by else []))

    @property
    def expr(self) -> Expr:
        """The expression that selects its rows: filter and ``where``."""
        if self._expr is None:
            from confluo_tools.expr import Expr
            from confluo_tools.expr.simplify import Simplifier

            first, second = (compiled(t, self._schema) for t in (self.filter_text, self.where))
            tree = Simplifier(self._schema).both([first.tree, second.tree])
            demands = {self.filter: self.filter_text} if self.filter else {}
            self._expr = Expr(self.where, self._schema, second.syntax, tree, (), demands)
        return self._expr

    @property
    def tree(self) -> Tree:  # type: ignore[override]
        return self.expr.tree

    @property
    def aggs(self) -> list[Result]:
        from confluo_tools.expr import parse_aggregates

        return parse_aggregates(self.agg, self._schema)

    @property
    def keys(self) -> list[GroupKey]:
        """The keys it is grouped by, without the time step."""
        from confluo_tools.expr import parse_by

        return parse_by(self.by, self._schema) if self.by else []

    @property
    def aggregation(self) -> Aggregation:
        """The aggregation of the stored roll-ups: by time step and keys."""
        if self._aggregation is None:
            from confluo_tools.expr.group_keys import GroupKey
            from confluo_tools.multilog.query.aggregation import Aggregation

            keys = self.keys
            time = self._schema.time_field
            if time is not None and self.bucket:
                keys.insert(0, GroupKey("bucket", time.name, self.bucket, 0, "_step"))
            self._aggregation = Aggregation(self._schema, self.aggs, keys)
        return self._aggregation

    @cached_property
    def columns(self) -> tuple[int, ...]:  # type: ignore[override]
        from confluo_tools.expr import leaves

        fields = set(self.aggregation.reads)
        if self._schema.time_field is not None:
            fields.add(self._schema.time_field.name)
        read = {i for i, c in enumerate(self._schema.columns) if c.field.name in fields}
        return tuple(sorted(read | leaves.columns(self.tree)))

    @cached_property
    def digest(self) -> bytes:  # type: ignore[override]
        columns = [self._schema.layout.describe(i) for i in range(self._schema.layout.n)]
        texts = (self.agg, self.filter_text, self.where, self.by, str(self.bucket), repr(columns))
        return digest("aggregate", str(STATES), *texts)

    def state(self) -> Rollup:
        """An empty roll-up for a block; it also tracks the first and last time of its rows."""
        from confluo_tools.core.query.rollup import Rollup

        made = self.aggregation.rollup()
        return Rollup(made.layout, made.keys, made.aggs, made.time, made.time >= 0)

    def chunk(self, block: SegmentBlock, picks: Picks) -> bytes:
        from confluo_tools.core.query.rollup_codec import dump

        rollup = self.state()
        rollup.update(block, picks)
        return dump(rollup)

    def can_fill(self, make: Callable[[], Rollup]) -> bool:
        """Whether the stored roll-ups can be merged into roll-ups of ``make``: same, coarser or fewer keys."""
        from confluo_tools.core.query.rollup_coarsening import absorb

        try:
            absorb(make(), self.state())
        except ValueError:
            return False
        return True


def load(log: Log, label: str, path: str, about: dict[str, str]) -> AggregateView:
    """Load an aggregate from its definition.  Raises ValueError when it is invalid for this log."""
    agg, bucket = about.get("agg", ""), about.get("bucket", "")
    if about.get("name") != label or not agg or not bucket.isdigit() or int(bucket) > MAX_BUCKET:
        raise ValueError("its definition is damaged")
    name, text = about.get("filter") or None, ""
    if name is not None:
        try:
            text = find_filter(log, name).text
        except StoreError:
            raise ValueError(f"its filter '{name}' is gone") from None
    return AggregateView(log, label, agg, name, about.get("where", ""), about.get("by", ""), int(bucket), path, text)


def aggregates(log: Log, warn: base.Warn | None = None) -> list[AggregateView]:
    """The aggregates of ``log``, by name.  Invalid definitions are reported to ``warn(path, what)``."""
    found = base.load(log, "aggregate", partial(load, log), warn)
    return [view for view in found if isinstance(view, AggregateView)]


def find_aggregate(log: Log, name: str) -> AggregateView | None:
    """The aggregate ``name``, or None."""
    for view in base.load(log, "aggregate", partial(load, log), only=name):
        if isinstance(view, AggregateView):
            return view
    return None


def add_aggregate(
    log: Log, name: str, agg: str, *, filter: str | None = None, where: str = "", by: str = "", bucket: int = MS
) -> AggregateView:
    """Add a view of ``agg`` of the rows of a filter, an expression, or both, by keys and time steps of ``bucket`` ns.

    Adding the same view again has no effect.  Raises UsageError (invalid name, name in use, time step among the keys,
    expression relative to the current time), ExprError, StoreError (unknown filter).
    """
    from confluo_tools.expr import parse_aggregates
    from confluo_tools.expr.aggregate_functions import WRITTEN
    from confluo_tools.expr.group_keys import parse_by
    from confluo_tools.multilog.query.aggregation import Aggregation

    check_name(log, "aggregate", name)
    if name in WRITTEN or (name[:1] == "p" and name[1:].isdigit()):
        raise UsageError(f"'{name}' is the name of a function", where=log.path, hint="choose another name for the view")
    time = log.schema.time_field
    if time is None:
        bucket = 0
    elif not 1 <= bucket <= MAX_BUCKET:
        raise UsageError(f"invalid time step of {bucket} ns", hint="write e.g. --bucket 1ms")
    text = find_filter(log, filter).text if filter is not None else ""
    try:
        compiled(where, log.schema)
    except ValueError as e:
        raise UsageError(f"invalid aggregate '{name}': {e}", where=log.path) from None
    keys = parse_by(by, log.schema) if by else []
    if time is not None and any(key.stepped and key.field == time.name for key in keys):
        raise UsageError("the time step cannot be a key", hint="write e.g. --bucket 10ms")
    Aggregation(log.schema, parse_aggregates(agg, log.schema), keys)
    about = ["# An aggregate of a MultiLog: its states are derived data, which may be deleted at any time."]
    about += ["kind: aggregate", f"name: {name}", f"agg: {base.quoted(agg)}", f"filter: {filter or ''}"]
    about += [f"where: {base.quoted(where)}", f"by: {base.quoted(by)}", f"bucket: {bucket}"]
    make(log, "aggregate", load, name, about)
    view = find_aggregate(log, name)
    if view is None or (view.agg, view.filter_text, view.where, view.by, view.bucket) != (agg, text, where, by, bucket):
        raise UsageError(f"a different aggregate '{name}' exists", where=log.path, hint="drop it first")
    return view


def aggregates_of_filter(log: Log, filter_name: str) -> list[str]:
    """Names of the aggregates that use a filter."""
    return [view.name for view in aggregates(log) if view.filter == filter_name]


def regrouped(view: AggregateView, by: Sequence[GroupKey] | None) -> Aggregation:
    """The aggregation of ``view`` grouped by ``by``, or by its own keys (None).  Raises UsageError."""
    from confluo_tools.multilog.query.aggregation import Aggregation

    return Aggregation(view._schema, view.aggs, view.keys if by is None else by)


__all__ = ["AggregateView", "add_aggregate", "aggregates", "filters", "find_aggregate", "regrouped"]
