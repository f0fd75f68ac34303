"""Statements of SQL: a new table for records, and rows into it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.clickhouse.column_types import Dialect, new_type

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluo_tools.clickhouse.address import TableAddress
    from confluo_tools.schema import Field, Schema

WINDOW = 1000  # inserts that a new table remembers, so that none is in it twice


def create_table(address: TableAddress, schema: Schema, dialect: Dialect) -> str:
    """The statement that makes a table for records of ``schema``: a partition for each month, rows in order of time."""
    columns = ",\n".join(f"    {_column(field, dialect)}" for field in schema.fields)
    lines = [f"CREATE TABLE {address.quoted}\n(\n{columns}\n)\nENGINE = MergeTree"]
    time = schema.time_field
    if time is not None:
        name = f"`{time.name}`"
        month = name if dialect.times else f"toDateTime(intDiv({name}, 1000000000))"
        lines.append(f"PARTITION BY toYYYYMM({month})")
    lines.append(f"ORDER BY {f'`{time.name}`' if time is not None else 'tuple()'}")
    if dialect.converts:
        lines.append(f"SETTINGS non_replicated_deduplication_window = {WINDOW}")
    return "\n".join(lines) + ";\n"


def add_columns(address: TableAddress, fields: Iterable[Field], dialect: Dialect) -> str:
    """The statement that adds columns for ``fields``."""
    added = ", ".join(f"ADD COLUMN `{f.name}` {new_type(f, dialect)}" for f in fields)
    return f"ALTER TABLE {address.quoted} {added}"


def insert(address: TableAddress, columns: Iterable[str]) -> str:
    """The statement before a block of rows."""
    return f"INSERT INTO {address.quoted} ({', '.join(f'`{name}`' for name in columns)}) FORMAT Native"


def _column(field: Field, dialect: Dialect) -> str:
    unit = field.unit
    if field.type.kind == "time":
        unit = "" if dialect.times else "ns since 1970"
    words = [f"{field.description} ({unit})".strip() if unit else field.description]
    if field.type.kind == "flags" and field.names:
        words.append(", ".join(f"{value} {name}" for value, name in field.names.items()))
    comment = "; ".join(filter(None, words))
    return f"`{field.name}` {new_type(field, dialect)}" + (f" COMMENT {quoted(comment)}" if comment else "")


def quoted(text: str) -> str:
    """A string as SQL has it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
