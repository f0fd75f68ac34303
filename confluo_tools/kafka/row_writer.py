"""What all writers of rows share: they send messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.core.kafka.topic_sink import SHORT
from confluo_tools.kafka.message import MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.kafka.message import MessageShape
    from confluo_tools.core.kafka.message_sink import RowSink
    from confluo_tools.core.kafka.short_message import ShortShape
    from confluo_tools.schema import Schema

SIZE = 64 << 10  # bytes of a message
LINGER = 20_000_000  # ns that a row waits for others
PATIENCE = 10.0  # s for what is queued, after a signal


class WriterCounts(NamedTuple):
    """What became of the rows of a writer.

    ``rows``: given to it.  ``delivered``: those at their destination, in ``messages`` (or requests).  ``lost``: those
    that will never be there.  ``queued``: messages (or requests) on their way.
    """

    rows: int
    delivered: int
    messages: int
    lost: int
    queued: int
    what: str = "messages"

    def __str__(self) -> str:
        return (
            f"{self.rows} records sent, {self.delivered} delivered in {self.messages} {self.what},"
            f" {self.lost} lost, {self.queued} {self.what} queued"
        )


class PlaceWriter:
    """Writes rows of ``schema`` to a place outside, in messages or inserts that a compiled ``sink`` packs.

    ``name``: of the place.  A row waits at most ``linger`` ns for others.  Call `idle` some times a second.
    ``stopped``: after `stop`.  ``timed``: rows that have waited are sent without a call, too.
    All methods raise ConfluoError.
    """

    sink: RowSink
    timed = False

    def __init__(self, name: str, schema: Schema, linger: int) -> None:
        self.name, self.schema, self.linger = name, schema, linger
        self.stopped = False

    def write(self, block: Block, picks: Picks | None = None) -> None:
        """Take the picked rows, or all, of a block that has the columns of ``schema``."""
        if block.layout is not self.sink.layout:
            block = block.project(self.sink.layout)
        now = time.monotonic_ns()
        if not self.sink.write(block, picks, now=now):
            self.stopped = True
        self.idle(now)

    def idle(self, now: int | None = None) -> None:
        """Send rows that have waited long enough, and go on with what is under way.  ``now``: ns, monotonic."""
        self.sink.flush((time.monotonic_ns() if now is None else now) - self.linger)
        self.go_on()

    def go_on(self) -> None:
        """Go on with what is under way, and report trouble."""
        raise NotImplementedError

    def report(self) -> None:
        """Report trouble with the place.  Raises ConfluoError when it will take no more."""
        raise NotImplementedError

    def stop(self, number: int = 0) -> None:
        """After a signal: do not wait for room any more."""
        self.stopped = True
        self.sink.stop()

    def close(self) -> None:
        """Send all rows, and wait until they are delivered; after `stop` only for a while.

        Raises ConfluoError for rows that were not delivered.
        """
        raise NotImplementedError

    def wait(self, going: Callable[[], object], give_up: Callable[[], object]) -> None:
        """Call ``going``, which waits a little, while it is true; ``give_up`` when `PATIENCE` is over after `stop`."""
        end: float | None = None
        while going():
            if self.stopped:
                end = time.monotonic() + PATIENCE if end is None else end
                if time.monotonic() > end:
                    give_up()

    @property
    def counts(self) -> WriterCounts:
        raise NotImplementedError


def rows_of_message(shape: MessageShape, size: int, short: ShortShape | None = None) -> int:
    """The rows of a message of about ``size`` bytes.  ``short``: the shape that it has with few rows."""
    width = shape.layout.row_bytes
    rows = (size - len(shape.head)) // width
    if short is not None:
        rows = max(rows, min((size - short.size) // width, SHORT // width))
    return max(1, min(rows, MAX_ROWS))
