"""A growing MultiLog of this host, from a position on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import StoreError
from confluo_tools.formats.growing import GrowingInput
from confluo_tools.formats.reader import Reader, Warn
from confluo_tools.multilog.tails import LAST, Tails

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks


class GrowingLog(GrowingInput):
    """The log at ``path``; also a log that replaces it.  ``rows``: how many rows of each lane were read already.

    ``identity``: that of the log at that time; None: of any.  Raises StoreError.
    """

    format = "multilog"

    def __init__(
        self, path: str, *, rows: Sequence[int] = (), identity: str | None = None, warn: Warn | None = None
    ) -> None:
        from confluo_tools.multilog.views import named_filters

        super().__init__(path, warn)
        self.tails = Tails(path, warn=warn)
        try:
            log = self.tails.log
            self.schema, self.filters = log.schema, named_filters(log)
            if identity is not None and identity != self.identity:
                raise other_log(path)
            go_on(self.tails, rows)
        except BaseException:
            self.tails.close()
            raise

    @property
    def identity(self) -> str:  # type: ignore[override]
        return self.tails.uuid

    @property
    def position(self) -> list[int]:
        return self.tails.rows

    @property
    def missed(self) -> int:  # type: ignore[override]
        return self.tails.missed

    def streams(self, expr: Any) -> list[Iterator[tuple[Block, Picks | None]]]:
        return [((block, None) for block in lane) for lane in self.tails.streams()]

    def moved(self) -> bool:
        return self.tails.moved()

    def skip_before(self, time: int) -> None:
        self.tails.after = max(self.tails.after, time)

    def close(self) -> None:
        self.tails.close()


class GrownRows(Reader):
    """What the log at ``path`` has after ``rows`` of each lane, at most ``most`` rows of a lane, about by time.

    If the log is not ``uuid``, all of its rows are new.  When they are read, ``position`` is the new one, ``missed``
    counts rows that were removed, and ``behind`` says whether there is more.  Raises StoreError.
    """

    format = "multilog"

    def __init__(self, path: str, uuid: str, rows: Sequence[int], most: int = LAST, warn: Warn | None = None) -> None:
        from confluo_tools.multilog.views.filter import FilterNames

        super().__init__(path, warn)
        self.most = most
        self.tails = Tails(path, warn=warn)
        self.log = self.tails.log
        if self.tails.uuid == uuid:
            try:
                go_on(self.tails, rows)
            except StoreError:
                self.tails.close()
                raise
        self.schema, self.filters = self.log.schema, FilterNames(self.log)

    def blocks(self) -> Iterator[Block]:
        from confluo_tools.formats.merge import merged

        streams: list[Iterator[tuple[Block, Picks | None]]] = [
            ((block, None) for block in lane) for lane in self.tails.streams(self.most)
        ]
        for block, picks in merged(self.schema, streams, None):
            yield block if picks is None else block.take(picks)

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        if by_time:
            yield from super().select(expr, columns)
            return
        for lane in self.tails.streams(self.most):
            for block in lane:
                self.rows += block.rows
                picks = expr.program.select(block)
                if len(picks):
                    yield block, picks

    @property
    def position(self) -> list[int]:
        return self.tails.rows

    @property
    def missed(self) -> int:
        return self.tails.missed

    @property
    def behind(self) -> bool:
        return self.tails.behind

    def close(self) -> None:
        self.tails.close()


def other_log(where: str) -> StoreError:
    """The error for a position of another log."""
    return StoreError("is not the log that the cursor was made for", where=where, hint="name another cursor")


def go_on(tails: Tails, rows: Sequence[int]) -> None:
    """Begin after ``rows`` of each lane.  Raises StoreError for a position that the log has not reached."""
    version = tails.log.version()
    if any(n > version[lane] for lane, n in enumerate(rows)):
        what = "has fewer records than the cursor says were read: it is an older copy of the log"
        raise StoreError(what, where=tails.path, hint="name another cursor")
    tails.go_on(rows)
