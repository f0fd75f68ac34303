"""Threads for calls that wait for a server.

They are daemons: a command that is interrupted ends at once, and not when the last answer comes.  (Threads of
concurrent.futures are waited for at the end of the process.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future
    from queue import SimpleQueue

T = TypeVar("T")


class WaitingThreads:
    """At most ``most`` threads, begun as they are needed."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        from queue import SimpleQueue

        self._calls: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._begun = self._busy = 0

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """The call, done in its turn."""
        from concurrent.futures import Future  # imports logging: only where it is used

        future: Future[T] = Future()
        with self._lock:
            self._busy += 1
            if self._busy > self._begun < self._most:
                self._begun += 1
                threading.Thread(target=self._work, name=f"{self._name} {self._begun}", daemon=True).start()
        self._calls.put((future, call, args))
        return future

    def map(self, call: Callable[[Any], T], items: Iterable[Any]) -> Iterator[T]:
        """The results for all items, begun now, in their order."""
        futures = [self.submit(call, item) for item in items]
        return (future.result() for future in futures)

    def _work(self) -> None:
        while True:
            future, call, args = self._calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*args))
                except BaseException as e:
                    future.set_exception(e)
            with self._lock:
                self._busy -= 1
            del future, call, args
