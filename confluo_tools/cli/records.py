"""Inputs of a command: any format, from files, pipes and folders, as one sequence of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.cli.logs import open_logs, places, remote
from confluo_tools.cli.state import is_terminal, note, say, state, warn
from confluo_tools.errors import FormatError, UsageError

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.formats.stream import ByteStream
    from confluo_tools.remote.wish import Wish
    from confluo_tools.schema import Schema


def no_input(inputs: Sequence[str]) -> bool:
    """Nothing was named and stdin is a terminal: nobody meant to type records."""
    return not inputs and is_terminal(0)


def usage(app: Any) -> int:
    """Usage and examples on stderr, exit status 2: what a command started bare says."""
    import typer

    command: Any = typer.main.get_command(app)
    with command.make_context(state.prog, [], resilient_parsing=True) as context:
        say(command.short_help_text(context))
    return 2


def _tell(what: str) -> None:
    warn(what)


def open_records(
    inputs: Sequence[str],
    *,
    input_format: str | None = None,
    schema: Schema | None = None,
    wish: Wish | None = None,
    at: str | None = None,
    partial: bool = False,
) -> Reader:
    """Open any inputs as one Reader: MultiLogs here and elsewhere, Arrow, Parquet, captures, TSV, CSV, NDJSON.

    No input is stdin.  ``input_format``: do not guess.  ``schema``: of text that does not name its types.
    ``wish``: what will be asked, for inputs on other hosts.  ``at``: a snapshot file, instead of inputs.
    Several inputs that are all logs and archives are merged by time; others come one after the other, as rows of the
    first.
    What is wrong but not fatal is printed and makes the exit status 2.
    """
    if at is not None:
        from confluo_tools.cli.logs import places_at
        from confluo_tools.store.snapshot import Snapshot

        return open_logs(places_at(Snapshot.load(at), at), wish, host=True, partial=partial)
    names = list(inputs) or ["-"]
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
            return open_logs(places(names), wish, host=any(elsewhere) and len(names) > 1, partial=partial)
    first = open_one(names[0], input_format, schema)
    if len(names) == 1:
        return first
    from confluo_tools.formats.reader import Chain

    return Chain(first, names[1:], lambda path: open_one(path, input_format, schema))


def open_one(path: str, input_format: str | None = None, schema: Schema | None = None) -> Reader:
    """One input.  Raises FormatError when nothing is known about its first bytes."""
    from confluo_tools.formats import detect

    if input_format is not None and input_format not in detect.INPUTS:
        hint = f"there are {', '.join(detect.INPUTS)}"
        raise UsageError(f"no input format '{input_format}'", where="-i", hint=hint)
    if remote(path) is not None:
        return open_logs(places([path]))
    if input_format is None and detect.is_folder(path) and detect.is_archive(path):
        from confluo_tools.store.archive_reader import ArchiveReader

        return ArchiveReader(path, warn=_tell, note=note)
    if input_format == "multilog" or detect.is_folder(path):
        from confluo_tools.store.opening import open_log

        return open_log(path, archives=state.archives, warn=_tell, note=note)
    from confluo_tools.formats.stream import open_bytes, sniff, unzip

    try:
        stream = open_bytes(path)
    except OSError as e:
        raise FormatError(e.strerror or str(e), where=path) from None
    if path == "-":
        _check_readable(stream)
    head = sniff(stream, detect.PEEK)
    fmt = input_format or detect.detect(head)
    if fmt in ("pcap", "pcapng"):
        from confluo_tools.sources.reader import CaptureReader

        return CaptureReader(path, stream, warn=_tell, note=note)
    if not fmt:
        what = "is empty: there is not even a header" if not head else "is in no format known here"
        raise FormatError(what, where=stream.name, hint="" if not head else "-i FORMAT says which it is")
    plain = unzip(stream)
    if fmt == "stream":
        from confluo_tools.formats.arrow import StreamReader

        return StreamReader(plain, warn=_tell)
    if fmt in ("arrow", "parquet"):
        from confluo_tools.formats.parquet import ArrowFileReader

        return ArrowFileReader(plain, fmt, warn=_tell)
    if fmt == "flock":
        from confluo_tools.formats.flock import FlockReader

        return FlockReader(plain, warn=_tell)
    if fmt == "tshark":
        from confluo_tools.formats.tshark import TsharkReader

        return TsharkReader(plain, warn=_tell, note=note)
    from confluo_tools.formats.text import TextReader

    return TextReader(plain, fmt, schema=schema, warn=_tell)


def analyzed(
    reader: Reader, specs: Sequence[str] | None, flows: int | None = None, states: str | None = None
) -> Reader:
    """The input with the fields of --analyze, or the ``states`` after its rows; as it is when none are asked for."""
    if getattr(reader, "analyzed", False):  # where it is
        return reader
    if not specs and states is None:
        return reader
    from confluo_tools.store.analyze import FLOWS, Analyzed, Stated

    if specs:
        reader = Analyzed(reader, specs, flows=flows or FLOWS, note=note)
    return reader if states is None else Stated(reader, states, flows=flows or FLOWS, note=note)


def _check_readable(stream: ByteStream) -> None:
    import fcntl
    import os

    if fcntl.fcntl(stream.fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        raise FormatError("is closed", where=stream.name)
