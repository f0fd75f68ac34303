"""Records to a table of ClickHouse."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from confluo_tools.clickhouse import statements
from confluo_tools.clickhouse.batch_sender import BatchSender
from confluo_tools.clickhouse.server import ClickHouseServer
from confluo_tools.clickhouse.table import ASYNC, TOKEN, describe, shape_for
from confluo_tools.errors import ConfluoError
from confluo_tools.kafka.delivery_watch import DeliveryWatch, WatchedWriter
from confluo_tools.kafka.row_writer import WriterCounts

if TYPE_CHECKING:
    from confluo_tools.clickhouse.address import TableAddress
    from confluo_tools.clickhouse.settings import ServerSettings
    from confluo_tools.schema import Schema

SIZE = 32 << 20  # bytes of an insert: each is a part of the table, and servers like few and large ones
MAX_SIZE = 256 << 20
MAX_ROWS = 1 << 20  # servers cut larger blocks
LINGER = 1_000_000_000  # ns that a row waits for others


class ClickHouseWriter(WatchedWriter):
    """Writes rows of ``schema`` to the table, in inserts of up to ``size`` bytes.

    The table has a column for each field; see `table.shape_for`.  A row waits ``linger`` ns for others of its insert.
    ``wait``: for room while the server is behind; otherwise rows are dropped and counted.  ``patience``: s after which
    an insert that the server does not take is given up; None: never.  Raises ConfluoError.
    """

    timed = True

    def __init__(
        self,
        address: TableAddress,
        schema: Schema,
        settings: ServerSettings,
        *,
        size: int = SIZE,
        linger: int = LINGER,
        wait: bool = True,
        patience: float | None = None,
        pipeline: int = 0,
    ) -> None:
        from confluo_tools.core.clickhouse.native_sink import NativeSink

        super().__init__(str(address), schema, linger)
        with ClickHouseServer(address, settings) as server:
            table = describe(server)
        shape = shape_for(schema, table)
        capacity = max(1, min(size // shape.row_bytes, MAX_ROWS))
        self.sink: NativeSink = NativeSink(shape, capacity=capacity, wait=wait)
        self._sender = BatchSender(
            server,
            self.sink,
            statements.insert(address, [f.name for f in schema.fields]),
            {ASYNC: "0"} if ASYNC in table.known else {},  # they are large already
            token=f"{os.uname().nodename}-{pipeline}-{time.time_ns()}" if TOKEN in table.known else "",
            exact=table.exact,
            linger=linger,
            patience=patience,
        )
        self._sender.start()
        self._watch = DeliveryWatch(self.name, lambda: self.counts, "inserts", self._why)
        self._reported = False

    def go_on(self) -> None:
        self.report()

    def report(self) -> None:
        failure = self._sender.failure
        if failure is not None and not self._reported:
            self._reported = True
            raise failure

    def _why(self) -> str:
        return "" if self._sender.trouble else "the server is busy, or does not answer"

    def close(self) -> None:
        self._watch.since = time.monotonic()
        self.sink.flush()
        self._sender.end()
        self.wait(self._sending, self._sender.abort)
        self._watch.close()
        counts = self.counts
        if counts.lost:
            why = self._sender.why_lost or "the server was too slow"
            what = f"{counts.lost} of {counts.rows} records were not delivered: {why}"
            raise ConfluoError(what, where=self.name)

    def _sending(self) -> bool:
        self._sender.join(0.1)
        return self._sender.is_alive()

    @property
    def counts(self) -> WriterCounts:
        s, sink = self._sender, self.sink
        return WriterCounts(sink.rows, s.delivered, s.requests, s.lost + sink.dropped, sink.queued, "inserts")
