"""Histograms of a field by window: the function histogram of flows, over any input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from confluo_tools.schema import Schema
from confluo_tools.stream.functions.histogram import WindowHistogram, bins_of, code_of, value_of
from confluo_tools.stream.functions.words import Windows
from confluo_tools.stream.services.fields import check_fields

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks

LOOK = 100_000_000  # ns between two looks at the clock while the input is silent


class HistogramService:
    """Counts of ``field`` in ``bins`` (texts, as in a file of flows) in each window of ``window`` ns.

    Raises UsageError.
    """

    name = "histogram"

    def __init__(self, packets: Schema, field: str, bins: str, *, window: int, lateness: int) -> None:
        from confluo_tools.core.stream.stage import WriterStage

        check_fields(packets, ("ts",))
        fields = value_of(field, packets, "--field")
        code = code_of(packets[name] for name in fields[::2])
        made = WindowHistogram(
            "", fields, bins_of(bins, packets[fields[0]], code, "--bins"), code, Windows("ts", window, lateness)
        )
        self.schema = made.after(packets)
        self._made, self._packets = made, packets
        self._done: list[Block] = []
        self._stage = made.stage(packets)
        self._end = WriterStage(self.schema.layout, self._done.append)
        self._stage.then(self._end)
        self._clock = 1

    def take(self, block: Block, picks: Picks | None) -> None:
        if block.layout is not self._packets.layout:
            block = block.project(self._packets.layout)
        self._stage.write(block, picks, now=self._clock)

    def due(self) -> int | None:
        return self._clock + LOOK if self._stage.open_windows else None

    def until(self, now: int) -> None:
        self._clock = now
        self._stage.pass_time(now)

    def finish(self, ended: bool) -> None:
        self._stage.end()

    @property
    def late(self) -> int:
        return int(self._stage.late_rows)

    def results(self) -> Iterator[Block]:
        if self._end.problem is not None:
            raise self._end.problem
        yield from self._done
        self._done.clear()

    def counts(self) -> str:
        return f"{self._stage.taken} packets, {self._stage.open_windows} windows open, {self._stage.late_rows} late"

    def notes(self) -> Iterator[str]:
        if self._stage.late_rows:
            yield f"{self._stage.late_rows} packets came too late for their window; --lateness TIME waits longer"
        if self._stage.nans:
            yield f"{self._stage.nans} records had no number in {' '.join(self._made.fields)}"
