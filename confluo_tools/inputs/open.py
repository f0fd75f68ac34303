"""Inputs of a command: any format, from files, pipes and folders, as one sequence of blocks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.console import is_terminal, note, say, state, tell, warn
from confluo_tools.errors import FormatError, UsageError
from confluo_tools.inputs.logs import open_logs, places, remote
from confluo_tools.inputs.topics import is_topic, open_topic
from confluo_tools.objects.address import is_url

if TYPE_CHECKING:
    from confluo_tools.formats.bytestream import ByteStream
    from confluo_tools.formats.reader import Reader
    from confluo_tools.kafka.log_offsets import LogOffsets
    from confluo_tools.remote.request import QueryRequest
    from confluo_tools.schema import Schema


def no_input(inputs: Sequence[str]) -> bool:
    """Whether there is no input: none was given, and stdin is a terminal."""
    return not inputs and is_terminal(0)


def usage(app: Any) -> int:
    """Print usage and examples on stderr, for a command without arguments; returns exit status 2."""
    import typer

    command: Any = typer.main.get_command(app)
    with command.make_context(state.prog, [], resilient_parsing=True) as context:
        say(command.short_help_text(context))
    return 2


def open_records(
    inputs: Sequence[str],
    *,
    input_format: str | None = None,
    schema: Schema | None = None,
    types: Schema | None = None,
    request: QueryRequest | None = None,
    at: str | None = None,
    partial: bool = False,
    follow: bool = False,
    group: str | None = None,
    offsets: LogOffsets | None = None,
) -> Reader:
    """Open any inputs as one Reader: MultiLogs here and elsewhere, Arrow, Parquet, captures, TSV, CSV, NDJSON.

    No input means stdin.
    ``input_format``: instead of detection.  ``schema``: the fields to read; ``types``: of fields with its names;
    both are for text and for the files of other programs.
    ``request``: the query, for inputs on other hosts.  ``at``: a snapshot file, instead of inputs.
    ``follow``, ``group``, ``offsets``: of a topic, see `TopicReader`.
    Several inputs that are all logs and archives are merged by time; others come one after the other, as rows of the
    first.
    Problems that are not fatal are printed and make the exit status 2.
    """
    if at is not None:
        from confluo_tools.inputs.logs import places_at
        from confluo_tools.multilog.snapshot import Snapshot

        return open_logs(places_at(Snapshot.load(at), at), request, host=True, partial=partial)
    names = list(inputs) or ["-"]
    if any(is_topic(name) for name in names):
        lines = {"input_format": input_format, "schema": schema, "types": types}
        return open_topic(names, request, follow=follow, group=group, offsets=offsets, **lines)  # type: ignore[arg-type]
    if group is not None:
        raise UsageError("is for a topic of Kafka", where="--group", hint="read kafka://HOST:PORT/NAME")
    if names.count("-") > 1:
        raise UsageError("standard input can be read only once")
    elsewhere = [remote(name) is not None for name in names]
    if any(elsewhere) or len(names) > 1:
        from confluo_tools.formats import detect

        logs = [
            far or input_format or detect.is_multilog(name) or detect.is_archive(name)
            for far, name in zip(elsewhere, names, strict=True)
        ]
        if input_format in (None, "multilog") and all(logs):
            return open_logs(places(names), request, host=any(elsewhere) and len(names) > 1, partial=partial)
    first = open_one(names[0], input_format, schema, types)
    if len(names) == 1:
        return first
    from confluo_tools.formats.reader import Chain

    return Chain(first, names[1:], lambda path: open_one(path, input_format, schema, types), warn)


def open_one(
    path: str, input_format: str | None = None, schema: Schema | None = None, types: Schema | None = None
) -> Reader:
    """One input.  Raises FormatError if its first bytes are of no known format."""
    from confluo_tools.formats import detect, registry

    if input_format is not None:
        registry.input_format(input_format)  # raises for an unknown one
    if remote(path) is not None:
        return open_logs(places([path]))
    if input_format is None and detect.is_folder(path) and detect.is_archive(path):
        from confluo_tools.multilog.archive.reader import ArchiveReader

        return ArchiveReader(path, warn=warn, note=note)
    if input_format == "multilog" and is_url(path):
        raise UsageError("a MultiLog is not in an object store", where=path, hint="name an archive, or a file")
    if input_format == "multilog" or detect.is_folder(path):
        from confluo_tools.multilog.open_log import open_log

        return open_log(path, archives=state.archives, warn=warn, note=note)
    from confluo_tools.formats.bytestream import open_bytes, sniff, unzip

    try:
        stream = open_bytes(path)
    except OSError as e:
        hint = "the URL of an archive ends with a slash" if is_url(path) and isinstance(e, FileNotFoundError) else ""
        raise FormatError(e.strerror or str(e), where=path, hint=hint) from None
    if path == "-":
        _check_readable(stream)
    head = sniff(stream, detect.PEEK)
    name = input_format or detect.detect(head)
    if not name:
        what = stream.damage or ("unknown format" if head else "is empty: it has no header")
        raise FormatError(what, where=stream.name, hint="" if stream.damage or not head else "-i FORMAT names it")
    row = registry.BY_NAME[name]
    if is_url(path) and not row.unzip:
        raise FormatError("a capture is not read from an object store", where=path, hint="copy it to this host first")
    types = schema if types is None else types
    options: dict[str, Any] = {
        "path": path,
        "format": name,
        "schema": schema,
        "types": types,
        "note": note,
        "tell": tell,
    }
    chosen = {option: options[option] for option in row.reader_options}
    reader: Reader = registry.load(row.reader)(stream=unzip(stream) if row.unzip else stream, warn=warn, **chosen)
    return reader


def analyzed(
    reader: Reader,
    specs: Sequence[str] | None,
    flows: int | None = None,
    states: str | None = None,
    *,
    sort: bool = False,
) -> Reader:
    """The input with the fields of --analyze, or the ``states`` after its rows; unchanged without either.

    ``sort``: by time, if the input is not in that order by itself.
    """
    if getattr(reader, "analyzed", False):  # on the host of the log
        return reader
    if sort and not reader.by_time:
        from confluo_tools.multilog.sorted_reader import SortedReader

        reader = SortedReader(reader)
    if not specs and states is None:
        return reader
    from confluo_tools.multilog.query.derived_fields import FLOWS, AnalyzedReader, StateReader

    if specs:
        reader = AnalyzedReader(reader, specs, flows=flows or FLOWS, warn=warn)
    return reader if states is None else StateReader(reader, states, flows=flows or FLOWS, warn=warn)


def capture_sources(
    given: Sequence[str] | None, inputs: Sequence[str], reader: Reader, synthesize: bool
) -> Sequence[str]:
    """The captures that have the packets of ``reader``: those of --source, else the input if it is a capture file."""
    if given or synthesize or len(inputs) != 1 or inputs[0] == "-" or "raw" in reader.schema:
        return given or ()
    return inputs if reader.format in ("pcap", "pcapng") and os.path.isfile(inputs[0]) else ()


def _check_readable(stream: ByteStream) -> None:
    import fcntl

    if fcntl.fcntl(stream.fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        raise FormatError("is closed", where=stream.name)
