"""Aggregates of selected rows, by keys: rows of a schema of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import UsageError
from confluo_tools.inputs.selection import Selection, conditions

if TYPE_CHECKING:
    from confluo_tools.chart.model import ChartGroups
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.expr import Expr
    from confluo_tools.multilog.query.group_spill import GroupSpill

_NAME = re.compile(r"[\w-]+\Z")  # of a view


class GroupedRows:
    """The groups of --agg and --by: rows of a schema of their own.

    ``fill``: also the steps of time without rows.
    ``memory``: bytes that they may use, then temporary files; None: half of what is free.
    """

    def __init__(
        self,
        selection: Selection,
        agg: str,
        by: str | None,
        having: str | None,
        top: int | None,
        local: bool = False,
        memory: int | None = None,
        sort: str | None = None,
        fill: bool = False,
    ) -> None:
        from confluo_tools.expr import compile, parse_aggregates, parse_by
        from confluo_tools.multilog.query import aggregation

        self.selection, self.top, self.memory = selection, top, memory
        view = selection.reader.aggregate(agg.strip()) if _NAME.match(agg.strip()) else None
        if view is not None:
            agg, by = view.agg, view.by if by is None else by
            for text in (view.filter_text, view.where):
                selection.narrow(compile(text, selection.schema))
        self._conditions = conditions(selection.reader, local)
        aggs = parse_aggregates(agg, selection.schema, self._conditions)
        keys = parse_by(by, selection.schema) if by else []
        self.fill = fill
        self.question = aggregation.Aggregation(selection.schema, aggs, keys, local=local, fill=fill)
        self._order(agg, having, sort, local)
        self.names = list(self.question.reads)
        self.schema = self.question.result

    def _order(self, agg: str, having: str | None, sort: str | None, local: bool) -> None:
        # What --having and --sort say, and the columns for it.
        from confluo_tools.expr import ExprError, compile

        self.having: Expr | None = None
        self.order: Sequence[tuple[str, bool]] | None = None
        if having is None and sort is None:
            return
        from confluo_tools.expr.result_columns import ResultColumns

        names = [f.name for f in self.question.result.fields]
        columns = ResultColumns(self.selection.schema, agg, names, self._conditions)
        condition = None if having is None else columns.condition(having)
        self.order = None if sort is None else columns.order(sort)
        self.question.hide(columns.hidden)
        if condition is not None and having is not None:
            try:
                self.having = compile(condition, self.question.wide, local=local)
            except ExprError as e:
                raise ExprError(e.what, having, e.pos, e.hint) from None

    @property
    def names_with_time(self) -> list[str]:
        """The fields that are read when windows end by the times of the rows."""
        time = self.selection.schema.time_field
        return self.names if time is None or time.name in self.names else [*self.names, time.name]

    def chart(self, names: Sequence[str] | None) -> ChartGroups:
        """What draws the groups.  ``names``: the fields that are drawn, None for all.  Raises UsageError."""
        from confluo_tools.chart.model import ChartGroups
        from confluo_tools.expr.aggregate_functions import FUNCTIONS
        from confluo_tools.expr.aggregates import Aggregate

        question = self.question
        if names is not None and not set(question.keys) <= set(names):
            raise UsageError("a picture needs all groups", where="--fields", hint="leave aggregates out, not groups")
        zero = [a.label for a in question.items if isinstance(a, Aggregate) and FUNCTIONS[a.func].zero]
        return ChartGroups(self.schema, question.keys, question.time_key, question.steps, zero, names)

    def selected(self, since: int | None, until: int | None) -> Iterator[tuple[Block, Picks | None]]:
        from confluo_tools.multilog.query.group_spill import GroupSpill

        spill = GroupSpill(self.question.rollup, self.memory)
        rollup = self.selection.fold(self.names, spill)
        options: dict[str, Any] = {"having": self.having, "top": self.top, "order": self.order}
        if spill.spilled and self.fill:
            hint = "use longer steps, or more memory: --memory-limit"
            raise UsageError("the groups do not fit into memory", where="--fill", hint=hint)
        blocks = self.question.answer if not spill.spilled else partial(self._spilled, spill)
        for block in blocks(rollup, **options, since=since, until=until):
            yield block, None

    def _spilled(
        self, spill: GroupSpill, rollup: Rollup, *, since: int | None, until: int | None, **options: Any
    ) -> Iterator[Block]:
        # The rows of each part of the groups in order, and their merge.
        from confluo_tools.multilog.query.row_runs import RowRuns

        runs = RowRuns(self.question.wide.layout)
        for part in spill.rollups(rollup):
            if spill.span is not None:
                since = spill.span[0] if since is None else since
                until = spill.span[1] if until is None else until
            runs.add(self.question.wide_answer(part, since=since, until=until, **options))
        yield from self.question.printed(runs.merged(self.question.sorted_by(self.top, self.order), self.top))
