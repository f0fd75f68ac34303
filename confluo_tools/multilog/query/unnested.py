"""Rows of lists as one row for each element (--unnest)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import UsageError
from confluo_tools.expr.leaves import TRUE, And, InRanges, InSet, Not, Or, Pair, Tree, columns
from confluo_tools.formats.reader import Reader, Wrapper
from confluo_tools.schema import Field, Schema

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.unnest import Unnest


def names_of(text: str) -> tuple[str, ...]:
    """The fields of --unnest.  Raises UsageError."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(
            f"'{text}' is not a list of fields", where="--unnest", hint="write e.g. switch_path,queue_depth"
        )
    return names


def unnested_schema(schema: Schema, names: Sequence[str]) -> Schema:
    """``schema`` with one element in each of the lists ``names``.  Raises UsageError: no such field, or not a list."""
    for name in names:
        if name not in schema:
            raise UsageError(f"no field '{name}' in '{schema.kind}'", where="--unnest", hint=schema.suggest(name))
        if not schema[name].type.is_list:
            what = f"{name} ({schema[name].type.text}) is not a list"
            raise UsageError(what, where="--unnest", hint="name fields of the type list")
    fields = [
        Field(f.name, f.type.element, f.unit, f.description, f.names, f.version, f.optional) if f.name in names else f
        for f in schema.fields
    ]
    return Schema(schema.kind, fields, schema.description)


def unnest(schema: Schema, names: Sequence[str]) -> Unnest:
    """What makes rows of `unnested_schema` from rows of ``schema``."""
    from confluo_tools.core.query.unnest import Unnest

    return Unnest(schema.layout, unnested_schema(schema, names).layout, [schema.index(name) for name in names])


def wider(tree: Tree, lists: frozenset[int]) -> Tree:
    """A condition on whole rows that holds wherever ``tree`` holds for one of their elements.

    A test on an element becomes the test that any element passes, if zero does not pass; both schemas have the same
    columns.
    """
    if isinstance(tree, (And, Or)):
        return type(tree)(tuple([wider(item, lists) for item in tree.items]))
    if lists.isdisjoint(columns(tree)):
        return tree
    return TRUE if isinstance(tree, (Not, Pair)) or _holds_zero(tree) else tree


def _holds_zero(test: Any) -> bool:
    """Whether a test passes for zero, which an element has that only a longer list has."""
    if isinstance(test, InSet):
        return 0 in test.values
    pairs = test.pairs if isinstance(test, InRanges) else ((test.lo, test.hi),)
    return any(lo <= 0 <= hi for lo, hi in pairs)


class UnnestedReader(Wrapper):
    """The rows of ``reader``, one for each element of the lists ``names``, which go together.

    A row gives as many rows as the longest of these lists has elements; a shorter list is zero where it has none.
    Expressions and aggregates are those of single elements.  Indexes and zone maps of the lists are used.
    """

    def __init__(self, reader: Reader, names: Sequence[str], *, warn: Callable[[str], None] | None = None) -> None:
        super().__init__(reader, warn)
        self.filters, self.by_time = reader.filters, reader.by_time
        self.names = tuple(names)
        self.schema = unnested_schema(reader.schema, names)
        self._unnest = unnest(reader.schema, names)

    def whole_rows(self, expr: Any) -> Any:
        """A condition on rows of the input that holds for those with an element for which ``expr`` holds (an Expr)."""
        from confluo_tools.expr import Expr
        from confluo_tools.expr.simplify import Simplifier

        schema = self.reader.schema
        lists = frozenset(self._unnest.lists)
        return Expr(expr.text, schema, expr.syntax, Simplifier(schema).again(wider(expr.tree, lists)))

    def needed(self, expr: Any, wanted: Sequence[int] | None) -> list[int] | None:
        """Numbers of the columns to read for ``wanted`` ones of the result."""
        return None if wanted is None else sorted({*wanted, *columns(expr.tree), *self._unnest.lists})

    def blocks(self) -> Iterator[Block]:
        before = self.reader.rows
        for block in self.reader:
            self.rows = self.reader.rows - before
            yield from self._unnest.rows(block)
        self.rows = self.reader.rows - before

    def __iter__(self) -> Iterator[Block]:
        return self.blocks()

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        program, needed = expr.program, self.needed(expr, columns)
        before = self.reader.rows
        for block, picks in self.reader.select(self.whole_rows(expr), needed, by_time=by_time):
            self.rows = self.reader.rows - before
            for out in self._unnest.rows(block, picks, needed):
                found = program.select(out)
                if len(found):
                    yield out, found
        self.rows = self.reader.rows - before
