"""Leaves as readable text, for query plans and for tests of lowering."""

from __future__ import annotations

from confluo_tools.expr.leaves import (
    BEFORE,
    EXACT,
    RUN,
    And,
    Bytes,
    Const,
    FRange,
    Glob,
    InByteRanges,
    InRanges,
    InSet,
    ListElement,
    ListLength,
    ListSequence,
    Not,
    Or,
    Pair,
    Test,
    Tree,
)
from confluo_tools.expr.syntax import quote
from confluo_tools.schema import Column, Schema
from confluo_tools.units import format_duration, format_ip4, format_ip6, format_mac, format_time

SHOWN = 6  # elements of a set that are shown


def describe(tree: Tree, schema: Schema) -> str:
    """``tree`` as an expression over columns; long sets are cut."""
    if isinstance(tree, Const):
        return "every row" if tree.value else "no row"
    if isinstance(tree, (And, Or)):
        word = " and " if isinstance(tree, And) else " or "
        return word.join(
            [f"({describe(i, schema)})" if isinstance(i, (And, Or)) else describe(i, schema) for i in tree.items]
        )
    if isinstance(tree, Not):
        return f"not {describe_test(tree.item, schema)}"
    return describe_test(tree, schema)


def describe_test(test: Test, schema: Schema) -> str:
    """One test."""
    column = schema.columns[test.col]
    name = column.name
    mask = getattr(test, "mask", None)
    if mask is not None:
        name = f"({name} & {_bytes(mask, column) if isinstance(mask, bytes) else _mask(mask, column)})"
    if isinstance(test, ListElement):
        return describe_test(test.test, schema).replace(name, f"{name}[{test.index}]", 1)
    if isinstance(test, ListLength):
        return f"len({name}) in {_set([_span(str(lo), str(hi)) for lo, hi in test.pairs], len(test.pairs))}"
    if isinstance(test, ListSequence):
        return _sequence(test, column)
    if isinstance(test, Pair):
        return f"{name} {test.op} {schema.columns[test.col2].name}"
    if isinstance(test, Glob):
        return f"{name} like {quote(test.pattern.decode('utf-8', 'surrogateescape'))}"
    if isinstance(test, InSet):
        return f"{name} in {_set([_number(v, column, mask) for v in test.values[:SHOWN]], len(test.values))}"
    if isinstance(test, InRanges):
        numbers = [_span(_number(lo, column, None), _number(hi, column, None)) for lo, hi in test.pairs[:SHOWN]]
        return f"{name} in {_set(numbers, len(test.pairs))}"
    if isinstance(test, InByteRanges):
        texts = [_span(_bytes(lo, column), _bytes(hi, column)) for lo, hi in test.pairs[:SHOWN]]
        return f"{name} in {_set(texts, len(test.pairs))}"
    if isinstance(test, Bytes):
        lo, hi = _bytes(test.lo, column), _bytes(test.hi, column)
        return f"{name} == {lo}" if test.lo == test.hi else f"{name} in {lo}..{hi}"
    if isinstance(test, FRange):
        if test.lo == test.hi:
            return f"{name} == {test.lo!r}"
        parts = (
            [f"{name} {'>' if test.lo_open else '>='} {test.lo!r}"] if test.lo != float("-inf") or test.lo_open else []
        )
        parts += (
            [f"{name} {'<' if test.hi_open else '<='} {test.hi!r}"] if test.hi != float("inf") or test.hi_open else []
        )
        return " and ".join(parts) or f"{name} is a number"
    if test.lo == test.hi:
        return f"{name} == {_number(test.lo, column, mask)}"
    bits = 8 * column.size
    least, most = (0, (1 << bits) - 1) if column.code <= 4 else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if mask is not None:
        least, most = 0, mask
    if test.lo == least:
        return f"{name} <= {_number(test.hi, column, mask)}"
    if test.hi == most:
        return f"{name} >= {_number(test.lo, column, mask)}"
    return f"{name} in {_number(test.lo, column, mask)}..{_number(test.hi, column, mask)}"


def _sequence(test: ListSequence, column: Column) -> str:
    items = [_span(_element(lo, column), _element(hi, column)) for lo, hi in test.items]
    if test.how == BEFORE:
        return f"{column.name} has {' before '.join(items)}"
    return f"{column.name} {'==' if test.how == EXACT else 'has' if test.how == RUN else test.how} [{', '.join(items)}]"


def _element(value: float, column: Column) -> str:
    return repr(value) if isinstance(value, float) else _number(value, column, None)


def _span(lo: str, hi: str) -> str:
    return lo if lo == hi else f"{lo}..{hi}"


def _set(shown: list[str], size: int) -> str:
    more = f", and {size - len(shown)} more" if size > len(shown) else ""
    return f"{{{', '.join(shown)}{more}}}"


def _number(value: int, column: Column, mask: int | None) -> str:
    kind, names = column.field.type.element, column.field.names
    if kind in ("ip", "ipv4"):
        return format_ip4(value)
    if kind == "time":
        return format_time(value)
    if kind == "duration":
        return format_duration(value)
    if kind == "mac" and 0 <= value < 1 << 48:
        return format_mac(value)
    if kind == "enum" and value in names and mask is None:
        return names[value]
    if kind == "flags":
        return _flags(value, column)
    return str(value)


def _flags(value: int, column: Column) -> str:
    words = [word for bit, word in column.field.names.items() if bit and value & bit == bit]
    known = sum({bit for bit in column.field.names if bit and value & bit == bit})
    return "+".join(words) if words and known == value else f"{value:#x}" if value else "0"


def _mask(value: int, column: Column) -> str:
    kind = column.field.type.element
    if kind in ("ip", "ipv4", "mac"):
        return _number(value, column, None)
    return _flags(value, column) if kind == "flags" else f"{value:#x}"


def _bytes(value: bytes, column: Column) -> str:
    return format_ip6(value) if column.field.type.kind == "ip" else "0x" + value.hex()
