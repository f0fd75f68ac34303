"""Name lookups in threads: one that hangs delays no probe."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from confluo_tools.console import describe

MAX_WAITING = 1024  # names that wait for a thread


class NamedHost(Protocol):
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class LookupJob(Protocol):
    """``over``: the answer is not needed any more."""

    over: bool

    @property
    def target(self) -> NamedHost: ...


Job = TypeVar("Job", bound=LookupJob)


class NameResolver(Generic[Job]):
    """Name lookups in up to ``max_threads`` threads; ``answers`` are (job, ns, addresses or error).

    ``wake`` can be read when there are answers.
    """

    def __init__(self, max_threads: int, lookup: Callable[..., Any]) -> None:
        self._max_threads, self._lookup = max_threads, lookup
        self._threads = 0
        self._jobs: deque[Job] = deque()
        self._there = threading.Semaphore(0)
        self._lock = threading.Lock()
        self.answers: deque[tuple[Job, int, list[Any] | OSError]] = deque()
        self.wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._over = False

    def start(self, job: Job) -> bool:
        """Look up the host of ``job``; False: too many names wait, or there is no thread."""
        if len(self._jobs) >= MAX_WAITING:
            return False
        self._jobs.append(job)
        if self._threads < min(self._max_threads, len(self._jobs) + 1):
            self._threads += 1
            try:
                threading.Thread(target=self._work, name="resolver", daemon=True).start()
            except RuntimeError:  # out of memory or threads
                self._threads -= 1
                if not self._threads:
                    self._jobs.clear()
                    return False
        self._there.release()
        return True

    def _work(self) -> None:
        while True:
            self._there.acquire()
            if self._over:
                break
            try:
                job = self._jobs.popleft()
            except IndexError:
                continue
            if job.over:
                continue
            began = time.perf_counter_ns()
            found: list[Any] | OSError
            try:
                found = self._lookup(job.target.host, job.target.port, 0, socket.SOCK_STREAM)
            except OSError as e:
                found = e
            except UnicodeError:
                found = socket.gaierror(socket.EAI_NONAME, "invalid name")
            except Exception as e:  # every lookup gets an answer
                found = OSError(0, describe(e))
            self.answers.append((job, time.perf_counter_ns() - began, found))
            with suppress(OSError):
                os.write(self._waker, b"x")
        with self._lock:
            self._threads -= 1
            self._close_pipe()

    def _close_pipe(self) -> None:
        if not self._threads:  # a hanging thread keeps the pipe until it ends
            os.close(self.wake)
            os.close(self._waker)

    def close(self) -> None:
        """End the threads; a hanging one ends after its lookup."""
        with self._lock:
            if not self._over:
                self._over = True
                for _ in range(self._threads):
                    self._there.release()
                self._close_pipe()
