"""Inputs that grow and can be read from a place in them, and several of them as one that goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.formats.merge import Shaped, by_time
from confluo_tools.formats.reader import Reader, Warn

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.schema import Schema

PAUSE = 0.1  # s, by default
BUSY = 65536  # rows after which the next round begins at once
GRACE = 1_000_000_000  # ns after the end of a time range during which its records may still arrive
LAST = (1 << 63) - 1
TOLD = 10.0  # s between two lines about rows that were removed


class Place(NamedTuple):
    """A place in an input: ``identity`` of what was read, and its ``position``, any JSON value."""

    name: str
    identity: str
    position: Any


class GrowingInput(Reader):
    """An input that is read in rounds: a round gives the rows that came since the round before.

    ``identity``: of what is read, as text; another input with the same name has another one.
    ``position``: how many rows of each lane were given, also if a round is not read to its end.
    ``missed``: rows that were removed before they were read.
    """

    identity: str
    missed = 0

    @property
    def position(self) -> list[int]:
        raise NotImplementedError

    def ask(self, columns: Sequence[int] | None) -> None:
        """Begin a round.  Inputs elsewhere work on their answers while this process asks the others."""

    def streams(self, expr: Any) -> list[Iterator[tuple[Block, Picks | None]]]:
        """The rows of this round, each stream about in the order of time.

        Where ``chosen`` holds they are those that ``expr`` selects, and otherwise all (with picks None).
        """
        raise NotImplementedError

    def moved(self) -> bool:
        """Whether another input has taken the name, and is read from now on.  To be called after an empty round."""
        return False


class GrowingReader(Reader):
    """The rows of ``inputs`` and those that come later, in rounds; the rows of a round are merged by time.

    ``target``: the schema of the rows; ``hosts``: value of a field `host` that an input lacks, or None.
    ``once``: end where the inputs end now.  ``until``: end when the clock has passed this time (ns).
    """

    format = "multilog"
    polled = True

    def __init__(
        self,
        inputs: Sequence[GrowingInput],
        target: Schema,
        hosts: Sequence[str | None],
        *,
        once: bool = False,
        until: int | None = None,
        warn: Warn | None = None,
    ) -> None:
        super().__init__(", ".join(i.name for i in inputs[:3]) + (", ..." if len(inputs) > 3 else ""), warn)
        self.inputs, self.schema, self._once = list(inputs), target, once
        self.filters = inputs[0].filters
        self.chosen = any(i.chosen for i in inputs)
        self._shape = [_shaper(i, target, host) for i, host in zip(inputs, hosts, strict=True)]
        self._end = LAST if until is None else until + GRACE
        self._idle: list[Callable[[], None]] = []
        self._stopped: Callable[[], bool] = lambda: False
        self.settled: Callable[[], None] = lambda: None  # called in the middle of a round when `places` is exact
        self._places = self._now()
        self._said, self._told = 0, -TOLD
        self.pause = PAUSE  # s between two rounds

    def on_idle(self, call: Callable[[], None]) -> None:
        self._idle.append(call)

    def stop_when(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped

    def skip_before(self, time: int) -> None:
        for each in self.inputs:
            each.skip_before(time)

    def places(self) -> list[Place]:
        """Where to go on after the rows that were given and taken; rows of a round that goes on may come again."""
        return self._places

    def _now(self) -> list[Place]:
        return [Place(i.name, i.identity, i.position) for i in self.inputs]

    # -- rounds

    def blocks(self) -> Iterator[Block]:
        for block, picks in self._rounds(None, None):
            yield block if picks is None else block.take(picks)

    def select(
        self, expr: Any, columns: Sequence[int] | None = None, *, by_time: bool = True
    ) -> Iterator[tuple[Block, Picks | None]]:
        yield from self._rounds(expr, columns)

    def _rounds(self, expr: Any, columns: Sequence[int] | None) -> Iterator[tuple[Block, Picks | None]]:
        wanted = None
        if columns is not None:
            field = self.schema.time_field
            wanted = sorted({*columns, *([] if field is None else [self.schema.index(field.name)])})
        while not self._stopped():
            over = self._once or time.time_ns() >= self._end
            before = self.rows
            yield from self._round(expr, wanted)
            if self._stopped():
                break
            self._places = self._now()
            self._tell_missed()
            if over:
                break
            grown = self.rows - before
            if not grown and [i for i in self.inputs if i.moved()]:  # each of them looks
                continue
            for call in self._idle:
                call()
            if grown < BUSY:
                time.sleep(self.pause)
        self._tell_missed(final=True)

    def _round(self, expr: Any, columns: Sequence[int] | None) -> Iterator[tuple[Block, Picks | None]]:
        for each in self.inputs:
            each.ask(columns)
        streams = [
            self._rows_of(stream, i, expr) for i, each in enumerate(self.inputs) for stream in each.streams(expr)
        ]
        alone = len(streams) == 1
        if alone or self.schema.time_field is None:
            pairs = (pair for stream in streams for pair in stream)
        else:
            ranked = [((b, p, rank) for b, p in stream) for rank, stream in enumerate(streams)]
            pairs = by_time(self.schema, ranked, columns)  # type: ignore[assignment]
        for block, picks in pairs:
            n = block.rows if picks is None else len(picks)
            if n:
                self.mark = LAST if alone else self._newest(block, picks)
                yield block, picks
            if alone:
                self._places = self._now()
                self.settled()
            if self._stopped():
                return
        self.mark = LAST

    def _newest(self, block: Block, picks: Picks | None) -> int:
        # Merged by time: no later row of this round is older than the last one.
        field = self.schema.time_field
        row = block.rows - 1 if picks is None else picks.last
        return int(block.get(self.schema.index(field.name), row)) if field is not None else LAST

    def _rows_of(
        self, stream: Iterator[tuple[Block, Picks | None]], number: int, expr: Any
    ) -> Iterator[tuple[Block, Picks | None]]:
        # The rows of a stream that are selected, in the schema of all.
        shape, chosen = self._shape[number], self.inputs[number].chosen
        for block, picks in stream:
            self.rows += block.rows
            block = block if shape is None else shape.shape(block)
            yield block, picks if expr is None or chosen else expr.program.select(block)

    def _tell_missed(self, *, final: bool = False) -> None:
        missed = sum(i.missed for i in self.inputs)
        now = time.monotonic()
        if missed > self._said and (final or now - self._told >= TOLD):
            self.warn(f"{missed - self._said} records were removed before they were read")
            self._said, self._told = missed, now

    def close(self) -> None:
        for each in self.inputs:
            each.close()


def _shaper(each: GrowingInput, target: Schema, host: str | None) -> Shaped | None:
    return None if each.schema is target else Shaped(each, target, host)
