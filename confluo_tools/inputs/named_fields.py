"""Fields that inputs have only if the question names them.

In-band telemetry and digests of captures, host and date of archives, and what --geo says about addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.formats.address_database import AddressDatabase
    from confluo_tools.formats.reader import Reader
    from confluo_tools.schema import Schema

_TESTED = r"\s*(?:==|!=|=|<|>|!?~|not\s+in\b|in\b|like\b|not\s+like\b)"  # `host 10.1.2.3` is another thing


def _named(word: str, texts: Iterable[str | None]) -> bool:
    # ``word`` is a regular expression.
    return any(text and re.search(rf"\b(?:{word})\b", text, re.IGNORECASE) for text in texts)


def names_telemetry(texts: Iterable[str | None]) -> bool:
    """Whether a part of the question names a field of in-band telemetry."""
    from confluo_tools.schema.telemetry_fields import TELEMETRY

    return _named("|".join(TELEMETRY), texts)


def names_digest(texts: Iterable[str | None]) -> bool:
    """Whether a part of the question names the digest of packets."""
    from confluo_tools.schema.telemetry_fields import DIGEST

    return _named(DIGEST, texts)


def path_fields(conditions: Iterable[str | None], texts: Iterable[str | None]) -> tuple[str, ...]:
    """The fields that the path of an archive has, of those that the question names.

    ``conditions``: expressions; ``texts``: lists of fields, groups and aggregates, or ``help`` for all of them.
    """
    tested, named = " ".join(filter(None, conditions)), [text for text in texts if text]
    if "help" in named:
        return "host", "date"
    return tuple(
        name
        for name in ("host", "date")
        if re.search(rf"\b{name}{_TESTED}", tested, re.IGNORECASE) or _named(name, named)
    )


def geo_fields(texts: Iterable[str | None]) -> tuple[str, ...]:
    """The fields of --geo that a part of the question names; ``help`` names all of them."""
    from confluo_tools.schema.geo_fields import GEO_FIELDS

    named = [text for text in texts if text]
    if "help" in named:
        return GEO_FIELDS
    return tuple(name for name in GEO_FIELDS if _named(name, named))


def address_databases(files: Sequence[str] | None) -> list[AddressDatabase]:
    """The databases of --geo, read.  Raises FormatError."""
    from confluo_tools.formats.address_database import AddressDatabase

    return [AddressDatabase(path) for path in files or ()]


def located(reader: Reader, databases: Sequence[AddressDatabase], names: Sequence[str]) -> Reader:
    """``reader`` with the fields ``names`` of --geo, from ``databases``; as it is without one of them."""
    if not databases or not names:
        return reader
    from confluo_tools.multilog.query.geo_fields import GeoReader
    from confluo_tools.schema.geo_fields import GEO_FIELDS

    if names is GEO_FIELDS:  # the list of --fields help
        names = possible_fields(databases)
    return GeoReader(reader, databases, names, warn=reader._warn)


def located_schema(schema: Schema, databases: Sequence[AddressDatabase]) -> Schema:
    """``schema`` with all fields of --geo that ``databases`` may have; as it is if it has no addresses."""
    from confluo_tools.multilog.query.geo_fields import address_sides, geo_schema

    return geo_schema(schema, possible_fields(databases)) if databases and address_sides(schema) else schema


def possible_fields(databases: Sequence[AddressDatabase]) -> list[str]:
    """The fields of --geo that one of ``databases`` may have, by its kind."""
    from confluo_tools.multilog.query.geo_fields import may_have
    from confluo_tools.schema.geo_fields import GEO_FIELDS

    return [name for name in GEO_FIELDS if any(may_have(database, name) for database in databases)]
