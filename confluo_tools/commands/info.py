"""confluo-info: summarize or verify a MultiLog, a stream or a capture.  Manual: confluo-info(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli, config
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.reader import Reader
    from confluo_tools.multilog.log import Log
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# rows, time span, indexes, history, disk use
confluo-info trace.ml

# all fields with type, unit and meaning
confluo-info --fields trace.ml

# check every checksum; exit status 2 when anything is damaged
confluo-info --verify trace.ml

# as JSON
confluo-info -J trace.ml
"""
)


@app.command(panels={"Options": "--fields --verify -J -T"})
def info(
    inputs: cli.Inputs = None,
    input_format: cli.InputFormat = None,
    fields: Annotated[
        bool, option("--fields", help="List the fields of INPUT; without INPUT those of packets.")
    ] = False,
    verify: Annotated[bool, option("--verify", help="Verify all checksums and the structure of MultiLogs.")] = False,
    tsv: cli.Tsv = False,
    ndjson: cli.Ndjson = False,
    local: cli.Local = False,
    tz: cli.Zone = None,
    *,
    common: cli.TalkOptions,
) -> int:
    """Print schema, rows, time span, lanes, indexes, history and disk use of INPUT."""
    if tz is not None:
        cli.use_zone(tz)
    names = inputs or []
    if fields and not names:
        return list_schema(None, tsv, ndjson)
    if cli.no_input(names):
        return cli.usage(app)
    status = cli.OK
    for i, name in enumerate(names or ["-"]):
        if verify:
            status = max(status, check(name, input_format))
            continue
        with cli.open_one(name, input_format) as reader:
            if fields:
                list_schema(reader, tsv, ndjson)
                continue
            facts = gather(reader, config.truth("local", local or tz is not None))
        if i and not (tsv or ndjson):
            print()
        show(facts, tsv, ndjson)
    return status


def list_schema(reader: Reader | None, tsv: bool, ndjson: bool) -> int:
    """The fields of an input, or of packets."""
    from confluo_tools.schema import builtin

    schema = builtin("packet") if reader is None else reader.schema
    if ndjson:
        import json

        for f in schema.fields:
            print(json.dumps(f.as_dict(), ensure_ascii=False))
    elif tsv:
        print("#fields\tfield\ttype\tunit\tdescription")
        for f in schema.fields:
            print("\t".join(x or "-" for x in (f.name, f.type.text, f.unit, f.description)))
    else:
        print(cli.list_fields(schema))
    return cli.OK


# -- facts -----------------------------------------------------------------------------------------------------


def gather(reader: Reader, local: bool) -> dict[str, Any]:
    """{name: text, number, or list of such dicts}, in the order of the report."""
    from confluo_tools.units import format_duration, format_time

    schema = reader.schema
    facts: dict[str, Any] = {
        "input": reader.name,
        "format": reader.format,
        "schema": schema.kind,
        "fields": len(schema.fields),
        "row_bytes": schema.layout.row_bytes,
    }
    log = getattr(reader, "log", None)
    rows, first, last, unparsed = span(reader, log)
    facts["rows"] = rows
    if unparsed:
        facts["not_parsed"] = unparsed
    if first is not None and last is not None:
        facts["first"] = format_time(first, 9, local)
        facts["last"] = format_time(last, 9, local)
        facts["span"] = format_duration(last - first)
    if log is not None:
        from confluo_tools.multilog.summary import summary

        facts |= summary(log, reader.version, lambda path, what: cli.warn(what, where=path))  # type: ignore[attr-defined]
        for key, name in (("archives", "archive"), ("captures", "interfaces"), ("files", "file")):
            for entry in facts.get(key, ()):
                entry[name] = cli.printable(entry[name])
    else:
        from confluo_tools.formats.arrow import history_of

        for key in ("host", "clock"):
            if f"confluo:{key}" in reader.metadata:
                facts[key] = reader.metadata[f"confluo:{key}"]
        facts["history"] = [{"command": line} for line in history_of(reader.metadata)]
    return facts


def span(reader: Reader, log: Log | None) -> tuple[int, int | None, int | None, int]:
    """(rows, first time, last time, packets of link types that are not parsed): from zone maps, else by reading."""
    schema = reader.schema
    column = schema.index(schema.time_field.name) if schema.time_field is not None else -1
    rows, first, last, unparsed = 0, None, None, 0
    strange = Unparsed(schema)
    blocks = log.blocks(reader.version) if log is not None else reader  # type: ignore[attr-defined]
    for block in blocks:
        rows += block.rows
        unparsed += strange.count(block)
        if column < 0 or not block.rows:
            continue
        zone = block.zones(column) if log is not None else None
        if zone is not None:
            lo, hi = zone[0] - (1 << 63), zone[1] - (1 << 63)
        else:
            times = memoryview(bytes(block.buffer(column))).cast("q")
            lo, hi = min(times), max(times)
        first = lo if first is None or lo < first else first
        last = hi if last is None or hi > last else last
    if log is not None:
        for path, number, reason in log.damage:
            cli.warn(reason if number is None else f"block {number}: {reason}", where=path)
    return rows, first, last, unparsed


class Unparsed:
    """Counts packets with the note unknown_link; a zone map without it saves reading the column."""

    def __init__(self, schema: Schema) -> None:
        names = schema["notes"].names if "notes" in schema else {}
        self.bit = next((bit for bit, name in names.items() if name == "unknown_link"), 0)
        self.schema = schema
        self.column = schema.index("notes") if self.bit else -1
        self.program: Any = None

    def count(self, block: Block) -> int:
        if not self.bit or not block.rows:
            return 0
        from confluo_tools.core.multilog.segment import SegmentBlock

        zone = block.zones(self.column)
        if zone is not None and zone[1] < self.bit:
            return 0
        if isinstance(block, SegmentBlock) and not block.check([self.column]):
            return 0
        if self.program is None:
            from confluo_tools.expr import compile

            self.program = compile("notes has unknown_link", self.schema).program
        return len(self.program.select(block))


# -- output ---------------------------------------------------------------------------------------------------

BYTES = {"disk_bytes": "disk", "view_bytes": "views", "row_bytes": "row"}


def show(facts: dict[str, Any], tsv: bool, ndjson: bool) -> None:
    """Print as text, as name<TAB>value lines, or as one JSON object."""
    if ndjson:
        import json

        text = json.dumps(facts, ensure_ascii=False)
        print(text.encode("utf-8", "backslashreplace").decode())
        return
    if tsv:
        for key, value in flat(facts):
            print(f"{key}\t{cli.printable(str(value))}")
        return
    for key, value in facts.items():
        if isinstance(value, list):
            table(key, value)
        elif key in BYTES:
            print(f"{BYTES[key]:<9}{size(value)}")
        else:
            shown = f"{value:,}" if isinstance(value, int) else cli.printable(str(value))
            print(f"{key:<9}{shown}")


def flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in facts.items():
        if isinstance(value, list):
            for i, item in enumerate(value):
                out += flat(item, f"{prefix}{key}.{i}.")
        else:
            out.append((prefix + key, value))
    return out


def table(title: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        print(f"{title:<9}none" if title == "indexes" else f"{title:<9}-")
        return
    if title == "history":
        print(title)
        for row in rows:
            when = f"{row['time']}  " if "time" in row else ""
            print(f"  {when}{cli.printable(row['command'])}")
        return
    names = list(rows[0])
    cells = [[name.upper() for name in names]]
    for row in rows:
        cells.append(
            [
                "-"
                if name == "writer" and not value
                else size(value)
                if name == "bytes"
                else f"{value:,}"
                if isinstance(value, int) and name not in ("writer",)
                else str(value)
                for name, value in row.items()
            ]
        )
    print(title)
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    left = isinstance(rows[0][names[0]], str)
    for line in cells:
        first = line[0].ljust(widths[0]) if left else line[0].rjust(widths[0])
        print("  " + "  ".join([first, *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]))


def size(n: int) -> str:
    """A size in bytes with a binary unit: 1.9 MiB."""
    for limit, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= limit:
            return f"{n / limit:.1f} {unit}"
    return f"{n} B"


# -- verification ----------------------------------------------------------------------------------------------


def check(path: str, input_format: str | None) -> int:
    """Verify a MultiLog, or read another input to its end.  Returns 2 if anything is damaged."""
    from confluo_tools.formats.detect import is_archive, is_folder

    if is_archive(path) and input_format is None:
        return check_archive(path)
    if not is_folder(path):
        with cli.open_one(path, input_format) as reader:
            for _ in reader:
                pass
        if not cli.state.quiet and not cli.state.trouble:
            print(f"{cli.printable(reader.name)}: {reader.rows:,} rows, whole")
        return cli.OK
    from confluo_tools.multilog import open as open_log
    from confluo_tools.multilog.verify import verify

    if input_format not in (None, "multilog"):
        raise UsageError("is a folder", where=path, hint="only a MultiLog is one")
    damaged = 0
    with open_log(path, readonly=True) as log:
        rows = log.version().kept
        with cli.Progress("verifying", rows, "rows") as progress:
            for finding in verify(log, progress.update):
                if finding.damage:
                    damaged += 1
                    progress.erase()
                    print(cli.printable(str(finding)), flush=True)
                elif cli.state.verbose:
                    cli.note(str(finding))
    if damaged:
        cli.note(f"{damaged} {'places are' if damaged > 1 else 'place is'} damaged", where=path)
        return cli.TROUBLE
    if not cli.state.quiet:
        print(f"{cli.printable(path)}: {rows:,} rows, whole")
    return cli.OK


def check_archive(path: str) -> int:
    """Compare every file of an archive with its recorded checksum, and read all rows."""
    from confluo_tools.multilog.archive.writer import check as check_files

    damaged = 0
    with cli.Progress("verifying", None, "bytes") as progress:
        for where, what in check_files(path, progress.update):
            damaged += 1
            progress.erase()
            print(cli.printable(f"{where}: {what}"), flush=True)
    if damaged:
        cli.note(f"{damaged} {'files are' if damaged > 1 else 'file is'} damaged or missing", where=path)
        return cli.TROUBLE
    with cli.open_one(path) as reader:
        for _ in reader:
            pass
    if not cli.state.quiet and not cli.state.trouble:
        print(f"{cli.printable(path)}: {reader.rows:,} rows, whole")
    return cli.OK


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-info", argv)
