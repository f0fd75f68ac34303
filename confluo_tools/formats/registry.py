"""The record formats: one row per format, and the only list of their names.

A format is added in three places: the file of its reader or writer, a row of `FORMATS`, and tests.  Detection, -i, -o
and -w of every command, their help and errors, and the values of the setting 'format' come from the rows; man/update
writes them into the manual pages, except for the lists that CONTRIBUTING.md names.

A reader or writer is named as text, "module:class", and imported when it is first used.  So this module costs nothing
at start-up, and a system can supply a format although the platform imports no system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from confluo_tools.errors import UsageError


class Format(NamedTuple):
    """One format.

    ``help``: what it is, in a few words.  ``suffixes``: of files that -w writes in this format.
    ``magic``: the possible first bytes; ``looks_like`` judges the beginning of a format that has none.
    ``reader``: called with ``stream`` and ``warn``, and with those of path, format, schema, types, note and tell that
    ``reader_options`` names.  ``unzip``: the stream that it gets is decompressed.
    ``writer``: called with ``schema`` and ``out``, and with those arguments of `writers.open_writer` that
    ``writer_options`` names.  ``kind``: the only kind of records that it writes.  All arguments are keywords.
    ``binary``: not sent to a terminal unless a flag says so.  ``folder``: not a file; `inputs` and `cli` open it.
    """

    name: str
    help: str
    suffixes: tuple[str, ...] = ()
    magic: tuple[bytes, ...] = ()
    looks_like: Callable[[bytes], bool] | None = None
    reader: str = ""
    reader_options: tuple[str, ...] = ()
    unzip: bool = True
    writer: str = ""
    writer_options: tuple[str, ...] = ()
    kind: str = ""
    binary: bool = False
    folder: bool = False


def _like_ndjson(head: bytes) -> bool:
    return head.lstrip(b" \t\r\n")[:1] == b"{"


def _like_json(head: bytes) -> bool:
    text = head.lstrip(b" \t\r\n")
    return text[:1] == b"[" and text[1:].lstrip(b" \t\r\n")[:1] in (b"{", b"]", b"")


def _like_csv(head: bytes) -> bool:
    """A first line of printable names with commas, semicolons or tabs, or a flow log of AWS VPC."""
    from confluo_tools.formats.text_dialect import is_vpc

    if is_vpc(head):
        return True
    line = head.split(b"\n")[0].rstrip(b"\r")
    printable = all(32 <= c < 127 or c == 9 for c in line)
    several = any(mark in line for mark in (b",", b";", b"\t"))
    return several and printable and not line[:1].isdigit() and not _like_ndjson(head) and not _like_json(head)


BOM = b"\xef\xbb\xbf"  # what some programs begin a text with
TEXT_READER = "confluo_tools.formats.text:TextReader"
TEXT_WRITER = "confluo_tools.formats.text:TextWriter"
ARROW_READER = "confluo_tools.formats.parquet:ArrowFileReader"
ARROW_WRITER = "confluo_tools.formats.parquet:ArrowFileWriter"
CAPTURE_READER = "confluo_tools.formats.pcap.reader:CaptureReader"

FORMATS: tuple[Format, ...] = (
    Format(
        "table",
        "aligned columns for a terminal",
        writer="confluo_tools.formats.table:TableWriter",
        writer_options=("fields", "header", "numeric", "width", "styled", "local", "human"),
    ),
    Format(
        "tsv",
        "values separated by tabs, after a #fields and a #types line",
        suffixes=(".tsv", ".txt"),
        magic=(b"#fields", b"#separator"),
        reader=TEXT_READER,
        reader_options=("format", "schema", "types", "tell", "rename"),
        writer=TEXT_WRITER,
        writer_options=("format", "fields", "header", "numeric", "terminal"),
    ),
    Format(
        "csv",
        "values separated by commas, after a line of names",
        suffixes=(".csv",),
        looks_like=_like_csv,
        reader=TEXT_READER,
        reader_options=("format", "schema", "types", "tell", "rename"),
        writer=TEXT_WRITER,
        writer_options=("format", "fields", "header", "numeric", "terminal"),
    ),
    Format(
        "ndjson",
        "a JSON object per line",
        suffixes=(".ndjson", ".jsonl"),
        looks_like=_like_ndjson,
        reader=TEXT_READER,
        reader_options=("format", "schema", "types", "tell", "rename"),
        writer=TEXT_WRITER,
        writer_options=("format", "fields", "header", "numeric", "terminal"),
    ),
    Format(
        "json",
        "a JSON array of objects",
        suffixes=(".json",),
        looks_like=_like_json,
        reader="confluo_tools.formats.json_array:JsonReader",
        reader_options=("schema", "types", "tell", "rename"),
        writer="confluo_tools.formats.json_array:JsonWriter",
        writer_options=("fields", "numeric", "terminal"),
    ),
    Format(
        "stream",
        "an Arrow stream, for pipes between commands",
        suffixes=(".arrows",),
        # Streams before Arrow 0.15 begin with a length instead and are not read.  CFLM: a short message of Kafka.
        magic=(b"\xff\xff\xff\xff", b"CFLM"),
        reader="confluo_tools.kafka.stream_or_messages:open_stream",
        reader_options=("types", "tell", "rename"),
        writer="confluo_tools.formats.arrow:open_stream_writer",
        writer_options=("fields", "metadata", "readable"),
        binary=True,
    ),
    Format(
        "arrow",
        "an Arrow file (Feather version 2)",
        suffixes=(".arrow",),
        magic=(b"ARROW1",),
        reader=ARROW_READER,
        reader_options=("format", "types", "tell", "rename"),
        writer=ARROW_WRITER,
        writer_options=("format", "fields", "metadata", "readable"),
        binary=True,
    ),
    Format(
        "parquet",
        "a Parquet file",
        suffixes=(".parquet",),
        magic=(b"PAR1",),
        reader=ARROW_READER,
        reader_options=("format", "types", "tell", "rename"),
        writer=ARROW_WRITER,
        writer_options=("format", "fields", "metadata", "readable"),
        binary=True,
    ),
    Format(
        "pcap",
        "a capture of tcpdump",
        suffixes=(".pcap", ".cap"),
        magic=(
            b"\xa1\xb2\xc3\xd4",
            b"\xd4\xc3\xb2\xa1",
            b"\xa1\xb2\x3c\x4d",
            b"\x4d\x3c\xb2\xa1",
            b"\xa1\xb2\xcd\x34",
            b"\x34\xcd\xb2\xa1",
        ),
        reader=CAPTURE_READER,
        reader_options=("path", "note"),
        unzip=False,
        writer="confluo_tools.formats.pcap.writer:open_pcap_writer",
        writer_options=("sources", "synthesize", "anonymize", "warn"),
        kind="packet",
        binary=True,
    ),
    Format(
        "pcapng",
        "a capture of Wireshark",
        suffixes=(".pcapng",),
        magic=(b"\x0a\x0d\x0d\x0a",),
        reader=CAPTURE_READER,
        reader_options=("path", "note"),
        unzip=False,
        writer="confluo_tools.formats.pcap.writer:open_pcapng_writer",
        writer_options=("sources", "synthesize", "anonymize", "warn"),
        kind="packet",
        binary=True,
    ),
    Format(
        "flock",
        "a trace of the Flock fault localiser",
        magic=(b"Failing_link ", b"FP ", b"FID "),
        reader="confluo_tools.vote.flock:FlockReader",
        reader_options=("note",),
    ),
    Format(
        "tshark",
        "packet fields that tshark -T fields printed",
        magic=(b"frame.time_epoch\t",),
        reader="confluo_tools.vote.tshark:TsharkReader",
        reader_options=("note",),
    ),
    Format("multilog", "a MultiLog, which is a folder", folder=True),
)

BY_NAME = {row.name: row for row in FORMATS}
INPUTS = tuple(row.name for row in FORMATS if row.reader or row.folder)
OUTPUTS = tuple(row.name for row in FORMATS if row.writer)
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".xz": "xz"}  # suffixes after that of a format
SUFFIXES = {suffix: row.name for row in FORMATS for suffix in row.suffixes}


def input_formats() -> Iterator[tuple[str, str]]:
    """(name, help) of each format that -i accepts."""
    return ((name, BY_NAME[name].help) for name in INPUTS)


def output_formats(kind: str | None = None, *, log: bool = False) -> Iterator[tuple[str, str]]:
    """(name, help) of each format that -o accepts.

    ``kind``: only formats that can hold records of this kind.  ``log``: the command also writes a MultiLog.
    """
    for row in FORMATS:
        if (row.writer and (kind is None or row.kind in ("", kind))) or (log and row.folder):
            yield row.name, row.help


def input_format(name: str) -> Format:
    """The row of an input format.  Raises UsageError for an unknown name."""
    if name not in INPUTS:
        raise UsageError(f"unknown input format '{name}'", where="-i", hint=f"use {either(INPUTS)}")
    return BY_NAME[name]


def output_format(name: str) -> Format:
    """The row of an output format.  Raises UsageError for an unknown name."""
    if name not in OUTPUTS:
        raise UsageError(f"unknown output format '{name}'", where="-o", hint=f"use {either(OUTPUTS)}")
    return BY_NAME[name]


def either(names: tuple[str, ...]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def load(reference: str) -> Any:
    """The class that "module:class" names."""
    module, name = reference.split(":")
    return getattr(import_module(module), name)
