"""Which values of a result are absent, as the validity bits of Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.schema import Schema

_DIGITS = bytes([48, *[49] * 255])  # a byte as a binary digit: whether it is not 0


class AbsentValues:
    """What the columns of ``schema`` say about the fields of ``shown``: see `Field.present`."""

    def __init__(self, schema: Schema, shown: Schema) -> None:
        self._marks = {shown.index(f.name): schema.index(f.present) for f in shown.fields if f.present in schema}

    def valid(self, block: Block, picks: Picks | None) -> dict[int, bytes]:
        """The validity bits of the columns of ``shown`` that have absent values, for a block of ``schema``."""
        out: dict[int, bytes] = {}
        if self._marks and picks is not None:
            block = block.take(picks)
        for column, mark in self._marks.items():
            data = bytes(block.buffer(mark))
            if 0 in data:
                out[column] = validity(data)
        return out


def validity(marks: bytes) -> bytes:
    """The validity bits of values: 0 where a byte of ``marks`` is 0."""
    return int(marks.translate(_DIGITS)[::-1], 2).to_bytes((len(marks) + 7) // 8, "little")
