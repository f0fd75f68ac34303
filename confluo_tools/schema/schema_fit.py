"""What records have that an existing log lacks: fields, names of values, and types that differ."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from confluo_tools.errors import SchemaError
from confluo_tools.schema.model import Field, Schema

ONE_BY_ONE = "ask them one by one"
TIMES = {"ns", "us", "ms", "s"}  # units that change what a value is


class Misfit(NamedTuple):
    """What does not fit into a log.

    ``fields``: that the log does not have.  ``names``: of enums and flags that it does not have, by field.
    ``clashes``: what it has and what means something else there, in words.
    """

    fields: list[Field]
    names: dict[str, dict[int, str]]
    clashes: list[str]

    def __str__(self) -> str:
        """The problem in words; '' if there is none."""
        parts = []
        if self.fields:
            fields = ", ".join(f"{f.name} ({f.type.text})" for f in self.fields)
            parts.append(f"has no field{'s' if len(self.fields) > 1 else ''} {fields}")
        for field, names in self.names.items():
            shown = ", ".join(f"'{name}' ({value})" for value, name in names.items())
            parts.append(f"has no name{'s' if len(names) > 1 else ''} {shown} in field {field}")
        return "; ".join([*parts, *self.clashes])


def misfit(log: Schema, given: Schema, only: Collection[str] | None = None) -> Misfit:
    """Compare the schema of a log with that of records.  ``only``: the fields that matter; None: all."""
    fields: list[Field] = []
    names: dict[str, dict[int, str]] = {}
    clashes = []
    for field in given.fields:
        if only is not None and field.name not in only:
            continue
        if field.name not in log:
            fields.append(field)
            continue
        own = log[field.name]
        if [(c.code, c.size, c.count) for c in own.columns] != [(c.code, c.size, c.count) for c in field.columns]:
            clashes.append(f"has field {field.name} as {own.type.text}, not {field.type.text}")
            continue
        more: dict[int, str] = {}
        for value, name in field.names.items():
            if own.names.get(value, name) != name:
                clashes.append(f"{field.name} {value} is '{own.names[value]}', not '{name}'")
            elif value not in own.names and name in own.names.values():
                clashes.append(f"'{name}' of {field.name} has another value than {value}")
            elif value not in own.names:
                more[value] = name
        if more:
            names[field.name] = more
    return Misfit(fields, names, clashes)


def grown(schema: Schema, more: Misfit) -> Schema:
    """``schema`` with the fields and the names of values that it lacks."""
    out = schema.plus(more.fields)
    for field in out.fields:
        if field.name in more.names:
            field.names = field.names | more.names[field.name]
    return out


def with_names(first: Schema, name: str, other: Schema, where: str, hint: str = ONE_BY_ONE) -> Schema:
    """``first``, of the input ``name``, with the names of values that only ``other``, of ``where``, has.

    Raises SchemaError if a value has another name there, or a field another unit of time.
    """
    for field in [f for f in other.fields if f.name in first]:
        own = first[field.name]
        if own.unit != field.unit and {own.unit, field.unit} <= TIMES:
            what = f"stores '{field.name}' in {field.unit}, {name} in {own.unit}"
            raise SchemaError(what, where=where, hint=hint)
    found = misfit(first, other)
    if found.clashes:
        what = f"names values otherwise than {name}: {found.clashes[0]}"
        raise SchemaError(what, where=where, hint=hint)
    if not found.names:
        return first
    return grown(first.project([f.name for f in first.fields]), found._replace(fields=[]))
