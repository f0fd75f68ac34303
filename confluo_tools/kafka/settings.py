"""Settings of librdkafka from -X and addresses: secrets come from files and the environment, never from either."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.kafka.address import TopicAddress

SECRETS = frozenset(
    {"sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"}
)
OURS = frozenset({"bootstrap.servers", "metadata.broker.list", "plugin.library.paths", "test.mock.num.brokers"})
MAX_SECRET = 1 << 16  # bytes
MAX_FILE = 1 << 20
VARIABLE = "CONFLUO_KAFKA"  # environment: a file of settings


def settings(given: Iterable[str] | None, address: TopicAddress | None = None) -> dict[str, str]:
    """{name: value} of the file in CONFLUO_KAFKA, of ``given``, each NAME=VALUE, and of the address; later ones win.

    VALUE may be @FILE (its content) or env:NAME (an environment variable).  Raises UsageError.
    """
    out = {name: value_of(value, where) for where, name, value in lines_of_file(VARIABLE, _split)}
    for text in given or ():
        name, value = _open(text, f"-X {text.partition('=')[0]}", "-X ")
        out[name] = value_of(value, f"-X {name}")
    for text in address.given if address is not None else ():
        where = f"{address}: {text.partition('=')[0]}"
        name, value = _open(text, where)
        out[name] = value_of(value, where)
    return out


def lines_of_file(variable: str, split: Callable[[str, str], tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """(place, name, value) of each line of the file that the environment ``variable`` names; nothing without it."""
    path = os.environ.get(variable)
    if path:
        for number, line in enumerate(_read(path, MAX_FILE, variable).splitlines(), 1):
            text = line.strip()
            if text and not text.startswith("#"):
                where = f"{path}:{number}"
                yield (where, *split(text, where))


def _open(text: str, where: str, before: str = "") -> tuple[str, str]:
    """Name and value of a setting that other users may see.  ``before``: the text before it, for a hint."""
    name, value = _split(text, where)
    if name in SECRETS and not value.startswith(("@", "env:")):
        hint = f"write {before}{name}=@FILE, or {before}{name}=env:VARIABLE"
        raise UsageError("is a secret, and other users see command lines", where=where, hint=hint)
    return name, value


def _split(text: str, where: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise UsageError("is not NAME=VALUE", where=where, hint="the names are those of librdkafka's CONFIGURATION.md")
    if name in OURS:
        raise UsageError("cannot be set", where=where, hint="brokers stand in the address: kafka://HOST:PORT/TOPIC")
    return name, value.strip()


def value_of(value: str, where: str) -> str:
    """The content of @FILE, the variable of env:NAME, or ``value`` itself.  Raises UsageError."""
    if value.startswith("@"):
        return _read(value[1:], MAX_SECRET, where).rstrip("\r\n")
    if value.startswith("env:"):
        variable = value[4:]
        if variable not in os.environ:
            raise UsageError(f"the variable {variable} is not set", where=where)
        return os.environ[variable]
    return value


def _read(path: str, most: int, where: str) -> str:
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read(most + 1)
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{path}: {getattr(e, 'strerror', None) or 'is not UTF-8 text'}", where=where) from None
    if len(text) > most:
        raise UsageError(f"{path}: is longer than {most} characters", where=where)
    return text
