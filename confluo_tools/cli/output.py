"""Where a command's rows go: the format, the fields, the file or the terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from confluo_tools.cli.state import colour, is_terminal, printable, state, warn
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block import Block, Picks
    from confluo_tools.schema import Schema

SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".arrows": "stream", ".tsv": "tsv", ".txt": "tsv", ".csv": "csv",
            ".ndjson": "ndjson", ".jsonl": "ndjson", ".pcap": "pcap"}  # fmt: skip


def choose_format(
    flag: str | None, *, tsv: bool = False, ndjson: bool = False, path: str | None = None, answers: bool = False
) -> str:
    """The output format: what the flags say, else the setting, else the file's suffix, else by what stdout is.

    On a terminal a table; else records flow as a stream and answers as TSV.  Only a flag sends bytes that no
    person can read to a terminal.
    """
    from confluo_tools import config
    from confluo_tools.formats.writers import BINARY, FORMATS

    chosen = [f for f in (flag, "tsv" if tsv else None, "ndjson" if ndjson else None) if f is not None]
    if len(chosen) > 1:
        raise UsageError("one output format is enough", hint="-o, -T and -J exclude each other")
    if chosen:
        if chosen[0] not in FORMATS:
            raise UsageError(f"no output format '{chosen[0]}'", where="-o", hint=f"there are {', '.join(FORMATS)}")
        return chosen[0]
    to_file = path not in (None, "-")
    if to_file:
        suffix = os.path.splitext(str(path))[1].lower()
        if suffix in SUFFIXES:
            return SUFFIXES[suffix]
    terminal = not to_file and is_terminal(1)
    setting = config.text("format")
    if setting and not (terminal and setting in BINARY):
        return setting
    if terminal:
        return "table"
    return "tsv" if answers else "stream"


def is_log_output(output: str | None, format: str | None, *, tsv: bool, ndjson: bool) -> bool:
    """Whether -w names a MultiLog: anything but - and devices, unless -o or the suffix says that it is a file."""
    if format == "multilog":
        if output in (None, "-"):
            raise UsageError("a MultiLog is a folder", where="-o multilog", hint="name it with -w LOG")
        return True
    if output is None or output == "-" or format is not None or tsv or ndjson:
        return False
    if os.path.splitext(output)[1].lower() in SUFFIXES:
        return False
    return os.path.isdir(output) or os.path.isfile(output) or not os.path.exists(output)  # else /dev/null, a FIFO


def only_for_logs(options: Mapping[str, object]) -> None:
    """Raises UsageError for the first of ``options`` {name: what was given}: no MultiLog is written."""
    for option, given in options.items():
        if given:
            raise UsageError(f"{option} is for a MultiLog", hint="write one with -w LOG")


def choose_fields(text: str | None, schema: Schema) -> list[str] | None:
    """``ts,src_ip,tcp_*`` or ``-payload_len,-raw`` as names; None for all."""
    from confluo_tools.schema import choose

    return choose.choose_fields(text, schema)


def list_fields(schema: Schema) -> str:
    """The fields with types, units and meaning, as lines."""
    rows = [("FIELD", "TYPE", "UNIT", "MEANING")]
    rows += [(f.name, f.type.text, f.unit, f.description) for f in schema.fields]
    widths = [max(len(r[i]) for r in rows) for i in range(3)]
    lines = ["  ".join([*(c.ljust(w) for c, w in zip(r, widths, strict=False)), r[3]]).rstrip() for r in rows]
    return "\n".join(map(printable, lines))  # a schema may come from anybody


def command_line() -> str:
    """This command as the history keeps it."""
    from shlex import quote

    words = [w.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for w in state.argv]
    return " ".join([state.prog, *(quote(w) for w in words)])


class RecordOutput:
    """A context: rows in, bytes out.  ``rows`` counts them; leaving it with an error leaves no half file.

    ``flush_each``: hand every block over at once (-l, a terminal).
    """

    def __init__(
        self,
        schema: Schema,
        fmt: str,
        *,
        path: str | None = None,
        force: bool = False,
        fields: Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        header: bool = True,
        numeric: bool = False,
        wide: bool = False,
        local: bool = False,
        line_buffered: bool = False,
        color: str | None = None,
        sources: Sequence[str] = (),
        readable: bool = False,
    ) -> None:
        from confluo_tools import config
        from confluo_tools.formats.writers import open_writer
        from confluo_tools.sinks.file import open_sink

        terminal = path in (None, "-") and is_terminal(1)
        width = None
        if fmt == "table" and not wide:
            from confluo_tools.formats.table import screen_width

            width = screen_width() if terminal else 79
        if fmt in ("stream", "arrow", "parquet"):
            metadata = _metadata(schema, metadata or {})
        self.rows = 0
        self.flush_each = config.truth("line_buffered", line_buffered) or terminal
        self._sink = open_sink(path, force=config.truth("clobber", force))
        try:
            self._writer = open_writer(
                fmt, schema, self._sink, fields=fields, metadata=metadata, header=header, numeric=numeric,
                width=width, styled=fmt == "table" and not path and colour(1, color),
                local=config.truth("local", local), sources=sources, readable=readable, warn=warn,
            )  # fmt: skip
        except BaseException:
            self._sink.abort()
            raise

    def write(self, block: Block, picks: Picks | None = None) -> None:
        self._writer.write(block, picks)
        self.rows += block.rows if picks is None else len(picks)
        if self.flush_each:
            self._sink.flush()

    def flush(self) -> None:
        """Everything so far can be seen by whoever reads on."""
        self._writer.flush()
        self._sink.flush()

    def __enter__(self) -> RecordOutput:
        self._writer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self._sink.abort()
            return
        try:
            self._writer.close()
            self._sink.close()
        except BaseException:
            self._sink.abort()
            raise


def _metadata(schema: Schema, inherited: Mapping[str, str]) -> dict[str, str]:
    from confluo_tools.formats.arrow import metadata_of

    return metadata_of(schema, inherited, command_line(), os.uname().nodename, "UTC, ns since 1970-01-01")

