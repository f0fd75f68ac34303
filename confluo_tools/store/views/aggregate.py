"""Aggregates: functions of the rows of a filter, by keys and steps of time.  Paper: Table 2, section 4.

    views.add_aggregate(log, "web_bytes", "sum(len)", filter="web", by="dst_ip")
    confluo-query LOG --agg web_bytes --by '10ms, dst_ip'

Of each block a partial state is kept (core/partial), grouped by step and keys, so that any question with coarser or
fewer keys is a merge of states (core/regroup); blocks that have none, and those of which a time range wants only a
part, are looked at themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from confluo_tools.errors import StoreError, UsageError
from confluo_tools.store.views import base
from confluo_tools.store.views.filter import check_name, compiled, digest, filters, find_filter, make

if TYPE_CHECKING:
    from confluo_tools.core.block import Picks
    from confluo_tools.core.rollup import Rollup
    from confluo_tools.core.segment import SegmentBlock
    from confluo_tools.expr import Expr
    from confluo_tools.expr.aggregates import Agg, By
    from confluo_tools.expr.leaves import Tree
    from confluo_tools.store.aggregate import Question
    from confluo_tools.store.log import Log

MS = 1_000_000
MOST_BUCKET = 1 << 62
STATES = 1  # format of the states: part of the digest


class AggregateView(base.View):
    """``agg`` (as in --agg) of the rows of ``filter`` (the name of a filter, or None) and ``where`` (an expression).

    Kept ``by`` (as in --by, '' for none) and ``bucket`` (ns; 0 without a time field).  ``filter_text`` is that of the
    filter.  Compiled when it is first asked for: ExprError, UsageError.
    """

    kind = "aggregate"

    def __init__(
        self, log: Log, name: str, agg: str, filter: str | None, where: str, by: str, bucket: int, path: str,
        filter_text: str = "",
    ) -> None:  # fmt: skip
        super().__init__(name, path)
        self.name, self.agg, self.filter, self.where, self.by, self.bucket = name, agg, filter, where, by, bucket
        self.filter_text = filter_text
        self._schema = log.schema
        self._question: Question | None = None
        self._expr: Expr | None = None

    @property
    def definition(self) -> str:
        parts = [self.agg]
        parts += [f"of filter {self.filter}"] if self.filter else []
        parts += [f"where {self.where}"] if self.where else []
        return " ".join(parts + ([f"by {self.by}"] if self.by else []))

    @property
    def expr(self) -> Expr:
        """Its rows: what the filter and the expression say."""
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
    def aggs(self) -> list[Agg]:
        from confluo_tools.expr import parse_aggregates

        return parse_aggregates(self.agg, self._schema)

    @property
    def keys(self) -> list[By]:
        """The keys by which it is kept, without the step of time."""
        from confluo_tools.expr import parse_by

        return parse_by(self.by, self._schema) if self.by else []

    @property
    def question(self) -> Question:
        """What its states answer: by step and keys."""
        if self._question is None:
            from confluo_tools.expr.aggregates import By
            from confluo_tools.store.aggregate import Question

            keys = self.keys
            time = self._schema.time_field
            if time is not None and self.bucket:
                keys.insert(0, By("bucket", time.name, self.bucket, 0, "_step"))
            self._question = Question(self._schema, self.aggs, keys)
        return self._question

    @cached_property
    def columns(self) -> tuple[int, ...]:  # type: ignore[override]
        from confluo_tools.expr import leaves

        fields = set(self.question.reads)
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
        """An empty state of a block; it also remembers the first and last time of its rows."""
        from confluo_tools.core.rollup import Rollup

        made = self.question.rollup()
        return Rollup(made.layout, made.keys, made.aggs, made.time, made.time >= 0)

    def chunk(self, block: SegmentBlock, picks: Picks) -> bytes:
        from confluo_tools.core.partial import dump

        rollup = self.state()
        rollup.update(block, picks)
        return dump(rollup)

    def follows(self, make: Callable[[], Rollup]) -> bool:
        """Whether our states can be merged into roll-ups of ``make``: its keys are ours, coarser ones, or fewer."""
        from confluo_tools.core.regroup import absorb

        try:
            absorb(make(), self.state())
        except ValueError:
            return False
        return True


def load(log: Log, label: str, path: str, about: dict[str, str]) -> AggregateView:
    """The aggregate behind a definition.  ValueError: it makes no sense for this log."""
    agg, bucket = about.get("agg", ""), about.get("bucket", "")
    if about.get("name") != label or not agg or not bucket.isdigit() or int(bucket) > MOST_BUCKET:
        raise ValueError("its definition is damaged")
    name, text = about.get("filter") or None, ""
    if name is not None:
        try:
            text = find_filter(log, name).text
        except StoreError:
            raise ValueError(f"its filter '{name}' is gone") from None
    return AggregateView(log, label, agg, name, about.get("where", ""), about.get("by", ""), int(bucket), path, text)


def aggregates(log: Log, warn: base.Warn | None = None) -> list[AggregateView]:
    """The aggregates of ``log``, by name.  Definitions that are no use are told to ``warn(path, what)``."""
    found = base.load(log, "aggregate", partial(load, log), warn)
    return [view for view in found if isinstance(view, AggregateView)]


def find_aggregate(log: Log, name: str) -> AggregateView | None:
    """The aggregate ``name``, None when there is none."""
    for view in base.load(log, "aggregate", partial(load, log), only=name):
        if isinstance(view, AggregateView):
            return view
    return None


def add_aggregate(
    log: Log, name: str, agg: str, *, filter: str | None = None, where: str = "", by: str = "", bucket: int = MS,
) -> AggregateView:  # fmt: skip
    """Keep ``agg`` of the rows of a filter, an expression, or both, by keys and steps of ``bucket`` ns.

    The same again changes nothing.  Raises UsageError (a bad name, one that is taken, a step among the keys, an
    expression that counts from now), ExprError, StoreError (no such filter).
    """
    from confluo_tools.expr.aggregates import FUNCTIONS, parse_aggregates, parse_by
    from confluo_tools.store.aggregate import Question

    check_name(log, "aggregate", name)
    if name in FUNCTIONS or (name[:1] == "p" and name[1:].isdigit()):
        raise UsageError(f"'{name}' is the name of a function", where=log.path, hint="call the view something else")
    time = log.schema.time_field
    if time is None:
        bucket = 0
    elif not 1 <= bucket <= MOST_BUCKET:
        raise UsageError(f"there are no steps of {bucket} ns", hint="write e.g. --bucket 1ms")
    text = find_filter(log, filter).text if filter is not None else ""
    try:
        compiled(where, log.schema)
    except ValueError as e:
        raise UsageError(f"aggregate '{name}' cannot be: {e}", where=log.path) from None
    keys = parse_by(by, log.schema) if by else []
    if time is not None and any(key.kind == "bucket" and key.field == time.name for key in keys):
        raise UsageError("the step of time is not a key", hint="write e.g. --bucket 10ms")
    Question(log.schema, parse_aggregates(agg, log.schema), keys)
    about = ["# An aggregate of a MultiLog: its states are derived data, which may be deleted at any time."]
    about += ["kind: aggregate", f"name: {name}", f"agg: {base.quoted(agg)}", f"filter: {filter or ''}"]
    about += [f"where: {base.quoted(where)}", f"by: {base.quoted(by)}", f"bucket: {bucket}"]
    make(log, "aggregate", load, name, about)
    view = find_aggregate(log, name)
    if view is None or (view.agg, view.filter_text, view.where, view.by, view.bucket) != (agg, text, where, by, bucket):
        raise UsageError(f"there is another aggregate '{name}'", where=log.path, hint="drop it first")
    return view


def made_of(log: Log, filter_name: str) -> list[str]:
    """Names of the aggregates that are made of a filter."""
    return [view.name for view in aggregates(log) if view.filter == filter_name]


def regrouped(view: AggregateView, by: Sequence[By] | None) -> Question:
    """The question that an answer from ``view`` is of: by its own keys, or as asked.  UsageError: not from it."""
    from confluo_tools.store.aggregate import Question

    return Question(view._schema, view.aggs, view.keys if by is None else by)


__all__ = ["AggregateView", "add_aggregate", "aggregates", "filters", "find_aggregate", "regrouped"]
