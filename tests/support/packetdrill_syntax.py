"""The language of packetdrill, as its Syntax.md documents it: a strict parser for the parts that scripts here use.

Raises ScriptError for anything else.  https://github.com/google/packetdrill/blob/master/Syntax.md
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# The lexer takes the longest match; of equally long ones the first.
TOKENS = (
    ("ELLIPSIS", r"[.][.][.]"),
    ("OPTION", r"--[a-zA-Z0-9_]+"),
    ("FLOAT", r"[-]?[0-9]*[.][0-9]+"),
    ("INTEGER", r"[-]?[0-9]+"),
    ("HEX_INTEGER", r"0x[0-9]+"),
    ("WORD", r"[a-zA-Z0-9_]+"),
    ("STRING", r'"(\\.|[^"])*"'),
    ("BACK_QUOTED", r"`(\\.|[^`])*`"),
    ("SPACE", r"[ \t\n]+"),
    ("COMMENT", r"//[^\n]*\n"),
    ("CHARACTER", r"[^ \t\n]"),
)
KEYWORDS = {"ack", "ce", "ecr", "ect0", "ect01", "ect1", "events", "fd", "linger", "mss", "noecn"}
KEYWORDS |= {"nop", "onoff", "revents", "sack", "sackOK", "TS", "val", "win", "wscale"}
ECN = ("noecn", "ect0", "ect1", "ect01", "ce")


class ScriptError(Exception):
    """The script is not of the language."""


@dataclass
class Token:
    kind: str
    text: str
    line: int


@dataclass
class TcpPacket:
    """``at``: us; ``options``: as written, e.g. ("mss", 1460), ("sack", (5, 9))."""

    at: int
    inbound: bool
    ecn: str
    flags: str
    seq: int
    end: int
    length: int
    ack: int | None
    window: int | None
    options: list[tuple[object, ...]] = field(default_factory=list)


@dataclass
class SystemCall:
    """``result``: what is expected; ``error``: its name, '' without one.  ``arguments``: words, ``[...]`` as lists."""

    at: int
    name: str
    arguments: list[object]
    result: int
    error: str = ""


@dataclass
class Command:
    at: int
    text: str


@dataclass
class PacketScript:
    options: dict[str, str]
    init: str
    events: list[TcpPacket | SystemCall | Command]


def tokens(text: str) -> list[Token]:
    found, place, line = [], 0, 1
    while place < len(text):
        matches = [(m.end(), kind) for kind, pattern in TOKENS if (m := re.compile(pattern).match(text, place))]
        if not matches:
            raise ScriptError(f"line {line}: {text[place : place + 20]!r}")
        end, kind = max(matches, key=lambda m: m[0])
        word = text[place:end]
        if kind not in ("SPACE", "COMMENT"):
            found.append(Token("KEYWORD" if kind == "WORD" and word in KEYWORDS else kind, word, line))
        line += word.count("\n")
        place = end
    return found


class Parser:
    def __init__(self, text: str) -> None:
        self._tokens, self._at = tokens(text), 0
        self._now = 0

    def script(self) -> PacketScript:
        options = {}
        while self._kind() == "OPTION":
            name = self._take("OPTION").text[2:]
            self._character("=")
            options[name] = self._one_of("INTEGER", "WORD").text
        init = self._take("BACK_QUOTED").text[1:-1] if self._kind() == "BACK_QUOTED" else ""
        events = []
        while self._at < len(self._tokens):
            events.append(self._event())
        if not events:
            raise ScriptError("no events")
        return PacketScript(options, init, events)

    def _event(self) -> TcpPacket | SystemCall | Command:
        relative = self._is("+")
        if relative:
            self._character("+")
        token = self._one_of("FLOAT", "INTEGER")
        time = round(float(token.text) * 1e6)
        self._now = self._now + time if relative else time
        if time < 0:
            raise ScriptError(f"line {token.line}: time goes back")
        if self._kind() == "BACK_QUOTED":
            return Command(self._now, self._take("BACK_QUOTED").text[1:-1])
        return self._packet() if self._is("<") or self._is(">") else self._call()

    def _packet(self) -> TcpPacket:
        inbound = self._take("CHARACTER").text == "<"
        ecn = ""
        if self._is("["):
            self._character("[")
            ecn = self._take("KEYWORD").text
            if ecn not in ECN:
                raise ScriptError(f"ECN {ecn}")
            self._character("]")
        flags = self._flags()
        seq = int(self._take("INTEGER").text)
        self._character(":")
        end = int(self._take("INTEGER").text)
        self._character("(")
        length = int(self._take("INTEGER").text)
        self._character(")")
        if end != seq + length:
            raise ScriptError(f"{seq}:{end}({length})")  # the program checks this while it parses
        ack = self._after_keyword("ack")
        window = self._after_keyword("win")
        if ("." in flags) != (ack is not None):
            raise ScriptError(f"flags {flags} and ack {ack}")
        return TcpPacket(self._now, inbound, ecn, flags, seq, end, length, ack, window, self._options())

    def _flags(self) -> str:
        flags = ""
        if self._kind() == "WORD":
            flags = self._take("WORD").text
            if set(flags) - set("FSRPEWUA"):
                raise ScriptError(f"flags {flags}")
        if self._is("."):
            self._character(".")
            return flags + "."
        if not flags:
            self._character("-")
        return flags

    def _after_keyword(self, name: str) -> int | None:
        if self._kind() != "KEYWORD" or self._tokens[self._at].text != name:
            return None
        self._at += 1
        return int(self._take("INTEGER").text)

    def _options(self) -> list[tuple[object, ...]]:
        if not self._is("<") or self._tokens[self._at + 1].kind != "KEYWORD":
            return []
        self._character("<")
        found = [self._option()]
        while self._is(","):
            self._character(",")
            found.append(self._option())
        self._character(">")
        return found

    def _option(self) -> tuple[object, ...]:
        name = self._take("KEYWORD").text
        if name in ("nop", "sackOK"):
            return (name,)
        if name in ("mss", "wscale"):
            return name, int(self._take("INTEGER").text)
        if name == "TS":
            value = self._after_keyword("val")
            echo = self._after_keyword("ecr")
            if value is None or echo is None:
                raise ScriptError("TS")
            return name, value, echo
        if name != "sack":
            raise ScriptError(f"option {name}")
        edges: list[object] = [name]
        while self._kind() == "INTEGER":
            left = int(self._take("INTEGER").text)
            self._character(":")
            edges += [left, int(self._take("INTEGER").text)]
        if len(edges) == 1:
            raise ScriptError("sack without blocks")
        return tuple(edges)

    def _call(self) -> SystemCall:
        name = self._take("WORD").text
        self._character("(")
        arguments = [] if self._is(")") else self._expressions(")")
        self._character(")")
        self._character("=")
        result = int(self._take("INTEGER").text)
        error = ""
        if self._kind() == "WORD":
            error = self._take("WORD").text
            self._character("(")
            self._take("WORD")
            while self._kind() == "WORD":
                self._take("WORD")
            self._character(")")
        return SystemCall(self._now, name, arguments, result, error)

    def _expressions(self, until: str) -> list[object]:
        found = [self._expression()]
        while not self._is(until):
            self._character(",")
            found.append(self._expression())
        return found

    def _expression(self) -> object:
        if self._is("["):
            self._character("[")
            inner = self._expressions("]")
            self._character("]")
            return inner
        if self._is("{"):
            return self._linger()
        if self._kind() == "STRING":
            return self._take("STRING").text
        text = self._one_of("ELLIPSIS", "INTEGER", "HEX_INTEGER", "WORD").text
        while self._is("|"):
            self._character("|")
            text += "|" + self._take("WORD").text
        return text

    def _linger(self) -> dict[str, int]:
        values = {}
        for before, name in (("{", "onoff"), (",", "linger")):
            self._character(before)
            if self._take("KEYWORD").text != name:
                raise ScriptError(name)
            self._character("=")
            values[name] = int(self._take("INTEGER").text)
        self._character("}")
        return values

    def _kind(self) -> str:
        return self._tokens[self._at].kind if self._at < len(self._tokens) else "END"

    def _is(self, character: str) -> bool:
        return self._kind() == "CHARACTER" and self._tokens[self._at].text == character

    def _take(self, kind: str) -> Token:
        if self._kind() != kind:
            where = self._tokens[min(self._at, len(self._tokens) - 1)]
            raise ScriptError(f"line {where.line}: {kind} expected before {where.text!r}")
        self._at += 1
        return self._tokens[self._at - 1]

    def _one_of(self, *kinds: str) -> Token:
        return self._take(self._kind() if self._kind() in kinds else kinds[0])

    def _character(self, character: str) -> None:
        if not self._is(character):
            self._take(f"'{character}'")
        self._at += 1


def parse(text: str) -> PacketScript:
    """The script.  Raises ScriptError."""
    return Parser(text).script()
