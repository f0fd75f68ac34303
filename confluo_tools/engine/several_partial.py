"""Several partials of one pass over the rows, each of those for which its own condition holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from confluo_tools.engine.partial import Partial, partial_class
from confluo_tools.engine.state_pieces import pack, unpack

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.expr import Expr
    from confluo_tools.schema import Schema


class SeveralPartial(Partial):
    """``parts``: conditions, and the partials of the rows for which they hold."""

    name = "several"

    def __init__(self, schema: Schema, parts: Sequence[tuple[Expr, Partial]]) -> None:
        self.schema, self.parts = schema, list(parts)
        names = {name for expr, _ in parts for name in expr.fields}
        wanted = {i for i, c in enumerate(schema.columns) if c.field.name in names}
        every = any(partial.columns is None for _, partial in parts)
        self.columns = None if every else sorted(wanted.union(*[partial.columns or () for _, partial in parts]))

    def settings(self) -> dict[str, Any]:
        from confluo_tools.engine.task import tree_list

        return {"parts": [[tree_list(expr.tree), partial.name, partial.settings()] for expr, partial in self.parts]}

    @classmethod
    def of(cls, schema: Schema, settings: Mapping[str, Any]) -> Self:
        from confluo_tools.engine.task import tree_of_list
        from confluo_tools.expr import Expr, parse

        try:
            return cls(
                schema,
                [
                    (Expr("", schema, parse("").tree, tree_of_list(tree)), partial_class(name).of(schema, own))
                    for tree, name, own in settings["parts"]
                ],
            )
        except (KeyError, TypeError, ValueError, RecursionError) as e:
            raise ValueError(f"invalid settings of several partials: {e}") from None

    def update(self, block: Block, picks: Picks | None) -> None:
        if picks is not None and len(picks) < block.rows:
            block = block.take_columns(picks, self.columns)
        for expr, partial in self.parts:
            found = expr.program.select(block)
            if len(found):
                partial.update(block, found)

    def dump(self) -> bytes:
        return pack([partial.dump() for _, partial in self.parts])

    def merge(self, data: bytes | memoryview) -> None:
        for (_, partial), state in zip(self.parts, unpack(data, len(self.parts)), strict=True):
            partial.merge(state)
