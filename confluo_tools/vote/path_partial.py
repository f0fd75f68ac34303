"""Flows by epoch as a partial: path records of any share in any order, tallied as in one pass."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from confluo_tools.engine.partial import Partial
from confluo_tools.engine.state_pieces import pack, unpack

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.vote.flow_tally import FlowTally
    from confluo_tools.schema import Schema

MAX_OPEN = 64  # epochs that rows are added to; the others wait as bytes
_EPOCH = struct.Struct("<qq")  # number, time of the first record


class PathPartial(Partial):
    """Tallies of epochs of ``length`` ns (0: one for all records).

    ``options``: of each `FlowTally`: switches, healthy, keep, alias, tor_of.
    """

    name = "paths"

    def __init__(self, schema: Schema, options: Mapping[str, Any], length: int) -> None:
        from confluo_tools.schema import builtin

        self.schema, self._options, self.length = schema, dict(options), length
        self._layout = builtin("path").layout
        wanted = set(self._layout.names) - ({"rate"} if not options["keep"] else set())
        self.columns = [i for i, name in enumerate(schema.layout.names) if name in wanted]
        self._begin: dict[int, int] = {}
        self._open: dict[int, FlowTally] = {}  # the one that was used last is at the end
        self._packed: dict[int, bytes] = {}
        self._tally()  # raises ValueError for other options

    def _tally(self) -> FlowTally:
        from confluo_tools.core.vote.flow_tally import FlowTally

        return FlowTally(**self._options)

    def settings(self) -> dict[str, Any]:
        maps = {name: list((self._options[name] or {}).items()) for name in ("alias", "tor_of")}
        return {"options": self._options | maps, "length": self.length}

    @classmethod
    def of(cls, schema: Schema, settings: Mapping[str, Any]) -> Self:
        try:
            options = dict(settings["options"])
            for name in ("alias", "tor_of"):
                options[name] = {int(a): int(b) for a, b in options[name]} or None
            return cls(schema, options, int(settings["length"]))
        except (KeyError, TypeError, OverflowError) as e:
            raise ValueError(f"invalid settings of a tally of paths: {e}") from None

    def update(self, block: Block, picks: Picks | None) -> None:
        from confluo_tools.core.vote.flow_tally import run

        if picks is not None and len(picks) < block.rows:
            block = block.take_columns(picks, self.columns)
        block, start = block.project(self._layout), 0
        while start < block.rows:
            number, end, earliest, _ = run(block, start, self.length)
            self._epoch(number, earliest).add(block, start, end)
            start = end

    def _epoch(self, number: int, earliest: int) -> FlowTally:
        self._begin[number] = min(self._begin.get(number, earliest), earliest)
        tally = self._open.pop(number, None)
        if tally is None:
            tally = self._taken(number)
        self._open[number] = tally
        if len(self._open) > MAX_OPEN:
            from confluo_tools.core.vote.flow_tally_state import dump

            oldest = next(iter(self._open))
            self._packed[oldest] = dump(self._open.pop(oldest))
        return tally

    def _taken(self, number: int) -> FlowTally:
        tally, data = self._tally(), self._packed.pop(number, None)
        if data is not None:
            self._load(tally, data)
        return tally

    def _load(self, tally: FlowTally, data: bytes) -> None:
        from confluo_tools.core.vote.flow_tally_state import load

        load(tally, data, self._layout if self._options["keep"] else None)

    def dump(self) -> bytes:
        from confluo_tools.core.vote.flow_tally_state import dump

        states = self._packed | {number: dump(tally) for number, tally in self._open.items()}
        return pack([_EPOCH.pack(number, self._begin[number]) + states[number] for number in sorted(states)])

    def merge(self, data: bytes | memoryview) -> None:
        from confluo_tools.core.vote.flow_tally_state import merge

        for piece in unpack(data):
            if len(piece) < _EPOCH.size:
                raise ValueError("the state of a share of paths is cut off")
            number, begin = _EPOCH.unpack_from(piece)
            if number != (begin // self.length if self.length else 0):
                raise ValueError("the state of a share of paths is damaged: an epoch")
            other = self._tally()
            self._load(other, piece[_EPOCH.size :])
            if number in self._begin:
                merge(self._epoch(number, begin), other)
            else:
                self._begin[number], self._packed[number] = begin, piece[_EPOCH.size :]

    def epochs(self) -> Iterator[tuple[int, FlowTally]]:
        """(begin in ns, tally) of each epoch, the earliest first; they are given up."""
        from confluo_tools.core.vote.flow_order import sort_kept

        for number in sorted(self._begin):
            tally = self._open.pop(number, None) or self._taken(number)
            sort_kept(tally)
            yield (max(number * self.length, -(1 << 63)) if self.length else self._begin[number]), tally
