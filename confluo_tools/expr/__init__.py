"""The expression language: conditions that select rows.  Manual: confluo-expr(7).

compile(text, schema) -> Expr            parsed, typed, lowered to leaves (confluo_tools.expr.leaves)
parse_aggregates(text, schema), parse_by(text, schema)     --agg and --by
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from confluo_tools.expr.leaves import Tree, depth
from confluo_tools.expr.lower import Lists, Lowering, columns_used
from confluo_tools.expr.parse import parse
from confluo_tools.expr.syntax import Both, ExprError, Syntax, Value, Word, unparse
from confluo_tools.schema import Schema

if TYPE_CHECKING:
    from confluo_tools.core.query.predicate import Program
    from confluo_tools.expr.aggregates import Conditions, Result
    from confluo_tools.expr.group_keys import GroupKey
    from confluo_tools.expr.zones import Zone

__all__ = ["Expr", "ExprError", "compile", "parse", "parse_aggregates", "parse_by", "read_list", "unparse"]

MAX_LEVELS = 100  # the limit of the predicate engine


class Expr:
    """A compiled expression.

    ``text`` as written, ``schema`` it was compiled against, ``syntax`` its syntax tree, ``tree`` its leaves in
    negation normal form, ``fields`` the names of the fields in the tree, ``notes`` remarks for the user.
    ``demands``: {name: text} of the filters that every selected row passes, as in `filter NAME and ...`.
    """

    def __init__(
        self,
        text: str,
        schema: Schema,
        syntax: Syntax,
        tree: Tree,
        notes: tuple[str, ...] = (),
        demands: Mapping[str, str] | None = None,
    ) -> None:
        self.text, self.schema, self.syntax, self.tree, self.notes = text, schema, syntax, tree, notes
        self.demands = dict(demands or {})
        self.fields = columns_used(tree, schema)

    def __repr__(self) -> str:
        return f"Expr({self.text!r})"

    @cached_property
    def program(self) -> Program:
        """The vector program that selects rows of blocks."""
        from confluo_tools.core.query.predicate import Program

        return Program(self.tree, self.schema.layout)

    def possible(self, zone: Zone) -> bool:
        """Whether rows may match, by the smallest and largest values of columns: see `zones.holds`."""
        from confluo_tools.expr import zones

        return zones.holds(self.tree, zone) != zones.NONE

    def also(self, other: Expr) -> Expr:
        """The conjunction with ``other``, of the same schema."""
        from confluo_tools.expr.simplify import Simplifier

        tree = Simplifier(self.schema).both([self.tree, other.tree])
        return Expr(self.text, self.schema, self.syntax, tree, self.notes, self.demands | other.demands)

    def within(self, since_ns: int | None, until_ns: int | None) -> Expr:
        """This expression and since_ns <= time < until_ns; None: unlimited.  Raises UsageError without a time field."""
        if since_ns is None and until_ns is None:
            return self
        field = self.schema.time_field
        if field is None:
            from confluo_tools.errors import UsageError

            raise UsageError(f"schema '{self.schema.kind}' has no time", hint="--since and --until need one")
        from confluo_tools.expr.simplify import Simplifier

        simplify = Simplifier(self.schema)
        lo = -(1 << 63) if since_ns is None else since_ns
        hi = (1 << 63) - 1 if until_ns is None else until_ns - 1
        when = simplify.within(self.schema.index(field.name), [(lo, hi)])
        return Expr(self.text, self.schema, self.syntax, simplify.both([when, self.tree]), self.notes, self.demands)


def compile(
    text: str,
    schema: Schema,
    *,
    now_ns: int | None = None,
    filters: Mapping[str, str] | None = None,
    local: bool = False,
    lists: Lists | None = None,
) -> Expr:
    """``text`` parsed, typed against ``schema`` and lowered.  The empty text selects all rows.

    ``filters``: name -> expression of `filter NAME`; None: this kind of input has no filters.
    ``now_ns``: the time of `now` and `15m ago`.  ``local``: times without a zone are local times, but not those of
    filters.  ``lists``: reads the file of `in @FILE` (`read_list`); None: that is an error.
    Raises ExprError with the column.
    """
    parsed = parse(text)
    tree = Lowering(text, schema, now_ns, filters, local, lists).tree(parsed.tree)
    if depth(tree) > MAX_LEVELS:
        raise ExprError("conditions are nested too deeply", text, 0)
    demands: dict[str, str] = {}
    if filters is not None:
        for node in parsed.tree.items if isinstance(parsed.tree, Both) else (parsed.tree,):
            if isinstance(node, Word) and node.kind == "filter" and node.value is not None:
                demands[node.value.text] = filters[node.value.text]
    return Expr(text, schema, parsed.tree, tree, parsed.notes, demands)


def read_list(path: str) -> Sequence[Value]:
    """The values of a file, for ``lists`` of `compile`; see `list_file.read_list`."""
    from confluo_tools.expr import list_file

    return list_file.read_list(path)


def parse_aggregates(text: str, schema: Schema, conditions: Conditions | None = None) -> list[Result]:
    """The columns of ``--agg``: 'count, sum(len * 8) / 1s as rate, p99(len), distinct(src_ip)'.

    ``conditions``: compiles those of count(CONDITION); None: `compile` without filters and relative times.
    """
    from confluo_tools.expr import aggregates

    def compiled(text: str, now: int) -> Expr:
        return compile(text, schema, now_ns=now)

    return aggregates.parse_aggregates(text, schema, conditions or compiled)


def parse_by(text: str, schema: Schema) -> list[GroupKey]:
    """The group keys of ``--by``: 'dst_ip/24, 1s, flow, proto'."""
    from confluo_tools.expr import group_keys

    return group_keys.parse_by(text, schema)
