"""Output of records: format, fields, destination."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from confluo_tools.console import colour, is_terminal, printable, state, warn
from confluo_tools.errors import UsageError
from confluo_tools.formats.registry import BY_NAME, COMPRESSED, OUTPUTS, SUFFIXES, either, output_formats

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.formats.anonymize import AnonymousRecords
    from confluo_tools.schema import Schema

RECORD_FORMATS = tuple(name for name, _ in output_formats(""))  # formats of all records
LOG_SUFFIX = ".ml"
PICTURES = ("svg", "html", "png", "pdf", "jpg", "jpeg", "gif", "webp", "htm")  # suffixes that are not of records
NO_PICTURES: tuple[str, ...] = ()
CHARTS = ("svg", "html", "spark")  # pictures of groups
PACKET_FORMATS = tuple(name for name, _ in output_formats("packet"))  # and of packets


def choose_format(
    flag: str | None,
    *,
    tsv: bool = False,
    ndjson: bool = False,
    path: str | None = None,
    answers: bool = False,
    formats: tuple[str, ...] = RECORD_FORMATS,
) -> str:
    """The output format: that of the flags, else of the file's suffix, else the setting, else the default.

    The default is a table on a terminal; otherwise a stream, or TSV for ``answers`` (records of a computed result).
    Raises UsageError for a format that is not one of ``formats``, for a suffix that names none, and for a binary format
    that would go to a terminal.
    """
    from confluo_tools import config

    chosen = [f for f in (flag, "tsv" if tsv else None, "ndjson" if ndjson else None) if f is not None]
    if len(chosen) > 1:
        raise UsageError("one output format is enough", hint="-o, -T and -J exclude each other")
    to_file = path not in (None, "-")
    if chosen:
        name = _supported(chosen[0], "-o", formats)
        if not to_file and name in BY_NAME and BY_NAME[name].binary and is_terminal(1):
            hint = "write it to a file with -w FILE, or pipe it to a program"
            raise UsageError(f"{name} is not for a terminal", where=f"-o {name}", hint=hint)
        return name
    if to_file:
        suffix = _suffix(str(path))
        if suffix in SUFFIXES:
            return _supported(SUFFIXES[suffix], f"-w {path}", formats)
        if (suffix or _without_compression(str(path)) != path) and not _is_device(str(path)):
            raise _unknown_suffix(str(path), suffix, formats)
    terminal = not to_file and is_terminal(1)
    setting = config.text("format")
    if setting and not (terminal and BY_NAME[setting].binary):
        return _supported(setting, "setting 'format'", formats)
    if terminal:
        return "table"
    return "tsv" if answers else "stream"


def picture_format(
    path: str | None, pictures: tuple[str, ...], *, flag: str | None = None, text: bool = False, where: str = "-w"
) -> str | None:
    """The one of ``pictures`` (names of formats) that the flag or the suffix of a file names; None: records.

    ``text``: flags name a text format.  Raises UsageError, at the option ``where``, for the suffix of another picture:
    it would not hold one.
    """
    if text or flag is not None:
        return flag if flag in pictures and not text else None
    suffix = _suffix(path or "")[1:]
    if suffix in pictures:
        return suffix
    if suffix in PICTURES:
        hint = f"use {either(tuple(f'.{name}' for name in pictures if name in PICTURES))}"
        raise UsageError(f"cannot write .{suffix}", where=f"{where} {path}", hint=hint)
    return None


def _suffix(path: str) -> str:
    """The suffix that names a format: of x.tsv.gz it is .tsv."""
    return os.path.splitext(_without_compression(path.rstrip("/")))[1].lower()


def _without_compression(path: str) -> str:
    stem, last = os.path.splitext(path)
    return stem if last.lower() in COMPRESSED else path


def compression_of(path: str | None, fmt: str) -> str:
    """How the file is compressed, by the last part of its name; '' for not at all.

    Raises UsageError for formats that are compressed inside, and read from any place.
    """
    kind = COMPRESSED.get(os.path.splitext(path or "")[1].lower(), "")
    if kind and fmt in ("arrow", "parquet"):
        raise UsageError(
            f"{fmt} is not compressed as a whole", where=f"-w {path}", hint="write .parquet, which is compressed inside"
        )
    return kind


def _is_device(path: str) -> bool:
    """Whether ``path`` is /dev/null, a FIFO and the like."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _unknown_suffix(path: str, suffix: str, formats: tuple[str, ...]) -> UsageError:
    """An error that says what to write instead of ``path``."""
    known = [s for s, name in SUFFIXES.items() if name in formats]
    known += [LOG_SUFFIX] if "multilog" in formats else []
    hint = f"use {either(tuple(known))}, or name the format with -o"
    if os.path.splitext(path)[1].lower() in COMPRESSED:
        hint = f"write the format before it, as in x.tsv{os.path.splitext(path)[1]}, or name it with -o"
    elif suffix == LOG_SUFFIX:
        hint = "confluo-convert writes a MultiLog"
    last = os.path.splitext(path)[1]
    return UsageError(f"suffix '{last}' does not name an output format", where=f"-w {path}", hint=hint)


def _supported(name: str, where: str, formats: tuple[str, ...]) -> str:
    if name not in formats:
        what = f"cannot write {name}" if name in OUTPUTS else f"unknown output format '{name}'"
        raise UsageError(what, where=where, hint=f"use {either(formats)}")
    return name


def is_log_output(output: str | None, format: str | None, *, tsv: bool, ndjson: bool) -> bool:
    """Whether -w names a MultiLog: any path without a suffix or with .ml but - and devices, unless -o names a format.

    So is a MultiLog that exists, by any name.  Raises UsageError for other suffixes.
    """
    if format == "multilog":
        if output in (None, "-"):
            raise UsageError("a MultiLog is a folder", where="-o multilog", hint="name it with -w LOG")
        return True
    if output is None or output == "-" or format is not None or tsv or ndjson:
        return False
    suffix = _suffix(output)
    if suffix in SUFFIXES or _is_device(output):
        return False
    compressed = _without_compression(output) != output
    if (compressed or suffix not in ("", LOG_SUFFIX)) and not os.path.isdir(output):
        raise _unknown_suffix(output, suffix, (*RECORD_FORMATS, "multilog"))
    return True


def only_for_logs(options: Mapping[str, object]) -> None:
    """Raise UsageError if any of ``options`` {name: value} was given: they need a MultiLog as output."""
    for option, given in options.items():
        if given:
            raise UsageError(f"{option} is for a MultiLog", hint="write one with -w LOG")


def choose_fields(text: str | None, schema: Schema) -> list[str] | None:
    """The field names of ``ts,src_ip,tcp_*`` or ``-payload_len,-raw``; None: all."""
    from confluo_tools.schema import choose

    return choose.choose_fields(text, schema)


def list_fields(schema: Schema) -> str:
    """A table of the fields: name, type, unit, meaning."""
    rows = [("FIELD", "TYPE", "UNIT", "MEANING")]
    rows += [(f.name, f.type.text, f.unit, f.description) for f in map(schema.__getitem__, schema.shown)]
    widths = [max(len(r[i]) for r in rows) for i in range(3)]
    lines = ["  ".join([*(c.ljust(w) for c, w in zip(r, widths, strict=False)), r[3]]).rstrip() for r in rows]
    return "\n".join(map(printable, lines))  # a schema may come from an untrusted file


def command_line() -> str:
    """The command line as it is kept in the history of a log."""
    from shlex import quote

    words = [w.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for w in state.argv]
    return " ".join([state.prog, *(quote(w) for w in words)])


class RecordOutput:
    """Context manager that writes records to a file or stdout; an error inside it leaves no partial file.

    ``readable``: of Arrow data, see `ArrowFileWriter`; None: of Parquet.  ``human``: of tables.
    ``anonymous``: makes records with ``schema`` anonymous; the output then has no history and no name of the host.
    ``rows``: rows written; ``to_stdout``: not to a file.  ``flush_each``: flush after each block (-l, a terminal).
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
        synthesize: bool = False,
        readable: bool | None = None,
        human: bool = False,
        anonymous: AnonymousRecords | None = None,
    ) -> None:
        from confluo_tools import config
        from confluo_tools.formats.output_file import open_sink
        from confluo_tools.formats.registry import output_format
        from confluo_tools.formats.writers import open_writer

        takes = output_format(fmt).writer_options
        _only_for("--synthesize", synthesize, "synthesize", takes)
        _only_for("--readable", readable is not None, "readable", takes)
        _only_for("--human", human, "human", takes)
        terminal = path in (None, "-") and is_terminal(1)
        width = None
        if "width" in takes and not wide:
            from confluo_tools.formats.table import PIPE_WIDTH, screen_width

            width = screen_width() if terminal else PIPE_WIDTH
        frames = "anonymize" in takes and not synthesize  # the writer rewrites packets
        self._anonymous = None if frames else anonymous
        if self._anonymous is not None:
            schema = self._anonymous.schema
        if "metadata" in takes:
            metadata = {"confluo:kind": schema.kind} if anonymous is not None else _metadata(schema, metadata or {})
        self.rows = 0
        self.flush_each = config.truth("line_buffered", line_buffered) or terminal
        self.to_stdout = path in (None, "-")
        compression = compression_of(path, fmt)
        self._sink = open_sink(path, force=config.truth("clobber", force), compression=compression)
        try:
            self._writer = open_writer(
                fmt,
                schema,
                self._sink,
                fields=fields,
                metadata=metadata,
                header=header,
                numeric=numeric,
                width=width,
                styled="styled" in takes and not path and colour(1, color),
                terminal=terminal,
                local=config.truth("local", local),
                sources=sources,
                synthesize=synthesize,
                readable=fmt == "parquet" if readable is None else readable,
                human=human,
                anonymize=anonymous.choice if anonymous is not None and frames else None,
                warn=warn,
            )
        except BaseException:
            self._sink.abort()
            raise

    def write(self, block: Block, picks: Picks | None = None) -> None:
        if self._anonymous is not None:
            block, picks = self._anonymous.block(block, picks), None
        self._writer.write(block, picks)
        self.rows += block.rows if picks is None else len(picks)
        if self.flush_each:
            self._sink.flush()

    def write_nullable(self, block: Block, valid: Mapping[int, bytes]) -> None:
        """Write a block with the validity bits of its columns by number: to a stream, an Arrow file or Parquet."""
        writer: Any = self._writer
        writer.write_nullable(block, valid)
        self.rows += block.rows
        if self.flush_each:
            self._sink.flush()

    def flush(self) -> None:
        """Make all rows written so far visible to the reader."""
        self._writer.flush()
        self._sink.flush()

    def fileno(self) -> int:
        return self._sink.fd

    def __enter__(self) -> RecordOutput:
        self._writer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self._sink.abort()
            return
        with self._sink:
            self._writer.close()


def _only_for(flag: str, given: bool, option: str, takes: Sequence[str]) -> None:
    """Raise UsageError for a flag of other formats.  ``takes``: the options of the writer."""
    if given and option not in takes:
        names = tuple(row.name for row in BY_NAME.values() if option in row.writer_options)
        raise UsageError(f"is for -o {' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))}", where=flag)


def _metadata(schema: Schema, inherited: Mapping[str, str]) -> dict[str, str]:
    from confluo_tools.formats.arrow import metadata_of

    return metadata_of(schema, inherited, command_line(), os.uname().nodename, "UTC, ns since 1970-01-01")
