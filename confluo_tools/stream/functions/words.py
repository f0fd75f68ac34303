"""What is written after the word of a function: a mapping of words, windows of time."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools import units
from confluo_tools.errors import UsageError
from confluo_tools.schema import Schema

if TYPE_CHECKING:
    from confluo_tools.core.stream.event_windows import WindowStage

MS = 10**6
DAY = 86400 * 10**9
LATE = 10**9  # ns: lanes and partitions are read in pieces
MAX_OPEN = 60  # windows that wait for late records


class Windows(NamedTuple):
    """Windows of ``every`` ns of the field ``time``; one ends when a record is ``late`` ns later than its end."""

    time: str
    every: int
    late: int


def remarks(stage: WindowStage, windows: Windows) -> list[str]:
    """What happened to windows: late records, clocks that went back."""
    out = []
    if stage.late_rows:
        now = units.format_duration(windows.late)
        out.append(f"{number(stage.late_rows, 'record')} came after the end of the window; late: {now} can be raised")
    if stage.steps:
        out.append(f"the time went back {number(stage.steps, 'time')}; windows may have been given twice, add them")
    return out


def number(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def mapping(value: Any, known: Collection[str], needed: Collection[str], where: str, example: str) -> dict[str, Any]:
    """The words after a function.  Raises UsageError for a word that is unknown or missing."""
    if not isinstance(value, dict):
        raise UsageError(f"needs {', '.join(needed)}", where=where, hint=f"as in '{example}'")
    for word in value:
        if word not in known:
            from difflib import get_close_matches

            near = get_close_matches(str(word), known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"unknown word '{str(word)[:60]}'", where=where, hint=hint)
    for word in needed:
        if word not in value:
            raise UsageError(f"needs {word}", where=where, hint=f"as in '{example}'")
    return value


def text(value: Any, where: str, example: str, most: int = 4096) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip() or len(value) > most:
        what = "is too long" if isinstance(value, str) and len(value) > most else "is not a text"
        raise UsageError(what, where=where, hint=f"as in '{example}'")
    return value.strip()


def duration(value: Any, where: str, least: int, most: int) -> int:
    """A time with its unit, from ``least`` to ``most`` ns."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise UsageError("is not a time", where=where, hint="write e.g. 10s, 250ms")
    try:
        ns = units.duration(str(value))
    except UsageError as e:
        raise UsageError(e.what, where=where, hint=e.hint) from None
    if not least <= ns <= most:
        limits = f"{units.format_duration(least)} to {units.format_duration(most)}"
        raise UsageError(f"{units.format_duration(ns)} is not from {limits}", where=where)
    return ns


def whole(value: Any, where: str, least: int, most: int) -> int:
    """A whole number, also written as 64Ki or 1M."""
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, (str, float)):
        found = units.try_number(str(value))
        number = found if isinstance(found, int) else None
    if number is None or not least <= number <= most:
        raise UsageError(f"'{str(value)[:60]}' is not a number from {least} to {most}", where=where)
    return number


def windows(words: dict[str, Any], schema: Schema, where: str) -> Windows:
    """``every`` and ``late`` (a second, at most a window) of a function over windows; the records need a time."""
    if schema.time_field is None:
        raise UsageError(f"records of '{schema.kind}' have no time", where=where, hint="filter or sample them")
    every = duration(words["every"], f"{where}: every", MS, 366 * DAY)
    late = duration(words["late"], f"{where}: late", 0, 366 * DAY) if "late" in words else min(every, LATE)
    if late // every > MAX_OPEN:
        most = units.format_duration(MAX_OPEN * every)
        raise UsageError(f"at most {MAX_OPEN} windows wait: {most}", where=f"{where}: late", hint="use longer windows")
    return Windows(schema.time_field.name, every, late)
