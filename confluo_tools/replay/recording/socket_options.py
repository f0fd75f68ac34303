"""Socket options that decide what TCP sends, as recordings hold them.

Options of a socket before its connection, also those that it got from its listener, are settings `option:NAME`; later
ones are calls `setsockopt` with flags = level << 16 | option.  A value is an integer: of SO_LINGER on | seconds << 32,
of TCP_CONGESTION the first 8 characters, the first one lowest (as a setting: the name).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PREFIX = "option:"
SOL_SOCKET, IPPROTO_TCP = 1, 6
SO_SNDBUF, SO_RCVBUF, SO_LINGER, TCP_CONGESTION = 7, 8, 13, 13
NAMES: Mapping[tuple[int, int], str] = {
    (SOL_SOCKET, SO_SNDBUF): "SO_SNDBUF",
    (SOL_SOCKET, SO_RCVBUF): "SO_RCVBUF",
    (SOL_SOCKET, 9): "SO_KEEPALIVE",
    (SOL_SOCKET, SO_LINGER): "SO_LINGER",
    (SOL_SOCKET, 18): "SO_RCVLOWAT",
    (SOL_SOCKET, 32): "SO_SNDBUFFORCE",
    (SOL_SOCKET, 33): "SO_RCVBUFFORCE",
    (SOL_SOCKET, 47): "SO_MAX_PACING_RATE",
    (IPPROTO_TCP, 1): "TCP_NODELAY",
    (IPPROTO_TCP, 2): "TCP_MAXSEG",
    (IPPROTO_TCP, 3): "TCP_CORK",
    (IPPROTO_TCP, 4): "TCP_KEEPIDLE",
    (IPPROTO_TCP, 5): "TCP_KEEPINTVL",
    (IPPROTO_TCP, 6): "TCP_KEEPCNT",
    (IPPROTO_TCP, 7): "TCP_SYNCNT",
    (IPPROTO_TCP, 8): "TCP_LINGER2",
    (IPPROTO_TCP, 9): "TCP_DEFER_ACCEPT",
    (IPPROTO_TCP, 10): "TCP_WINDOW_CLAMP",
    (IPPROTO_TCP, 12): "TCP_QUICKACK",
    (IPPROTO_TCP, TCP_CONGESTION): "TCP_CONGESTION",
    (IPPROTO_TCP, 16): "TCP_THIN_LINEAR_TIMEOUTS",
    (IPPROTO_TCP, 18): "TCP_USER_TIMEOUT",
    (IPPROTO_TCP, 25): "TCP_NOTSENT_LOWAT",
    (IPPROTO_TCP, 44): "TCP_RTO_MAX_MS",
    (IPPROTO_TCP, 45): "TCP_RTO_MIN_US",
    (IPPROTO_TCP, 46): "TCP_DELACK_MAX_US",
}
# Options with which a connection cannot be replayed.
BEYOND: Mapping[tuple[int, int], str] = {
    (IPPROTO_TCP, 14): "TCP_MD5SIG",
    (IPPROTO_TCP, 19): "TCP_REPAIR",
    (IPPROTO_TCP, 30): "TCP_FASTOPEN_CONNECT",
    (IPPROTO_TCP, 31): "TCP_ULP",
    (IPPROTO_TCP, 32): "TCP_MD5SIG_EXT",
    (IPPROTO_TCP, 38): "TCP_AO_ADD_KEY",
}
_PLACES = {name: place for place, name in NAMES.items()}


class OptionValue(NamedTuple):
    """An option and its value as an integer, as in the fields ``flags`` and ``value`` of a call."""

    level: int
    option: int
    value: int

    @property
    def name(self) -> str:
        return NAMES.get((self.level, self.option), f"{self.level}:{self.option}")

    @property
    def flags(self) -> int:
        return self.level << 16 | self.option

    def setting(self) -> dict[str, int | str]:
        """The fields of its setting."""
        found: dict[str, int | str] = {"name": PREFIX + self.name}
        if self.name == "TCP_CONGESTION":
            return found | {"text": congestion_name(self.value)}
        return found | {"value": self.value}


def option_of(level: int, option: int, value: bytes) -> OptionValue | None:
    """What a program passed to setsockopt(2); none if it does not decide what TCP sends."""
    if (level, option) not in NAMES or not value:
        return None
    if (level, option) == (IPPROTO_TCP, TCP_CONGESTION):
        return OptionValue(level, option, int.from_bytes(value.split(b"\0")[0][:8], "little"))
    if len(value) >= 8:
        return OptionValue(level, option, int.from_bytes(value[:8], "little", signed=True))
    return OptionValue(level, option, int.from_bytes(value[:4], "little", signed=len(value) >= 4))


def congestion_name(value: int) -> str:
    """The name of a congestion control, or its first 8 characters."""
    return (value & (1 << 64) - 1).to_bytes(8, "little").rstrip(b"\0").decode("ascii", "replace")


def set_before(settings: Mapping[str, int | str]) -> list[OptionValue]:
    """The options that a socket had before its connection, but TCP_CONGESTION, by the settings of its end."""
    found = []
    for name, value in settings.items():
        place = _PLACES.get(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
        if place is not None and isinstance(value, int):
            found.append(OptionValue(*place, value))
    return found
