"""Results of a group without rows (--fill): counts and sums are 0, and the other aggregates have no value.

A float without a value is NaN, and what is 0 when it is absent (addresses, names, lists) is 0.  Of all others, whole
numbers and durations among them, a column of the result says which rows have a value: see `Field.present`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluo_tools.expr.aggregate_functions import FUNCTIONS
from confluo_tools.expr.aggregates import Aggregate, Result

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Layout
    from confluo_tools.schema import Field, Schema


def marked(fields: Sequence[Field], items: Sequence[Result], mark: str) -> bool:
    """Make ``mark`` the field that says which of ``fields``, those of ``items``, have a value; whether any needs it."""
    gaps = [f for f, item in zip(fields, items, strict=True) if _absent(item) and _needs_mark(f)]
    for field in gaps:
        field.present, field.nullable = mark, True
    return bool(gaps)


def without_numbers(empty: Block, items: Sequence[Result], schema: Schema) -> Block:
    """The one row of a group without rows, of ``schema``, with NaN in the floats that have no value."""
    from confluo_tools.core.block.block import Block

    columns = [bytes(empty.buffer(i)) for i in range(schema.layout.n)]
    for item in items:
        field = schema[item.label]
        if field.type.is_float and not field.type.is_list and _absent(item):
            columns[schema.index(field.name)] = struct.pack("<f" if field.type.size == 4 else "<d", math.nan)
    return Block.wrap(schema.layout, 1, columns)


def with_mark(layout: Layout, block: Block, mark: int) -> Block:
    """The block with one more column of bytes, which are all ``mark``."""
    from confluo_tools.core.block.block import Block

    columns = [block.buffer(i) for i in range(block.layout.n)]
    return Block.wrap(layout, block.rows, [*columns, bytes([mark]) * block.rows])


def _absent(item: Result) -> bool:
    # Whether it has no value without rows.
    if isinstance(item, Aggregate):
        return not FUNCTIONS[item.func].zero
    if any(_absent(part) for part in item.parts):
        return True
    names = [step[0] for step in item.steps]
    return any(name == "/real" and not _constant(names[:i]) for i, name in enumerate(names))


def _constant(names: Sequence[str]) -> bool:
    # Whether the last of these steps give a constant: the divisor of a division, which is not 0.
    return names[-1] in ("real", "per") or (names[-1].startswith("real of") and names[-2] == "int")


def _needs_mark(field: Field) -> bool:
    type_ = field.type
    address = type_.kind in ("ip", "ipv4", "mac")
    return not (type_.is_float or type_.is_list or type_.is_bytes or address)
