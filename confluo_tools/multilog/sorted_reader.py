"""Any input in the order of time (--sort-input): its rows go through a MultiLog below $TMPDIR, which is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import UsageError
from confluo_tools.formats.reader import Reader, Wrapper

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.multilog.reader import LogReader


class SortedReader(Wrapper):
    """The rows of ``reader`` by time, rows of equal time as they come.  It is read to its end first.

    Raises UsageError if records have no time.
    """

    by_time = True

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader, reader._warn)
        self.schema, self.given = reader.schema, reader.given
        self.filters, self.aggregate = reader.filters, reader.aggregate  # type: ignore[method-assign]
        self._sorted: LogReader | None = None
        if reader.schema.time_field is None:
            raise UsageError(f"records of kind '{reader.schema.kind}' have no time field", where="--sort-input")

    def _log(self) -> LogReader:
        if self._sorted is None:
            from tempfile import TemporaryDirectory

            from confluo_tools import multilog
            from confluo_tools.multilog.reader import LogReader

            with TemporaryDirectory(prefix="confluo-sort-") as folder:
                path = f"{folder}/sorted.ml"
                with multilog.create(path, self.schema, sync="none") as log, log.writer() as writer:
                    for block in self.reader:
                        writer.append(block)
                self._sorted = LogReader(path, warn=self._warn)  # its segments stay mapped
            self.rows += self.reader.rows
        return self._sorted

    def blocks(self) -> Iterator[Block]:
        yield from self._log().blocks()

    def __iter__(self) -> Iterator[Block]:
        return self.blocks()

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        yield from self._log().select(expr, columns, by_time=by_time)

    def count(self, expr: Any) -> int:
        return self._log().count(expr)

    def fold(self, expr: Any, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> tuple[Rollup, int]:
        return self._log().fold(expr, columns, make)

    def explain(self) -> dict[str, Any] | None:
        return None

    def close(self) -> None:
        if self._sorted is not None:
            self._sorted.close()
        super().close()
