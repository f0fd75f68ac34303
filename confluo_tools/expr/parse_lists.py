"""The grammar of lists: ``len(path)``, ``path == 3, 7``, ``path starts [3, 7]``, ``path has 3 before 7``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.expr.syntax import MAX_SET, LengthRef, ListCompare, Operand, Value

if TYPE_CHECKING:
    from confluo_tools.expr.parse import ExprParser

SEQUENCES = frozenset({"==", "!=", "has", "starts"})  # operators that a sequence may follow


def length(parser: ExprParser, pos: int) -> LengthRef:
    """The rest of ``len(FIELD)``, from the bracket on."""
    parser.i += 1
    name = parser.word()
    if not name or not parser.op(")", parser.i + 1):
        raise parser.fail("'len' needs one list in brackets", "write e.g. len(switch_path) > 3")
    parser.i += 2
    return LengthRef(name, pos)


def bracketed(parser: ExprParser, operand: Operand, op: str, pos: int) -> ListCompare:
    """``[3, 7]`` after an operator."""
    start = parser.i
    if op not in SEQUENCES:
        raise parser.fail(f"'{op}' does not take a sequence", "write e.g. switch_path == [3, 7]")
    parser.i += 1
    values = [] if parser.op("]") else _more(parser, [parser.value()])
    if not parser.op("]"):
        raise parser.fail(f"',' or ']' expected before {parser.found()}")
    if not values and op not in ("==", "!="):
        raise parser.fail("the sequence is empty", i=start)
    parser.i += 1
    return ListCompare(operand, op, tuple(values), pos)


def sequence(parser: ExprParser, operand: Operand, op: str, first: Value, pos: int) -> ListCompare | None:
    """What follows the first value makes a sequence of it; None if nothing does."""
    if op == "has" and parser.word() == "before":
        values = [first]
        while parser.word() == "before":
            parser.i += 1
            values.append(parser.value(after="before"))
        return ListCompare(operand, "before", tuple(values), pos)
    if op == "starts" or (op in SEQUENCES and parser.op(",")):
        return ListCompare(operand, op, tuple(_more(parser, [first])), pos)
    return None


def _more(parser: ExprParser, values: list[Value]) -> list[Value]:
    start = parser.i
    while parser.op(","):
        parser.i += 1
        values.append(parser.value(after=","))
        if len(values) > MAX_SET:
            raise parser.fail(f"more than {MAX_SET} values in a sequence", i=start)
    return values
