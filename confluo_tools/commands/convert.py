"""confluo-convert: any input to any output.  Manual: confluo-convert(1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import SchemaError

if TYPE_CHECKING:
    from confluo_tools.cli.log_output import LogOutput
    from confluo_tools.formats.reader import Reader
    from confluo_tools.remote.wish import Wish
    from confluo_tools.schema import Schema

app = cli.command_app(
    """
# a MultiLog for DuckDB, pandas and Spark
confluo-convert trace.ml -o parquet -w trace.parquet

# lines of another program into a MultiLog
some-exporter | confluo-convert -i ndjson --schema probe.yaml -w probes.ml

# Parquet to NDJSON
confluo-convert trace.parquet -J
"""
)


@app.command()
def convert(
    inputs: cli.Inputs = None,
    analyze: cli.Analyze = None,
    analyze_flows: cli.AnalyzeFlows = None,
    schema: Annotated[
        str | None, option("--schema", metavar="FILE", help="Types of the fields: a YAML file or a built-in name.")
    ] = None,
    limit: cli.Limit = None,
    source: Annotated[
        list[str] | None,
        option("--source", metavar="FILE", help="Capture the packets came from, for -o pcap (repeatable)."),
    ] = None,
    readable: Annotated[
        bool, option("--readable", help="Arrow and Parquet: addresses, MACs, names and flags as text columns.")
    ] = False,
    *,
    ins: cli.InputOptions,
    out: cli.RecordingOptions,
    common: cli.CommonOptions,
) -> int:
    """Convert INPUT, of any format that is read, to any format that is written.

    -w LOG writes a MultiLog, unless its suffix or -o names another format.
    """
    if ins.missing(inputs):
        return cli.usage(app)
    wanted = load_schema(schema) if schema is not None else None
    wish = wished(out.fields if wanted is None else None, limit) if not analyze else None
    with cli.analyzed(ins.open(inputs, schema=wanted, wish=wish), analyze, analyze_flows) as reader:
        if out.listed(reader.schema):
            return cli.OK
        shape = wanted if wanted is not None and not analyze else reader.schema
        kind, names = out.kind(), out.names(shape)
        into: LogOutput | cli.RecordOutput
        if kind == "multilog":
            into = out.log(shape, names, any_kind=True)
            write_log(reader, into, limit)
        else:
            into = out.records(
                shape, kind, names, metadata=reader.metadata, sources=source or [], readable=readable
            )
            with into:
                reader.on_idle(into.flush)
                for block in blocks(reader, shape, limit):
                    into.write(block)
        rows = into.rows
        if common.stats:
            cli.note(f"{reader.rows} records read, {rows} written")
        return cli.OK if rows else cli.NOTHING


def wished(fields: str | None, limit: int | None) -> Wish:
    """What other hosts are asked for."""
    from confluo_tools.remote.wish import Wish

    return Wish(limit=0) if fields == "help" else Wish(fields=fields, limit=limit)


def load_schema(name: str) -> Schema:
    """A schema file, or a built-in schema by name."""
    from confluo_tools.schema import builtin, builtin_names, load

    return builtin(name) if name in builtin_names() and not os.path.exists(name) else load(name)


def blocks(reader: Reader, shape: Schema, limit: int | None) -> Any:
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


def write_log(reader: Reader, into: LogOutput, limit: int | None) -> None:
    """All rows into the MultiLog.  What was written before an error stays."""
    with into, cli.Progress("converting", None, "records") as progress:
        for block in blocks(reader, into.schema, limit):
            into.write(block, None)
            progress.update(into.rows)


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-convert", argv)
