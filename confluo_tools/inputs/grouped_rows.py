"""Aggregates of selected rows, by keys: rows of a schema of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import UsageError
from confluo_tools.inputs.selection import Selection, local_elsewhere

if TYPE_CHECKING:
    from confluo_tools.chart.model import ChartGroups
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.multilog.query.group_spill import GroupSpill


class GroupedRows:
    """The groups of --agg and --by: rows of a schema of their own.

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
    ) -> None:
        from confluo_tools.expr import compile, parse_aggregates, parse_by
        from confluo_tools.multilog.query import aggregation
        from confluo_tools.schema.choose import FLOW_FIELDS

        self.selection, self.top, self.memory = selection, top, memory
        fields = [f.name for f in selection.schema.fields]
        view = selection.reader.aggregate(agg.strip()) if agg.strip().isidentifier() or "-" in agg else None
        if view is not None:
            agg, by = view.agg, view.by if by is None else by
            for text in (view.filter_text, view.where):
                selection.narrow(compile(text, selection.schema))
        aggs, keys = parse_aggregates(agg, selection.schema), parse_by(by, selection.schema) if by else []
        self.question = aggregation.Aggregation(selection.schema, aggs, keys, local=local)
        if self.question.local_days and selection.reader.chosen:
            raise local_elsewhere("write steps of less than a day, such as --by 1h")
        read_fields = {*(a.field for a in aggs), *(k.field for k in keys)}
        read_fields |= set(FLOW_FIELDS) if any(k.kind == "flow" for k in keys) else set()
        read_fields |= {selection.schema.time_field.name} if selection.schema.time_field is not None else set()
        self.names = [n for n in fields if n in read_fields]
        self.schema = self.question.result
        self.having = compile(having, self.schema, local=local) if having is not None else None

    def chart(self, names: Sequence[str] | None) -> ChartGroups:
        """What draws the groups.  ``names``: the fields that are drawn, None for all.  Raises UsageError."""
        from confluo_tools.chart.model import ChartGroups
        from confluo_tools.expr.aggregate_functions import FUNCTIONS

        question = self.question
        if names is not None and not set(question.keys) <= set(names):
            raise UsageError("a picture needs all groups", where="--fields", hint="leave aggregates out, not groups")
        zero = [agg.label for agg in question.aggs if FUNCTIONS[agg.func].zero]
        return ChartGroups(self.schema, question.keys, question.time_key, question.step, zero, names)

    def selected(self, since: int | None, until: int | None) -> Iterator[tuple[Block, Picks | None]]:
        from confluo_tools.multilog.query.group_spill import GroupSpill, free_memory

        spill = GroupSpill(self.question.rollup, free_memory() // 2 if self.memory is None else self.memory)
        rollup = self.selection.fold(self.names, spill)
        blocks = self.question.answer if not spill.spilled else partial(self._spilled, spill)
        for block in blocks(rollup, having=self.having, top=self.top, since=since, until=until):
            yield block, None

    def _spilled(
        self, spill: GroupSpill, rollup: Rollup, *, since: int | None, until: int | None, **options: Any
    ) -> Iterator[Block]:
        # The rows of each part of the groups in order, and their merge.
        from confluo_tools.multilog.query.row_runs import RowRuns

        runs = RowRuns(self.schema.layout)
        for part in spill.rollups(rollup):
            if spill.span is not None:
                since = spill.span[0] if since is None else since
                until = spill.span[1] if until is None else until
            runs.add(self.question.answer(part, since=since, until=until, **options))
        yield from runs.merged(self.question.sorted_by(self.top), self.top)
