"""The syntax tree of an expression, its text, and errors with a position."""

from __future__ import annotations

import re

from confluo_tools.errors import UsageError
from confluo_tools.expr.leaves import Leaf

MAX_TEXT = 65536  # characters
MAX_DEPTH = 50  # brackets inside brackets
MAX_SET = 10000  # elements of one set

WORD_CHARS = r"A-Za-z0-9_.:@/*?+\-\\%µμ"
_END6 = r"\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\](?::(?:\d+|\*))?"
_END = r"[0-9A-Fa-f:.]+(?::\*)?"
FLOW6 = rf"(?:{_END6}-(?:{_END6}|{_END})|{_END}-{_END6})(?:/\w+)?"  # [::1]:80-[::2]:443/tcp, ::1-[::2]:*
PLAIN = re.compile(rf"(?:{FLOW6}|[{WORD_CHARS}]+(?:\|[{WORD_CHARS}]+)*)\Z")
# Connecting words; as values they need quotes.
RESERVED = frozenset({"and", "or", "not", "in", "like", "has", "starts"})


class ExprError(UsageError):
    """An expression that cannot be read or does not fit the schema.

    ``text`` is the expression, ``pos`` the offset of the fault in it, ``column`` = pos + 1.
    """

    def __init__(self, what: str, text: str, pos: int, hint: str = "", name: str = "expression") -> None:
        self.text, self.pos, self.column = text, pos, pos + 1
        super().__init__(what, where=f"{name}, column {self.column}", hint=hint)

    def caret(self, width: int = 76) -> str:
        """Two lines: the expression (the part of it around the fault) and a caret under the fault."""
        start = self.text.rfind("\n", 0, self.pos) + 1
        end = self.text.find("\n", self.pos)
        line = self.text[start : end if end >= 0 else len(self.text)]
        at = self.pos - start
        match = re.compile(rf"[{WORD_CHARS}]+").match(line, at)
        length = min(match.end() - at, width // 2) if match else 1
        if len(line) > width:
            cut = max(0, min(at - width // 2, len(line) - width))
            head, tail = "..." if cut else "", "..." if cut + width < len(line) else ""
            at += len(head) - cut
            line = head + line[cut : cut + width] + tail
        line = "".join(c if c.isprintable() else " " for c in line)
        return f"{line}\n{' ' * at}^{'~' * (length - 1)}"


class ListError(ExprError):
    """A value of a file of values that cannot be read, or does not fit the schema."""

    def __init__(self, what: str, path: str, line: int, hint: str = "") -> None:
        super().__init__(what, "", 0, hint)
        self.where = f"{path}, line {line}"

    def caret(self, width: int = 76) -> str:
        """Nothing: the fault is not in the expression."""
        return ""


class Node(Leaf):
    """A node: equal by its slots; ``pos`` is its position in the text and is not compared."""

    __slots__ = ("pos",)
    pos: int


class Value(Node):
    """A constant as it was written; typing decides its meaning.  ``quoted``: it was in quotes."""

    __slots__ = __match_args__ = ("text", "quoted")

    def __init__(self, text: str, quoted: bool = False, pos: int = 0) -> None:
        self.text, self.quoted, self.pos = text, quoted, pos


class ListFile(Value):
    """``@FILE`` after ``in``: the values in the file ``text``."""

    __slots__ = ()


class FieldRef(Node):
    """A field, perhaps masked: ``tcp_flags`` or ``tcp_flags & 0x12``."""

    __slots__ = __match_args__ = ("name", "mask")

    def __init__(self, name: str, mask: Value | None = None, pos: int = 0) -> None:
        self.name, self.mask, self.pos = name, mask, pos


class ByteRef(Node):
    """``proto[offset:size]``, perhaps masked: bytes of a header; or ``field[offset]``, an element of a list."""

    __slots__ = __match_args__ = ("proto", "offset", "size", "mask")

    def __init__(self, proto: str, offset: int, size: int, mask: Value | None = None, pos: int = 0) -> None:
        self.proto, self.offset, self.size, self.mask, self.pos = proto, offset, size, mask, pos


class LengthRef(Node):
    """``len(field)``: the number of elements of a list."""

    __slots__ = __match_args__ = ("name",)
    mask = None

    def __init__(self, name: str, pos: int = 0) -> None:
        self.name, self.pos = name, pos


Operand = FieldRef | ByteRef | LengthRef


class Compare(Node):
    """``operand op values``; ``many``: the values were in braces, or are those of one ListFile."""

    __slots__ = __match_args__ = ("operand", "op", "values", "many")

    def __init__(self, operand: Operand, op: str, values: tuple[Value, ...], many: bool = False, pos: int = 0) -> None:
        self.operand, self.op, self.values, self.many, self.pos = operand, op, values, many, pos


class ListCompare(Node):
    """A list compared with a sequence: ``path == [3, 7]``.  ``op``: == != has starts before."""

    __slots__ = __match_args__ = ("operand", "op", "values")

    def __init__(self, operand: Operand, op: str, values: tuple[Value, ...], pos: int = 0) -> None:
        self.operand, self.op, self.values, self.pos = operand, op, values, pos


class Nonzero(Node):
    """An operand without a comparison: not zero."""

    __slots__ = __match_args__ = ("operand",)

    def __init__(self, operand: Operand, pos: int = 0) -> None:
        self.operand, self.pos = operand, pos


class Word(Node):
    """A primitive of pcap-filter: ``tcp src port 80`` is Word('tcp', 'src', 'port', 80); absent parts are ''."""

    __slots__ = __match_args__ = ("proto", "direction", "kind", "value")

    def __init__(self, proto: str, direction: str, kind: str, value: Value | None = None, pos: int = 0) -> None:
        self.proto, self.direction, self.kind, self.value, self.pos = proto, direction, kind, value, pos


class Both(Node):
    __slots__ = __match_args__ = ("items",)

    def __init__(self, items: tuple[Syntax, ...], pos: int = 0) -> None:
        self.items, self.pos = items, pos


class Either(Node):
    __slots__ = __match_args__ = ("items",)

    def __init__(self, items: tuple[Syntax, ...], pos: int = 0) -> None:
        self.items, self.pos = items, pos


class Negation(Node):
    __slots__ = __match_args__ = ("item",)

    def __init__(self, item: Syntax, pos: int = 0) -> None:
        self.item, self.pos = item, pos


class Everything(Node):
    """The empty expression."""

    __slots__ = __match_args__ = ()

    def __init__(self, pos: int = 0) -> None:
        self.pos = pos


Syntax = Compare | ListCompare | Nonzero | Word | Both | Either | Negation | Everything


def unparse(node: Syntax) -> str:
    """Text that parses to an equal tree."""
    match node:
        case Both(items):
            return " and ".join([_inner(i) for i in items])
        case Either(items):
            return " or ".join([_inner(i) for i in items])
        case Negation(item):
            return f"not {_inner(item)}"
        case Compare(operand, op, (ListFile(path, _),)):
            return f"{_operand(operand)} {op} @{quote(path)}"
        case Compare(operand, op, values, many):
            right = ", ".join([_value(v) for v in values])
            return f"{_operand(operand)} {op} {'{' + right + '}' if many else right}"
        case ListCompare(operand, "before", values):
            return f"{_operand(operand)} has {' before '.join([_value(v) for v in values])}"
        case ListCompare(operand, op, values):
            return f"{_operand(operand)} {op} [{', '.join([_value(v) for v in values])}]"
        case Nonzero(operand):
            return _operand(operand)
        case Word(proto, direction, kind, value):
            return " ".join([w for w in (proto, direction, kind, _value(value) if value else "") if w])
        case _:
            return ""


def _inner(node: Syntax) -> str:
    # `not` inside brackets too: a value after `not port 80 or` would share its qualifiers.
    return f"({unparse(node)})" if isinstance(node, (Both, Either, Negation)) else unparse(node)


def _operand(ref: Operand) -> str:
    if isinstance(ref, LengthRef):
        return f"len({ref.name})"
    text = (
        ref.name if isinstance(ref, FieldRef) else f"{ref.proto}[{ref.offset}{f':{ref.size}' if ref.size > 1 else ''}]"
    )
    return f"({text} & ({_value(ref.mask)}))" if ref.mask else text


def _value(value: Value) -> str:
    if not value.quoted and PLAIN.match(value.text) and value.text.lower() not in RESERVED:
        return value.text
    return quote(value.text)


def quote(text: str) -> str:
    """``text`` in double quotes, as the lexer reads it back."""
    out = []
    for c in text:
        if c in '"\\':
            out.append("\\" + c)
        elif "\udc80" <= c <= "\udcff":
            out.append(f"\\x{ord(c) - 0xDC00:02x}")
        elif c < " " or c == "\x7f":
            out.append(f"\\x{ord(c):02x}")
        else:
            out.append(c)
    return '"' + "".join(out) + '"'
