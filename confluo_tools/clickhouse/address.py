"""Addresses of tables: clickhouse://HOST[:PORT]/[DATABASE.]TABLE; clickhouses:// with TLS."""

from __future__ import annotations

import re
from dataclasses import dataclass

from confluo_tools.errors import UsageError

SCHEME, SCHEME_TLS = "clickhouse://", "clickhouses://"
PORT, PORT_TLS = 8123, 8443
EXAMPLE = "clickhouse://host:8123/db.table"
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,127}")


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A table of a server.  ``database``: "" for the one that the server chooses for the user."""

    host: str
    port: int
    tls: bool
    database: str
    table: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEME_TLS if self.tls else SCHEME}{host}:{self.port}/{self.name}"

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}" if self.database else self.table

    @property
    def quoted(self) -> str:
        """The name as SQL has it."""
        return ".".join(f"`{part}`" for part in (self.database, self.table) if part)


def is_table(text: str) -> bool:
    """Whether ``text`` begins as the address of a table."""
    return text.startswith((SCHEME, SCHEME_TLS))


def parse(text: str) -> TableAddress:
    """The address in ``text``.  Raises UsageError."""
    tls = text.startswith(SCHEME_TLS)
    place, _, name = text.removeprefix(SCHEME_TLS if tls else SCHEME).partition("/")
    if "@" in place:
        raise UsageError(
            "has a user or a password in it, and other users see command lines",
            where=f"{SCHEME_TLS if tls else SCHEME}...@{place.rpartition('@')[2]}",
            hint="put them into the file that CONFLUO_CLICKHOUSE names",
        )
    match = _HOST.fullmatch(place)
    port = int(match[2] or (PORT_TLS if tls else PORT)) if match else 0
    if not is_table(text) or match is None or not 0 < port < 65536:
        raise UsageError("is not the address of a ClickHouse table", where=text, hint=f"write it as {EXAMPLE}")
    parts = name.split(".")
    if len(parts) > 2 or not all(_NAME.fullmatch(part) for part in parts):
        what = f"'{name}' cannot be a table" if name else "names no table"
        raise UsageError(what, where=text, hint=f"write it as {EXAMPLE}")
    return TableAddress(match[1].strip("[]"), port, tls, parts[0] if len(parts) == 2 else "", parts[-1])
