"""confluo-convert: any input to any output.  Manual: confluo-convert(1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from confluo_tools import cli, config
from confluo_tools.cli.options import option
from confluo_tools.errors import SchemaError, UsageError

if TYPE_CHECKING:
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
    at: cli.At = None,
    partial: cli.Partial = False,
    no_archive: cli.NoArchive = False,
    input_format: cli.InputFormat = None,
    analyze: cli.Analyze = None,
    analyze_flows: cli.AnalyzeFlows = None,
    schema: Annotated[
        str | None, option("--schema", metavar="FILE", help="Types of the fields: a YAML file or a built-in name.")
    ] = None,
    fields: cli.Fields = None,
    limit: cli.Limit = None,
    format: cli.Format = None,
    tsv: cli.Tsv = False,
    ndjson: cli.Ndjson = False,
    source: Annotated[
        list[str] | None,
        option("--source", metavar="FILE", help="Capture the packets came from, for -o pcap (repeatable)."),
    ] = None,
    readable: Annotated[
        bool, option("--readable", help="Arrow and Parquet: addresses, MACs, names and flags as text columns.")
    ] = False,
    output: cli.Output = None,
    append: Annotated[bool, option("--append", help="Add to a MultiLog that exists.")] = False,
    sync: Annotated[str | None, option("--sync", metavar="WHEN", help="MultiLog: none, seal or batch.")] = None,
    force: cli.Force = False,
    numeric: cli.Numeric = False,
    no_header: cli.NoHeader = False,
    wide: cli.Wide = False,
    local: cli.Local = False,
    line_buffered: cli.LineBuffered = False,
    color: cli.Color = None,
    file: cli.Config = None,
    stats: cli.Stats = False,
    quiet: cli.Quiet = False,
    verbose: cli.Verbose = False,
) -> int:
    """Convert INPUT, of any format that is read, to any format that is written.

    -w FILE.ml (or -o multilog) writes a MultiLog.
    """
    if file is not None:
        config.use_file(file)
    if at is not None and inputs:
        raise UsageError("the snapshot names the logs", where="--at", hint="leave the other inputs out")
    if at is None and cli.no_input(inputs or []):
        return cli.usage(app)
    wanted = load_schema(schema) if schema is not None else None
    wish = wished(fields if wanted is None else None, limit) if not analyze else None
    with cli.analyzed(
        cli.open_records(inputs or [], input_format=input_format, schema=wanted, wish=wish, at=at, partial=partial),
        analyze, analyze_flows,
    ) as reader:  # fmt: skip
        if fields == "help":
            print(cli.list_fields(reader.schema))
            return cli.OK
        shape = wanted if wanted is not None and not analyze else reader.schema
        names = cli.choose_fields(fields, shape)
        if format == "multilog" or (format is None and output is not None and to_multilog(output)):
            if output in (None, "-"):
                raise UsageError("a MultiLog is a folder", where="-o multilog", hint="name it with -w FOLDER")
            rows = write_log(reader, str(output), shape.project(names) if names else shape, append, sync, limit)
        else:
            fmt = cli.choose_format(format, tsv=tsv, ndjson=ndjson, path=output)
            with cli.output(
                shape, fmt, path=output, force=force, fields=names, metadata=reader.metadata, header=not no_header,
                numeric=numeric, wide=wide, local=local, line_buffered=line_buffered, color=color,
                sources=source or [], readable=readable,
            ) as out:  # fmt: skip
                reader.on_idle(out.flush)
                for block in blocks(reader, shape, limit):
                    out.write(block)
            rows = out.rows
        if stats:
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


def to_multilog(path: str) -> bool:
    """Whether -w PATH means a MultiLog."""
    from confluo_tools.formats.detect import is_multilog

    return path.rstrip("/").endswith(".ml") or is_multilog(path)


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


def write_log(reader: Reader, path: str, shape: Schema, append: bool, sync: str | None, limit: int | None) -> int:
    """Append all rows to the MultiLog, which is made unless ``append``.  What was written before an error stays."""
    from confluo_tools import store

    argv = [cli.state.prog, *cli.state.argv]
    exists = os.path.lexists(path)
    if exists and not (append and store.is_log(path)):
        hint = "--append adds to it" if store.is_log(path) else "choose another name"
        raise UsageError("exists", where=path, hint=hint)
    if exists:
        log = store.open(path)
        log.remember(argv)
    else:
        log = store.create(path, shape, sync=config.text("sync", sync), argv=argv)
    total = 0
    with log, log.writer(sync=sync) as writer, cli.Progress("converting", None, "records") as progress:
        for block in blocks(reader, log.schema, limit):
            writer.append(block)
            total += block.rows
            progress.update(total)
    return total


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-convert", argv)
