"""Asks one log for its partials in a thread of its own: a host that does not answer holds nothing up."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from confluo_tools.errors import ConfluoError
from confluo_tools.monitor.log_partials import LogPartials, Part

SECOND = 10**9
RETRY, MAX_RETRY = SECOND, 30 * SECOND  # ns before the first and before later tries to reach a host again


class PartArrival(NamedTuple):
    """A ``part`` of an answer; else the end of one, with the ``error`` that ended it."""

    part: Part | None = None
    error: ConfluoError | None = None


class HostFeed:
    """What is known of one log, and the thread that asks it.

    ``mark``: the windows have all of its rows that are older (ns), as far as they were written at the question.
    ``missing``: windows do not wait for it, since this time (ns).  Steady times are in ns.
    """

    def __init__(self, source: LogPartials, arrived: threading.Event) -> None:
        self.source, self.name, self._arrived = source, source.name, arrived
        self.mark = -(1 << 63)
        self.missing: int | None = None
        self.late = 0  # rows that came too late for their ticks, since it is missing
        self.reason = ""  # why it did not answer
        self.since: int | None = None  # it has not answered questions since this steady time
        self.last = -MAX_RETRY  # steady time of the last question
        self._retry = 0
        self._asked_at: int | None = None  # mark of the question that is not answered yet
        self._asking = False
        self._arrivals: deque[PartArrival] = deque()
        self._wanted = threading.Semaphore(0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    # -- the thread

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            if self._over.is_set():
                return
            error: ConfluoError | None = None
            try:
                for part in self.source.grown():
                    self._arrivals.append(PartArrival(part))
                    self._arrived.set()
                    if self._over.is_set():
                        return
            except ConfluoError as e:
                error = e
            except Exception as e:  # the monitor must say so, and go on with the others
                error = ConfluoError(f"{type(e).__name__}: {e}", where=self.name)
            if error is not None:
                self.source.close()
            self._arrivals.append(PartArrival(error=error))
            self._arrived.set()

    # -- the monitor

    @property
    def asking(self) -> bool:
        """Whether an answer is awaited."""
        return self._asking

    def may_ask(self, steady: int) -> bool:
        """Whether a question may be sent now: the last one was answered, or failed some time ago."""
        return not self._asking and steady >= self.last + self._retry

    def ask(self, mark: int, steady: int) -> None:
        """Ask for new rows; when the answer is complete, all rows older than ``mark`` are known."""
        self._asked_at, self._asking, self.last = mark, True, steady
        if self.since is None:
            self.since = steady
        self._wanted.release()

    def forget_mark(self) -> None:
        """The clock was set: the question that is under way says nothing about time."""
        self.mark, self._asked_at = -(1 << 63), None

    def arrivals(self) -> Iterator[Part]:
        """The parts that have come."""
        while self._arrivals:
            part, error = self._arrivals.popleft()
            if part is not None:
                yield part
                continue
            self._asking = False
            if error is not None:
                self.reason = str(error)
                self._retry = min(2 * self._retry or RETRY, MAX_RETRY)
                continue
            self.reason, self._retry, self.since = "", 0, None
            if self._asked_at is not None:
                self.mark = max(self.mark, self._asked_at)

    def close(self) -> None:
        self._over.set()
        self._wanted.release()
        self.source.stop()
        self._thread.join(2.0)
        if not self._thread.is_alive():
            self.source.close()
