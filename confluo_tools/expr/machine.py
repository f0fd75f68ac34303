"""The arithmetic of state definitions: text -> programs for core/statemachine.  Grammar: confluo-state(5).

    condition   c or c   c and c   not c   (c)   a < b   a <= b   a > b   a >= b   a == b   a != b   a has FLAG   new
    value       a + b   a - b   a * b   a / b   min(a, b)   max(a, b)   (a)   12   3ms   64K   NAME   other.NAME

Values are 64-bit integers that wrap around.  A value from a field of type ``serial`` is a 32-bit serial number:
comparisons and differences follow RFC 1982, as for sequence numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from confluo_tools import units
from confluo_tools.errors import SchemaError
from confluo_tools.expr.words import PROTOCOLS
from confluo_tools.schema import Schema

# Numbers of pyx/query/c_state_machine.pxd.
OPS = {
    "end": 0,
    "const": 1,
    "input": 2,
    "state": 3,
    "other": 4,
    "new": 5,
    "+": 6,
    "-": 7,
    "*": 8,
    "/": 9,
    "min": 10,
    "max": 11,
    "<": 12,
    "<=": 13,
    "==": 14,
    "!=": 15,
    "and": 16,
    "or": 17,
    "not": 18,
    "serial-": 19,
    "wrap": 20,
    "serial<": 21,
    "serial<=": 22,
    "serialmin": 23,
    "serialmax": 24,
    "bits": 25,
    "set": 26,
    "out": 27,
    "unless": 28,
}
STACK = 64
MAX_CODE = 4096
MAX_TEXT = 4000
MAX_DEPTH = 40
INT, SERIAL, BOOL = "int", "serial", "bool"

_TOKEN = re.compile(r"\s*(?:([A-Za-z_][\w.]*)|([0-9][\w.]*)|(&&|\|\||==|!=|<=|>=|[-+*/()<>!,=]))")
_SAME = {"&&": "and", "||": "or", "!": "not", "=": "=="}
_COMPARE = ("<", "<=", ">", ">=", "==", "!=", "has")
_PLAIN = ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64")


class MachineNode(NamedTuple):
    """``op`` of OPS; ``kind`` INT, SERIAL or BOOL; ``items`` the operands; ``value`` a constant, name or mask."""

    op: str
    kind: str
    items: tuple[MachineNode, ...] = ()
    value: Any = None


class MachineNames(NamedTuple):
    """The known names: ``state`` name -> kind, ``params`` name -> value, ``schema`` of the record or None.

    ``other``: ``other.NAME`` is allowed.
    """

    state: Mapping[str, str]
    params: Mapping[str, int]
    schema: Schema | None
    other: bool = False


def parse(text: str, names: MachineNames) -> MachineNode:
    """The typed tree of ``text``.  Raises ValueError with the column and the problem."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"longer than {MAX_TEXT} characters")
    return MachineParser(text, names).whole()


class MachineParser:
    def __init__(self, text: str, names: MachineNames) -> None:
        self.text, self.names = text, names
        self.tokens: list[tuple[str, str, int]] = []  # kind, token, place
        at = 0
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                place = at + len(text[at:]) - len(text[at:].lstrip())
                raise ValueError(f"column {place + 1}: {text[place]!r} is not expected here")
            word, number, op = match.groups()
            token = word or number or op
            kind = "number" if number else "op" if op or token in ("and", "or", "not", "has") else "word"
            self.tokens.append((kind, _SAME.get(token, token), match.start(match.lastindex or 0)))
            at = match.end()
        self.tokens.append(("end", "", end))
        self.i = self.depth = 0

    def fail(self, what: str, i: int | None = None) -> ValueError:
        return ValueError(f"column {self.tokens[self.i if i is None else i][2] + 1} of '{self.text}': {what}")

    def at(self, *ops: str) -> bool:
        kind, token, _ = self.tokens[self.i]
        return kind == "op" and token in ops

    def take(self) -> str:
        self.i += 1
        return self.tokens[self.i - 1][1]

    def expect(self, op: str) -> None:
        if not self.at(op):
            raise self.fail(f"'{op}' expected")
        self.i += 1

    def whole(self) -> MachineNode:
        node = self.either()
        if self.tokens[self.i][0] != "end":
            raise self.fail(f"'{self.tokens[self.i][1]}' is not expected")
        return node

    def either(self) -> MachineNode:
        node = self.both()
        while self.at("or"):
            self.i += 1
            node = MachineNode("or", BOOL, (truth(node), truth(self.both())))
        return node

    def both(self) -> MachineNode:
        node = self.negation()
        while self.at("and"):
            self.i += 1
            node = MachineNode("and", BOOL, (truth(node), truth(self.negation())))
        return node

    def negation(self) -> MachineNode:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail("too many brackets inside each other")
        if self.at("not"):
            self.i += 1
            node = MachineNode("not", BOOL, (truth(self.negation()),))
        else:
            node = self.comparison()
        self.depth -= 1
        return node

    def comparison(self) -> MachineNode:
        left = self.sum()
        if not self.at(*_COMPARE):
            return left
        place, op = self.i, self.take()
        if left.kind == BOOL:
            raise self.fail("a condition cannot be compared", place)
        if op == "has":
            return self.has(left)
        right = self.constant_of(left) or self.sum()
        if right.kind == BOOL:
            raise self.fail("a condition cannot be compared", place)
        if self.at(*_COMPARE):
            raise self.fail("write a < b and b < c")
        if op in (">", ">="):
            left, right, op = right, left, "<" if op == ">" else "<="
        if SERIAL in (left.kind, right.kind):
            if op in ("<", "<="):
                return MachineNode("serial" + op, BOOL, (left, right))
            left, right = wrapped(left), wrapped(right)
        return MachineNode(op, BOOL, (left, right))

    def has(self, left: MachineNode) -> MachineNode:
        if left.op != "input" or self.names.schema is None:
            raise self.fail("'has' is for flags of the record")
        place, word = self.i, self.take()
        field = self.names.schema[left.value]
        bits = [bit for bit, name in field.names.items() if name == word]
        if field.type.kind != "flags" or not bits:
            raise self.fail(f"{field.name} has no flag '{word}'", place)
        mask = MachineNode("const", INT, value=bits[0])
        return MachineNode("!=", BOOL, (MachineNode("bits", INT, (left, mask)), MachineNode("const", INT, value=0)))

    def constant_of(self, left: MachineNode) -> MachineNode | None:
        """The name of a value: ``proto == tcp``."""
        kind, word, _ = self.tokens[self.i]
        schema = self.names.schema
        if kind != "word" or left.op != "input" or schema is None or self.known(word):
            return None
        field = schema[left.value]
        found = [value for value, name in field.names.items() if name == word]
        if not found and field.name == "proto" and word in PROTOCOLS:
            found = [PROTOCOLS[word]]
        if not found:
            return None
        self.i += 1
        return MachineNode("const", INT, value=found[0])

    def known(self, word: str) -> bool:
        names = self.names
        return word in names.state or word in names.params or (names.schema is not None and word in names.schema)

    def sum(self) -> MachineNode:
        node = self.product()
        while self.at("+", "-"):
            place, op = self.i, self.take()
            node = self.numbers(op, node, self.product(), place)
        return node

    def product(self) -> MachineNode:
        node = self.atom()
        while self.at("*", "/"):
            place, op = self.i, self.take()
            node = self.numbers(op, node, self.atom(), place)
        return node

    def numbers(self, op: str, left: MachineNode, right: MachineNode, place: int) -> MachineNode:
        if BOOL in (left.kind, right.kind):
            raise self.fail("a condition is not a number", place)
        serial = SERIAL in (left.kind, right.kind)
        if not serial:
            return MachineNode(op, INT, (left, right))
        if op in ("min", "max"):
            return MachineNode("serial" + op, SERIAL, (wrapped(left), wrapped(right)))
        if op == "-" and left.kind == SERIAL and right.op == "const":
            return wrapped(MachineNode("-", SERIAL, (left, right)))
        if op == "-":
            return MachineNode("serial-", INT, (left, right))
        if op == "+":
            return wrapped(MachineNode("+", SERIAL, (left, right)))
        raise self.fail(f"serial numbers have no '{op}'", place)

    def atom(self) -> MachineNode:
        kind, token, _ = self.tokens[self.i]
        if self.at("-"):
            self.i += 1
            return MachineNode("-", INT, (MachineNode("const", INT, value=0), self.atom()))
        if self.at("("):
            self.i += 1
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise self.fail("too many brackets inside each other")
            node = self.either()
            self.depth -= 1
            self.expect(")")
            return node
        if kind == "number":
            number = units.try_number(token)
            if number is None:
                number = units.try_duration(token)
            if not isinstance(number, int) or not -(1 << 63) <= number < 1 << 63:
                raise self.fail(f"'{token}' is not a whole number or a time")
            self.i += 1
            return MachineNode("const", INT, value=number)
        if kind != "word":
            raise self.fail("a field or a number expected")
        self.i += 1
        if token in ("min", "max") and self.at("("):
            return self.function(token)
        return self.name(token)

    def function(self, token: str) -> MachineNode:
        place = self.i
        self.expect("(")
        left = self.sum()
        self.expect(",")
        right = self.sum()
        self.expect(")")
        return self.numbers(token, left, right, place)

    def name(self, token: str) -> MachineNode:
        names = self.names
        if token in names.state:
            return MachineNode("state", names.state[token], value=token)
        if token == "new" and not names.other:
            return MachineNode("new", BOOL)
        if token in names.params:
            return MachineNode("const", INT, value=names.params[token])
        head, _, tail = token.partition(".")
        if head == "other" and names.other and tail in names.state:
            return MachineNode("other", names.state[tail], value=tail)
        if names.schema is not None and token in names.schema:
            field = names.schema[token]
            if field.type.is_list or field.type.base not in _PLAIN or field.type.kind == "ip":
                raise self.fail(f"{token} ({field.type.text}) is not an integer", self.i - 1)
            return MachineNode("input", INT, value=token)
        from difflib import get_close_matches

        there = [*names.state, *names.params, *([f.name for f in names.schema.fields] if names.schema else ())]
        near = get_close_matches(token, there, n=1, cutoff=0.6)
        raise self.fail(f"no field '{token}'" + (f"; did you mean '{near[0]}'?" if near else ""), self.i - 1)


def truth(node: MachineNode) -> MachineNode:
    """A condition of a number: it is not zero."""
    return node if node.kind == BOOL else MachineNode("!=", BOOL, (node, MachineNode("const", INT, value=0)))


def wrapped(node: MachineNode) -> MachineNode:
    return MachineNode("wrap", SERIAL, (node,))


class Assembler:
    """Programs that share their constants and the fields that they read."""

    def __init__(self, state: Sequence[str]) -> None:
        self.state = list(state)
        self.inputs: list[str] = []
        self.pool: list[int] = []

    def program(self, write: Callable[[list[int]], None]) -> bytes:
        """The code and constants, as bytes for the core."""
        code: list[int] = []
        write(code)
        code.append(OPS["end"])
        if len(code) > MAX_CODE:
            raise ValueError("too long")
        import struct

        return struct.pack(f"<{len(code)}i", *code)

    def constants(self) -> bytes:
        import struct

        return struct.pack(f"<{len(self.pool)}q", *self.pool) or bytes(8)

    def value(self, node: MachineNode, code: list[int], depth: int = 1) -> None:
        """Code that leaves the value of ``node`` on the stack."""
        if depth > STACK - 2:
            raise ValueError("too deep")
        for i, item in enumerate(node.items):
            self.value(item, code, depth + i)
        code.append(OPS[node.op])
        if node.op == "const":
            code.append(_place(self.pool, node.value))
        elif node.op == "input":
            code.append(_place(self.inputs, node.value))
        elif node.op in ("state", "other"):
            code.append(self.state.index(node.value))

    def rule(self, when: MachineNode | None, sets: Sequence[tuple[str, MachineNode]], code: list[int]) -> None:
        """``when: ... set: {...}``: all right sides are computed before the first is stored."""
        hole = -1
        if when is not None:
            self.value(truth(when), code)
            code += [OPS["unless"], 0]
            hole = len(code) - 1
        for i, (_, node) in enumerate(sets):
            self.value(node, code, i + 1)
        for name, _ in reversed(sets):
            code += [OPS["set"], self.state.index(name)]
        if hole >= 0:
            code[hole] = len(code)

    def outputs(self, nodes: Sequence[MachineNode], code: list[int]) -> None:
        for i, node in enumerate(nodes):
            self.value(node, code)
            code += [OPS["out"], i]


def _place(items: list[Any], item: Any) -> int:
    if item not in items:
        items.append(item)
    return items.index(item)


def param(text: Any) -> int:
    """The value of a parameter: a number or a time, as in YAML or on the command line."""
    if isinstance(text, bool) or not isinstance(text, (int, str)):
        raise SchemaError(f"'{text}' is not a whole number or a time")
    number = text if isinstance(text, int) else units.try_number(text)
    if number is None:
        number = units.try_duration(str(text))
    if not isinstance(number, int) or not -(1 << 63) <= number < 1 << 63:
        raise SchemaError(f"'{text}' is not a whole number or a time", hint="write e.g. 10 or 3ms")
    return number
