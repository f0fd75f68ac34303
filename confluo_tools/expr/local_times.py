"""Local times of an expression, written so that they mean the same everywhere: ``@SECONDS`` since 1970.

An expression that is handed on as text, to another host or into a trigger, takes no zone with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.expr.parse import parse
from confluo_tools.expr.syntax import Both, Compare, Either, FieldRef, LengthRef, Negation, Syntax, Value, unparse
from confluo_tools.expr.values import Typer

if TYPE_CHECKING:
    from confluo_tools.schema import Field, Schema

SECOND = 10**9
_ORDERS = ("<", "<=", ">", ">=")


def without_local_times(text: str, schema: Schema) -> str:
    """``text`` with each time that depends on the local zone as moments, or ranges of moments.

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
                found = tuple([new for value in values for new in self.values(field, op, value)])
                if not found:
                    return self.never(field, node)
                same = len(found) == len(values) and all(a is b for a, b in zip(values, found, strict=True))
                return node if same else Compare(ref, op, found, many or len(found) > 1, node.pos)
            case _:
                return node

    def values(self, field: Field, op: str, value: Value) -> list[Value]:
        """``value`` itself if it does not depend on the zone, or what means the same: a time can be two, or none."""
        if not value.quoted and value.text.lower() in self.schema:
            return [value]  # the other side is a field
        if op in _ORDERS:
            lo, hi, ranged = self.here.span(field, value, clipped=True)
            if ranged or (lo, hi) == self.utc.span(field, value, clipped=True)[:2]:
                return [value]
            return [Value(_moment(lo if op in ("<", ">=") else hi), False, value.pos)]
        ranges = self.here.ranges(field, value, clipped=True)
        if ranges == self.utc.ranges(field, value, clipped=True):
            return [value]
        texts = [_moment(lo) if lo == hi else f"{_moment(lo)}..{_moment(hi)}" for lo, hi in ranges]
        return [Value(text, False, value.pos) for text in texts]

    def never(self, field: Field, node: Compare) -> Syntax:
        """A comparison with times that the clock skips: a test that no row passes, or with != each row."""
        zero = (Value("@0", False, node.pos),)
        tests = tuple([Compare(node.operand, op, zero, False, node.pos) for op in ("<", ">=")])
        if field.type.is_list:  # one element may be smaller and another one larger
            most = (Value(str(field.type.count), False, node.pos),)
            tests = (Compare(LengthRef(field.name, node.pos), ">", most, False, node.pos),)
        none = Both(tests, node.pos)
        return Negation(none, node.pos) if node.op == "!=" else none


def _moment(ns: int) -> str:
    whole, fraction = divmod(abs(ns), SECOND)
    part = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"@{'-' if ns < 0 else ''}{whole}{part}"
