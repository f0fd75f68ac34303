"""Addresses ``[USER@]HOST:PATH``, distinguished from file names as in rsync(1)."""

from __future__ import annotations

from confluo_tools.errors import UsageError


class Address(tuple[str, str, str]):
    """A log on another host.  ``host``: argument of the remote shell (USER@HOST); ``label``: the host name."""

    __slots__ = ()

    def __new__(cls, host: str, path: str, label: str) -> Address:
        return tuple.__new__(cls, (host, path, label))

    @property
    def host(self) -> str:
        return self[0]

    @property
    def path(self) -> str:
        return self[1]

    @property
    def label(self) -> str:
        return self[2]

    def __str__(self) -> str:
        host = self.host
        if ":" in host:
            user, at, name = host.rpartition("@")
            host = f"{user}{at}[{name}]"
        return f"{host}:{self.path}"


def parse(text: str) -> Address | None:
    """The address, or None if ``text`` is a local name.

    A colon before the first slash makes an address; ``./a:b`` is a file, and ``unix:PATH`` a socket of this host.
    IPv6 addresses are written in brackets.
    Raises UsageError for an invalid address, such as a host that ssh would take for an option.
    """
    user, at, rest = text.rpartition("@") if _brackets(text) else ("", "", text)
    if rest.startswith("[") and "]:" in rest and "/" not in user:
        name, _, path = rest[1:].partition("]:")
        host = f"{user}{at}{name}"
    else:
        host, colon, path = text.partition(":")
        if not colon or host in ("", "unix") or "/" in host or text == "-":
            return None
        name = host.rpartition("@")[2]
    if path.startswith("//"):
        raise UsageError("unknown kind of address", where=text, hint="write HOST:/PATH")
    if not path:
        raise UsageError("names a host but not a log", where=text, hint="write HOST:/PATH, or ./NAME for a file")
    _check(host, name, text)
    if "\0" in path:
        raise UsageError("has a NUL byte in its path", where=text)
    return Address(host, path, name)


def _brackets(text: str) -> bool:
    at, bracket = text.find("@"), text.find("[")
    return 0 < at < bracket and "/" not in text[:bracket] and ":" not in text[:bracket]


def _check(host: str, name: str, text: str) -> None:
    if not name or host.startswith(("-", "@")) or name.startswith("-"):
        raise UsageError("is not a host name", where=text, hint="write HOST:/PATH, or ./NAME for a file")
    if any(not c.isprintable() or c.isspace() or c in "'\"\\$`;&|<>()*?{}!#" for c in host) or len(host) > 255:
        raise UsageError("has invalid characters in its host name", where=text)
