"""Open parts of an archive before they are used, where opening one waits for a server."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.objects.address import is_url
from confluo_tools.objects.threads import WaitingThreads

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluo_tools.core.query.predicate import Program
    from confluo_tools.multilog.archive.parquet_parts import ParquetPart, PartName
    from confluo_tools.objects.store import ObjectStat
    from confluo_tools.schema import Schema

AHEAD = 6  # parts of a stream that are opened while the one before them is read
MANY = 8  # parts that are opened at the same time


class PartFile(NamedTuple):
    """The path or URL and attributes of a part in an archive, and its size and tag if a list has them."""

    name: PartName
    path: str
    stat: ObjectStat | None = None


class Reading(NamedTuple):
    """What is read of a part: rows for which ``program`` holds (None: nothing is read), of its ``schema``.

    ``first``: first row of its batch; ``rest``: columns that are read where a row matches; ``rows``: the first row
    that ``program`` takes, and the one after the last.
    """

    place: PartFile
    program: Program | None
    schema: Schema
    first: int
    rest: Sequence[int] = ()
    rows: tuple[int, int] = (0, 0)


class OpenedPart(NamedTuple):
    """A part: its row groups that may have matching rows, or what is wrong with it.

    ``passed``: the number of its rows if it was not opened, because none of them can match.
    """

    reading: Reading
    part: ParquetPart | None
    groups: list[int]
    problem: str = ""
    passed: int = 0


Open = Callable[[Reading], OpenedPart]
_threads: WaitingThreads | None = None


def _forget_threads() -> None:
    global _threads
    _threads = None


os.register_at_fork(after_in_child=_forget_threads)


def open_ahead(readings: Iterable[Reading], open_part: Open) -> Iterator[OpenedPart]:
    """The parts in their order, open; each is closed when the next one is taken.

    Those of object stores are opened in threads, the first ones from now on: `open_part` must be safe to call from
    several threads, and raises only what ends the question.
    """
    rest = iter(readings)
    first = list(islice(rest, AHEAD))
    if not any(is_url(reading.place.path) for reading in first):
        return _in_turn(chain(first, rest), open_part)
    return _ahead(deque(_submit(reading, open_part) for reading in first), rest, open_part)


def _in_turn(readings: Iterable[Reading], open_part: Open) -> Iterator[OpenedPart]:
    for reading in readings:
        yield from _closing(open_part(reading))


def _ahead(waiting: deque[Future[OpenedPart]], readings: Iterator[Reading], open_part: Open) -> Iterator[OpenedPart]:
    try:
        while waiting:
            found = waiting.popleft().result()
            waiting += [_submit(reading, open_part) for reading in islice(readings, 1)]
            yield from _closing(found)
    finally:
        for future in waiting:
            if not future.cancel():
                future.add_done_callback(_close_result)


def _submit(reading: Reading, open_part: Open) -> Future[OpenedPart]:
    global _threads
    if _threads is None:
        _threads = WaitingThreads(MANY, "parts")
    return _threads.submit(open_part, reading)


def _closing(found: OpenedPart) -> Iterator[OpenedPart]:
    try:
        yield found
    finally:
        if found.part is not None:
            found.part.close()


def _close_result(future: Future[OpenedPart]) -> None:
    if not future.cancelled() and future.exception() is None:
        part = future.result().part
        if part is not None:
            part.close()
