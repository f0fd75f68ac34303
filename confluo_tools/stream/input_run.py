"""The rows of an input for which an expression holds, into what takes rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from confluo_tools import cli

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.formats.reader import Reader


class RowTaker(Protocol):
    """Takes rows.  `idle` is called some times a second."""

    @property
    def linger(self) -> int: ...
    def write(self, block: Block, picks: Picks | None = None) -> object: ...
    def idle(self) -> None: ...


class InputRun:
    """Gives ``into`` the rows of ``reader`` for which the expression ``text`` holds, at most ``limit`` of them."""

    def __init__(self, into: RowTaker, reader: Reader, text: str, limit: int | None) -> None:
        from confluo_tools.expr import compile, read_list

        self._into, self.reader, self.limit = into, reader, limit
        now = time.time_ns()
        self.expr = compile(text, reader.schema, now_ns=now, filters=reader.filters, lists=read_list)
        for line in self.expr.notes:
            cli.tell(line)
        self.stopped = 0
        self._tried = self.sent = 0  # rows of blocks with some to send; rows to send

    def all(self) -> None:
        """The whole input."""
        from confluo_tools.formats.limit import limited

        self.reader.on_idle(self.before_wait)
        self.reader.stop_when(lambda: self.stopped != 0)
        for block, picks in limited(self.reader.select(self.expr), self.limit):
            self._tried += block.rows
            self.sent += block.rows if picks is None else len(picks)
            self._into.write(block, picks)
            if self.stopped:
                return

    @property
    def seen(self) -> int:
        """Rows that were tried with the expression, as far as the input counts them."""
        return self.reader.rows if self.reader.polled else self._tried

    def before_wait(self) -> None:
        """The reader is about to wait for input."""
        self._into.idle()
