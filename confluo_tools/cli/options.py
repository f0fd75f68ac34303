"""The options that commands share, and the panels of their help.

`PANELS` lists the panels of ``--help`` in the order in which they are printed; the manual pages have the same names as
subsections of OPTIONS.  The first panel, "Options", has the at most six options that matter most for a command; ``-h``
prints only these.  A shared option names its panel below.  A command assigns its own options, and the shared ones that
it moves to another panel, with ``@app.command(panels={"Options": "-w --index", ...})``; an option of a command that
names no panel is one of "Options".

Options    the at most six most important options of the command
Input      which inputs are read, and how
Filtering  which records, packets, flows or probes are used
Analysis   how results are computed: grouping, aggregates, models, thresholds
Alerts     triggers, rules and alarms
Views      definitions of the views of a MultiLog
Network    topology, link aliases, names and addresses
Faults     what fails in a simulated network
Traffic    flows and packets of a simulated network
Probes     what is sent, and what is answered
Pinglists  how pinglists are fetched, made and signed
Capture    live capture: interfaces, rings, lanes
Time       time ranges, windows, intervals and time limits
Output     fields, format and destination of the records
Log        the MultiLog that is written, or removed from
Limits     rates, resources and privileges
General    settings, messages, help
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from confluo_tools.console import state
from confluo_tools.formats.registry import INPUTS, either

PANELS = (
    "Options",
    "Input",
    "Filtering",
    "Analysis",
    "Alerts",
    "Views",
    "Network",
    "Faults",
    "Traffic",
    "Probes",
    "Pinglists",
    "Capture",
    "Time",
    "Output",
    "Log",
    "Limits",
    "General",
)
MAX_IMPORTANT = 6  # options in the first panel


def _quiet(value: bool) -> bool:
    state.quiet = state.quiet or bool(value)
    return value


def _verbose(value: bool) -> bool:
    state.verbose = state.verbose or bool(value)
    return value


def _no_archive(value: bool) -> bool:
    state.archives = state.archives and not value
    return value


def option(*names: str, help: str, panel: str | None = None, **more: Any) -> Any:
    """An option of a command.  ``help`` includes the default, if it has one; ``panel``: one of `PANELS`."""
    more.setdefault("show_default", False)
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def argument(metavar: str, help: str, **more: Any) -> Any:
    """An operand of a command."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


def format_option(formats: tuple[str, ...], default: str) -> Any:
    """``-o`` of a command that writes these formats.  ``default``: the format without -o, in words."""
    text = f"Write {either(formats)}.  Default: {default}."
    return option("-o", "--format", metavar="FORMAT", panel="Output", help=text)


Expr = Annotated[
    list[str] | None, argument("[EXPR]", "Filter expression, see confluo-expr(7); several words are joined.")
]
Inputs = Annotated[list[str] | None, argument("[INPUT]...", "MultiLogs, streams or captures; - or none: stdin.")]
Operands = Annotated[
    list[str] | None,
    argument(
        "[INPUT]... [EXPR]", "MultiLog, stream, capture or - for stdin; then a filter expression, see confluo-expr(7)."
    ),
]
Read = Annotated[
    list[str] | None,
    option("-r", "--read", metavar="INPUT", panel="Input", help="Read INPUT (repeatable); all operands form EXPR."),
]
At = Annotated[
    str | None, option("--at", metavar="FILE", panel="Input", help="Read the logs of a snapshot, as of its instant.")
]
NoArchive = Annotated[
    bool, option("--no-archive", callback=_no_archive, panel="Input", help="Do not read the archives of a log.")
]
Partial = Annotated[bool, option("--partial", panel="Input", help="Skip hosts that cannot be reached, with a note.")]
Analyze = Annotated[
    list[str] | None,
    option(
        "--analyze", metavar="WHAT", panel="Input", help="Add fields derived from earlier packets: tcp, or a state."
    ),
]
StateOf = Annotated[
    str | None,
    option("--state", metavar="STATE", panel="Input", help="Read the states of a definition (a name or a file)."),
]
AnalyzeFlows = Annotated[
    int | None,
    option(
        "--analyze-flows",
        metavar="N",
        min=1,
        max=1 << 26,
        panel="Input",
        help="Track at most N flows at a time (262144).",
    ),
]
Geo = Annotated[
    list[str] | None,
    option(
        "--geo",
        metavar="FILE",
        panel="Input",
        help="Have src_country, dst_asn ... of this database, such as GeoLite2-City.mmdb (repeatable).",
    ),
]
Engine = Annotated[
    str | None,
    option(
        "--engine",
        metavar="NAME",
        panel="Analysis",
        help="Compute on local (all cores), local:N, dask://HOST:PORT or spark://HOST:PORT.",
    ),
]
SortInput = Annotated[
    bool,
    option("--sort-input", panel="Input", help="Sort the records of files and pipes by time before they are used."),
]
InputFormat = Annotated[
    str | None,
    option(
        "-i",
        "--input-format",
        metavar="FORMAT",
        panel="Input",
        help=f"Input format, if not detected: {either(INPUTS)}.",
    ),
]
Fields = Annotated[
    str | None,
    option(
        "-f",
        "--fields",
        metavar="LIST",
        panel="Output",
        help="Print only these fields; -NAME drops one; 'help' lists them.",
    ),
]
Tsv = Annotated[bool, option("-T", panel="Output", help="Write tsv, as -o tsv.")]
Ndjson = Annotated[bool, option("-J", panel="Output", help="Write ndjson, as -o ndjson.")]
Output = Annotated[
    str | None, option("-w", "--output", metavar="FILE", panel="Output", help="Write to FILE, atomically; - is stdout.")
]
LogToWrite = Annotated[
    str | None,
    option(
        "-w",
        "--output",
        metavar="LOG",
        panel="Output",
        help="Write the MultiLog LOG; or a file, by suffix or -o FORMAT.",
    ),
]
Follow = Annotated[bool, option("--follow", panel="Input", help="Go on as records arrive, until a signal.")]
Last = Annotated[
    int | None,
    option("--last", metavar="N", min=1, panel="Input", help="Print the newest N records, then with --follow go on."),
]
CursorFile = Annotated[
    str | None,
    option("--cursor", metavar="FILE", panel="Input", help="Go on where FILE says that the last run stopped."),
]
WindowLag = Annotated[
    str | None,
    option(
        "--lag", metavar="TIME", panel="Input", help="--follow --agg: wait TIME for late records of a window (200ms)."
    ),
]
Group = Annotated[
    str | None,
    option("--group", metavar="NAME", panel="Input", help="Share a topic with the other readers of this group."),
]
Metrics = Annotated[
    str | None,
    option(
        "--metrics",
        metavar="[ADDR]:PORT",
        panel="General",
        help="Serve GET /metrics for Prometheus at this address (127.0.0.1).",
    ),
]
ToTable = Annotated[
    str | None,
    option(
        "--to",
        metavar="TABLE",
        panel="Output",
        help="Insert the records into clickhouse://HOST[:PORT]/[DATABASE.]TABLE.",
    ),
]
Ddl = Annotated[
    bool, option("--ddl", panel="Output", help="Only print the statement that makes the ClickHouse table of --to.")
]
Append = Annotated[bool, option("--append", panel="Log", help="Append to LOG if it exists.")]
AddColumns = Annotated[
    bool, option("--add-columns", panel="Log", help="With --append, add to LOG the fields that it lacks.")
]
Index = Annotated[
    str | None, option("--index", metavar="LIST", panel="Log", help="Index LOG by these fields while writing.")
]
Keep = Annotated[
    str | None,
    option("--keep", metavar="TIME,SIZE", panel="Log", help="Remove the oldest rows of LOG: beyond 1h, beyond 10G."),
]
Sync = Annotated[
    str | None, option("--sync", metavar="WHEN", panel="Log", help="Sync rows to disk at: none, seal or batch.")
]
Duration = Annotated[str | None, option("--duration", metavar="TIME", panel="Time", help="Stop after TIME.")]
User = Annotated[
    str | None, option("-Z", "--user", metavar="USER", panel="Limits", help="Switch to USER once all sockets are open.")
]
Force = Annotated[bool, option("--force", panel="Output", help="Overwrite the output file.")]
Since = Annotated[
    str | None,
    option(
        "--since",
        metavar="TIME",
        panel="Time",
        help="Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.",
    ),
]
Until = Annotated[
    str | None,
    option("--until", metavar="TIME", panel="Time", help="Only records before TIME; a bare date includes that day."),
]
Local = Annotated[
    bool, option("--local", panel="Time", help="Read times without a zone, and print tables, in local time, not UTC.")
]
Zone = Annotated[
    str | None, option("--tz", metavar="ZONE", panel="Time", help="As --local, with the time of ZONE: Europe/Berlin.")
]
Limit = Annotated[
    int | None, option("-c", "--limit", metavar="N", min=0, panel="Filtering", help="Stop after N records.")
]
Count = Annotated[bool, option("--count", panel="Output", help="Print only the record count.")]
Numeric = Annotated[
    bool, option("-n", "--numeric", panel="Output", help="Print numbers, not names, of protocols, flags and the like.")
]
NoHeader = Annotated[bool, option("--no-header", panel="Output", help="Omit the header line (tsv, csv, table).")]
SchemaOf = Annotated[
    str | None, option("--schema", metavar="FILE", help="Read with these field types: a YAML file or a built-in name.")
]
Synthesize = Annotated[
    bool, option("--synthesize", panel="Output", help="With -o pcap, build the headers of packets from their fields.")
]
Human = Annotated[
    bool, option("--human", panel="Output", help="table: print bytes, counts and rates as 1.25 MB, 12.3 k.")
]
Readable = Annotated[
    bool | None,
    option(
        "--readable/--stored",
        panel="Output",
        help="stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.",
    ),
]
Wide = Annotated[bool, option("-W", "--wide", panel="Output", help="Do not truncate the columns of tables.")]
LineBuffered = Annotated[bool, option("-l", "--line-buffered", panel="Output", help="Write each record at once.")]
Color = Annotated[
    str | None, option("--color", metavar="WHEN", panel="Output", help="Use colour: auto, always or never.")
]
Config = Annotated[
    str | None, option("--config", metavar="FILE", panel="General", help="Read settings from FILE only.")
]
Quiet = Annotated[bool, option("-q", "--quiet", callback=_quiet, panel="General", help="Print only errors on stderr.")]
Verbose = Annotated[
    bool, option("-v", "--verbose", callback=_verbose, panel="General", help="Print more messages on stderr.")
]
Stats = Annotated[bool, option("--stats", panel="General", help="Print counts and times on stderr at the end.")]
