"""Parsers of option values; their errors name the option."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from confluo_tools import units
from confluo_tools.errors import UsageError

T = TypeVar("T")

CLASSES = {
    "be": 0,
    "le": 1,
    "va": 44,
    "ef": 46,
    **{f"cs{n}": 8 * n for n in range(8)},
    **{f"af{x}{y}": 8 * x + 2 * y for x in range(1, 5) for y in range(1, 4)},
}


def of_option(option: str, parse: Callable[[str], T], text: str) -> T:
    """``parse(text)``; a UsageError that it raises gets the name of the option."""
    try:
        return parse(text)
    except UsageError as e:
        e.where = option
        raise


def one_of(option: str, text: str, words: Collection[str]) -> str:
    """``text``, if it is one of ``words``."""
    if text not in words:
        raise UsageError(f"not '{text[:60]}'", where=option, hint=f"there are {', '.join(words)}")
    return text


def duration(option: str, text: str, least: int = 1, most: int = 1 << 62) -> int:
    """A duration in ns, from ``least`` to ``most``."""
    found = of_option(option, units.duration, text)
    if found < least:
        hint = {0: "0s or more", 1: "more than 0"}.get(least, f"{units.format_duration(least)} or more")
        raise UsageError(f"'{text[:60]}' is too short", where=option, hint=hint)
    if found > most:
        raise UsageError(f"'{text[:60]}' is too long", where=option, hint=f"{units.format_duration(most)} at most")
    return found


def seconds(option: str, text: str | None, least: int = 0) -> float | None:
    """A duration in seconds; None if the option was not given.  ``least``: ns."""
    return None if text is None else duration(option, text, least) / 1e9


def fraction(
    option: str,
    text: str,
    what: str = "a share",
    least: float = 0.0,
    most: float = 1.0,
    *,
    inside: bool = False,
    hint: str = "write e.g. 0.05%, 1e-6, 0.5",
) -> float:
    """The number ``0.5``, ``1e-6`` or ``0.05%``, from ``least`` to ``most``; ``inside``: without these limits.

    Raises UsageError: '...' is not ``what``.
    """
    value = units.try_number(text.removesuffix("%"))
    if value is not None:
        try:
            value = value / 100 if text.endswith("%") else float(value)
        except OverflowError:  # an integer beyond the range of floats
            value = float("inf")
        if least < value < most or (not inside and least <= value <= most):
            return value
    raise UsageError(f"'{text[:60]}' is not {what}", where=option, hint=hint)


def core_share(option: str, text: str) -> float:
    """A share of one CPU core: ``3%``, ``0.03``."""
    return fraction(option, text, "a share of a core", 0.001, hint="write 3%, from 0.1% to 100%")


def traffic_class(option: str, text: str) -> int:
    """A DSCP: a number of six bits, or its name (RFC 2474, 2597, 3246): ``cs1``, ``af11``, ``ef``."""
    word = text.lower()
    dscp = CLASSES.get(word, int(word) if word.isascii() and word.isdigit() and len(word) < 3 else 64)
    if dscp > 63:
        raise UsageError(f"'{text[:60]}' is not a class of service", where=option, hint="write e.g. cs1, ef, 0 to 63")
    return dscp


def token(option: str, text: str) -> int:
    """A token of probe datagrams: up to 16 hexadecimal digits, not all 0 (0: no token)."""
    plain = text.lower().removeprefix("0x")
    if not plain or len(plain) > 16 or set(plain) - set("0123456789abcdef") or not int(plain, 16):
        raise UsageError(f"'{text[:60]}' is not a token", where=option, hint="up to 16 hexadecimal digits, not all 0")
    return int(plain, 16)
