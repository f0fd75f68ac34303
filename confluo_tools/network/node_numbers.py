"""Numbers of nodes in records: a plain number below 2^24, an address, or a free number assigned to a name."""

from __future__ import annotations

from typing import Any

from confluo_tools.errors import FormatError
from confluo_tools.network.topology import PLAIN, ZERO
from confluo_tools.schema.types import fold6
from confluo_tools.units import try_ip4, try_ip6

MAX_NODES = 1 << 21
MAX_LINKS = 1 << 23
MAX_BYTES = 256 << 20  # of a topology file
MAX_YAML_NODES = 1 << 25


def read_number(word: str) -> int | None:
    """The number of a node that is written as a number below 2^24 or as an address; None for other words.

    0 becomes 2^24 - 1, because a 0 in a path is a hop that did not answer.
    """
    if word.isascii() and word.isdigit() and len(word) < 9:
        number = int(word)
        return (number or ZERO) if number < PLAIN else None
    four = try_ip4(word)
    if four is not None:
        return four or None  # 0.0.39.16 is how an address field writes node 10000
    six = try_ip6(word) if ":" in word else None
    return None if six is None else fold6(six)


def word_of(path: str, value: Any) -> str:
    """A name, a number or an address as text.  Raises FormatError for a list or a mapping.

    Never the text of a whole tree: with YAML anchors a small file can describe an endless one.
    """
    if isinstance(value, list | dict | set) or value is None:
        raise FormatError("has a list, a mapping or nothing where a name is expected", where=path)
    return str(value)[:256]


class NodeNumbers:
    """Names of nodes and their numbers.  A name that is not a number or an address gets the next free number.

    ``names`` {number: name}; ``texts`` {number of an address: the address as it is written}.
    """

    def __init__(self, path: str, known: dict[str, int]) -> None:
        self.path, self.known = path, known
        self.names = {number: name for name, number in known.items()}
        self.texts: dict[int, str] = {}
        self._next = 1

    def add(self, name: str, wanted: Any = None) -> int:
        """The number of a node; ``wanted``: its 'number', if the file gives one.  Raises FormatError."""
        if name in self.known:
            return self.known[name]
        number = read_number(name if wanted is None else word_of(self.path, wanted))
        if wanted is not None and number is None:
            what = f"number '{word_of(self.path, wanted)}' of '{name}' is neither below 16777216 nor an address"
            raise FormatError(what, where=self.path)
        if number is not None and wanted is not None:
            self.texts.setdefault(number, word_of(self.path, wanted))
        if number is None:
            while self._next in self.names:
                self._next += 1
            number = self._next
        if self.names.setdefault(number, name) != name:
            raise FormatError(
                f"'{name}' and '{self.names[number]}' have the same number {number}",
                where=self.path,
                hint="give one of them another with 'number:'",
            )
        if len(self.names) > MAX_NODES:
            raise FormatError(f"has more than {MAX_NODES} nodes", where=self.path)
        self.known[name] = number
        return number

    def address(self, word: str) -> int:
        """The number of an address.  Raises FormatError for other words."""
        number = read_number(word)
        if number is None or (number < PLAIN and ":" not in word):  # of IPv6, it is a hash: any number
            raise FormatError(f"'{word[:60]}' is not an address", where=self.path)
        self.texts[number] = word
        return number
