"""Workers of Dask that hang: which tasks are to be done again, and where.

The scheduler itself gives up a worker after five minutes without a heartbeat (distributed.scheduler.worker-ttl), and
one that answers while a task never ends it does not give up at all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluo_tools.errors import ConfluoError

LATE = 60.0  # seconds without a heartbeat, or without any task done, until tasks are done again elsewhere
LOOK = 1.0  # seconds between two looks at the workers


class DaskWatch:
    """Looks at the workers of ``client`` while a question waits; ``name`` of the engine, in messages."""

    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name = client, name
        self._looked = self._went_on = time.monotonic()
        self._done = -1
        self._beats: dict[str, tuple[float, float]] = {}  # worker: its last heartbeat, and when that was new here

    def places(self, futures: Sequence[Any], done: int) -> list[str]:
        """Workers that are to do a task again that ``futures`` do already; [] while it is right to wait.

        ``done``: tasks that are done.  The workers of ``futures`` have sent no heartbeat for long; or nothing has been
        done for long, and others have nothing to do.  Raises ConfluoError: no worker sends heartbeats any more.
        """
        now = time.monotonic()
        if done != self._done:
            self._done, self._went_on = done, now
        if now - self._looked < LOOK:
            return []
        self._looked = now
        workers = list(self._client.nthreads())
        silent = self._silent(self._client.scheduler_info()["workers"], now).intersection(workers)
        if workers and len(silent) == len(workers):
            what = f"no worker has answered for {LATE:g} s"
            raise ConfluoError(what, where=self._name, hint="are their hosts and their file system well?")
        busy: Mapping[str, Sequence[str]] = self._client.processing()
        keys = {str(future.key) for future in futures}
        have = {address for found in self._client.who_has(list(futures)).values() for address in found}
        have |= {address for address, own in busy.items() if keys.intersection(map(str, own))}
        others = [address for address in workers if address not in silent and address not in have]
        if not have:
            return []  # no worker has it yet, or its worker was lost
        if have <= silent:
            return others
        return [one for one in others if not busy.get(one)] if now - self._went_on > LATE else []

    def _silent(self, workers: Mapping[str, Any], now: float) -> set[str]:
        # Clocks of two hosts are not compared: what counts is when a later time was seen here.
        for address, worker in workers.items():
            beat = worker["last_seen"]
            if self._beats.get(address, (None, 0.0))[0] != beat:
                self._beats[address] = beat, now
        return {address for address in workers if now - self._beats[address][1] > LATE}
