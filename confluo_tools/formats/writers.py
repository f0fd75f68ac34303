"""Every output format behind one door."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.schema import Schema

FORMATS = ("table", "tsv", "csv", "ndjson", "stream", "arrow", "parquet", "pcap")
BINARY = ("stream", "arrow", "parquet", "pcap")


class Writer(Protocol):
    """Rows out.  ``flush`` hands over what was gathered; ``close`` ends the output, but not the sink below."""

    def start(self) -> None: ...
    def write(self, block: Block, picks: Picks | None = None) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def open_writer(
    fmt: str,
    schema: Schema,
    out: Any,
    *,
    fields: Sequence[str] | None = None,
    header: bool = True,
    numeric: bool = False,
    metadata: Mapping[str, str] | None = None,
    width: int | None = 79,
    styled: bool = False,
    local: bool = False,
    sources: Sequence[str] = (),
    readable: bool = False,
    warn: Callable[[str], None] | None = None,
) -> Writer:
    """A writer of rows of ``schema`` to ``out``, which has ``write`` and ``writev``.

    ``fields``: names in the order wanted, None for all.  ``header``, ``numeric``: text and tables.
    ``metadata``: stream, arrow, parquet.  ``readable``: arrow and parquet, with addresses and names as text.
    ``width``, ``styled``, ``local``: tables.
    ``sources``: pcap, the captures that the packets are taken from.  Raises UsageError for an unknown format.
    """
    if fmt == "stream":
        from confluo_tools.formats.arrow import StreamWriter

        return StreamWriter(schema, out, fields=fields, metadata=metadata)
    if fmt in ("tsv", "csv", "ndjson"):
        from confluo_tools.formats.text import TextWriter

        return TextWriter(fmt, schema, out, fields=fields, header=header, numeric=numeric)
    if fmt == "table":
        from confluo_tools.formats.table import TableWriter

        return TableWriter(
            schema, out, fields=fields, header=header, numeric=numeric, width=width, styled=styled, local=local
        )
    if fmt in ("arrow", "parquet"):
        from confluo_tools.formats.parquet import ArrowFileWriter

        return ArrowFileWriter(fmt, schema, out, fields=fields, metadata=metadata, readable=readable)
    if fmt == "pcap":
        from confluo_tools.formats.pcap_out import PcapWriter

        return PcapWriter(schema, out, sources=sources, warn=warn)
    raise UsageError(f"no output format '{fmt}'", hint=f"there are {', '.join(FORMATS)}")
