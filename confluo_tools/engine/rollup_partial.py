"""The partials of counts and aggregates (--count, --agg, --by)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from confluo_tools.engine.partial import Partial

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.schema import Schema


class CountPartial(Partial):
    """No state: the number of rows is in every result."""

    name = "count"
    counted = any_order = True

    def __init__(self, schema: Schema) -> None:
        self.schema, self.columns = schema, []

    def settings(self) -> dict[str, Any]:
        return {}

    @classmethod
    def of(cls, schema: Schema, settings: Mapping[str, Any]) -> Self:
        return cls(schema)

    def dump(self) -> bytes:
        return b""

    def merge(self, data: bytes | memoryview) -> None:
        if data:
            raise ValueError("a count has no state")


class RollupPartial(Partial):
    """A roll-up.  ``make``: returns an empty one; one that limits memory (`GroupSpill`) may take groups out of it.

    Its keys and functions are numbers of columns, so no text is parsed.
    Local days and relative times are those of the host that asks.
    """

    name = "aggregate"

    def __init__(self, schema: Schema, columns: Sequence[int] | None, make: Callable[[], Rollup]) -> None:
        self.schema, self.columns = schema, columns
        self._make = make
        self.rollup = make()
        self.any_order = not self.rollup.ordered

    def settings(self) -> dict[str, Any]:
        r = self.rollup
        columns = None if self.columns is None else list(self.columns)
        return {"columns": columns, "keys": r.keys, "aggs": _json(r.aggs), "time": r.time, "spanning": r.spanning}

    @classmethod
    def of(cls, schema: Schema, settings: Mapping[str, Any]) -> Self:
        from confluo_tools.core.query.rollup import Rollup

        try:
            keys, aggs = _tuples(settings["keys"]), _tuples(settings["aggs"])
            time, spanning, columns = settings["time"], settings["spanning"], settings["columns"]
            return cls(schema, columns, lambda: Rollup(schema.layout, keys, aggs, time, spanning))
        except (KeyError, TypeError, IndexError) as e:
            raise ValueError(f"not settings of an aggregate: {e}") from None

    def fresh(self) -> Self:
        return type(self)(self.schema, self.columns, self._make)

    def update(self, block: Block, picks: Picks | None) -> None:
        self.rollup.update(block, picks)

    def dump(self) -> bytes:
        from confluo_tools.core.query.rollup_codec import dump

        return dump(self.rollup)

    def pieces(self) -> list[bytes]:
        from confluo_tools.core.query.rollup_codec import pieces

        return pieces(self.rollup)

    def merge(self, data: bytes | memoryview) -> None:
        from confluo_tools.core.query.rollup_codec import load

        other = self._make()
        load(other, data)
        self._add(other)

    def absorb(self, other: Self) -> None:
        self._add(other.rollup)

    def _add(self, other: Rollup) -> None:
        if self.rollup.rows == 0:
            self.rollup, other = other, self.rollup
        self.rollup.merge(other)
        keep = getattr(self._make, "keep", None)
        if keep is not None:
            self.rollup = keep(self.rollup)


def _json(value: Any) -> Any:
    # Conditions among them are trees of tests.
    from confluo_tools.engine.task import tree_list
    from confluo_tools.expr.leaves import Leaf

    if isinstance(value, Leaf):
        return {"tree": tree_list(value)}
    return [_json(item) for item in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    from confluo_tools.engine.task import tree_of_list

    if isinstance(value, dict):
        return tree_of_list(value["tree"])
    return tuple([_tuples(item) for item in value]) if isinstance(value, list | tuple) else value
