"""What a roll-up must compute for the columns of a result, and the columns that follow from others."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import ConfluoError
from confluo_tools.expr.aggregates import Aggregate, Computed, Formula, Result

if TYPE_CHECKING:
    from confluo_tools.core.block.result_table import Rows
    from confluo_tools.schema import Schema

NS = 1_000_000_000


class ResultPlan:
    """``aggs``: the aggregates that ``items`` need, those among the items first; ``formulas``: those among them.

    ``taken``: names that the columns which are added must not have.  ``rated``: the length of time is needed.
    """

    def __init__(self, items: Sequence[Result], taken: Collection[str]) -> None:
        self.formulas = [item for item in items if isinstance(item, Formula)]
        self._names = (f"_{i}" for i in range(1 << 30) if f"_{i}" not in taken)
        aggs = [item for item in items if isinstance(item, Aggregate)]
        for part in [part for formula in self.formulas for part in formula.parts]:
            if all(agg.same != part.same for agg in aggs):
                aggs.append(Aggregate(part.func, part.field, part.q, next(self._names), part.value))
        self._unchecked = list(_missing([agg.value for agg in aggs if agg.value is not None], self._names))
        self.aggs = (*aggs, *(agg for agg, _ in self._unchecked))
        self.rated = any(agg.func == "rate" for agg in self.aggs) or any(
            step[0] == "per" for formula in self.formulas for step in formula.steps
        )

    def more(self, printed: int) -> bool:
        """Whether there are other columns than the first ``printed`` items, or in another order."""
        return bool(self.formulas) or len(self.aggs) > printed

    def check(self, schema: Schema, rows: Rows) -> None:
        """Raises ConfluoError if a value of a row did not fit 64 bits."""
        for agg, text in self._unchecked:
            column = schema.index(agg.label)
            if any(any(bytes(block.buffer(column))) for block in rows.blocks()):
                hint = "write a number with a point for floating point: 1.0 * ..."
                raise ConfluoError(f"{text} does not fit 64 bits in some rows", hint=hint)

    def fill(self, schema: Schema, rows: Rows, seconds: float) -> None:
        """Compute the formulas in ``rows`` of ``schema``.  Raises ConfluoError if one does not fit 64 bits."""
        if not self.formulas:
            return
        from confluo_tools.core.query.calculation import Calculation

        for formula in self.formulas:
            steps = tuple([self._step(step, formula, schema, seconds) for step in formula.steps])
            missing = Calculation(schema.layout, steps).fill(rows, schema.index(formula.label))
            if missing:
                hint = "write a number with a point for floating point: 1.0 * ..."
                raise ConfluoError(f"{formula.text} does not fit 64 bits", hint=hint)

    def _step(self, step: tuple[Any, ...], formula: Formula, schema: Schema, seconds: float) -> tuple[Any, ...]:
        if step[0] == "per":
            return ("real", seconds * NS / step[1] if seconds > 0 else math.nan)
        if step[0] != "column":
            return step
        same = formula.parts[step[1]].same
        return ("column", schema.index(next(agg.label for agg in self.aggs if agg.same == same)))


def _missing(values: Sequence[Computed], names: Iterator[str]) -> Iterator[tuple[Aggregate, str]]:
    # Counts of the rows for which a calculation does not fit 64 bits.
    seen: list[Any] = []
    for value in values:
        if value.checked and value.operand not in seen:
            seen.append(value.operand)
            operand = ("missing", *value.operand[1:])
            rows = Computed("", "", "", operand, value.names, False)
            yield Aggregate("count", None, None, next(names), rows), value.text
