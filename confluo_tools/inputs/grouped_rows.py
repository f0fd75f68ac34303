"""Aggregates of selected rows, by keys: rows of a schema of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from confluo_tools.inputs.selection import Selection, local_elsewhere

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks


class GroupedRows:
    """The groups of --agg and --by: rows of a schema of their own."""

    def __init__(
        self, selection: Selection, agg: str, by: str | None, having: str | None, top: int | None, local: bool = False
    ) -> None:
        from confluo_tools.expr import compile, parse_aggregates, parse_by
        from confluo_tools.multilog.query import aggregation
        from confluo_tools.schema.choose import FLOW_FIELDS

        self.selection, self.top = selection, top
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

    def selected(self, since: int | None, until: int | None) -> Iterator[tuple[Block, Picks | None]]:
        rollup = self.selection.fold(self.names, self.question.rollup)
        for block in self.question.answer(rollup, having=self.having, top=self.top, since=since, until=until):
            yield block, None
