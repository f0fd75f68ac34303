"""Partials: mergeable states of selected rows, each a class that a worker can make from a few settings.

An analysis that works on every engine is a `Partial` with a row in `PARTIALS`:

    class Tally(Partial):
        name = "tally"

        def __init__(self, schema, wanted):     # empty; `columns` are the numbers of the columns that it reads
        def settings(self):                     # {"wanted": ...}: JSON
        @classmethod
        def of(cls, schema, settings):          # an empty one again, on the worker
        def update(self, block, picks):         # add the selected rows of a block
        def dump(self): ...                     # the state as bytes
        def merge(self, data): ...              # add the dumped state of rows that come after those so far

`gather` (reader.py) fills it with the rows of any input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.schema import Schema

# name -> module and class.  A worker imports what is here, and nothing else.
PARTIALS = {
    "count": "confluo_tools.engine.rollup_partial:CountPartial",
    "aggregate": "confluo_tools.engine.rollup_partial:RollupPartial",
    "rows": "confluo_tools.engine.rows_partial:RowsPartial",
    "unnest": "confluo_tools.engine.unnest_partial:UnnestPartial",
    "several": "confluo_tools.engine.several_partial:SeveralPartial",
    "probes": "confluo_tools.pingmesh.analysis.probe_tally:WindowTally",
    "pairs": "confluo_tools.pingmesh.analysis.pair_tally:PairPass",
    "silent": "confluo_tools.pingmesh.analysis.silent_tally:SilentTally",
    "paths": "confluo_tools.vote.path_partial:PathPartial",
}


class Partial:
    """A mergeable state of rows of a schema.

    ``columns``: numbers of the columns that `update` reads, None for all.  ``counted``: only the number of rows is
    wanted; `update` is not called.  ``by_time``: rows come by time, and the units of a run are neighbours in one lane.
    ``full``: no more rows are wanted.  ``any_order``: the states of rows of a log may be merged in any order.
    """

    name: ClassVar[str]
    counted: ClassVar[bool] = False
    schema: Schema
    columns: Sequence[int] | None = None
    by_time = False
    full = False
    any_order = False

    def settings(self) -> dict[str, Any]:
        """What `of` needs to make an empty one: JSON."""
        raise NotImplementedError

    @classmethod
    def of(cls, schema: Schema, settings: Mapping[str, Any]) -> Self:
        """An empty partial.  Raises ValueError for settings that are not valid."""
        raise NotImplementedError

    def fresh(self) -> Self:
        """An empty partial with the same settings."""
        return self.of(self.schema, self.settings())

    def update(self, block: Block, picks: Picks | None) -> None:
        """Add the selected rows of a block; None: all.  Blocks come lane by lane in the order of the rows."""
        raise NotImplementedError

    def dump(self) -> bytes:
        """The state."""
        raise NotImplementedError

    def pieces(self) -> list[bytes]:
        """The state that `dump` gives, in pieces: no copy of all of it is made."""
        return [self.dump()]

    def merge(self, data: bytes | memoryview) -> None:
        """Add a dumped state, of rows after those so far.  Raises ValueError if it is not valid."""
        raise NotImplementedError

    def absorb(self, other: Self) -> None:
        """The same with a partial of this process, which is not used any more."""
        self.merge(other.dump())


def partial_class(name: str) -> type[Partial]:
    """The class of a partial.  Raises ValueError for an unknown name."""
    place = PARTIALS.get(name)
    if place is None:
        raise ValueError(f"there is no partial '{name}'")
    module, _, item = place.partition(":")
    found: type[Partial] = getattr(import_module(module), item)
    return found
