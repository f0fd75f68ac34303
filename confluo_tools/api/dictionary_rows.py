"""Dictionaries as rows: their values become those of NDJSON, which the reader of NDJSON checks."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import FormatError
from confluo_tools.units import format_time

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Field, Schema

PART = 8192  # rows that are converted together
_LINE = re.compile(r"line (\d+): (.*)", re.DOTALL)
_PLAIN = (int, str, type(None))  # what JSON has as it is, but for times


def blocks_of_dictionaries(schema: Schema, rows: Iterable[Any], name: str) -> Iterator[Block]:
    """Rows of ``schema`` from dictionaries {field: value}.  ``name``: of the rows, in errors.

    Values are as -o ndjson prints them; times also as ns since 1970 or datetime, bytes as bytes, numbers and lists also
    of numpy.  Raises FormatError for a value that does not fit: the rows before it in its part are lost, too.
    """
    from confluo_tools.formats.bytestream import BytesInMemory
    from confluo_tools.formats.text import TextReader

    rest, done = iter(rows), 0
    while part := list(islice(rest, PART)):

        def refuse(what: str, done: int = done) -> None:
            said = _LINE.match(what.removeprefix(f"{name}: "))
            raise FormatError(f"row {done + int(said[1])}: {said[2]}" if said else what, where=name)

        lines = b"".join([_line(schema, row, f"row {done + i}", name) for i, row in enumerate(part, 1)])
        yield from TextReader(BytesInMemory(lines, name), "ndjson", schema=schema, warn=refuse)
        done += len(part)


def _line(schema: Schema, row: Any, place: str, name: str) -> bytes:
    if not isinstance(row, Mapping):
        raise FormatError(f"{place}: {type(row).__name__} is not a dictionary", where=name)
    for key in row:
        if key not in schema:
            raise FormatError(f"{place}: the log has no field '{key}'", where=name)
    try:
        values = {field.name: _value(field, row[field.name]) for field in schema.fields if field.name in row}
        return json.dumps(values, default=str).encode() + b"\n"
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{place}: {e}", where=name) from None


def _value(field: Field, value: Any) -> Any:
    kind = field.type.element
    if type(value) in _PLAIN and kind != "time":
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        if kind != "bytes":
            raise ValueError(f"field '{field.name}' ({field.type.text}) takes no bytes")
        return "".join([f"\\x{byte:02x}" for byte in bytes(value)])
    if hasattr(value, "tolist"):  # of numpy: one value, or several
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_value(field, one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has none
    if kind == "time" and isinstance(value, bool):
        raise ValueError(f"field '{field.name}' (time) takes no truth value")
    if kind == "time" and hasattr(value, "__index__"):
        return format_time(operator.index(value))
    return value
