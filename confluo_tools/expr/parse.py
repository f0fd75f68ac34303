"""Parser of expressions: text -> syntax tree, without a schema.  Grammar: confluo-expr(7)."""

from __future__ import annotations

import re

from confluo_tools.expr import parse_lists
from confluo_tools.expr.syntax import (
    FLOW6,
    MAX_DEPTH,
    MAX_SET,
    MAX_TEXT,
    RESERVED,
    WORD_CHARS,
    Both,
    ByteRef,
    Compare,
    Either,
    Everything,
    ExprError,
    FieldRef,
    ListFile,
    Negation,
    Nonzero,
    Operand,
    Syntax,
    Value,
    Word,
)
from confluo_tools.expr.words import HEADERS, HINTS, OFFSETS, PROTOCOLS, SERVICES, UNSUPPORTED
from confluo_tools.units import try_ip4, try_mac, try_prefix

COMPARATORS = frozenset({"==", "=", "!=", "<", "<=", ">", ">="})
WORD_OPERATORS = frozenset({"in", "like", "has", "starts"})
OTHERS = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "gt": ">",
    "le": "<=",
    "ge": ">=",
    "is": "==",
    "contains": "has",
    "matches": "like",
    "between": "in 1..9",
}
FLIPPED = {"==": "==", "=": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

QUALIFIERS = frozenset(
    {"ether", "link", "ip", "ip6", "arp", "rarp", "tcp", "udp", "sctp", "icmp", "icmp6", "igmp", "pim", "ah", "esp"}
    | {"vrrp", "carp", "pppoed", "pppoes"}
)
DIRECTIONS = frozenset({"src", "dst"})
KINDS = frozenset({"host", "net", "port", "portrange", "proto", "protochain"})
NUMBERED = frozenset({"vlan", "mpls", "geneve", "vxlan"})  # an optional number follows
LENGTHS = frozenset({"greater", "less"})
CASTS = frozenset({"broadcast", "multicast"})
KEYWORDS = QUALIFIERS | DIRECTIONS | KINDS | NUMBERED | LENGTHS | CASTS

_TOKEN = re.compile(
    rf"({FLOW6}|[{WORD_CHARS}]+)"
    r"|(&&|\|\||==|!=|<=|>=|<<|>>|[<>=!&|(){},\[\]])"
    r"|(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')",
    re.DOTALL,
)
_SPACE = re.compile(r"[ \t\r\n]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)

Qualifier = tuple[str, str, str]
TIGHTER = "'and' binds tighter than 'or' here; in pcap-filter they bind equally, from the left; add brackets"


class Parsed:
    """The syntax ``tree``, and ``notes``: remarks for the user about the meaning of the text."""

    __slots__ = ("notes", "tree")

    def __init__(self, tree: Syntax, notes: tuple[str, ...]) -> None:
        self.tree, self.notes = tree, notes


def parse(text: str) -> Parsed:
    """The syntax tree of ``text``.  Raises ExprError."""
    if len(text) > MAX_TEXT:
        raise ExprError(f"longer than {MAX_TEXT} characters", text[:MAX_TEXT], 0)
    return ExprParser(text).parse()


def _lex(text: str) -> tuple[list[str], list[str], list[int]]:
    kinds, tokens, places = [], [], []
    at, size = 0, len(text)
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if at == size:
            break
        match = _TOKEN.match(text, at)
        if match is None:
            c = text[at]
            if c in "\"'":
                raise ExprError("this text has no end", text, at, hint=f"close it with {c}")
            raise ExprError(f"{c!r} is not expected here", text, at, hint="put texts into quotes")
        group = match.lastindex
        token = match.group()
        kinds.append("word" if group == 1 else "op" if group == 2 else "text")
        tokens.append(_ESCAPE.sub(_unescape, token[1:-1]) if group == 3 else token)
        places.append(at)
        at = match.end()
    kinds.append("end")
    tokens.append("")
    places.append(size)
    return kinds, tokens, places


def _unescape(match: re.Match[str]) -> str:
    if match[1]:
        code = int(match[1], 16)
        return chr(code) if code < 128 else chr(0xDC00 + code)  # a raw byte, as os.fsdecode writes it
    return {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}.get(match[2], match[2])


class ExprParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds, self.tokens, self.places = _lex(text)
        self.i = 0
        self.depth = 0
        self.and_at = -1  # position of the last `and` in this bracket
        self.mixed = -1  # position of an `and` that binds tighter than an `or` before it
        self.words = False

    # -- tokens

    def fail(self, what: str, hint: str = "", i: int | None = None) -> ExprError:
        return ExprError(what, self.text, self.places[self.i if i is None else i], hint)

    def found(self) -> str:
        return f"'{self.tokens[self.i]}'" if self.kinds[self.i] != "end" else "the end"

    def op(self, token: str, i: int | None = None) -> bool:
        i = self.i if i is None else i
        return self.kinds[i] == "op" and self.tokens[i] == token

    def word(self, i: int | None = None) -> str:
        """The word at i in lower case, '' if there is none."""
        i = self.i if i is None else i
        return self.tokens[i].lower() if i < len(self.kinds) and self.kinds[i] == "word" else ""

    def connects(self, i: int) -> str:
        """'and' or 'or' if that is the token at i."""
        word = self.word(i)
        if word in ("and", "or"):
            return word
        return "and" if self.op("&&", i) else "or" if self.op("||", i) else ""

    def negates(self, i: int) -> bool:
        return self.op("!", i) or (self.word(i) == "not" and self.word(i + 1) != "in")

    def compares(self, i: int) -> bool:
        if self.kinds[i] == "op":
            return self.tokens[i] in COMPARATORS
        word = self.word(i)
        return word in WORD_OPERATORS or (word == "not" and self.word(i + 1) == "in")

    def is_operand(self, i: int) -> bool:
        """Whether the word at i is compared or masked."""
        return self.compares(i + 1) or self.op("&", i + 1)

    # -- conditions

    def parse(self) -> Parsed:
        if self.kinds[0] == "end":
            return Parsed(Everything(), ())
        tree = self.either()
        if self.kinds[self.i] != "end":
            raise self.unexpected()
        notes: tuple[str, ...] = ()
        if self.words and self.mixed >= 0:
            notes = (f"column {self.mixed + 1}: {TIGHTER}",)
        return Parsed(tree, notes)

    def unexpected(self) -> ExprError:
        token, before = self.tokens[self.i].lower(), self.word(self.i - 1) if self.i else ""
        if before in UNSUPPORTED:
            return self.fail(f"'{before}' of pcap-filter is not possible here", UNSUPPORTED[before], self.i - 1)
        if self.compares(self.i):
            hint = "write || between conditions" if self.op("|", self.i - 2) else "write a < b && b < c"
            return self.fail(f"{self.found()} after a comparison", hint)
        if token in ("&", "|") and self.kinds[self.i] == "op":
            return self.fail(f"'{token}' after a condition", f"write {token * 2}")
        if token in ("<<", ">>", "-", "+", "*", "/", "%"):
            return self.fail(f"no arithmetic: {self.found()}", "masks are possible: (field & 0xf0) == 0x50")
        if token == ")":
            return self.fail("')' without '('")
        if token in OTHERS:
            return self.fail(f"{self.found()} after a condition", f"write {OTHERS[token]}")
        return self.fail(f"{self.found()} after a condition", "expected && or ||")

    def either(self) -> Syntax:
        pos = self.places[self.i]
        items = [self.both()]
        while self.connects(self.i) == "or":
            self.i += 1
            self.and_at = -1
            items.append(self.both())
            if self.and_at >= 0 and self.mixed < 0:
                self.mixed = self.and_at
        return items[0] if len(items) == 1 else Either(tuple(items), pos)

    def both(self) -> Syntax:
        pos = self.places[self.i]
        items = [self.term()]
        while self.connects(self.i) == "and":
            self.and_at = self.places[self.i]
            self.i += 1
            items.append(self.term())
        return items[0] if len(items) == 1 else Both(tuple(items), pos)

    def term(self) -> Syntax:
        pos, odd = self.places[self.i], self.nots()
        node, qualifier = self.primary()
        if odd:
            node = Negation(node, pos)
        return self.shared(node, qualifier) if qualifier else node

    def nots(self) -> bool:
        odd = False
        while self.negates(self.i):
            self.i += 1
            odd = not odd
        return odd

    def shared(self, node: Syntax, qualifier: Qualifier) -> Syntax:
        """``port 80 or 443``: values that follow take over the qualifiers, and group from the left."""
        last, turns = "", 0
        while True:
            how = self.connects(self.i)
            j = self.i + 1
            while how and self.negates(j):
                j += 1
            if not how or not self.is_id(j, qualifier[2], qualifier[0]):
                return node
            if how == "and":
                self.and_at = self.places[self.i]
            pos = self.places[self.i + 1]
            self.i += 1
            odd = self.nots()
            item: Syntax = self.qualified(qualifier)
            if odd:
                item = Negation(item, pos)
            if how == last and isinstance(node, (Both, Either)):
                node = type(node)((*node.items, item), node.pos)
            else:
                turns += 1
                if turns > MAX_DEPTH:
                    raise self.fail("too many changes between 'and' and 'or'", "use a set: port in {80, 443}")
                node = (Both if how == "and" else Either)((node, item), node.pos)
            last = how

    def is_id(self, i: int, kind: str, proto: str) -> bool:
        word = self.word(i)
        if not word or word in RESERVED or self.is_operand(i) or self.op("[", i + 1):
            return False
        if word[0].isdigit() or word[0] == "\\" or ":" in word or try_mac(word) is not None:
            # `port 80 and 10.0.0.1`: an address is not a port, so it begins a new test.
            if proto == "ether" and kind == "host":
                return try_prefix(word) is None
            return kind in ("", "host", "net") or try_prefix(word) is None
        if word in KEYWORDS:
            return False
        return word in (SERVICES if kind.startswith("port") else PROTOCOLS if kind.startswith("proto") else ())

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail(f"more than {MAX_DEPTH} brackets inside each other")

    def primary(self) -> tuple[Syntax, Qualifier | None]:
        i = self.i
        kind, token, pos = self.kinds[i], self.tokens[i], self.places[i]
        if kind == "op" and token == "(":
            self.enter()
            outside, self.and_at = self.and_at, -1
            self.i += 1
            node = self.either()
            if not self.op(")"):
                if self.kinds[self.i] != "end":
                    raise self.unexpected()
                raise self.fail("')' expected before the end")
            self.i += 1
            self.depth -= 1
            self.and_at = outside
            if self.compares(self.i) and isinstance(node, Nonzero):
                return self.compare(node.operand, pos), None
            return node, None
        if kind == "text" or (kind == "word" and self.is_constant(token)):
            if not self.compares(i + 1):
                return self.lone_constant()
            return self.flipped(), None
        if kind != "word":
            what = "a condition expected" if kind == "end" else f"{self.found()} where a condition begins"
            raise self.fail(what, "write e.g. dst_port == 80, or tcp port 80")
        word = token.lower()
        if word in RESERVED:
            raise self.fail(f"'{token}' where a condition begins")
        lone = word in KINDS and not self.op("(", i + 1) and (self.word(i + 1) or "and") in RESERVED
        if word in KEYWORDS and not self.op("[", i + 1) and not self.is_operand(i) and not lone:
            self.words = True
            return self.primitive()
        if (
            word == "filter"
            and self.kinds[i + 1] in ("word", "text")
            and not self.compares(i + 1)
            and (self.kinds[i + 1] == "text" or self.word(i + 1) not in RESERVED)
        ):
            self.i += 1
            return Word("", "", "filter", self.value(), pos), None
        operand = self.operand()
        if self.compares(self.i):
            return self.compare(operand, pos), None
        return Nonzero(operand, pos), None

    def is_constant(self, token: str) -> bool:
        return token[0] in "0123456789-+.@*[" or ":" in token

    def lone_constant(self) -> tuple[Syntax, Qualifier | None]:
        token = self.tokens[self.i]
        if self.kinds[self.i] == "word" and try_prefix(token) is not None:
            self.words = True
            return self.qualified(("", "", "net" if "/" in token else "host")), None
        raise self.fail(f"unexpected {self.found()}", "write e.g. port 80, host 10.0.0.1, len > 80")

    def flipped(self) -> Syntax:
        """A constant on the left: ``80 == dst_port``."""
        pos = self.places[self.i]
        value = self.value()
        op = self.tokens[self.i]
        if op not in FLIPPED:
            raise self.fail(f"'{op}' needs a field before it")
        self.i += 1
        if self.kinds[self.i] != "word" or self.is_constant(self.tokens[self.i]):
            raise self.fail("a constant is compared with a constant", "one side must be a field")
        operand = self.operand()
        if self.compares(self.i):
            raise self.unexpected()
        return Compare(operand, FLIPPED[op], (value,), False, pos)

    # -- fields, masks, values

    def operand(self) -> Operand:
        i = self.i
        token, pos = self.tokens[i], self.places[i]
        name = token.lower()
        ref: Operand
        self.i += 1
        if self.op("["):
            ref = self.byte_ref(name, pos)
        elif name == "len" and self.op("("):
            return parse_lists.length(self, pos)
        elif _NAME.match(token):
            ref = FieldRef(name, None, pos)
        else:
            hint = HINTS.get(name, "")
            if not hint and "/" in name:
                hint = f"write {name.split('/')[0]} in 10.1.2.0/24"
            raise self.fail(f"'{token}' is not a field", hint, i)
        if self.op("&"):
            self.i += 1
            ref.mask = self.mask()
        return ref

    def mask(self) -> Value:
        if self.op("("):
            return self.bracketed()
        value = self.value(joined=False)
        if self.op("|"):
            raise self.fail("'|' after a mask", "put the mask into brackets: field & (a|b)")
        return value

    def bracketed(self) -> Value:
        """A constant in brackets."""
        opened = 0
        while self.op("("):
            opened += 1
            self.i += 1
        value = self.value()
        for _ in range(opened):
            if not self.op(")"):
                raise self.fail(f"')' expected before {self.found()}")
            self.i += 1
        return value

    def byte_ref(self, proto: str, pos: int) -> ByteRef:
        """``[13]``, ``[0:2]`` or ``[tcpflags]`` after a protocol; ``[0]`` or ``[-1]`` after a list."""
        at = self.i
        self.i += 1
        index = ""
        while self.kinds[self.i] == "word":
            index += self.word()
            self.i += 1
        offset, colon, size = index.partition(":")
        number = OFFSETS.get(offset, offset)
        from_end = offset[:1] == "-" and not colon and proto not in HEADERS
        if (
            not self.op("]")
            or not _digits(offset[1:] if from_end else number)
            or (colon and size not in ("1", "2", "4"))
        ):
            raise self.fail("an offset is a number, and perhaps a size of 1, 2 or 4", "write tcp[13] or ip[6:2]", at)
        self.i += 1
        return ByteRef(proto, int(number), int(size or 1), None, pos)

    def compare(self, operand: Operand, pos: int) -> Syntax:
        op = self.word() or self.tokens[self.i]
        self.i += 1
        negated = op == "not"
        if negated:
            op = self.word()
            self.i += 1
        if op == "=":
            op = "=="
        node: Syntax
        if self.op("["):
            node = parse_lists.bracketed(self, operand, op, pos)
        else:
            values, many = self.values(op)
            if op == "starts" and many:
                raise self.fail("'starts' takes a sequence, not a set", "write e.g. starts 3, 7", self.i - 1)
            found = None if many else parse_lists.sequence(self, operand, op, values[0], pos)
            node = Compare(operand, op, values, many, pos) if found is None else found
        if self.compares(self.i):
            raise self.unexpected()
        return Negation(node, pos) if negated else node

    def list_file(self) -> ListFile | None:
        """``@FILE`` or ``@"FILE"``; a digit after the @ is a time."""
        token, pos = self.tokens[self.i], self.places[self.i]
        if self.kinds[self.i] != "word" or token[0] != "@" or token[1:2].isdigit():
            return None
        self.i += 1
        if token == "@" and self.kinds[self.i] == "text":
            token += self.tokens[self.i]
            self.i += 1
        if token == "@":
            raise self.fail("a file expected after '@'", 'write src_ip in @FILE or @"FILE"', self.i - 1)
        return ListFile(token[1:], True, pos)

    def values(self, op: str) -> tuple[tuple[Value, ...], bool]:
        opening = self.tokens[self.i] if self.kinds[self.i] == "op" else ""
        if op == "in":
            listed = self.list_file()
            if listed is not None:
                return (listed,), True
        if opening not in ("{", "("):
            return (self.value(after=op),), False
        close = "}" if opening == "{" else ")"
        if opening == "(" and self.op("(", self.i + 1):
            return (self.bracketed(),), False
        start = self.i
        self.i += 1
        values = [self.value()] if not self.op(close) else []
        while self.op(","):
            self.i += 1
            if self.op(close):
                break
            values.append(self.value())
        if not self.op(close):
            raise self.fail(f"',' or '{close}' expected before {self.found()}")
        if not values:
            raise self.fail("the set is empty", i=start)
        if len(values) > MAX_SET:
            raise self.fail(f"more than {MAX_SET} values in a set", i=start)
        self.i += 1
        return tuple(values), opening == "{" or len(values) > 1 or op in ("in", "has")

    def value(self, after: str = "", joined: bool = True) -> Value:
        i = self.i
        kind, token, pos = self.kinds[i], self.tokens[i], self.places[i]
        if kind == "text":
            self.i += 1
            return Value(token, True, pos)
        if kind != "word" or token.lower() in RESERVED:
            what = f"a value expected after '{after}'" if after else "a value expected"
            hint = "write !=" if token == ">" and after == "<" else "quote it if it is one" if kind == "word" else ""
            raise self.fail(f"{what}, found {self.found()}", hint)
        self.i += 1
        while joined:
            mark = self.tokens[self.i]
            if (self.op("|") or mark in ("+", "..", "-")) and self.word(self.i + 1):
                token += (".." if mark == "-" else mark) + self.tokens[self.i + 1]
                self.i += 2
            elif self.word() == "ago":
                token = f"now-{token}"
                self.i += 1
            else:
                break
        return Value(token, False, pos)

    # -- the words of pcap-filter

    def primitive(self) -> tuple[Syntax, Qualifier | None]:
        pos, word = self.places[self.i], self.word()
        if word in CASTS:
            self.i += 1
            return Word("", "", word, None, pos), None
        if word in NUMBERED:
            self.i += 1
            qualifier = "", "", word
            if self.word()[:1].isdigit() and not self.is_operand(self.i):
                return self.qualified(qualifier, pos), qualifier
            return Word("", "", word, None, pos), None
        if word in LENGTHS:
            self.i += 1
            return self.qualified(("", "", word), pos), None
        proto = direction = kind = ""
        alone = True
        if word in QUALIFIERS:
            proto = "ether" if word == "link" else word
            self.i += 1
            if self.word() in CASTS and proto in ("ether", "ip", "ip6"):
                self.i += 1
                return Word(proto, "", self.word(self.i - 1), None, pos), None
        if self.word() in DIRECTIONS and not self.is_operand(self.i):
            direction, alone = self.word(), False
            self.i += 1
            how, other = self.connects(self.i), self.word(self.i + 1)
            if how:
                if other not in DIRECTIONS or other == direction:
                    raise self.fail(f"'{direction}' needs an address or a port", f"write {direction} host 10.0.0.1")
                direction = "" if how == "or" else "src and dst"
                self.i += 2
        if self.word() in KINDS and not self.is_operand(self.i):
            kind, alone = "proto" if self.word() == "protochain" else self.word(), False
            self.i += 1
        if alone and not self.is_id(self.i, "host", proto):
            return Word(proto, "", "", None, pos), None
        qualifier = proto, direction, kind
        if self.op("("):
            return self.ids(qualifier), None
        return self.qualified(qualifier, pos), qualifier

    def ids(self, qualifier: Qualifier) -> Syntax:
        """``(80 or 443)`` after qualifiers: values joined from the left."""
        depth = self.depth
        self.enter()
        self.i += 1
        node: Syntax | None = None
        how = ""
        while True:
            pos, odd = self.places[self.i], self.nots()
            item: Syntax = self.ids(qualifier) if self.op("(") else self.qualified(qualifier)
            if odd:
                item = Negation(item, pos)
            if node is None:
                node = item
            elif isinstance(node, Both if how == "and" else Either) and node.pos == -1:
                node = type(node)((*node.items, item), -1)
            else:
                node = (Both if how == "and" else Either)((node, item), -1)
                self.enter()
            how = self.connects(self.i)
            if not how:
                break
            self.i += 1
        if not self.op(")"):
            raise self.fail(f"')' expected before {self.found()}")
        self.i += 1
        self.depth = depth
        return node

    def qualified(self, qualifier: Qualifier, pos: int | None = None) -> Word:
        """One value and its qualifiers."""
        proto, direction, kind = qualifier
        name = kind or direction or proto
        at = self.places[self.i]
        token = self.tokens[self.i]
        misplaced = RESERVED if kind == "proto" else RESERVED | KEYWORDS
        if self.kinds[self.i] != "word" or token.lower() in misplaced:
            raise self.fail(f"'{name}' needs a value, found {self.found()}", _EXAMPLES.get(kind, ""))
        self.i += 1
        if not kind:
            kind = "net" if "/" in token else "host"
        if kind == "net" and self.word() == "mask":
            token = f"{token}/{self.net_mask(token)}"
        if self.op("[") or (self.compares(self.i) and _NAME.match(token)):
            raise self.fail(f"'{name}' needs a value, found '{token}'", _EXAMPLES.get(kind, ""), self.i - 1)
        return Word(proto, direction, kind, Value(token.lstrip("\\"), False, at), at if pos is None else pos)

    def net_mask(self, net: str) -> int:
        self.i += 1
        mask = try_ip4(self.word())
        if mask is None or "/" in net or (~mask & 0xFFFFFFFF) & ((~mask & 0xFFFFFFFF) + 1):
            raise self.fail("'mask' needs a contiguous netmask", "write net 10.0.0.0 mask 255.0.0.0")
        self.i += 1
        return mask.bit_count()


_EXAMPLES = {
    "host": "write host 10.0.0.1",
    "net": "write net 10.0.0.0/8",
    "port": "write port 80",
    "portrange": "write portrange 1-1023",
    "proto": "write proto 47",
    "greater": "write greater 1000",
    "less": "write less 64",
}


def _digits(text: object) -> bool:
    return isinstance(text, int) or (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 6)
