"""Names of fields that other programs chose, and the schema that records with such names get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.schema import Field, Schema


def clean(name: str) -> str:
    """A foreign name as a valid field name: ``id.orig_h`` -> ``id_orig_h``."""
    out = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name.strip().strip('"').lower())
    return ("_" + out if out[:1].isdigit() else out)[:63]


def our_names(names: Sequence[str], rename: Mapping[str, str] | None, where: str) -> dict[str, str]:
    """The field name of each foreign name: of ``rename``, by its foreign or its valid name, else the valid one.

    Raises UsageError for a name that is not there, and for two fields that would have the same name.
    """
    from confluo_tools.errors import UsageError

    left = dict(rename or {})
    ours: dict[str, str] = {}
    for name in names:
        given = left.pop(name, None)
        ours[name] = clean(name) if given is None else given
    for old in list(left):
        same = [name for name in names if clean(name) == clean(old)]
        if same:
            ours[same[0]] = left.pop(old)
    if left:
        what = f"has no {fields_named(list(left))}"
        raise UsageError(f"{where}: {what}", where="--rename", hint="it has " + ", ".join(names))
    for wanted in (rename or {}).values():
        if list(ours.values()).count(wanted) > 1:
            what = f"{where}: two fields would have the name '{wanted}'"
            raise UsageError(what, where="--rename", hint="give the other one a name, too")
    return ours


def only_foreign(rename: Mapping[str, str] | None, exact: Schema | None, where: str) -> None:
    """Raises UsageError if fields are to be renamed of records that say what their fields are."""
    from confluo_tools.errors import UsageError

    if rename and exact is not None:
        what = f"{where}: these records have a schema of their own"
        raise UsageError(what, where="--rename", hint="it is for data of other programs")


def parse_renames(text: str) -> dict[str, str]:
    """``a=b,c=d``: the new name of each foreign name.  Raises UsageError."""
    from confluo_tools.errors import UsageError

    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, ours = (word.strip() for word in part.rpartition("="))
        if not name or not equals or clean(ours) != ours or not ours:
            what = f"'{part}' is not OLD=NEW" if clean(ours) == ours else f"'{ours}' is not the name of a field"
            raise UsageError(what, where="--rename", hint="write 'sa=src_ip,da=dst_ip'")
        if name in found:
            raise UsageError(f"'{name}' gets two names", where="--rename", hint="leave one out")
        if ours in found.values():
            raise UsageError(f"two fields would have the name '{ours}'", where="--rename", hint="leave one out")
        found[name] = ours
    if not found:
        raise UsageError("is empty", where="--rename", hint="write 'sa=src_ip,da=dst_ip'")
    return found


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

    def taken_as(field: Field) -> bool:
        return field.name in known and known[field.name].type == field.type

    other = [f for f in fields if not taken_as(f)]
    if exact or not other:
        return Schema(known.kind, [detached(f) for f in fields])
    out = [detached(f) for f in fields]
    for field in out:
        if taken_as(field):
            field.description = ""
    taken = [f.name for f in fields if taken_as(f)]
    if taken and tell is not None:
        guessed = ", ".join(f"{f.name} ({f.type.text})" for f in other)
        tell(f"{name}: {fields_named(taken)} as in schema '{known.kind}'; other types are guessed: {guessed}")
    return Schema("record", out)
