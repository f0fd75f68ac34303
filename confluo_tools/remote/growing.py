"""A growing log on another host, from a position on: the rows since the last question, again and again.

The position is kept here, so a connection that is lost loses and repeats no row: the answer is given when it is
complete, and the next connection asks for what comes after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.formats.growing import GrowingInput
from confluo_tools.formats.reader import Warn
from confluo_tools.multilog.growing_log import other_log
from confluo_tools.remote.connect import Connection, RemoteError, RemoteShell, connected
from confluo_tools.remote.reader import RemoteReader
from confluo_tools.remote.request import QueryRequest

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.remote.address import Address
    from confluo_tools.schema import Schema

PAUSE = 0.2  # s between two questions to a host with nothing new
RETRY, MAX_RETRY = 1.0, 30.0  # s before the first and before later tries to reach a host again
TOLD = 60.0  # s between two lines about a host that stays away


class GrowingRemoteLog(GrowingInput):
    """The log at ``address``; the server selects its rows by ``request``, if that is a question for rows.

    ``rows``, ``identity``: as for `GrowingLog`.  ``host``: value of an added field `host`.  ``last``: of what is there
    already, only the newest rows of this number.  ``tell`` gets remarks.  Raises RemoteError, StoreError: the first
    time; later, a host that is lost is tried again.
    """

    format = "multilog"

    def __init__(
        self,
        address: Address,
        shell: RemoteShell,
        request: QueryRequest | None,
        *,
        rows: Sequence[int] = (),
        identity: str | None = None,
        host: str | None = None,
        last: int | None = None,
        warn: Warn | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(str(address), warn)
        self.address, self._shell, self._host = address, shell, host
        self._tell = tell or (lambda what: None)
        self.chosen = request is not None and request.names is None and not request.analyze
        given = request or QueryRequest()
        text = QueryRequest(names=given.expr or given.names)
        self._request = given.replace(agg=None, by=None, counted=False, limit=None) if self.chosen else text
        self._rows, self._last = list(rows), last if self.chosen and not rows else None
        self._answer: RemoteReader | None = None
        self._columns: Sequence[int] | None = None
        self._asked = -MAX_RETRY
        self._lost = False
        self._retry, self._told = RETRY, -TOLD
        self.target: Schema | None = None  # of the rows, instead of that of the log
        self._peer: Connection | None = self._connected()
        first = self._reader(self._request.replace(limit=0, last=None))
        first.ask()
        first.ready(shell.wait)
        for _ in first:
            pass
        self.schema, self.filters, self.identity = first.schema, first.filters, first.uuid
        if identity is not None and identity != self.identity:
            self.close()
            raise other_log(self.name)

    @property
    def position(self) -> list[int]:
        return list(self._rows)

    def _connected(self) -> Connection:
        return connected(self.address, self._shell, "follow", "cannot be followed from elsewhere")

    def _reader(self, request: QueryRequest) -> RemoteReader:
        assert self._peer is not None
        return RemoteReader(self._peer, request, chosen=self.chosen, host=self._host, warn=self._warn, note=self._tell)

    # -- rounds

    def ask(self, columns: Sequence[int] | None) -> None:
        now = time.monotonic()
        self._answer, self._columns = None, columns
        if now < self._asked + (self._retry if self._lost else PAUSE):
            return
        self._asked = now
        request = self._request
        if columns is not None and self.schema.columns:
            names = {self._field(i) for i in columns}
            request = request.replace(fields=",".join(f.name for f in self.schema.fields if f.name in names) or None)
        try:
            if self._peer is None:
                self._peer = self._connected()
            reader = self._reader(request.replace(last=self._last))
            reader.after = self.identity, self._rows
            reader.ask(self.target)
            self._answer = reader
        except RemoteError as e:
            self._lose(e)

    def _field(self, column: int) -> str:
        schema = self.target or self.schema
        return schema.columns[column].field.name

    def streams(self, expr: Any) -> list[Iterator[tuple[Block, Picks | None]]]:
        return [] if self._answer is None else [self._rounds(expr)]

    def _rounds(self, expr: Any) -> Iterator[tuple[Block, Picks | None]]:
        while self._answer is not None:
            reader = self._answer
            try:
                reader.ready(self._shell.wait)
                blocks = list(reader)
                rows, missed, more, uuid = reader.grown()
            except RemoteError as e:
                self._lose(e)
                return
            if self._lost:
                self._lost, self._retry = False, RETRY
                self._tell(f"{self.name}: answers again")
            if uuid != self.identity:
                self._tell(f"{self.name}: another log has taken the name; its rows follow")
                self.identity = uuid
            for block in blocks:
                yield block, None
            self._rows, self._last = rows, None
            self.missed += missed
            self._answer = None
            if more:
                self._asked = -MAX_RETRY
                self.ask(self._columns)

    def _lose(self, error: RemoteError) -> None:
        # Ask again later; what was answered in part is answered again.
        if self._peer is not None:
            self._peer.close()
        self._peer = self._answer = None
        self._retry = min(2 * self._retry, MAX_RETRY) if self._lost else RETRY
        self._asked = now = time.monotonic()
        if not self._lost or now - self._told >= TOLD:
            self._tell(f"{error}; it is tried again")
            self._told = now
        self._lost = True

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
