"""The smallest and largest values of columns in the row groups of any Parquet file, as our columns have them."""

from __future__ import annotations

import json
from typing import Any

from confluo_tools.formats.arrow_values import UNITS

WORDS = {"milliseconds": 10**6, "microseconds": 1000, "nanoseconds": 1}


class ParquetZones:
    """Statistics of ``file``, a pyarrow.parquet.ParquetFile: of integers, times and durations without a dictionary."""

    def __init__(self, file: Any) -> None:
        import pyarrow as pa

        self._metadata, t = file.metadata, pa.types
        self._columns: dict[str, tuple[int, int, int]] = {}  # name: its number, ns of its unit, bits if it is unsigned
        arrow = file.schema_arrow
        for number in range(self._metadata.num_columns):
            column = self._metadata.schema.column(number)
            if column.path not in arrow.names or column.physical_type not in ("INT32", "INT64"):
                continue
            kind = arrow.field(column.path).type
            if t.is_integer(kind):
                bits = kind.bit_width if t.is_unsigned_integer(kind) else 0
                self._columns[column.path] = number, 1, bits
            elif t.is_duration(kind):
                self._columns[column.path] = number, UNITS[kind.unit], 0
            elif t.is_timestamp(kind):
                word = json.loads(column.logical_type.to_json()).get("timeUnit")
                if word in WORDS:
                    self._columns[column.path] = number, WORDS[word], 0

    def zone(self, group: int, name: str) -> tuple[int, int] | None:
        """(smallest, largest) value of a column in a row group, times in ns, with zero where there are nulls.

        None if that is not known.
        """
        found = self._columns.get(name)
        stats = None if found is None else self._metadata.row_group(group).column(found[0]).statistics
        if found is None or stats is None or not stats.has_min_max or not stats.has_null_count:
            return None
        low, high = stats.min_raw, stats.max_raw
        if not isinstance(low, int) or not isinstance(high, int):
            return None
        _, scale, bits = found
        if bits:
            low, high = low & (1 << bits) - 1, high & (1 << bits) - 1
        if low > high:
            return None  # of a writer that compared them as signed
        low, high = low * scale, high * scale
        return (min(low, 0), max(high, 0)) if stats.null_count else (low, high)
