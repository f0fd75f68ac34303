"""Paths in tables: names of switches instead of their numbers in records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Schema

SHOWN = ("src_ip", "src_port", "dst_ip", "dst_port", "lost", "notes", "way")
WIDTH = 250  # bytes of a way


class PathTable:
    """Records of the schema `path` with a field ``way``: the switches in order, ? for one that did not answer.

    ``names`` {number: name}; others are printed as addresses.
    """

    def __init__(self, path: Schema, names: Mapping[int, str]) -> None:
        from confluo_tools.schema import Field

        self.schema = path.plus([Field("way", f"text({WIDTH})", description="the switches")])
        self._names = names
        self._at = [path.layout.index(name) for name in ("hops", "path", "path6")]

    def of(self, block: Block) -> Block:
        from confluo_tools.core.block.block import Block

        ways = b"".join([self._way(block, row) for row in range(block.rows)])
        buffers: list[Any] = [block.buffer(i) for i in range(block.layout.n)]
        return Block.wrap(self.schema.layout, block.rows, [*buffers, ways])

    def _way(self, block: Block, row: int) -> bytes:
        hops, path, packed = (block.get(i, row) for i in self._at)
        names = [self._name(path[i], packed[16 * i : 16 * i + 16]) for i in range(min(hops, len(path)))]
        text = " ".join(names).encode()[:WIDTH].decode("utf-8", "ignore")  # cut between characters
        return text.encode().ljust(WIDTH, b"\0")

    def _name(self, number: int, packed: bytes) -> str:
        from confluo_tools import units

        if number == 0:
            return "?"
        if number in self._names:
            return self._names[number]
        return units.format_ip6(packed) if any(packed) else units.format_ip4(number)
