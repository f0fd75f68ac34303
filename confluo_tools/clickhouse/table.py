"""A table as its server describes it, and how rows of a schema fit into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.clickhouse import statements
from confluo_tools.clickhouse.column_types import ColumnCast, Dialect, cast_of, new_type
from confluo_tools.clickhouse.server import UNKNOWN_DATABASE, UNKNOWN_TABLE, ClickHouseServer, RefusalError
from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.clickhouse.address import TableAddress
    from confluo_tools.core.clickhouse.native_batch import Column, NativeShape
    from confluo_tools.schema import Field, Schema

TOKEN, ASYNC = "insert_deduplication_token", "async_insert"
COMPUTED = ("MATERIALIZED", "ALIAS", "EPHEMERAL")
SHOWN = 4  # columns in an error


class ClickHouseTable(NamedTuple):
    """``columns``: {name: type} of those that can be written.  ``known``: settings of the server that matter here.

    ``exact``: the table takes an insert that is sent again only once.
    """

    address: TableAddress
    columns: dict[str, str]
    dialect: Dialect
    known: frozenset[str]
    exact: bool


def dialect_of(server: ClickHouseServer) -> Dialect:
    """What the server knows of types.  Raises ConfluoError."""
    [[n]] = server.ask("SELECT count() FROM system.data_type_families WHERE name = 'DateTime64'")
    return Dialect() if int(n) else Dialect(times=False, converts=False)


def describe(server: ClickHouseServer) -> ClickHouseTable:
    """The table of the server's address.  Raises ConfluoError."""
    address = server.address
    try:
        rows = server.ask(f"DESCRIBE TABLE {address.quoted}")
    except RefusalError as e:
        if e.code in (UNKNOWN_TABLE, UNKNOWN_DATABASE):
            what = f"there is no {'table' if e.code == UNKNOWN_TABLE else 'database'}"
            hint = "make it with the statement that the same command prints with --ddl"
            if e.code == UNKNOWN_DATABASE:
                what, hint = f"{what} '{address.database}'", "make it, or name another one"
            raise ConfluoError(what, where=str(address), hint=hint) from None
        raise
    columns = {str(name): str(type) for name, type, kind, *_ in rows if kind not in COMPUTED}
    names = ", ".join(statements.quoted(name) for name in (TOKEN, ASYNC))
    known = frozenset(str(row[0]) for row in server.ask(f"SELECT name FROM system.settings WHERE name IN ({names})"))
    return ClickHouseTable(address, columns, dialect_of(server), known, TOKEN in known and _remembers(server))


def _remembers(server: ClickHouseServer) -> bool:
    """Whether the table remembers the tokens of inserts."""
    address = server.address
    database = statements.quoted(address.database) if address.database else "currentDatabase()"
    where = f"database = {database} AND name = {statements.quoted(address.table)}"
    for engine, full in server.ask(f"SELECT engine, engine_full FROM system.tables WHERE {where}"):
        window = str(full).partition("non_replicated_deduplication_window = ")[2]
        return str(engine).startswith(("Replicated", "Shared")) or window[:1] not in ("", "0")
    return False


def shape_for(schema: Schema, table: ClickHouseTable) -> NativeShape:
    """How rows of ``schema`` go into the table.  Raises ConfluoError when it lacks columns, or has other types."""
    from confluo_tools.core.clickhouse.native_batch import NativeShape
    from confluo_tools.formats.text import printing_plan

    missing = [f for f in schema.fields if f.name not in table.columns]
    if missing:
        raise _lacks(table, missing)
    found = [(f, cast_of(f, table.columns[f.name], table.dialect)) for f in schema.fields]
    misfits = [f for f, cast in found if cast is None]
    if misfits:
        raise _unfit(table, misfits)
    casts = [(f, cast) for f, cast in found if cast is not None]
    columns = [_column(schema, f, cast) for f, cast in casts]
    printed = [f.name for f, cast in casts if cast.cast == "printed"]
    return NativeShape(schema.layout, columns, printing_plan(schema, printed, "tsv"))


def _column(schema: Schema, field: Field, cast: ColumnCast) -> Column:
    col = schema.index(field.name)
    col6 = col + 1 if field.type.kind == "ip" else -1
    colv = schema.index(field.version) if field.version in schema else -1
    if colv >= 0 and schema.columns[colv].size != 1:
        colv = -1
    name, type = field.name.encode(), cast.type.encode()
    return name, type, cast.cast, col, col6, colv, cast.to, cast.unit, cast.nullable, cast.members


def _lacks(table: ClickHouseTable, missing: Sequence[Field]) -> ConfluoError:
    names = _some([f.name for f in missing])
    hint = "leave the fields out with --fields, or add columns"
    if len(missing) <= SHOWN:
        hint += f": {statements.add_columns(table.address, missing, table.dialect)}"
    what = f"the table has no column{'s' if len(missing) > 1 else ''} {names}"
    return ConfluoError(what, where=str(table.address), hint=hint)


def _unfit(table: ClickHouseTable, misfits: Sequence[Field]) -> ConfluoError:
    said = [f"{f.name} is {table.columns[f.name][:60]}, not {new_type(f, table.dialect)}" for f in misfits]
    hint = "change the columns, leave the fields out with --fields, or make a table with --ddl"
    if any("Enum" in table.columns[f.name] for f in misfits):
        hint = "an Enum needs the member 'unknown' for values without a name; or " + hint
    return ConfluoError(f"the types of columns do not fit: {_some(said)}", where=str(table.address), hint=hint)


def _some(names: Sequence[str]) -> str:
    text = ", ".join(names[:SHOWN])
    return f"{text} and {len(names) - SHOWN} more" if len(names) > SHOWN else text
