"""Fields of archived rows that their path has: host and date.

They are read only if a question names them.  A field of the records with one of these names comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.formats.merge import HOST, host_field
from confluo_tools.schema import Field, Schema

if TYPE_CHECKING:
    from confluo_tools.multilog.archive.parquet_parts import PartName

DATE = "date"
DATE_BYTES = 10
PATH_FIELDS = (HOST, DATE)
BLOCK_ROWS = 65536


def with_path_fields(schema: Schema, names: Iterable[str]) -> tuple[Schema, tuple[str, ...]]:
    """The schema with those of these fields that it lacks at its end, and their names."""
    more = tuple(name for name in PATH_FIELDS if name in names and name not in schema)
    return (schema.plus(map(_field, more)) if more else schema), more


def _field(name: str) -> Field:
    if name == HOST:
        return host_field()
    return Field(DATE, f"text({DATE_BYTES})", "", "day of the record (UTC)")


class PathColumns:
    """The columns of ``schema`` that the path of a part has: those called ``names``."""

    def __init__(self, schema: Schema, names: Sequence[str] = ()) -> None:
        self.host, self.date = (schema.index(name) if name in names else -1 for name in PATH_FIELDS)
        self.numbers = {number for number in (self.host, self.date) if number >= 0}
        self._sizes = {number: schema.columns[number].size for number in self.numbers}
        self._kept: dict[int, tuple[bytes, Repeated]] = {}

    def value(self, column: int, host: str, day: int) -> bytes:
        """What rows of ``host`` and of ``day`` (since 1970) have in a column."""
        text = host if column == self.host else date_text(day)
        size = self._sizes[column]
        return text.encode("utf-8", "surrogateescape")[:size].ljust(size, b"\0")

    def repeated(self, column: int, name: PartName) -> Repeated:
        """The column of a part, for its blocks."""
        value = self.value(column, name.host, name.hour // 24)
        known = self._kept.get(column)
        if known is None or known[0] != value:
            known = self._kept[column] = value, Repeated.of(value)
        return known[1]


class Repeated(NamedTuple):
    """A column in which all rows have the same value: what `blocks` takes instead of a buffer."""

    buffer: Any  # of `BLOCK_ROWS` rows

    @classmethod
    def of(cls, value: bytes) -> Repeated:
        import pyarrow as pa

        return cls(pa.py_buffer(value * BLOCK_ROWS))

    def slice(self, at: int, size: int) -> Any:
        """The bytes of at most `BLOCK_ROWS` rows, wherever they begin."""
        return self.buffer.slice(0, size)


def date_text(day: int) -> str:
    """Days since 1970 -> ``2026-11-20``."""
    from confluo_tools.units import civil_from_days

    year, month, date = civil_from_days(day)
    return f"{year:04d}-{month:02d}-{date:02d}"
