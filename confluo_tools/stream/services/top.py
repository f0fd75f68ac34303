"""Top talkers by window, in bounded memory: exact while all keys fit, otherwise with a stated error.

When there are too many keys, the small ones are forgotten, as in lossy counting (Manku and Motwani, VLDB 2002).  What a
key had when it was forgotten is at most what the largest forgotten one had; the sum of these is the error of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import SchemaError
from confluo_tools.schema import Field, Schema
from confluo_tools.stream.services.fields import check_fields
from confluo_tools.stream.services.windows import by_window

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks

PIECE = 65536  # rows after which keys may be forgotten: the same ones however the rows are cut into blocks
KEPT = 65536  # keys
FIRST = -(1 << 63)


class TopQuestion:
    """Packets and bytes by the keys ``by`` of rows of ``packets``, by ``rank``: 'bytes' or 'packets'."""

    def __init__(self, packets: Schema, by: str, rank: str) -> None:
        from confluo_tools.expr import parse_aggregates, parse_by
        from confluo_tools.multilog.query.aggregation import Aggregation

        check_fields(packets, ("len",))
        if packets.time_field is None:
            raise SchemaError(f"records of kind '{packets.kind}' have no time")
        first = ["sum(len) as bytes", "count as packets"]
        again = ["sum(bytes) as bytes", "sum(packets) as packets"]
        if rank == "packets":
            first, again = first[::-1], again[::-1]
        self.rank = rank
        self.time = packets.index(packets.time_field.name)
        self.rows = Aggregation(packets, parse_aggregates(", ".join(first), packets), parse_by(by, packets))
        groups = self.rows.result
        keys = parse_by(", ".join(self.rows.keys), groups)
        self.groups = Aggregation(groups, parse_aggregates(", ".join(again), groups), keys)
        names = {"ts", "window", "rank", "packets", "bytes", "share", "error"} & set(self.rows.keys)
        if names:
            raise SchemaError(f"the result has a field '{min(names)}' of its own")
        self.keys = [f for f in groups.fields if f.name in self.rows.keys]
        self.schema = Schema(
            "top",
            [
                Field("ts", "time", "ns", "beginning of the window"),
                Field("window", "duration", "ns", "its length; 0: all that was read"),
                Field("rank", "u32", "", "1: the largest"),
                *self.keys,
                Field("packets", "u64", "packets", "packets of the key, at least"),
                Field("bytes", "u64", "B", "their bytes on the wire, at least"),
                Field("share", "f64", "", f"{rank} / all {rank} of the window"),
                Field("error", "u64", "", f"what may be missing from {rank}, at most; 0: the numbers are exact"),
            ],
            f"The keys with the most {rank}.",
        )


class TopWindow:
    """The keys of one window, at most ``kept`` of them between pieces of PIECE rows."""

    def __init__(self, question: TopQuestion, kept: int) -> None:
        self.question, self.kept = question, kept
        self.error = self.total = 0
        self._piece = question.rows.rollup()
        self._left = PIECE
        self._groups = question.groups.rollup()

    def add(self, block: Block, picks: Picks | None) -> None:
        from confluo_tools.core.block.block import Picks

        rows = picks if picks is not None else Picks.of(block.rows)
        if len(rows) < self._left:
            self._update(block, rows)
            return
        chosen = rows.tolist()
        while chosen:
            part, chosen = chosen[: self._left], chosen[self._left :]
            self._update(block, Picks.of(block.rows, part))

    def _update(self, block: Block, rows: Picks) -> None:
        self._piece.update(block, rows)
        self._left -= len(rows)
        if not self._left:
            self._merge()

    def _merge(self) -> None:
        """The piece goes into the groups; the small ones of too many are forgotten."""
        question = self.question
        for block in question.rows.answer(self._piece):
            self.total += sum(block.buffer(block.layout.index(question.rank)).cast("Q"))
            self._groups.update(block)
        self._piece, self._left = question.rows.rollup(), PIECE
        if len(self._groups) <= 2 * self.kept:
            return
        groups, left = question.groups.rollup(), self.kept
        for block in question.groups.answer(self._groups, top=self.kept + 1):
            keep = block.slice(0, min(left, block.rows))
            if keep.rows:
                groups.update(keep)
            if left < block.rows:
                self.error += block.get(block.layout.index(question.rank), left)
            left -= keep.rows
        self._groups = groups

    def rows(self, start: int, length: int, most: int) -> Iterator[dict[str, Any]]:
        """The ``most`` largest keys."""
        if self._left < PIECE:
            self._merge()
        place = 0
        for block in self.question.groups.answer(self._groups, top=most):
            for row in range(block.rows):
                values = {name: block.get(i, row) for i, name in enumerate(block.layout.names)}
                place += 1
                share = values[self.question.rank] / self.total if self.total else 0.0
                yield values | {"ts": start, "window": length, "rank": place, "share": share, "error": self.error}


class TopService:
    """The ``most`` largest keys of each window of ``window`` ns (0: a single one), ``lateness`` ns after its end."""

    name = "top"

    def __init__(
        self, packets: Schema, by: str, rank: str, *, most: int, window: int, lateness: int, kept: int = KEPT
    ) -> None:
        self._question = TopQuestion(packets, by, rank)
        self.schema = self._question.schema
        self.most, self.window, self.lateness, self._kept = most, window, lateness, kept
        self._windows: dict[int, TopWindow] = {}
        self._done: list[Block] = []
        self._closed = FIRST
        self.reach = window + lateness if window else 0
        self.packets = self.late = self.inexact = 0
        self._first = (1 << 63) - 1

    def take(self, block: Block, picks: Picks | None) -> None:
        if not block.rows:
            return
        self.packets += block.rows if picks is None else len(picks)
        times = block.buffer(self._question.time).cast("q")
        if not self.window:
            self._first = min(self._first, min(times))
        parts = by_window(block, picks, self._question.time, self.window) if self.window else [(0, picks)]
        for start, rows in parts:
            if self.window and start <= self._closed:
                self.late += block.rows if rows is None else len(rows)
                continue
            if start not in self._windows:
                self._windows[start] = TopWindow(self._question, self._kept)
            self._windows[start].add(block, rows)
        if picks is not None and self.window and min(times) // self.window != max(times) // self.window:
            self.until(max((times[row] for row in picks.tolist()), default=FIRST))  # other rows end no windows
        else:
            self.until(max(times))

    def due(self) -> int | None:
        return min(self._windows) + self.window + self.lateness if self._windows and self.window else None

    def until(self, now: int) -> None:
        for start in sorted(self._windows):
            if self.window and start + self.window + self.lateness <= now:
                self._close(start)

    def finish(self, ended: bool) -> None:
        for start in sorted(self._windows):
            self._close(start)

    def restart(self) -> None:
        self.finish(True)
        self._closed = FIRST

    def _close(self, start: int) -> None:
        from confluo_tools.formats.block_builder import blocks_of_rows

        window = self._windows.pop(start)
        self._closed = max(self._closed, start)
        rows = list(window.rows(start if self.window else self._first, self.window, self.most))
        self.inexact += window.error > 0
        self._done += blocks_of_rows(self.schema, rows)

    def results(self) -> Iterator[Block]:
        yield from self._done
        self._done.clear()

    def counts(self) -> str:
        return f"{self.packets} packets, {len(self._windows)} windows open, {self.late} late"

    def notes(self) -> Iterator[str]:
        if self.late:
            yield f"{self.late} packets came too late for their window; --lateness TIME waits longer"
        if self.inexact:
            yield f"{self.inexact} windows had more than {2 * self._kept} keys: the field error bounds what is missing"
