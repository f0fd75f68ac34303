"""The fields that a service needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluo_tools.errors import SchemaError

if TYPE_CHECKING:
    from confluo_tools.schema import Schema


def check_fields(schema: Schema, needed: Sequence[str]) -> None:
    """Raises SchemaError that names the first field of ``needed`` that the records lack."""
    missing = [name for name in needed if name not in schema]
    if missing:
        what = f"records of kind '{schema.kind}' have no '{missing[0]}'"
        raise SchemaError(what, hint=f"it needs {', '.join(needed)}")
