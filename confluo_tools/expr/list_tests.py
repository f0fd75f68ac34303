"""Lowers tests on elements, lengths and sequences of lists to leaves.

Zero elements are absent, and no test on a value passes for them.  A list ends with its last nonzero element.
"""

from __future__ import annotations

from confluo_tools.expr.fields import FieldTests
from confluo_tools.expr.leaves import (
    BEFORE,
    EXACT,
    FALSE,
    RUN,
    STARTS,
    And,
    Const,
    FRange,
    InRanges,
    InSet,
    ListElement,
    ListLength,
    ListSequence,
    Not,
    Or,
    Range,
    Tree,
)
from confluo_tools.expr.simplify import Intervals, intersect, merge
from confluo_tools.expr.syntax import ByteRef, Compare, FieldRef, LengthRef, ListCompare, Value
from confluo_tools.schema import Field

_HOW = {"==": EXACT, "!=": EXACT, "starts": STARTS, "has": RUN, "before": BEFORE}


def element(low: FieldTests, ref: ByteRef, node: Compare | None) -> Tree:
    """``path[0] == 7``, ``path[-1]``: the test of the whole list, on one of its elements."""
    field = low.schema[ref.proto]
    most = field.type.count
    if ref.size != 1:
        raise low.fail(ref.pos, "an element has one number", f"write e.g. {field.name}[0] or {field.name}[-1]")
    if not -most <= ref.offset < most:
        what = f"{field.name} ({field.type.text}) has no element {ref.offset}"
        raise low.fail(ref.pos, what, f"they are [0] to [{most - 1}], from the end [-1] to [-{most}]")
    whole = FieldRef(ref.proto, ref.mask, ref.pos)
    if node is None:
        return _of_element(low.nonzero(whole), ref.offset)
    if node.op in ("has", "like"):
        raise low.fail(node.pos, f"'{node.op}' does not apply to one element", "write ==")
    return _of_element(low.compare(Compare(whole, node.op, node.values, node.many, node.pos), whole), ref.offset)


def _of_element(tree: Tree, index: int) -> Tree:
    if isinstance(tree, (And, Or)):
        return type(tree)(tuple([_of_element(item, index) for item in tree.items]))
    if isinstance(tree, Const):
        return tree
    test = tree.item if isinstance(tree, Not) else tree
    assert isinstance(test, (Range, FRange, InSet, InRanges))
    one = ListElement(test.col, index, test)
    return Not(one) if isinstance(tree, Not) else one


def length(low: FieldTests, ref: LengthRef, node: Compare | None) -> Tree:
    """``len(path) > 3``."""
    field = _list(low, ref.name, ref.pos, "'len' is for lists")
    counted = Field("len", "u16")
    every = [(0, field.type.count)]
    if node is None:
        return ListLength(low.col(field), ((1, field.type.count),))
    if node.op in ("has", "like"):
        raise low.fail(node.pos, f"'{node.op}' does not apply to a length", "write == or in")
    if node.many and node.op not in ("in", "==", "!="):
        raise low.fail(node.values[0].pos, f"'{node.op}' needs one value, not a set")
    found: Intervals = []
    for value in node.values:
        lo, hi, ranged = low.typer.span(counted, value, clipped=True)
        if ranged and node.op in ("<", "<=", ">", ">="):
            raise low.fail(value.pos, f"'{node.op}' needs one value, '{value.text}' is many")
        found.append(
            {"<": (0, lo - 1), "<=": (0, hi), ">": (hi + 1, 1 << 16), ">=": (lo, 1 << 16)}.get(node.op, (lo, hi))
        )
    pairs = intersect(merge(found), every)
    tree: Tree = ListLength(low.col(field), tuple(pairs)) if pairs else FALSE
    if pairs == every:
        tree = Const(True)
    return low.negate(tree) if node.op == "!=" else tree


def sequence(low: FieldTests, node: ListCompare) -> Tree:
    """``path == 3, 7``, ``path starts 3, 7``, ``path has 3, 7``, ``path has 3 before 7``."""
    ref, values = node.operand, node.values
    members = f"in {{{', '.join([v.text for v in values[:4]])}}}"
    if not isinstance(ref, FieldRef):
        raise low.fail(ref.pos, "one element is not a sequence", f"name the list alone, or write {members}")
    if node.op == "starts":
        hint = f'for a text write like: {ref.name} like "{values[0].text}*"'
        field = _list(low, ref.name, ref.pos, "'starts' is for lists", hint)
    else:
        field = _list(low, ref.name, ref.pos, "a sequence is for lists", f"write {ref.name} {members}")
    if ref.mask is not None:
        raise low.fail(ref.mask.pos, f"{field.name} ({field.type.text}) cannot be masked")
    if len(values) > field.type.count:
        what = f"{field.name} ({field.type.text}) has {field.type.count} elements at most"
        raise low.fail(values[field.type.count].pos, what)
    if values:
        items = [item for value in values if (item := _item(low, field, value)) is not None]
        complete = len(items) == len(values)
        tree: Tree = ListSequence(low.col(field), _HOW[node.op], tuple(items)) if complete else FALSE
    else:
        tree = ListLength(low.col(field), ((0, 0),))
    return low.negate(tree) if node.op == "!=" else tree


def _list(low: FieldTests, name: str, pos: int, what: str, hint: str = "") -> Field:
    if low.pseudo(FieldRef(name, None, pos)):
        raise low.fail(pos, f"{what}, not '{name}'", hint)
    field = low.field(name, pos)
    if not field.type.is_list:
        raise low.fail(pos, f"{what}, not {field.name} ({field.type.text})", hint)
    return field


def _item(low: FieldTests, field: Field, value: Value) -> tuple[float, float] | None:
    """The range of one element of a sequence, without zero, which is absent; None if no number equals the value."""
    lo: float
    hi: float
    if field.type.is_float:
        lo, hi, _ = low.typer.real(field, value)
    else:
        found = low.typer.ranges(field, value)
        if len(found) > 1:
            what = f"the clock shows '{value.text}' twice; an element of a sequence is one of the two"
            raise low.fail(value.pos, what, "write its offset from UTC, too: 2026-10-25T02:30:00+02:00")
        if not found:
            return None
        lo, hi = found[0]
    if lo == 0 < hi and not field.type.is_float:
        lo = 1
    if lo <= 0 <= hi:
        what = "a zero element of a list is absent, so it is not part of a sequence"
        raise low.fail(value.pos, what, "a range matches any number in it: 1..9")
    return lo, hi
