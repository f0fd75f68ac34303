"""Who logs in to a server, and which certificates count: from the file that CONFLUO_CLICKHOUSE names."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from confluo_tools.errors import UsageError
from confluo_tools.kafka.settings import lines_of_file, value_of

VARIABLE = "CONFLUO_CLICKHOUSE"
NAMES = ("user", "password", "ca", "certificate", "key")


@dataclass(frozen=True)
class ServerSettings:
    """``ca``: a file of certificates that may sign that of the server.  ``certificate``, ``key``: files of our own."""

    user: str = ""
    password: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """For TLS.  Raises UsageError."""
        try:
            made = ssl.create_default_context(cafile=self.ca or None)
            made.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate:
                made.load_cert_chain(self.certificate, self.key or None)
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or str(e)
            raise UsageError(f"ca, certificate and key: {why}", where=VARIABLE) from None
        return made


def settings() -> ServerSettings:
    """Those of the file, NAME=VALUE a line; VALUE may be @FILE (its content) or env:NAME.  Raises UsageError."""
    found = {name: (value_of(value, where)) for where, name, value in lines_of_file(VARIABLE, _split)}
    for name in ("user", "password"):
        if any(ord(c) < 32 for c in found.get(name, "")):
            raise UsageError(f"{name} has a control character", where=VARIABLE)
    return ServerSettings(**found)


def _split(text: str, where: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or name.strip() not in NAMES:
        raise UsageError("is not a setting of ClickHouse", where=where, hint=f"write {', '.join(NAMES)} = VALUE")
    return name.strip(), value.strip()
