"""A thread that inserts the batches of a sink, one after the other, and tries again what did not arrive."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from confluo_tools.clickhouse.server import ClickHouseServer, NoAnswerError, RefusalError
from confluo_tools.console import tell
from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.core.clickhouse.native_batch import NativeBatch
    from confluo_tools.core.clickhouse.native_sink import NativeSink

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # s between two tries
SAY_TROUBLE = 10.0  # minimum s between two messages about different troubles


class BatchSender(threading.Thread):
    """Inserts batches with ``statement`` until `end`.

    ``token``: prefix of the tokens by which the server knows an insert that it has; "": it does not know tokens.
    ``exact``: it takes an insert only once.  ``linger``: ns that a row waits for others of its batch.
    ``patience``: s after which a batch is given up; None: never.
    ``delivered``: rows that are in the table, by ``requests`` inserts.  ``lost``: rows that were given up.
    ``trouble``: what is wrong at this moment, or "".  ``failure``: why no batch is taken any more, or None.
    """

    def __init__(
        self,
        server: ClickHouseServer,
        sink: NativeSink,
        statement: str,
        settings: Mapping[str, str],
        *,
        token: str,
        exact: bool,
        linger: int,
        patience: float | None,
    ) -> None:
        super().__init__(name="clickhouse", daemon=True)
        self._server, self._sink, self._statement, self._settings = server, sink, statement, dict(settings)
        self._token, self._exact, self._linger, self._patience = token, exact, linger, patience
        self.delivered = self.requests = self.lost = 0
        self.trouble, self.why_lost = "", ""
        self.failure: Exception | None = None
        self._number, self._next_tell = 0, 0.0
        self._last = threading.Event()  # no batches come any more
        self._aborted = threading.Event()

    def end(self) -> None:
        """Deliver what the sink has given so far, then end."""
        self._last.set()
        os.eventfd_write(self._sink.wake, 1)

    def abort(self) -> None:
        """Give up what is not delivered."""
        self._aborted.set()
        self._server.abort()

    def run(self) -> None:
        while True:
            last = self._last.is_set()
            batch = self._sink.first()
            if batch is not None:
                self._take(batch)
                self._sink.leave()
            elif last:
                break
            else:
                select.select([self._sink.wake], [], [], min(max(self._linger / 2e9, 0.005), 0.5))
                with suppress(BlockingIOError):
                    os.eventfd_read(self._sink.wake)
                self._sink.remind(time.monotonic_ns() - self._linger)  # its filler may wait for input
        self._server.close()

    def _take(self, batch: NativeBatch) -> None:
        rows = batch.rows
        done = False
        if self.failure is None and not self._aborted.is_set():
            try:
                done = self._deliver(batch)
            except Exception as e:
                self.failure, self.why_lost = e, e.what if isinstance(e, ConfluoError) else str(e)
        if done:
            self.requests += 1
            self.delivered += rows
        else:
            self.lost += rows

    def _deliver(self, batch: NativeBatch) -> bool:
        """Insert the batch; tries again for as long as that may help.  Raises ConfluoError where it does not."""
        began, pause = time.monotonic(), FIRST_PAUSE
        settings = dict(self._settings)
        self._number += 1
        if self._token:
            settings["insert_deduplication_token"] = f"{self._token}-{self._number}"
        while not self._aborted.is_set():
            try:
                self._server.insert(self._statement, batch.pieces(), settings)
                if self.trouble:
                    self.trouble = ""
                    tell(f"{self._server.address}: takes records again")
                return True
            except RefusalError as e:
                if not e.temporary:
                    raise
                self._note(e)
            except NoAnswerError as e:
                self._note(e)
                if e.taken and not self._exact and not self._aborted.is_set():
                    where = self._server.address
                    tell(f"{where}: {batch.rows} records are sent again, and may be there twice: {e.what}")
            if self._patience is not None and time.monotonic() - began > self._patience:
                return False
            self._aborted.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return False

    def _note(self, e: ConfluoError) -> None:
        """Report what is wrong, unless that is known."""
        now = time.monotonic()
        if not self._aborted.is_set() and (not self.trouble or (e.what != self.trouble and now > self._next_tell)):
            self._next_tell = now + SAY_TROUBLE
            tell(f"{self._server.address}: waits: {e.what}")
        self.trouble = self.why_lost = e.what
