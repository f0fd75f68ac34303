"""Syntax tree -> leaves: each node goes to the module that handles its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from confluo_tools.expr import leaves
from confluo_tools.expr.fields import FieldTests
from confluo_tools.expr.leaves import TRUE, Tree
from confluo_tools.expr.syntax import (
    Both,
    ByteRef,
    Compare,
    Either,
    ExprError,
    FieldRef,
    LengthRef,
    ListCompare,
    ListFile,
    Negation,
    Nonzero,
    Syntax,
    Value,
    Word,
)
from confluo_tools.schema import Schema

Lists = Callable[[str], Sequence[Value]]  # the values in a file
NO_FILTERS: Mapping[str, str] = {}


class Lowering(FieldTests):
    """Lowers one expression against one schema."""

    def __init__(
        self,
        text: str,
        schema: Schema,
        now_ns: int | None,
        filters: Mapping[str, str] | None = None,
        local: bool = False,
        lists: Lists | None = None,
    ) -> None:
        super().__init__(text, schema, now_ns, local)
        self.filters, self.lists = filters, lists

    def tree(self, node: Syntax) -> Tree:
        """The leaves of ``node``."""
        if isinstance(node, Both):
            return self.both([self.tree(item) for item in node.items])
        if isinstance(node, Either):
            return self.either([self.tree(item) for item in node.items])
        if isinstance(node, Negation):
            return self.negate(self.tree(node.item))
        if isinstance(node, Compare):
            if isinstance(node.values[0], ListFile):
                return self.listed(node, node.values[0])
            if not isinstance(node.operand, FieldRef):
                return self.part(node.operand, node)
            if self.pseudo(node.operand):
                from confluo_tools.expr.primitives import pseudo

                return pseudo(self, node, node.operand)
            return self.compare(node, node.operand)
        if isinstance(node, Nonzero):
            return (
                self.part(node.operand, None) if not isinstance(node.operand, FieldRef) else self.nonzero(node.operand)
            )
        if isinstance(node, ListCompare):
            from confluo_tools.expr.list_tests import sequence

            return sequence(self, node)
        if isinstance(node, Word) and node.kind == "filter":
            return self.named(node)
        if isinstance(node, Word):
            from confluo_tools.expr.primitives import primitive

            return primitive(self, node)
        return TRUE

    def part(self, ref: ByteRef | LengthRef, node: Compare | None) -> Tree:
        """The test ``node`` of bytes of a header, or of an element or the length of a list; None: not zero."""
        from confluo_tools.expr import list_tests
        from confluo_tools.expr.primitives import header_bytes

        if isinstance(ref, LengthRef):
            return list_tests.length(self, ref, node)
        if ref.proto in self.schema and self.schema[ref.proto].type.is_list:
            return list_tests.element(self, ref, node)
        return header_bytes(self, ref, node)

    def listed(self, node: Compare, file: ListFile) -> Tree:
        """`FIELD in @FILE`."""
        if self.lists is None:
            raise self.fail(file.pos, "values cannot be read from a file here", "write them: in {A, B, ...}")
        self.typer.listed = file.text
        try:
            return self.tree(Compare(node.operand, node.op, tuple(self.lists(file.text)), True, node.pos))
        finally:
            self.typer.listed = ""

    def named(self, node: Word) -> Tree:
        """`filter NAME`: the expression of that filter view of the input."""
        from confluo_tools.expr.parse import parse

        value = node.value
        assert value is not None
        name, filters = value.text, self.filters
        if filters is None:
            what = "only a MultiLog has named filters, and this is not one"
            raise self.fail(node.pos, what, "write the filter's expression instead")
        text = filters.get(name)
        if text is None:
            from difflib import get_close_matches

            near = get_close_matches(name, list(filters), n=1, cutoff=0.6)
            known = f"there are {', '.join(sorted(filters))}" if 0 < len(filters) <= 8 else ""
            hint = getattr(filters, "hint", "") or (f"did you mean '{near[0]}'?" if near else known)
            raise self.fail(value.pos, f"there is no filter '{name}'", hint or "confluo-index LOG add filter makes one")
        try:
            return Lowering(text, self.schema, self.now_ns, NO_FILTERS).tree(parse(text).tree)
        except ExprError as e:
            raise self.fail(value.pos, f"filter '{name}' cannot be read: {e.what}", e.hint) from None


def columns_used(tree: Tree, schema: Schema) -> tuple[str, ...]:
    """Names of the fields behind the columns of ``tree``, in the order of the schema."""
    used = {schema.columns[c].field.name for c in leaves.columns(tree)}
    return tuple([f.name for f in schema.fields if f.name in used])
