"""Names of fields that other programs chose, and the schema that records with such names get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.schema import Field, Schema


def clean(name: str) -> str:
    """A foreign name as a valid field name: ``id.orig_h`` -> ``id_orig_h``."""
    out = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name.strip().strip('"').lower())
    return ("_" + out if out[:1].isdigit() else out)[:63]


def detached(field: Field) -> Field:
    """A copy: a Schema may change the fields it is made of."""
    from confluo_tools.schema import Field

    return Field(field.name, field.type, field.unit, field.description, field.names, field.version, field.optional)


def fields_named(names: Sequence[str]) -> str:
    """``field 'a'`` or ``fields 'a', 'b'``."""
    return f"field{'s' if len(names) > 1 else ''} " + ", ".join(f"'{name}'" for name in names)


def known_fields(types: Schema | None, exact: Schema | None) -> Schema | None:
    """The fields to read as: of ``types``, and of ``exact``, the schema in the metadata; None without both.

    An enum keeps its own names: its numbers may mean something else in ``types``.
    """
    from confluo_tools.schema import Schema

    if types is None or exact is None:
        return types if exact is None else exact
    fields = []
    for field in exact.fields:
        known = field.name in types and not field.names
        fields.append(detached(types[field.name] if known else field))
    return Schema(exact.kind, [*fields, *(detached(f) for f in types.fields if f.name not in exact)])


def schema_of(
    fields: Sequence[Field], known: Schema, exact: bool, name: str, tell: Callable[[str], None] | None
) -> Schema:
    """The schema of an input with these fields; those of names in ``known`` are of it.

    ``exact``: the input, or its reader, says that it has such records.  Otherwise it has only if all fields are known:
    a name that two schemas share does not make records of one kind.  ``tell`` prints what was taken for what.
    """
    from confluo_tools.schema import Schema

    other = [f for f in fields if f.name not in known]
    if exact or not other:
        return Schema(known.kind, [detached(f) for f in fields])
    out = [detached(f) for f in fields]
    for field in out:
        if field.name in known:
            field.description = ""
    taken = [f.name for f in fields if f.name in known]
    if taken and tell is not None:
        guessed = ", ".join(f"{f.name} ({f.type.text})" for f in other)
        tell(f"{name}: {fields_named(taken)} as in schema '{known.kind}'; other types are guessed: {guessed}")
    return Schema("record", out)
