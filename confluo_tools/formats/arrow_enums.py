"""Enums of other programs: texts with a dictionary in Arrow and Parquet.

Categories of pandas, Enum and Categorical of polars, ENUM of DuckDB: all of them are columns of numbers with a
dictionary of texts.  The texts become the names of an enum, from 1 on in the order of the dictionary; 0 is null.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from confluo_tools.formats import arrow_values

if TYPE_CHECKING:
    from confluo_tools.schema import Field

MAX_NAMES = 255  # of an enum of a byte; a schema is in each segment of a log
MAX_BYTES = 4096  # of all names
NULLS = ("", "-")  # texts that mean: absent


def enum_field(name: str, dictionaries: Iterable[Any]) -> Field | None:
    """A field with the texts of all ``dictionaries`` (arrays of pyarrow) as names; None if they cannot be names.

    Names are at most 255, of 4 KiB together.  None reads as a number: in a condition, it would be that of another name.
    """
    from confluo_tools.schema import Field

    names: dict[str, int] = {}
    size = 0
    for texts in dictionaries:
        if len(texts) > 2 * MAX_NAMES:
            return None
        for word in texts.to_pylist():
            if word is None or word in NULLS or word in names:
                continue
            size += len(word.encode())
            if len(names) == MAX_NAMES or size > MAX_BYTES or not _is_name(word):
                return None
            names[word] = len(names) + 1
    return Field(name, "enum", names={number: word for word, number in names.items()}) if names else None


def enum_numbers(array: Any, field: Field) -> Any | None:
    """The numbers in ``field`` of a column with a dictionary; None if one of its texts has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = {name: number for number, name in field.names.items()} | dict.fromkeys(NULLS, 0)
    known = {name: number for name, number in known.items() if number < 1 << 63}
    numbers = [0 if word is None else known.get(word, -1) for word in array.dictionary.to_pylist()]
    out = arrow_values.numbers(numbers, pa.int64()).take(array.indices)
    if len(out) != out.null_count and pc.min(out).as_py() < 0:
        return None
    return out


def _is_name(word: str) -> bool:
    if not word.isprintable() or "," in word or '"' in word:  # CSV would print _ for these
        return False
    for number in (float, lambda text: int(text, 0)):
        try:
            number(word)
        except ValueError:
            continue
        return False
    return True
