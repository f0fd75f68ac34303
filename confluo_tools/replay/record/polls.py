"""Which sockets a process polls: the kernel's events of a poll name none.

A poll looks at the sockets that were ready the time before (epoll, level-triggered), and, when it has slept, at those
that woke it: these are the ones that the process uses around it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

SLEPT = 50_000  # ns: a poll that took longer has slept, and looked at its sockets again
MAX_PROCESSES = 1 << 16
MAX_USED = 1 << 10  # sockets that are used between two polls


class Poll(NamedTuple):
    """A poll of a socket.  ``result``: descriptors that were ready, 0 at its begin."""

    ts: int
    sk: int
    result: int


@dataclass(slots=True)
class _Poller:
    began: int = -1  # of a poll that has not ended
    woken: int = -1  # end of the last poll, if it slept
    ready: int = 0  # its result
    last: int = 0  # the socket used last
    used: dict[int, None] = field(default_factory=dict)  # since the last poll


class Polls:
    """Follows the polls of each process and the sockets that it uses, in their order."""

    def __init__(self) -> None:
        self._pollers: dict[int, _Poller] = {}

    def _of(self, pid: int) -> _Poller:
        poller = self._pollers.get(pid)
        if poller is None:
            if len(self._pollers) >= MAX_PROCESSES:
                del self._pollers[next(iter(self._pollers))]
            poller = self._pollers[pid] = _Poller()
        return poller

    def used(self, pid: int, sk: int) -> Poll | None:
        """A call of a process on a socket has ended.  Returns the poll that found the socket ready, if one did."""
        poller = self._of(pid)
        poller.last = sk
        if sk in poller.used:
            return None
        if len(poller.used) < MAX_USED:
            poller.used[sk] = None
        return Poll(poller.woken, sk, poller.ready) if poller.woken >= 0 else None

    def begins(self, ts: int, pid: int) -> list[Poll]:
        """A process begins to poll, or changes what it polls."""
        poller = self._of(pid)
        found = [Poll(ts, sk, 0) for sk in poller.used or (poller.last,) if sk]
        poller.began, poller.woken = ts, -1
        poller.used.clear()
        return found

    def ends(self, ts: int, pid: int, result: int) -> None:
        """A poll ends."""
        poller = self._of(pid)
        if poller.began >= 0 and ts - poller.began > SLEPT:
            poller.woken, poller.ready = ts, result
        poller.began = -1
