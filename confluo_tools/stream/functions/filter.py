"""filter: EXPR.  Rows for which an expression holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.core.stream.stage import StreamStage
    from confluo_tools.schema import Schema


def read(value: Any, schema: Schema, where: str, flow: str) -> RowFilter:
    from confluo_tools.expr import compile

    if not isinstance(value, str) or not value.strip():
        raise UsageError("needs an expression", where=where, hint="as in 'filter: len > 100'")
    try:
        return RowFilter(value, frozenset(compile(value, schema).fields))
    except ConfluoError as e:
        raise UsageError(e.what, where=where, hint=e.hint) from None


@dataclass(frozen=True)
class RowFilter:
    text: str
    needs: frozenset[str]
    keeps = True
    whole = False

    def after(self, schema: Schema) -> Schema:
        return schema

    def remarks(self, stage: StreamStage) -> list[str]:
        return []

    def stage(self, schema: Schema) -> StreamStage:
        from confluo_tools.core.stream.row_choice import FilterStage
        from confluo_tools.expr import compile

        return FilterStage(compile(self.text, schema).program)
