"""Memory for what a consumer fetches: messages that grow too much when they are decompressed end it.

librdkafka decompresses whole batches in threads of its own, before anything can look at them.  Only zstd has a limit
there (receive.message.max.bytes).  A batch of 1 MiB may become 255 MiB with lz4 and 1 GiB with gzip, and more where
brokers take larger ones; small records cost some hundred bytes each in addition.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from confluo_tools import units
from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.kafka.address import TopicAddress

MAX_GROWTH = 512 << 20  # bytes of memory while no message comes


class FetchMemory:
    """Polls ``consumer``.  Memory that grows by more than MAX_GROWTH bytes while no message comes is an error."""

    def __init__(self, consumer: Any, address: TopicAddress) -> None:
        self.consumer, self._address = consumer, address
        self._least: int | None = None  # bytes of memory since the last message
        self._given_up = False

    def poll(self, timeout: float) -> Any:
        """The next event, or None.  Raises ConfluoError."""
        event = self.consumer.poll(timeout)
        if event is not None:
            self._least = None
        elif timeout:
            self._check()
        return event

    def _check(self) -> None:
        now = resident()
        self._least = now if self._least is None else min(self._least, now)
        if now - self._least > MAX_GROWTH:
            self._given_up = True
            size = units.format_size(MAX_GROWTH)
            what = f"messages grow to more than {size} when they are decompressed"
            raise ConfluoError(what, where=str(self._address), hint="--since begins after them")

    def close(self) -> None:
        """Close the consumer.  One that was given up is left alone: it would go on to decompress before it ends."""
        if self._given_up:
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.consumer))
        else:
            self.consumer.close()


def resident() -> int:
    """Bytes of memory of this process alone."""
    with open("/proc/self/statm", encoding="ascii") as f:
        _, all_pages, shared, *_ = map(int, f.read().split())
    return (all_pages - shared) * os.sysconf("SC_PAGE_SIZE")
