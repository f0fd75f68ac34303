"""The rows of a statement as records: a schema of our types, and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import ConfluoError, UsageError
from confluo_tools.formats.foreign_names import clean
from confluo_tools.schema import Field, Schema
from confluo_tools.schema.types import MAX_BYTES

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block

_INTEGERS = {
    "TINYINT": "i8", "SMALLINT": "i16", "INTEGER": "i32", "BIGINT": "i64",
    "UTINYINT": "u8", "USMALLINT": "u16", "UINTEGER": "u32", "UBIGINT": "u64",
}  # fmt: skip
_FLOATS = {"FLOAT": "f32", "DOUBLE": "f64"}
_TIMES = (
    "TIMESTAMP",
    "TIMESTAMP_NS",
    "TIMESTAMP_MS",
    "TIMESTAMP_S",
    "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMPTZ_NS",
    "DATE",
)
_TEXTS = ("VARCHAR", "UUID")
_RANGES = {"BIGINT": (-(1 << 63), (1 << 63) - 1), "UBIGINT": (0, (1 << 64) - 1)}


class _Column(NamedTuple):
    """A column of the result: the field it becomes, the SQL for its values, and whether the text is JSON itself.

    ``nullable``: it has absent values, which are not zero.
    """

    field: Field
    sql: str
    literal: bool = False
    nullable: bool = False


class SqlResult:
    """The rows of ``text``, which are collected first: sizes and absent values decide the types.

    Integers, floats, times and texts are ours; numbers and truths with absent values, decimals, lists and structs are
    texts that JSON shows as what they are.  ``nullable``: numbers and times with absent values are of their type, for
    outputs that say which are absent.  ``schema``; ``rows``: their number.
    Raises ConfluoError.
    """

    def __init__(self, database: Any, text: str, *, nullable: bool = False) -> None:
        self._database, self._nullable = database, nullable
        database.run(f"create temp table result as {text}")
        described = database.rows("select column_name, column_type from (describe result)")
        self._names = _unique([clean(name).rstrip("_") or "column" for name, _ in described])
        self.rows, facts = self._facts(described)
        self._columns = [
            self._column(name, quoted(original), kind.upper(), *facts[i])
            for i, (name, (original, kind)) in enumerate(zip(self._names, described, strict=True))
        ]
        self.schema = Schema("row", [column.field for column in self._columns], "a row of a SQL result")
        for column in self._columns:
            self.schema[column.field.name].literal = column.literal
            self.schema[column.field.name].nullable = column.nullable

    def _facts(self, described: list[tuple[str, str]]) -> tuple[int, list[tuple[int, Any, Any]]]:
        # For each column: the number of values, and the smallest and largest, or for what becomes a text its length.
        parts = ["count(*)"]
        for name, kind in described:
            column = quoted(name)
            parts.append(f"count({column})")
            if kind.upper() in ("HUGEINT", "UHUGEINT") or kind.upper().endswith(",0)"):
                parts += [f"min({column})", f"max({column})"]
            else:
                parts += ["0", f"coalesce(max(strlen({_as_text(column, kind.upper())})), 0)"]
        values = self._database.rows(f"select {', '.join(parts)} from result")[0]
        return values[0], [tuple(values[i : i + 3]) for i in range(1, len(values), 3)]

    def _column(self, name: str, column: str, kind: str, count: int, low: Any, high: Any) -> _Column:
        gaps = count < self.rows
        if not gaps or self._nullable:
            if kind in _INTEGERS:
                return _Column(Field(name, _INTEGERS[kind]), column, nullable=gaps)
            if kind in _FLOATS:
                return _Column(Field(name, _FLOATS[kind]), column, nullable=gaps)
            if kind in _TIMES:
                return _Column(Field(name, "time"), f"epoch_ns({column}::timestamp_ns)", nullable=gaps)
        if kind in ("HUGEINT", "UHUGEINT") or kind.endswith(",0)"):
            for wide, (least, most) in _RANGES.items():
                if (not gaps or self._nullable) and count and least <= low and high <= most:
                    return _Column(Field(name, _INTEGERS[wide]), f"{column}::{wide}", nullable=gaps)
            return self._text(name, f"{column}::varchar", 40, True)
        if kind == "BLOB":
            return _Column(Field(name, f"bytes({self._width(name, high)})"), column)
        return self._text(
            name, _as_text(column, kind), high, kind not in (*_TEXTS, *_TIMES) and not kind.startswith("ENUM")
        )

    def _text(self, name: str, sql: str, width: Any, literal: bool) -> _Column:
        return _Column(Field(name, f"text({self._width(name, width)})"), sql, literal)

    def _width(self, name: str, width: Any) -> int:
        if width > MAX_BYTES:
            raise ConfluoError(f"column '{name}' has a text of {width} bytes; {MAX_BYTES} are possible", where="SQL")
        return max(int(width), 1)

    def blocks(self) -> Iterator[tuple[Block, dict[int, bytes]]]:
        """The rows, in the order of the result, and the validity bits of nullable columns by number."""
        from confluo_tools.core.block.block import Block

        sql = ", ".join(f"{column.sql} as c{i}" for i, column in enumerate(self._columns))
        widths = [column.field.type.size for column in self._columns]
        for rows, buffers, valid in self._database.batches(f"select {sql} from result", widths):
            for i in valid:
                if self._columns[i].field.type.kind == "time" and not self._columns[i].nullable:
                    hint = "cast it to a text: TIME::varchar"
                    raise UsageError(f"column '{self._names[i]}' has a time without end", where="SQL", hint=hint)
            marked = {i: bits for i, bits in valid.items() if self._columns[i].nullable}
            yield Block.wrap(self.schema.layout, rows, buffers), marked


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def _as_text(column: str, kind: str) -> str:
    """The SQL for the text of a value: JSON for lists and structs, as RFC 3339 for times."""
    if kind in _TIMES:
        # Not by %n of strftime, which is wrong for times with nanoseconds in DuckDB 2.0.
        ns = f"epoch_ns({column}::timestamp_ns)"
        rest = f"(({ns} % 1000000000 + 1000000000) % 1000000000)"
        whole = f"strftime(make_timestamp_ns({ns} - {rest})::timestamp, '%Y-%m-%dT%H:%M:%S.')"
        return f"{whole} || lpad({rest}::varchar, 9, '0') || 'Z'"
    if kind in _FLOATS:
        return f"case when isfinite({column}) then {column}::varchar end"
    if kind == "BLOB":
        return f"hex({column})"
    if kind in ("TIME", "INTERVAL", "BIT", *_TEXTS) or kind.startswith(("ENUM", "TIME ")):
        return f"{column}::varchar"
    if kind in (*_INTEGERS, "BOOLEAN") or kind.startswith("DECIMAL"):
        return f"{column}::varchar"
    return f"to_json({column})::varchar"


def _unique(names: list[str]) -> list[str]:
    out: list[str] = []
    for name in names:
        number, found = 2, name
        while found in out:
            number, found = number + 1, f"{name}_{number}"
        out.append(found)
    return out
