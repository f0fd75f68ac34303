"""Schemas: named, typed, fixed-width fields with units, and the columns they are stored in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import SchemaError
from confluo_tools.schema.geo_fields import GEO_FIELDS
from confluo_tools.schema.types import BYTES, Type

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Layout

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}$")
MAX_FIELDS = 250


class Column:
    """One physical column: ``name``, type ``code``, ``size`` bytes an element, ``count`` elements a row."""

    __slots__ = ("name", "code", "size", "count", "field")

    def __init__(self, name: str, code: int, size: int, count: int, field: Field) -> None:
        self.name, self.code, self.size, self.count, self.field = name, code, size, count, field


class Field:
    """One field: ``name``, ``type``, ``unit`` ('' if none), ``description``.

    ``names`` maps values (enum) or bit masks (flags) to words.
    ``version`` (ip only) names the field that holds 4 or 6, '' when there is none.
    ``optional`` fields are in a log only if requested at capture.
    ``literal``: the values of a text are JSON themselves, such as numbers that may be absent; of results only.
    ``nullable``: Arrow data say which values are absent (zero is a value); of results only.
    ``present``: the field that is 0 in the rows without a value (zero is a value), '' if all have one; of results only.
    """

    __slots__ = (
        *("name", "type", "unit", "description", "names", "version", "optional"),
        *("literal", "nullable", "present"),
    )

    def __init__(
        self,
        name: str,
        type: str | Type,
        unit: str = "",
        description: str = "",
        names: Mapping[int, str] | None = None,
        version: str = "",
        optional: bool = False,
    ) -> None:
        if not isinstance(name, str) or not _NAME.match(name):
            raise SchemaError(f"bad field name {name!r}", hint="use lower-case letters, digits and _")
        self.name = name
        self.type = type if isinstance(type, Type) else Type(type)
        for text in (unit, description, version, *(names or {}).values()):
            str(text).encode()  # UnicodeEncodeError is a ValueError: half a character has no place in any output
        self.unit, self.description = str(unit), str(description)
        self.version, self.optional = str(version), bool(optional)
        self.literal = self.nullable = False
        self.present = ""
        self.names = {int(k): str(v) for k, v in (names or {}).items()}
        if any(not 0 <= k < 1 << 64 for k in self.names):
            raise SchemaError("names a value that is not a number of 64 bits without a sign")

    @property
    def columns(self) -> list[Column]:
        t = self.type
        main = Column(self.name, t.code, t.size, t.count, self)
        if t.kind == "ip":
            return [main, Column(self.name + "6", BYTES, 16, 1, self)]
        return [main]

    def as_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"name": self.name, "type": self.type.text}
        for key in ("unit", "description", "version"):
            if getattr(self, key):
                out[key] = getattr(self, key)
        if self.optional:
            out["optional"] = True
        if self.names:
            out["names"] = {str(k): v for k, v in self.names.items()}
        return out


class Schema:
    """An ordered set of fields.  ``kind`` names the record ('packet'); equal kinds have equal meaning.

    Raises SchemaError for duplicate or malformed fields.
    """

    def __init__(self, kind: str, fields: Iterable[Field], description: str = "") -> None:
        self.kind, self.description = kind, description
        self.fields = tuple(fields)
        if not self.fields:
            raise SchemaError(f"schema '{kind}' has no fields")
        self.columns = tuple(c for f in self.fields for c in f.columns)
        if len(self.columns) > MAX_FIELDS:
            raise SchemaError(f"schema '{kind}' has {len(self.columns)} columns; at most {MAX_FIELDS} are possible")
        self._field = {f.name: f for f in self.fields}
        self._index = {c.name: i for i, c in enumerate(self.columns)}
        if len(self._index) != len(self.columns):
            names = [c.name for c in self.columns]
            twice = sorted({n for n in names if names.count(n) > 1})
            raise SchemaError(f"schema '{kind}' names {', '.join(twice)} twice")
        for f in self.fields:
            if f.version and f.version not in self._field:
                f.version = ""  # projected away: readers fall back on the bytes themselves

    def __contains__(self, name: object) -> bool:
        return name in self._field

    def __getitem__(self, name: str) -> Field:
        try:
            return self._field[name]
        except KeyError:
            raise SchemaError(f"no field '{name}'", hint=self.suggest(name)) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((self.kind, tuple(self._index)))

    def index(self, column: str) -> int:
        """Number of the physical column called ``column``."""
        try:
            return self._index[column]
        except KeyError:
            raise SchemaError(f"no column '{column}'", hint=self.suggest(column)) from None

    def suggest(self, name: str) -> str:
        """A hint: a similar name, or where the names are listed."""
        from difflib import get_close_matches

        if name in GEO_FIELDS and f"{name[:3]}_ip" in self:
            return "--geo FILE.mmdb has it: see confluo-query(1)"
        near = get_close_matches(name, self._field, n=1, cutoff=0.6)
        return f"did you mean '{near[0]}'?" if near else "--fields help lists the names"

    @property
    def time_field(self) -> Field | None:
        """The first field of type time: what --since, --until and the order of rows go by."""
        return next((f for f in self.fields if f.type.kind == "time"), None)

    @property
    def shown(self) -> list[str]:
        """The names of the fields that are printed: all but those that say whether others have a value."""
        marks = {f.present for f in self.fields}
        return [f.name for f in self.fields if f.name not in marks]

    def with_versions(self, names: Iterable[str]) -> list[str]:
        """``names``, and behind them the fields that say whether these have a value: 0.0.0.0 may be no address."""
        wanted = dict.fromkeys(names)
        return list(wanted | dict.fromkeys(self[n].version for n in wanted if self[n].version in self))

    @cached_property
    def layout(self) -> Layout:
        """The compiled form of ``columns``, for the core."""
        from confluo_tools.core.block.block import Layout

        return Layout([(c.name, c.code, c.size, c.count) for c in self.columns])

    def project(self, names: Iterable[str]) -> Schema:
        """The same kind with only these fields, in this order."""
        return Schema(self.kind, [_copy(self[n]) for n in names], self.description)

    def plus(self, fields: Iterable[Field]) -> Schema:
        """The same kind with more fields at the end."""
        return Schema(self.kind, [*self.fields, *fields], self.description)

    def as_dict(self) -> dict[str, Any]:
        return {"schema": self.kind, "description": self.description, "fields": [f.as_dict() for f in self.fields]}

    @classmethod
    def from_dict(cls, data: Any, where: str = "schema") -> Schema:
        """From parsed YAML or JSON.  Raises SchemaError naming the field at fault."""
        if not isinstance(data, dict) or not isinstance(data.get("fields"), list):
            raise SchemaError("is not a schema", where=where, hint="it needs 'schema: NAME' and a list 'fields:'")
        known = {"name", "type", "unit", "description", "names", "version", "optional"}
        fields = []
        for i, entry in enumerate(data["fields"], 1):
            if not isinstance(entry, dict) or not {"name", "type"} <= entry.keys():
                raise SchemaError(f"field {i} needs a name and a type", where=where)
            extra = entry.keys() - known
            if extra:
                unknown = min(map(str, extra))
                raise SchemaError(f"field '{entry['name']}' has unknown key '{unknown}'", where=where)
            try:
                fields.append(Field(**entry))
            except (SchemaError, TypeError, ValueError, AttributeError) as e:
                raise SchemaError(f"field '{entry['name']}': {e}", where=where) from None
        return cls(str(data.get("schema", "record")), fields, str(data.get("description", "")))


def _copy(f: Field) -> Field:
    out = Field(f.name, f.type, f.unit, f.description, f.names, f.version, f.optional)
    out.literal, out.nullable, out.present = f.literal, f.nullable, f.present
    return out
