"""Inputs of a command: any format, from files, pipes and folders, as one sequence of blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluo_tools.console import is_terminal, note, say, state, tell, warn
from confluo_tools.errors import ConfluoError, FormatError, UsageError
from confluo_tools.inputs.logs import open_logs, places, remote
from confluo_tools.inputs.topics import is_topic, open_topic
from confluo_tools.objects.address import is_url

if TYPE_CHECKING:
    from confluo_tools.formats.bytestream import ByteStream
    from confluo_tools.formats.growing import Place
    from confluo_tools.formats.reader import Reader
    from confluo_tools.kafka.log_offsets import LogOffsets
    from confluo_tools.remote.request import QueryRequest
    from confluo_tools.schema import Schema
    from confluo_tools.schema.likely_schema import LikelySchema

ONLY_FOREIGN = "it is for text, and for Arrow and Parquet of other programs"
WHOLE = ("arrow", "parquet")  # formats of files that are complete when they are there


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
    schema: Schema | LikelySchema | None = None,
    types: Schema | None = None,
    request: QueryRequest | None = None,
    at: str | None = None,
    partial: bool = False,
    telemetry: bool = False,
    digest: bool = False,
    follow: bool = False,
    group: str | None = None,
    offsets: LogOffsets | None = None,
    place: Place | None = None,
    rename: Mapping[str, str] | None = None,
    path_fields: Sequence[str] = (),
) -> Reader:
    """Open any inputs as one Reader: MultiLogs here and elsewhere, Arrow, Parquet, captures, TSV, CSV, NDJSON.

    No input means stdin.
    ``input_format``: instead of detection.  ``schema``: the fields to read; ``types``: of fields with its names;
    ``rename``: new names by old ones; these are for text and for the files of other programs.
    ``request``: the query, for inputs on other hosts.  ``at``: a snapshot file, instead of inputs.
    ``telemetry``, ``digest``: of captures, also the fields of in-band telemetry, the digest of each packet.
    ``path_fields``: of archives, see `named_fields`.
    ``follow``, ``group``, ``offsets``, ``place``: of a topic, see `open_topic`.
    Several inputs that are all logs and archives are merged by time; others come one after the other, as rows of the
    first.
    Problems that are not fatal are printed and make the exit status 2.
    """
    if at is not None:
        from confluo_tools.inputs.logs import places_at
        from confluo_tools.multilog.snapshot import Snapshot

        return open_logs(places_at(Snapshot.load(at), at), request, host=True, partial=partial)
    names = list(inputs) or ["-"]
    if rename and any(is_topic(name) for name in names):
        raise UsageError("is not for topics", where="--rename", hint=ONLY_FOREIGN)
    if any(is_topic(name) for name in names):
        lines = {"input_format": input_format, "schema": schema, "types": types}
        chosen = {"follow": follow, "group": group, "offsets": offsets, "place": place}
        return open_topic(names, request, **chosen, **lines)  # type: ignore[arg-type]
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
        if input_format in (None, "multilog") and all(logs) and not rename:
            host = any(elsewhere) and len(names) > 1
            return open_logs(places(names), request, host=host, partial=partial, path_fields=path_fields)
    first = open_one(names[0], input_format, schema, types, rename, path_fields=path_fields)
    first = with_more_fields(first, telemetry=telemetry, digest=digest)
    if len(names) == 1:
        return first
    from confluo_tools.formats.reader import Chain

    def opened(path: str) -> Reader:
        reader = open_one(path, input_format, schema, types, rename)
        return with_more_fields(reader, telemetry=telemetry, digest=digest)

    whole = _with_names(first, names[1:], lambda path: open_one(path, input_format, schema, types, rename, quiet=True))
    return Chain(first, names[1:], opened, warn, whole)


def _with_names(first: Reader, rest: Sequence[str], opened: Callable[[str], Reader]) -> Schema:
    # The schema of the first input with names of values that only later files have.
    whole = first.schema
    if first.format not in (*WHOLE, "stream") or not any(field.names for field in whole.fields):
        return whole
    from confluo_tools.schema.renumber import shared_names

    for path in filter(os.path.isfile, rest):
        with suppress(ConfluoError), opened(path) as reader:  # reading it will fail, too
            whole = shared_names(whole, reader.schema)
    return whole


def with_more_fields(reader: Reader, *, telemetry: bool, digest: bool) -> Reader:
    """``reader``; of a capture, also the fields of in-band ``telemetry``, and the ``digest`` of each packet."""
    if (telemetry or digest) and reader.format in ("pcap", "pcapng"):
        from confluo_tools.formats.pcap import packet_schema
        from confluo_tools.formats.pcap.reader import CaptureReader

        if isinstance(reader, CaptureReader):
            reader.fill(packet_schema(telemetry=telemetry, digest=digest))
    return reader


def open_one(
    path: str,
    input_format: str | None = None,
    schema: Schema | LikelySchema | None = None,
    types: Schema | None = None,
    rename: Mapping[str, str] | None = None,
    *,
    stream: ByteStream | None = None,
    path_fields: Sequence[str] = (),
    quiet: bool = False,
) -> Reader:
    """One input.  Raises FormatError if its first bytes are of no known format.

    ``stream``: its bytes, if it is a file that is open already.  ``path_fields``: of an archive.
    ``quiet``: print nothing of a file; it will be opened once more.
    """
    from confluo_tools.formats import detect, registry

    if input_format is not None:
        registry.input_format(input_format)  # raises for an unknown one
    if rename and (remote(path) is not None or input_format == "multilog" or detect.is_folder(path)):
        raise UsageError(f"{path}: is not for logs", where="--rename", hint=ONLY_FOREIGN)
    if remote(path) is not None:
        return open_logs(places([path]))
    if input_format is None and detect.is_folder(path) and detect.is_archive(path):
        from confluo_tools.multilog.archive.reader import ArchiveReader

        return ArchiveReader(path, path_fields=path_fields, warn=warn, note=note)
    if input_format == "multilog" and is_url(path):
        raise UsageError("a MultiLog is not in an object store", where=path, hint="name an archive, or a file")
    if input_format == "multilog" or detect.is_folder(path):
        from confluo_tools.multilog.open_log import open_log

        return open_log(path, archives=state.archives, warn=warn, note=note)
    from confluo_tools.formats.bytestream import open_bytes, sniff, unzip

    try:
        stream = open_bytes(path) if stream is None else stream
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
    if rename and "rename" not in row.reader_options:
        raise UsageError(f"{path}: is not for {name}", where="--rename", hint=ONLY_FOREIGN)
    if stream.growing and name in WHOLE:
        what = f"is {'an Arrow' if name == 'arrow' else 'a Parquet'} file, which does not grow"
        raise UsageError(what, where=path, hint="leave --follow and --cursor out")
    if is_url(path) and not row.unzip:
        raise FormatError("a capture is not read from an object store", where=path, hint="copy it to this host first")
    if types is None and "schema" not in row.reader_options:
        from confluo_tools.schema.likely_schema import plain

        types = plain(schema)
    options: dict[str, Any] = {
        "path": path,
        "format": name,
        "schema": schema,
        "types": types,
        "note": None if quiet else note,
        "tell": None if quiet else tell,
        "rename": rename,
    }
    chosen = {option: options[option] for option in row.reader_options}
    chosen |= {"stream": unzip(stream) if row.unzip else stream, "warn": _silent if quiet else warn}
    reader: Reader = registry.load(row.reader)(**chosen)
    return reader


def _silent(what: str) -> None:
    pass


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


def without_copies(reader: Reader, window: int, memory: int | None, *, sort: bool) -> Reader:
    """The packets of ``reader`` without those that were captured less than ``window`` ns before (--dedup).

    ``memory``: bytes; see `WithoutCopies`.  ``sort``: by time, if the input is not in that order by itself.
    """
    from confluo_tools.multilog.query.without_copies import WithoutCopies

    if sort and not reader.by_time:
        from confluo_tools.multilog.sorted_reader import SortedReader

        reader = SortedReader(reader)
    return WithoutCopies(reader, window, memory=memory, warn=warn, note=note)


def capture_sources(
    given: Sequence[str] | None, inputs: Sequence[str], reader: Reader, kind: str, *, synthesize: bool
) -> Sequence[str]:
    """The captures that have the packets of ``reader``: those of --source, else the inputs if all are capture files.

    Of one log on this host those that were read into it, by number, with '' for those that are not there.
    ``kind``: the output format; only captures have sources.
    """
    from confluo_tools.formats.registry import output_format

    if given or synthesize or "raw" in reader.schema or "sources" not in output_format(kind).writer_options:
        return given or ()
    numbered = {"file_offset", "file_number"} <= {*reader.schema.layout.names}
    if reader.format == "multilog" and numbered and len(inputs) == 1:
        from confluo_tools.formats import detect
        from confluo_tools.multilog.source_captures import files_there

        if remote(inputs[0]) is not None or not detect.is_multilog(inputs[0]):
            return ()
        found = [path if path and _is_capture(path) else "" for path in files_there(inputs[0])]
        return found if any(found) else ()
    if reader.format not in ("pcap", "pcapng"):
        return ()
    return inputs if all(os.path.isfile(path) and _is_capture(path) for path in inputs) else ()


def _is_capture(path: str) -> bool:
    from confluo_tools.formats.bytestream import open_bytes, sniff
    from confluo_tools.formats.detect import PEEK, detect

    try:
        stream = open_bytes(path)
    except OSError:
        return False
    try:
        return detect(sniff(stream, PEEK)) in ("pcap", "pcapng")
    finally:
        stream.close()


def _check_readable(stream: ByteStream) -> None:
    import fcntl

    if fcntl.fcntl(stream.fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        raise FormatError("is closed", where=stream.name)
