"""A schema for input that looks like it: text has no kind of records, only names of fields."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from confluo_tools.schema.model import Schema


class LikelySchema(NamedTuple):
    """Input with all ``fields`` has records of ``schema``; other input is read as it is without it."""

    schema: Schema
    fields: tuple[str, ...]


def resolved(schema: Schema | LikelySchema | None, names: Collection[str]) -> Schema | None:
    """The given schema of an input with fields of these names; None: none, or the input does not look like it."""
    if not isinstance(schema, LikelySchema):
        return schema
    return schema.schema if all(name in names for name in schema.fields) else None


def plain(schema: Schema | LikelySchema | None) -> Schema | None:
    """The schema, as if each input looked like it."""
    return schema.schema if isinstance(schema, LikelySchema) else schema
