"""Alias files: lines ``ADDRESS NAME`` as in hosts(5), which assign addresses to switches."""

from __future__ import annotations

from collections.abc import Mapping

from confluo_tools.errors import FormatError
from confluo_tools.formats.bytestream import read_whole
from confluo_tools.network.node_numbers import read_number
from confluo_tools.network.topology import PLAIN

MAX_BYTES = 64 << 20

__all__ = ["read_aliases"]


def read_aliases(path: str, known: Mapping[str, int] | None = None) -> tuple[dict[int, int], dict[int, str]]:
    """({number of an address: number of its switch}, {number of a switch: its name}).

    The number of a switch is the one in ``known`` for its name, the name itself if that is a number below 2^24, or the
    number of its first address in the file.  Raises FormatError, with the line.
    """
    data = read_whole(path, MAX_BYTES, "aliases")
    numbers = dict(known or {})
    alias: dict[int, int] = {}
    names: dict[int, str] = {}
    named: dict[int, str] = {}  # of addresses
    for at, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        address = read_number(words[0])
        if len(words) < 2 or address is None or address < PLAIN:
            raise FormatError(
                f"'{line.strip()[:60]}' is not an alias", where=f"{path}:{at}", hint="write 'ADDRESS NAME'"
            )
        name = words[1]
        node = numbers.get(name)
        if node is None:
            plain = read_number(name) if name.isascii() and name.isdigit() else None
            node = numbers[name] = address if plain is None else plain
        if named.setdefault(address, name) != name:
            raise FormatError(f"{words[0]} belongs to '{name}' and to '{named[address]}'", where=f"{path}:{at}")
        alias[address], names[node] = node, name
    return alias, names
