"""Writers of records: one function that opens each output format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from confluo_tools.formats.registry import load, output_format

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.formats.anonymize import AnonymizeChoice
    from confluo_tools.schema import Schema


class FormatWriter(Protocol):
    """Writes blocks in one format.

    ``flush`` writes buffered rows to the sink; ``close`` ends the output, but leaves the sink open.
    """

    def start(self) -> None: ...
    def write(self, block: Block, picks: Picks | None = None) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def open_writer(
    format: str,
    schema: Schema,
    out: Any,
    *,
    fields: Sequence[str] | None = None,
    header: bool = True,
    numeric: bool = False,
    metadata: Mapping[str, str] | None = None,
    width: int | None = 79,
    styled: bool = False,
    terminal: bool = False,
    local: bool = False,
    sources: Sequence[str] = (),
    synthesize: bool = False,
    readable: bool = False,
    human: bool = False,
    anonymize: AnonymizeChoice | None = None,
    warn: Callable[[str], None] | None = None,
) -> FormatWriter:
    """A writer of rows of ``schema`` to ``out``, which has ``write`` and ``writev``.

    A format takes those of these options that its row in the registry names, and ignores the others:
    ``fields``: names in output order, None for all.  ``header``, ``numeric``: text and tables.
    ``metadata``: stream, arrow, parquet.  ``readable``: the same, with addresses and names as text.
    ``terminal``: tsv, csv, ndjson, whether a terminal shows them.  ``width``, ``styled``, ``local``, ``human``: tables.
    ``sources``: pcap, the captures that contain the packets.
    ``synthesize``: pcap, build headers from the fields.  ``anonymize``: pcap, how packets are rewritten.

    Raises UsageError for an unknown format.
    """
    row = output_format(format)
    options: dict[str, Any] = {
        "format": format,
        "fields": fields,
        "header": header,
        "numeric": numeric,
        "metadata": metadata,
        "width": width,
        "styled": styled,
        "terminal": terminal,
        "local": local,
        "sources": sources,
        "synthesize": synthesize,
        "readable": readable,
        "human": human,
        "anonymize": anonymize,
        "warn": warn,
    }
    chosen = {name: options[name] for name in row.writer_options}
    writer: FormatWriter = load(row.writer)(schema=schema, out=out, **chosen)
    return writer
