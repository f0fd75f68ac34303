"""The rows of an input for which an expression holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from confluo_tools.console import tell
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.expr import Expr
    from confluo_tools.formats.reader import Reader


class Selection:
    """The rows of an input for which an expression holds."""

    def __init__(self, reader: Reader, expr: Expr) -> None:
        self.reader, self.expr, self.schema = reader, expr, reader.schema
        self.found = 0  # rows selected so far

    def selected(self, names: list[str] | None = None, by_time: bool = True) -> Iterator[tuple[Block, Picks | None]]:
        """Blocks and the selected rows of each.  ``names``: the fields that will be read; None: all."""
        for block, picks in self.reader.select(self.expr, self._columns(names), by_time=by_time):
            self.found += block.rows if picks is None else len(picks)
            yield block, picks

    def narrow(self, more: Expr) -> None:
        """Restrict the selection to rows for which ``more`` holds."""
        self.expr = self.expr.also(more)

    def fold(self, names: list[str], make: Callable[[], Rollup]) -> Rollup:
        """The selected rows, aggregated."""
        rollup, found = self.reader.fold(self.expr, self._columns(names), make)
        self.found += found
        return rollup

    def count(self, limit: int | None) -> int:
        if limit is None:
            self.found = self.reader.count(self.expr)
            return self.found
        from confluo_tools.formats.limit import limited

        return sum(
            [
                block.rows if picks is None else len(picks)
                for block, picks in limited(self.selected([], by_time=False), limit)
            ]
        )

    def _columns(self, names: list[str] | None) -> list[int] | None:
        if names is None:
            return None
        fields = self.schema.with_versions(names)
        return [i for i, c in enumerate(self.schema.columns) if c.field.name in fields]


def compile_expr(
    text: str, reader: Reader, span: tuple[int | None, int | None], sample: str | None, local: bool = False
) -> Expr:
    """The expression with the time range and the sample in it.  ``local``: times without a zone are local.

    Raises UsageError.
    """
    from time import time_ns

    from confluo_tools.expr import compile, read_list

    now = time_ns()

    def compiled(local: bool) -> Expr:
        return compile(text, reader.schema, now_ns=now, filters=reader.filters, local=local, lists=read_list)

    expr = compiled(local)
    if local and reader.chosen and expr.tree != compiled(False).tree:
        raise local_elsewhere("write the zone: 2026-11-20T10:00+01:00")
    for note in expr.notes:
        tell(note)
    expr = expr.within(*span)
    if sample is None:
        return expr
    from confluo_tools.expr.sample import sampled

    return sampled(expr, sample)


class _NoFilters(dict[str, str]):
    hint = "write its expression: hosts may have different filters of one name"


def conditions(reader: Reader, local: bool = False) -> Callable[[str, int], Expr]:
    """What compiles the conditions of count(...), for the rows of ``reader``."""
    from confluo_tools.expr import compile, read_list

    filters = _NoFilters() if reader.chosen else reader.filters

    def compiled(text: str, now: int) -> Expr:
        expr = compile(text, reader.schema, now_ns=now, filters=filters, local=local, lists=read_list)
        if local and reader.chosen and expr.tree != compile(text, reader.schema, now_ns=now, filters=filters).tree:
            raise local_elsewhere("write the zone: 2026-11-20T10:00+01:00")
        return expr

    return compiled


def local_elsewhere(hint: str) -> UsageError:
    """The error for local times in a question to another host."""
    return UsageError("another host does not know the local time of this one", where="--local", hint=hint)
