"""How Parquet is written: a dictionary where values repeat, differences where numbers go up; short metadata."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluo_tools.schema import Schema

SAMPLE = 1 << 16  # rows that are looked at
SAVES = 2.0  # bits that differences of neighbours must be shorter, on average


def parquet_writer(sink: Any, arrow: Any, schema: Schema, **options: Any) -> Any:
    """A writer of Parquet for a pyarrow schema ``arrow`` with metadata, of rows of ``schema``.

    Descriptions that come with the tools are not in the file, which holds its metadata twice.
    """
    import pyarrow.parquet as pq

    from confluo_tools.schema.descriptions import without_known

    text = json.dumps(without_known(schema).as_dict(), separators=(",", ":"), ensure_ascii=False)
    arrow = arrow.with_metadata({**arrow.metadata, b"confluo:schema": text.encode()})
    return pq.ParquetWriter(sink, arrow, compression="zstd", version="2.6", store_schema=True, **options)


def column_encodings(table: Any) -> tuple[list[str], dict[str, str]]:
    """(columns with a dictionary, encodings of others) for the rows of a pyarrow ``table``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sample = table.slice(0, SAMPLE)
    repeated: list[str] = []
    encodings: dict[str, str] = {}
    for column, field in zip(sample.columns, sample.schema, strict=True):
        if pa.types.is_nested(field.type):
            continue
        if not (pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)):
            repeated.append(field.name)
            continue
        if 2 * pc.count_distinct(column).as_py() > sample.num_rows and _goes_in_steps(column):
            encodings[field.name] = "DELTA_BINARY_PACKED"
        else:
            repeated.append(field.name)
    return repeated, encodings


def _goes_in_steps(column: Any) -> bool:
    """Whether the differences of neighbours are much shorter than the values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pc.cast(column.combine_chunks(), pa.int64(), safe=False)
    steps = pc.pairwise_diff(values)
    return _bits(pc.subtract(values, pc.min(values))) >= _bits(steps) + SAVES


def _bits(numbers: Any) -> float:
    """Mean bits of a number, without its sign."""
    import pyarrow.compute as pc

    mean = pc.mean(pc.log1p(pc.abs(pc.cast(numbers, "float64", safe=False)))).as_py()
    return 0.0 if mean is None or math.isnan(mean) else float(mean) / math.log(2)
