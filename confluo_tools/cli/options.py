"""The options that commands share: spelled once, the same words everywhere."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from confluo_tools.cli.state import state


def _quiet(value: bool) -> bool:
    state.quiet = state.quiet or bool(value)
    return value


def _verbose(value: bool) -> bool:
    state.verbose = state.verbose or bool(value)
    return value


def _no_archive(value: bool) -> bool:
    state.archives = state.archives and not value
    return value


def option(*names: str, help: str, **more: Any) -> Any:
    """An option; its help says what it is when it is not given."""
    more.setdefault("show_default", False)
    return typer.Option(*names, help=help, **more)


def _argument(metavar: str, help: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


Expr = Annotated[list[str] | None, _argument("[EXPR]", "Which records: confluo-expr(7). Several words are joined.")]
Inputs = Annotated[list[str] | None, _argument("[INPUT]...", "MultiLogs, streams or captures; - or none: stdin.")]
Operands = Annotated[
    list[str] | None,
    _argument("[INPUT] [EXPR]", "MultiLog, stream, capture or - for stdin; then which records: confluo-expr(7)."),
]
Read = Annotated[
    list[str] | None,
    option("-r", "--read", metavar="INPUT", help="Read INPUT (repeatable); all operands are then the expression."),
]
At = Annotated[
    str | None,
    option("--at", metavar="FILE", help="Read the logs of a snapshot (confluo-snapshot), as they were then."),
]
NoArchive = Annotated[
    bool, option("--no-archive", callback=_no_archive, help="Leave out what was moved from a log to an archive.")
]
Partial = Annotated[bool, option("--partial", help="Go on without hosts that cannot be reached, and say so.")]
Analyze = Annotated[
    list[str] | None,
    option("--analyze", metavar="WHAT", help="Add fields that depend on the packets before: tcp, or a state."),
]
StateOf = Annotated[
    str | None,
    option("--state", metavar="STATE", help="Read the states of a definition instead of the records: a name or file."),
]
AnalyzeFlows = Annotated[
    int | None, option("--analyze-flows", metavar="N", min=1, help="Remember N flows at a time (262144).")
]
InputFormat = Annotated[
    str | None, option("-i", "--input-format", metavar="FORMAT", help="Do not guess the input's format.")
]
Fields = Annotated[
    str | None,
    option("-f", "--fields", metavar="LIST", help="Only these fields, or -NAME to drop; 'help' lists them."),
]
Format = Annotated[
    str | None,
    option(
        "-o",
        "--format",
        metavar="FORMAT",
        help="table, tsv, csv, ndjson, stream, arrow, parquet or pcap.  Default: a table on a terminal, else "
        "a stream of records (answers: tsv).",
    ),
]
Tsv = Annotated[bool, option("-T", help="The same as -o tsv.")]
Ndjson = Annotated[bool, option("-J", help="The same as -o ndjson.")]
Output = Annotated[
    str | None,
    option("-w", "--output", metavar="FILE", help="Write to FILE, complete or not at all; - is stdout."),
]
LogToWrite = Annotated[
    str | None,
    option("-w", "--output", metavar="LOG", help="MultiLog to write; or a file, by its suffix or -o FORMAT."),
]
Append = Annotated[bool, option("--append", help="LOG may exist; the records are added to it.")]
Index = Annotated[str | None, option("--index", metavar="LIST", help="Index LOG by these fields while it is written.")]
Keep = Annotated[
    str | None, option("--keep", metavar="TIME,SIZE", help="Remove the oldest rows of LOG: beyond 1h, beyond 10G.")
]
Sync = Annotated[str | None, option("--sync", metavar="WHEN", help="When rows reach the disk: none, seal or batch.")]
Duration = Annotated[str | None, option("--duration", metavar="TIME", help="End after so long.")]
User = Annotated[
    str | None, option("-Z", "--user", metavar="USER", help="Be USER, without privileges, once sockets are open.")
]
Force = Annotated[bool, option("--force", help="Overwrite the output file.")]
Since = Annotated[
    str | None, option("--since", metavar="TIME", help="Not before: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.")
]
Until = Annotated[
    str | None, option("--until", metavar="TIME", help="Before; a date alone is included whole.")
]
Local = Annotated[bool, option("--local", help="Times given and shown in tables are local, not UTC.")]
Limit = Annotated[int | None, option("-c", "--limit", metavar="N", min=0, help="Stop after N records.")]
Count = Annotated[bool, option("--count", help="Print only how many.")]
Numeric = Annotated[bool, option("-n", "--numeric", help="Numbers, not names, for protocols, flags and the like.")]
NoHeader = Annotated[bool, option("--no-header", help="No line of field names (tsv, csv, table).")]
Wide = Annotated[bool, option("-W", "--wide", help="Tables as wide as their values.")]
LineBuffered = Annotated[bool, option("-l", "--line-buffered", help="Write each record at once.")]
Color = Annotated[str | None, option("--color", metavar="WHEN", help="auto, always or never.")]
Config = Annotated[str | None, option("--config", metavar="FILE", help="Read settings from FILE only.")]
Quiet = Annotated[bool, option("-q", "--quiet", callback=_quiet, help="Say nothing on stderr unless it is an error.")]
Verbose = Annotated[bool, option("-v", "--verbose", callback=_verbose, help="Say more on stderr.")]
Stats = Annotated[bool, option("--stats", help="At the end, counts and times on stderr.")]
