"""Records as they come, for commands that judge each stretch of time when it is over: of a pipe, or a growing log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from confluo_tools.cli.logs import remote
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.formats.reader import Reader

SECOND = 1_000_000_000
PAUSE = 0.1  # s between two looks at a log
LONGEST = 3600.0  # s of one wait for bytes


def one_log(inputs: Sequence[str]) -> bool:
    """--follow: whether it is a log of this host.  Raises UsageError for several inputs and other hosts."""
    from confluo_tools.formats import detect

    logs = [name for name in inputs if remote(name) is not None or detect.is_multilog(name)]
    if logs and (len(inputs) > 1 or remote(logs[0]) is not None):
        hint = "without --follow, any number of logs on any hosts are read"
        raise UsageError("--follow watches one MultiLog of this host, or a pipe", where=logs[-1], hint=hint)
    return bool(logs)


class Input:
    """The reader of records, or the log that is followed; a context that closes them."""

    reader: Reader | None = None
    log: Any = None

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        if self.log is not None:
            self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Stretches(Protocol):
    """Stretches of time that are open: epochs, or windows.  Times in ns since 1970."""

    lateness: int  # what comes so long after the end of its stretch is still taken
    mark: int  # nothing that is still to come is older, as far as that is known

    def due(self) -> int | None:
        """When the next one is over by the clock; None: none waits for that."""

    def until(self, now: int) -> None:
        """Hand over what is over, with the lateness, at ``now``."""

    def idle(self) -> None:
        """Nothing comes at the moment."""


class Ending:
    """The signal that ends it: a handler for `cli.signals`, whose ``number`` is 0 until then; a context."""

    def __init__(self) -> None:
        self.number = 0
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __call__(self, number: int) -> None:
        self.number = number
        os.eventfd_write(self.wake, 1)

    def came(self) -> bool:
        """Whether there was one."""
        return self.number != 0

    def __enter__(self) -> Ending:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.wake)


class _Ended(Exception):
    """A signal came while there was nothing to read."""


def read(reader: Reader, stretches: Stretches, ending: Ending) -> Iterator[Block]:
    """From a pipe, or anything that ends."""
    reader.on_idle(lambda: _wait(reader, stretches, ending))
    try:
        for block in reader:
            yield block
            if ending.came():
                return
    except _Ended:
        pass


def _wait(reader: Reader, stretches: Stretches, ending: Ending) -> None:
    # Before a read that would block: until there are bytes, or a stretch is over by the clock and nothing came for a
    # while (what is old when it comes is not late: somebody plays back records).
    from select import select

    stretches.idle()
    quiet = time.time_ns() + stretches.lateness
    fd = getattr(getattr(reader, "stream", None), "fd", None)
    while fd is not None:
        if ending.came():
            raise _Ended
        due = stretches.due()
        left = LONGEST if due is None else (max(due, quiet) - time.time_ns()) / SECOND
        if left > 0 and fd in select([fd, ending.wake], [], [], min(left, LONGEST))[0]:
            return
        if due is not None:
            stretches.until(time.time_ns())
            stretches.idle()


def tail(
    path: str, stretches: Stretches, ending: Ending, after: int | None = None,
    gone: Callable[[int], None] = lambda rows: None,
) -> Iterator[Block]:  # fmt: skip
    """From a MultiLog as it grows, and from the one that takes its name.  ``after``: not what is all older (ns).

    ``gone``: told at the end how many rows were removed before they were seen, if any were.
    """
    from confluo_tools.store.tails import FIRST, Tails

    quiet = 0
    with Tails(path, FIRST if after is None else after) as tails:
        while not ending.came():
            grown = False
            for part, stretches.mark in tails.take():
                grown = True
                yield part
                if ending.came():
                    break
            if grown:
                quiet = time.time_ns() + stretches.lateness
                continue
            if time.time_ns() >= quiet:
                stretches.until(time.time_ns())
            stretches.idle()
            if not tails.moved():
                time.sleep(PAUSE)
        if tails.missed:
            gone(tails.missed)
