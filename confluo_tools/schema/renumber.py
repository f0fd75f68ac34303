"""One numbering of names for inputs that number the names of an enum each in its own way, as files of pandas do."""

from __future__ import annotations

from confluo_tools.schema.model import Field, Schema


def shared_names(first: Schema, other: Schema) -> Schema:
    """``first`` with the names of enums that only ``other`` has; those with numbers that are taken get others."""
    out = first.project([f.name for f in first.fields])
    for field in out.fields:
        if _numbered(field) and field.name in other and _numbered(other[field.name]):
            names = dict(field.names)
            for number, name in other[field.name].names.items():
                if name not in names.values():
                    free = number if number not in names else _free_number(names, other[field.name].names)
                    if free is not None:
                        names[free] = name
            field.names = names
    return out if any(f.names != first[f.name].names for f in out.fields) else first


def renumbering(first: Schema, other: Schema) -> dict[str, bytes]:
    """Tables from the numbers of ``other`` to those of ``first``, 256 bytes each, of enums with other numbers."""
    tables = {}
    for field in first.fields:
        if not _numbered(field) or field.name not in other or not _numbered(other[field.name]):
            continue
        ours = {name: number for number, name in field.names.items()}
        theirs = other[field.name].names
        if all(ours.get(name, number) == number for number, name in theirs.items()):
            continue
        if any(name not in ours and number in field.names for number, name in theirs.items()):
            continue  # a name without a number of its own: not to be mixed
        tables[field.name] = bytes(ours.get(theirs.get(number, ""), number) for number in range(256))
    return tables


def renumbered(other: Schema, tables: dict[str, bytes], first: Schema) -> Schema:
    """``other`` as its records are after the ``tables``."""
    if not tables:
        return other
    out = other.project([f.name for f in other.fields])
    for field in out.fields:
        if field.name in tables:
            field.names = dict(first[field.name].names)
    return out


def _numbered(field: Field) -> bool:
    # An enum of one byte.
    return field.type.kind == "enum" and bool(field.names) and field.type.size == 1 and len(field.columns) == 1


def _free_number(*taken: dict[int, str]) -> int | None:
    # Small numbers may be names of inputs that are not open yet.
    return next((number for number in range(255, 0, -1) if not any(number in names for names in taken)), None)
