"""--unnest on an engine: workers select whole rows, make one row of each element, and add those to another partial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from confluo_tools.engine.partial import Partial, partial_class
from confluo_tools.engine.reader import gather
from confluo_tools.engine.rollup_partial import CountPartial, RollupPartial
from confluo_tools.engine.state_pieces import pack, unpack
from confluo_tools.multilog.query.unnested import UnnestedReader, unnest, unnested_schema

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.expr import Expr
    from confluo_tools.schema import Schema


class UnnestPartial(Partial):
    """``inner``: the partial of the elements of the lists ``names`` for which ``expr`` holds; ``rows``: their number.

    ``columns``: numbers of those that both read, None: all.
    """

    name = "unnest"

    def __init__(
        self, schema: Schema, names: Sequence[str], expr: Expr, inner: Partial, columns: Sequence[int] | None
    ) -> None:
        self.schema, self.names, self.expr, self.inner, self.columns = schema, list(names), expr, inner, columns
        self.rows = 0
        self._unnest = unnest(schema, names)

    def settings(self) -> dict[str, Any]:
        from confluo_tools.engine.task import tree_list

        inner = [self.inner.name, self.inner.settings()]
        return {"names": self.names, "tree": tree_list(self.expr.tree), "inner": inner, "columns": self.columns}

    @classmethod
    def of(cls, schema: Schema, settings: Mapping[str, Any]) -> Self:
        from confluo_tools.engine.task import tree_of_list
        from confluo_tools.expr import Expr, parse

        try:
            names, (kind, own) = settings["names"], settings["inner"]
            elements = unnested_schema(schema, names)
            expr = Expr("", elements, parse("").tree, tree_of_list(settings["tree"]))
            return cls(schema, names, expr, partial_class(kind).of(elements, own), settings["columns"])
        except (KeyError, TypeError, ValueError, RecursionError) as e:
            raise ValueError(f"invalid settings of elements: {e}") from None

    def fresh(self) -> Self:
        return type(self)(self.schema, self.names, self.expr, self.inner.fresh(), self.columns)

    def update(self, block: Block, picks: Picks | None) -> None:
        program = self.expr.program
        for out in self._unnest.rows(block, picks, self.columns):
            found = program.select(out)
            self.rows += len(found)
            if len(found) and not self.inner.counted:
                self.inner.update(out, found)

    def dump(self) -> bytes:
        return pack([self.rows.to_bytes(8, "little"), self.inner.dump()])

    def merge(self, data: bytes | memoryview) -> None:
        rows, state = unpack(data, 2)
        if len(rows) != 8:
            raise ValueError("invalid number of elements")
        self.rows += int.from_bytes(rows, "little")
        self.inner.merge(state)


class EngineUnnestedReader(UnnestedReader):
    """An `UnnestedReader` of an input on an engine, which makes its counts and aggregates."""

    def count(self, expr: Any) -> int:
        return self._gathered(expr, CountPartial(self.schema)).rows

    def fold(self, expr: Any, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> tuple[Rollup, int]:
        inner = RollupPartial(self.schema, columns, make)
        found = self._gathered(expr, inner)
        return inner.rollup, found.rows

    def _gathered(self, expr: Any, inner: Partial) -> UnnestPartial:
        before = self.reader.rows
        partial = UnnestPartial(self.reader.schema, self.names, expr, inner, self.needed(expr, inner.columns))
        gather(self.reader, self.whole_rows(expr), partial)
        self.rows = self.reader.rows - before
        return partial
