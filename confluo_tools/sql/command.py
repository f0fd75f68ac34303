"""confluo-sql: ask logs, captures, streams and archives in SQL.  Manual: confluo-sql(1)."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confluo_tools import cli
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.api.source import Source

app = cli.command_app(
    """
# who talks to port 443, and how often
confluo-sql "select src_ip, count(*) n from 'trace.ml' where dst_port = 443 group by 1 order by n desc limit 10"

# an expression of confluo-query finds the rows, by its indexes
confluo-sql "select * from log('trace.ml', 'host 10.1.2.3 and tcp') order by len desc limit 5"

# how long packets took from one host to the other, at the versions of a snapshot
confluo-sql --at incident.yaml "select a.ts, b.ts - a.ts d from h1 a join h2 b using (flow_hash, ip_id, tcp_seq)"

# countries that send much, by a database of addresses
confluo-sql --geo GeoLite2-City.mmdb "select src_country, sum(len) bytes from 'trace.ml' group by all order by 2 desc"

# in a pipe: '-' is standard input
confluo-query trace.ml tcp | confluo-sql "select max(len) from '-'"
"""
)

NULLABLE = ("stream", "arrow", "parquet")  # formats in which a number may be absent


@app.command(panels={"Options": "--at --unsafe -o -w"})
def sql(
    statement: Annotated[
        str | None, typer.Argument(metavar="STATEMENT", help="A SELECT statement.", show_default=False)
    ] = None,
    at: Annotated[
        str | None,
        option(
            "--at",
            metavar="FILE",
            help="The tables are the logs of this snapshot, by the names of their hosts or folders.",
        ),
    ] = None,
    unsafe: Annotated[
        bool, option("--unsafe", help="Let the statement read and write files, and be any statement of DuckDB.")
    ] = False,
    geo: cli.Geo = None,
    memory: Annotated[
        str | None,
        option(
            "--memory-limit", metavar="SIZE", help="Use at most this much memory, then a temporary folder (4/5 of RAM)."
        ),
    ] = None,
    threads: Annotated[
        int | None, option("--threads", metavar="N", min=1, help="Use N threads (one per core).")
    ] = None,
    *,
    out: cli.OutputOptions,
    common: cli.TalkOptions,
) -> int:
    """Print the rows of a SQL statement over MultiLogs, archives, captures and streams."""
    if statement is None:
        return cli.usage(app)
    from confluo_tools import units
    from confluo_tools.sql.database import Database
    from confluo_tools.sql.result import SqlResult

    limit = units.size(memory) if memory is not None else None
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a closed pipe is an exception: the database removes its folder
    with Database(unsafe=unsafe, memory=limit, threads=threads) as database:
        parsed = database.parse(statement)
        if parsed is None:
            there = [name for name in database.inputs(statement) if os.path.exists(name)]
            database.offer(open_sources(there, at, geo, statement))
            database.run(statement)
            return cli.OK
        text = database.prepare(parsed, open_sources([table.path for table in parsed.tables], at, geo, statement))
        kind = out.kind(answers=True)
        result = SqlResult(database, text, nullable=kind in NULLABLE)
        if out.listed(result.schema):
            return cli.OK
        names = out.names(result.schema)
        shown = result.schema if names is None else result.schema.project(names)
        with out.records(result.schema, kind, names) as into:
            for block, valid in result.blocks():
                if not valid:
                    into.write(block)
                    continue
                numbers = {
                    shown.index(result.schema.columns[i].name): bits
                    for i, bits in valid.items()
                    if result.schema.columns[i].name in shown
                }
                into.write_nullable(block.project(shown.layout), numbers)
        return cli.OK if result.rows else cli.NOTHING


def open_sources(paths: Sequence[str], at: str | None, geo: Sequence[str] | None, statement: str) -> dict[str, Source]:
    """The inputs of a statement by path; ``geo``: databases of --geo.  Raises ConfluoError for one that is wrong."""
    import confluo_tools.api as ct
    from confluo_tools.inputs.named_fields import address_databases, path_fields

    databases = address_databases(geo)
    named = path_fields([], [re.sub(r"'[^']*'", "''", statement)])
    found: dict[str, Source] = {}
    logs: dict[str, Any] = {}
    if at is not None:
        from confluo_tools.sql.tables import logs_of

        logs = logs_of(at)
    for path in dict.fromkeys(paths):
        if path in logs:
            found[path] = logs[path]
        elif at is not None:
            raise UsageError(f"has no log '{path}'", where=at, hint=f"it has {', '.join(sorted(logs))}")
        else:
            found[path] = ct.open(path)
            found[path].add_path_fields(named)
        found[path].add_databases(databases)
    return found


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-sql", argv)
