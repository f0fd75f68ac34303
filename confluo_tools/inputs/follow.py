"""Records as they arrive, from a pipe, a topic or a growing log, for commands that evaluate periods at their ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from confluo_tools.console import warn
from confluo_tools.errors import UsageError
from confluo_tools.inputs.logs import remote
from confluo_tools.inputs.topics import is_topic

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.reader import Reader

SECOND = 1_000_000_000
PAUSE = 0.1  # s between two checks of a log
MAX_WAIT = 3600.0  # s of one wait for bytes


def one_log(inputs: Sequence[str]) -> bool:
    """Whether --follow reads a log of this host.  Raises UsageError for several inputs and other hosts."""
    from confluo_tools.formats import detect

    topics = [name for name in inputs if is_topic(name)]
    logs = [name for name in inputs if name not in topics and (remote(name) is not None or detect.is_multilog(name))]
    if logs and (len(inputs) > 1 or remote(logs[0]) is not None):
        hint = "without --follow, any number of logs on any hosts are read"
        what = "--follow watches one MultiLog of this host, a topic, or a pipe"
        raise UsageError(what, where=logs[-1], hint=hint)
    return bool(logs)


class Input:
    """A reader, or the log that is followed; a context manager that closes it."""

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


class OpenPeriods(Protocol):
    """Periods that have not ended: epochs, or windows.  Times in ns since 1970."""

    lateness: int  # ns after the end of a period during which late records still count
    mark: int  # later records are not older than this, as far as known

    def due(self) -> int | None:
        """When the next period ends by the clock; None if none is open."""

    def until(self, now: int) -> None:
        """Evaluate the periods that ended, plus the lateness, before ``now``."""

    def idle(self) -> None:
        """Called when no record is waiting."""


class StopSignal:
    """A signal handler for `cli.signals` that wakes the reader.  ``number``: of the signal, 0 until it arrives."""

    def __init__(self) -> None:
        self.number = 0
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __call__(self, number: int) -> None:
        self.number = number
        os.eventfd_write(self.wake, 1)

    def came(self) -> bool:
        """Whether a signal has arrived."""
        return self.number != 0

    def __enter__(self) -> StopSignal:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.wake)


class _Ended(Exception):
    """A signal arrived while there was nothing to read."""


def read(reader: Reader, periods: OpenPeriods, ending: StopSignal) -> Iterator[Block]:
    """Blocks of a pipe or a topic, or of any input that ends."""
    idle = _Idle(reader, periods, ending)
    reader.on_idle(idle.look if reader.polled else idle.wait)
    reader.stop_when(ending.came)
    try:
        for block in reader:
            periods.mark = reader.mark
            idle.quiet = 0
            yield block
            if ending.came() and not reader.polled:
                return
    except _Ended:
        pass


class _Idle:
    """What happens before a read that would block.

    A period has ended by the clock only if no record came for a while: old records that still arrive are not late, they
    are being played back.
    """

    def __init__(self, reader: Reader, periods: OpenPeriods, ending: StopSignal) -> None:
        self.reader, self.periods, self.ending = reader, periods, ending
        self.quiet = 0  # when the periods end by the clock, at the earliest; 0: a record came since the last wait

    def look(self) -> None:
        """Before each short wait of an input that waits itself."""
        self.periods.idle()
        now = time.time_ns()
        if not self.quiet:
            self.quiet = now + self.periods.lateness
        due = self.periods.due()
        if due is not None and now >= max(due, self.quiet):
            self.periods.until(now)
            self.periods.idle()

    def wait(self) -> None:
        """Wait for bytes, or until a period has ended."""
        from select import select

        periods = self.periods
        periods.idle()
        quiet = time.time_ns() + periods.lateness
        fd = getattr(getattr(self.reader, "stream", None), "fd", None)
        while fd is not None:
            if self.ending.came():
                raise _Ended
            due = periods.due()
            left = MAX_WAIT if due is None else (max(due, quiet) - time.time_ns()) / SECOND
            if left > 0 and fd in select([fd, self.ending.wake], [], [], min(left, MAX_WAIT))[0]:
                return
            if due is not None:
                periods.until(time.time_ns())
                periods.idle()


def tail(
    path: str,
    periods: OpenPeriods,
    ending: StopSignal,
    after: int | None = None,
    gone: Callable[[int], None] = lambda rows: None,
) -> Iterator[Block]:
    """Blocks of a MultiLog as it grows, and of a new log that replaces it.  ``after``: skip parts that are older (ns).

    ``gone``: called at the end with the number of rows that were removed before they were read, if any.
    """
    from confluo_tools.multilog.tails import FIRST, Tails

    quiet = 0
    with Tails(path, FIRST if after is None else after, warn=warn) as tails:
        while not ending.came():
            grown = False
            for part, periods.mark in tails.take():
                grown = True
                yield part
                if ending.came():
                    break
            if grown:
                quiet = time.time_ns() + periods.lateness
                continue
            if time.time_ns() >= quiet:
                periods.until(time.time_ns())
            periods.idle()
            if not tails.moved():
                time.sleep(PAUSE)
        if tails.missed:
            gone(tails.missed)
