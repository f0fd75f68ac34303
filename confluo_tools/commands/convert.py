"""confluo-convert: convert records between formats.  Manual: confluo-convert(1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from confluo_tools.cli.log_output import LogOutput
    from confluo_tools.clickhouse.address import TableAddress
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# a MultiLog for DuckDB, pandas and Spark
confluo-convert trace.ml -o parquet -w trace.parquet

# lines of another program into a MultiLog
some-exporter | confluo-convert -i ndjson --schema probe.yaml -w probes.ml

# nfdump's CSV, with our names of the fields
nfdump -R flows -o csv | confluo-convert - --rename 'sa=src_ip,da=dst_ip' -w nf.ml

# a capture for others: other addresses, no payload
confluo-convert trace.pcap --anonymize key.file -o pcap -w share.pcap

# Parquet to NDJSON
confluo-convert trace.parquet -J

# into a table of ClickHouse; the statement of --ddl makes the table
confluo-convert trace.ml --to clickhouse://host/net.packets --ddl | clickhouse-client -n
confluo-convert trace.ml --to clickhouse://host/net.packets
"""
)


class ConvertOutput(cli.RecordingOptions):
    """The output options; packets can be written as a capture, too."""

    formats = (*cli.PACKET_FORMATS, "multilog")


@app.command(panels={"Options": "-o -w -f --schema --append -c", "Input": "--rename --source"})
def convert(
    inputs: cli.Inputs = None,
    analyze: cli.Analyze = None,
    analyze_flows: cli.AnalyzeFlows = None,
    sort: cli.SortInput = False,
    geo: cli.Geo = None,
    schema: cli.SchemaOf = None,
    rename: Annotated[
        str | None, option("--rename", metavar="OLD=NEW,...", help="Names for fields of text, Arrow and Parquet.")
    ] = None,
    limit: cli.Limit = None,
    source: Annotated[
        list[str] | None,
        option("--source", metavar="FILE", help="Read packets for -o pcap from this capture (repeatable)."),
    ] = None,
    synthesize: cli.Synthesize = False,
    to: cli.ToTable = None,
    ddl: cli.Ddl = False,
    *,
    ins: cli.InputOptions,
    live: cli.LiveOptions,
    out: ConvertOutput,
    hiding: cli.AnonymizeOptions,
    common: cli.CommonOptions,
) -> int:
    """Convert INPUT to another format, or to a MultiLog.

    -w LOG writes a MultiLog, unless the suffix or -o names another format.
    """
    from confluo_tools.schema import named

    wanted = named(schema) if schema is not None else None
    table = table_of(to, ddl, out)
    if table is not None and ddl and wanted is not None and not inputs:
        cli.print_statement(table, wanted)
        return cli.OK
    if ins.missing(inputs, live.follow):
        return cli.usage(app)
    from confluo_tools.formats.foreign_names import parse_renames
    from confluo_tools.inputs.named_fields import address_databases, geo_fields, located, path_fields
    from confluo_tools.remote.request import request_rows

    fields = out.fields if wanted is None else None
    renames = parse_renames(rename) if rename is not None else None
    places = geo_fields([out.fields]) if geo else ()
    request = (
        None if analyze or places else request_rows("", (None, None), None, fields, limit, False, None, None, False)
    )
    with cli.LiveInput(live, ins, inputs or [], None) as live_input:
        live_input.into_log(out, {"--fields": out.fields, "--analyze": analyze}, None)
        types = out.schema_of_log() if wanted is None else None
        named_fields = {"path_fields": path_fields([], [out.fields])}
        opened = live_input.open(schema=wanted, types=types, request=request, rename=renames, **named_fields)
        with cli.analyzed(opened, analyze, analyze_flows, sort=sort) as rows:
            reader = located(rows, address_databases(geo if places else None), places)
            if out.listed(reader.schema):
                return cli.OK
            shape = wanted if wanted is not None and not analyze else reader.schema
            kind = "" if table is not None else out.kind()
            hidden = hiding.records(shape, kind)
            names = live_input.names(out.names(shape if hidden is None else hidden.schema))
            into: LogOutput | cli.RecordOutput | cli.ClickHouseOutput
            if table is not None:
                records = shape if hidden is None else hidden.schema
                records = records if names is None else records.project(names)
                if ddl:
                    cli.print_statement(table, records)
                    return cli.OK
                into = cli.ClickHouseOutput(table, records)
            elif kind == "multilog":
                more = {"any_kind": True, "old": not live.follow, "shared": live_input.shared}
                into = out.log(shape if hidden is None else hidden.schema, names, anonymous=hidden, **more)
            else:
                into = out.records(
                    shape,
                    kind,
                    names,
                    metadata=reader.metadata,
                    sources=cli.capture_sources(source, inputs or [], reader, kind, synthesize=synthesize),
                    synthesize=synthesize,
                    anonymous=hidden,
                )
            with into, live_input.writing(into):
                if kind == "multilog":
                    from confluo_tools.cli.log_output import number_captures

                    number_captures(reader, into, inputs or [])
                reader.on_idle(into.flush)
                found = blocks(reader, shape, limit)
                write(found if table is None or hidden is None else map(hidden.block, found), into, kind)
            live_input.finish()
            if common.stats:
                cli.note(f"{reader.rows} records read, {into.rows} written")
            return live_input.status(cli.OK if into.rows else cli.NOTHING)


def blocks(reader: Reader, shape: Schema, limit: int | None) -> Iterator[Block]:
    """The reader's blocks with the fields of ``shape``, at most ``limit`` rows in all."""
    left = limit
    for block in reader:
        if left is not None:
            if left <= 0:
                return
            block = block if block.rows <= left else block.slice(0, left)
            left -= block.rows
        if shape is not reader.schema:
            try:
                block = block.project(shape.layout)
            except ValueError as e:
                raise SchemaError(str(e), where=reader.name) from None
        yield block


def table_of(to: str | None, ddl: bool, out: ConvertOutput) -> TableAddress | None:
    """The table of --to.  Raises UsageError for what does not go with it."""
    if to is None:
        if ddl:
            raise UsageError("needs the name of the table", where="--ddl", hint="add --to clickhouse://HOST/DB.TABLE")
        return None
    from confluo_tools.clickhouse.address import parse

    for name, given in (("-w", out.output), ("-o", out.format), ("--tsv", out.tsv), ("-J", out.ndjson)):
        if given:
            raise UsageError(f"--to and {name} exclude each other", hint="leave one out")
    return parse(to)


def write(found: Iterator[Block], into: LogOutput | cli.RecordOutput | cli.ClickHouseOutput, kind: str) -> None:
    """Write all rows; those written to a MultiLog before an error stay."""
    with cli.Progress("converting", None, "records") if kind in ("multilog", "") else nullcontext() as progress:
        for block in found:
            into.write(block, None)
            if progress is not None:
                progress.update(into.rows)


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-convert", argv)
