"""Local times of an expression, written so that they mean the same everywhere: ``@SECONDS`` since 1970.

An expression that is handed on as text, to another host or into a trigger, takes no zone with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.expr.parse import parse
from confluo_tools.expr.syntax import Both, Compare, Either, FieldRef, Negation, Syntax, Value, unparse
from confluo_tools.expr.values import Typer

if TYPE_CHECKING:
    from confluo_tools.schema import Field, Schema

SECOND = 10**9


def without_local_times(text: str, schema: Schema) -> str:
    """``text`` with each time that depends on the local zone as a moment, or as a range of moments.

    Fields that ``schema`` does not have stay as they are.  Raises ExprError.
    """
    tree = parse(text).tree
    changed = _Rewriter(text, schema).node(tree)
    return text if changed is tree else unparse(changed)


class _Rewriter:
    """Rewrites syntax trees; a tree without local times is returned as it is."""

    def __init__(self, text: str, schema: Schema) -> None:
        from time import time_ns

        now = time_ns()
        self.schema = schema
        self.here, self.utc = Typer(text, now, True), Typer(text, now, False)

    def node(self, node: Syntax) -> Syntax:
        match node:
            case Both(items) | Either(items):
                new = tuple(map(self.node, items))
                same = all(a is b for a, b in zip(items, new, strict=True))
                return node if same else type(node)(new, node.pos)
            case Negation(item):
                inner = self.node(item)
                return node if inner is item else Negation(inner, node.pos)
            case Compare(FieldRef(name) as ref, op, values, many) if name in self.schema:
                field = self.schema[name]
                if field.type.element != "time":
                    return node
                found = tuple(self.value(field, op, value) for value in values)
                same = all(a is b for a, b in zip(values, found, strict=True))
                return node if same else Compare(ref, op, found, many, node.pos)
            case _:
                return node

    def value(self, field: Field, op: str, value: Value) -> Value:
        if not value.quoted and value.text.lower() in self.schema:
            return value  # the other side is a field
        lo, hi, ranged = self.here.span(field, value, clipped=True)
        if (ranged and op in ("<", "<=", ">", ">=")) or (lo, hi) == self.utc.span(field, value, clipped=True)[:2]:
            return value
        if op in ("<", ">="):
            text = _moment(lo)
        elif op in ("<=", ">"):
            text = _moment(hi)
        else:
            text = _moment(lo) if lo == hi else f"{_moment(lo)}..{_moment(hi)}"
        return Value(text, False, value.pos)


def _moment(ns: int) -> str:
    whole, fraction = divmod(abs(ns), SECOND)
    part = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"@{'-' if ns < 0 else ''}{whole}{part}"
