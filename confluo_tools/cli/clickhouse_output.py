"""Output of records to a table of ClickHouse, and the statement that makes one."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from confluo_tools.console import note, state, tell
from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.clickhouse.address import TableAddress
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.schema import Schema

LOOK = 0.005  # s between two looks for confirmations


class ClickHouseOutput:
    """Context manager that writes records of ``schema`` to a table.  ``rows``: written to it.

    The end waits until all rows are in the table; after an interrupt only for a while.
    """

    def __init__(self, address: TableAddress, schema: Schema) -> None:
        from confluo_tools.clickhouse.clickhouse_writer import ClickHouseWriter
        from confluo_tools.clickhouse.settings import settings

        self.rows = 0
        self.writer = ClickHouseWriter(address, schema, settings())

    def write(self, block: Block, picks: Picks | None = None) -> None:
        self.writer.write(block, picks)
        self.rows += block.rows if picks is None else len(picks)

    def flush(self) -> None:
        """Send rows that have waited long enough: an insert for each pause of the input would be too many."""
        self.writer.idle()

    def arrived(self) -> bool:
        """Wait until the table has all rows written so far; whether it has them.  A stop ends the wait."""
        self.writer.sink.flush()
        while (counts := self.writer.counts).delivered + counts.lost < self.rows and not self.writer.stopped:
            time.sleep(LOOK)
            self.writer.report()
        return counts.delivered == self.rows

    def __enter__(self) -> ClickHouseOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.writer.close()
            return
        if not isinstance(error, ConfluoError):
            self.writer.stop()
        try:
            self.writer.close()
        except ConfluoError as e:
            if error is not e and not isinstance(error, ConfluoError):
                note(str(e))
        if not state.quiet and not isinstance(error, ConfluoError):
            note(str(self.writer.counts))


def print_statement(address: TableAddress, schema: Schema) -> None:
    """Print the statement that makes a table for ``schema``, in the types of its server, if that answers."""
    from confluo_tools.clickhouse.column_types import Dialect
    from confluo_tools.clickhouse.server import ClickHouseServer, NoAnswerError
    from confluo_tools.clickhouse.settings import settings
    from confluo_tools.clickhouse.statements import create_table
    from confluo_tools.clickhouse.table import dialect_of

    try:
        with ClickHouseServer(address, settings()) as server:
            dialect = dialect_of(server)
    except NoAnswerError as e:
        tell(f"{address}: {e.what}; the statement is for servers since 2020")
        dialect = Dialect()
    print(create_table(address, schema, dialect), end="")
