"""The output of groups as a picture: `-o svg`, `-o html` and `-o spark`."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from confluo_tools.chart.model import Chart, ChartGroups
from confluo_tools.formats.output_file import open_sink

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks


class ChartOutput:
    """Context manager that gathers the records of a result and draws them at the end.

    ``kind``: svg, html or spark.  ``gathered``: takes the records.  ``width``: columns of the terminal.
    ``command``: the command line, for a page.  ``packed``: how the file is compressed.  ``rows``: records so far.
    """

    def __init__(
        self,
        kind: str,
        gathered: ChartGroups,
        *,
        path: str | None,
        force: bool,
        local: bool,
        width: int,
        command: str,
        packed: str,
    ) -> None:
        self.kind, self.local, self.width, self.command = kind, local, width, command
        self._gathered = gathered
        self._sink = open_sink(path, force=force, compression=packed)

    @property
    def rows(self) -> int:
        return self._gathered.rows

    def write(self, block: Block, picks: Picks | None = None) -> None:
        """Add records.  Raises UsageError if there are too many."""
        self._gathered.add(block, picks)

    def flush(self) -> None:
        """Does nothing: a picture needs all records."""

    def __enter__(self) -> ChartOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self._sink.abort()
            return
        with self._sink:
            for text in self._texts(self._gathered.chart()):
                self._sink.write(text.encode("utf-8", "replace"))

    def _texts(self, chart: Chart) -> Iterator[str]:
        if self.kind == "svg":
            from confluo_tools.chart.svg import svg

            yield from svg(chart, self.local)
        elif self.kind == "html":
            from confluo_tools.chart.page import page

            yield from page(chart, self.command, self.local)
        else:
            from confluo_tools.chart.terminal import spark

            for line in spark(chart, self.width, self.local):
                yield line + "\n"
