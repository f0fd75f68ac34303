"""Rows as Arrow data: what each field of a schema becomes, and the columns of a block in that form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from confluo_tools.core.block.arrow_export import ArrowShape, TextColumn

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Column, Schema

TEXTUAL = ("ip", "ipv4", "mac", "enum", "flags", "text")
_FORMATS = "CSILcsilfg"  # by the codes 1 to 10 of physical types
_BYTES = 11

Exported = tuple["Block", Mapping[int, TextColumn]]


class ArrowForm:
    """The Arrow schema for rows of ``schema``, and its batches.

    Numbers are numbers, ``time`` is a timestamp (ns, UTC), ``duration`` a duration (ns), ``bytes`` and ``text`` are
    binary of a fixed size, lists are lists of a fixed size; an ``ip`` is two columns: see `confluo_tools.schema.types`.
    ``readable``: addresses, MACs, enums, flags and texts are UTF-8 texts, null if absent, in one column each.
    ``zone``: times have the time zone UTC.  ``read``: the schema of the blocks, if they have more columns behind.
    """

    def __init__(
        self,
        schema: Schema,
        metadata: Mapping[str, str],
        *,
        read: Schema | None = None,
        readable: bool = False,
        zone: bool = True,
    ) -> None:
        self.schema, self.read, self.readable = schema, read or schema, readable
        columns: list[tuple[str, str, int, int]] = []
        self._texts: dict[int, Callable[[Block], TextColumn]] = {}
        for field in schema.fields:
            first = schema.index(field.name)
            if readable and field.type.kind in TEXTUAL:
                columns.append((field.name, "u", 1, first))
                self._texts[first] = self._words(field.name, first, field.type.kind)
                continue
            columns += [(c.name, _format(c, zone), c.count, first + i) for i, c in enumerate(field.columns)]
        self.shape = ArrowShape(columns, _metadata(schema, metadata))

    def _words(self, name: str, first: int, kind: str) -> Callable[[Block], TextColumn]:
        if kind == "text":
            return lambda block: TextColumn.of_texts(block, first)
        from confluo_tools.core.text.text_writer import Printer
        from confluo_tools.formats.text import printing_plan

        printer = Printer(self.read.layout, printing_plan(self.read, [name], "tsv"), "tsv")
        return lambda block: TextColumn.of_lines(printer.lines(block), block.rows)

    def exported(self, block: Block) -> Exported:
        """The block and its columns of text by number."""
        return block, {column: make(block) for column, make in self._texts.items()}


def _format(column: Column, zone: bool) -> str:
    """The format of one element in the Arrow C data interface."""
    kind = column.field.type.element
    if column.code == _BYTES:
        return f"w:{column.size}"
    if kind == "time":
        return "tsn:UTC" if zone else "tsn:"
    return "tDn" if kind == "duration" else _FORMATS[column.code - 1]


def _metadata(schema: Schema, given: Mapping[str, str]) -> dict[str, str]:
    # The schema goes along, so that rows that come back (Writer, Arrow files, Parquet) have their types again.
    import json

    text = json.dumps(schema.as_dict(), separators=(",", ":"), ensure_ascii=False)
    kept = {name: value for name, value in given.items() if name.startswith("confluo:")}
    return kept | {"confluo:kind": schema.kind, "confluo:schema": text}
