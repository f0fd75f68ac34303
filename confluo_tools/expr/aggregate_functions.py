"""The aggregate functions: one row per function, and the only list of their names.

From the rows come the parser of --agg, argument checks, errors, the columns of a result, what the compiled core
computes and what the windows of confluo-monitor keep.  confluo-expr(7) must name each; a test compares them.

A function is added in these places: a row of `FUNCTIONS`; if no ``core`` function computes it, a code in
core/query/rollup_result.pxd, its name (`FUNCS`) and its states (`Rollup._plan`) in pyx/query/rollup.pyx, and its value
in pyx/query/rollup_result.pyx; the reference implementation in tests/support/twin_rollup.py; and confluo-expr(7).
"""

from __future__ import annotations

import re
from typing import NamedTuple

NUMERIC = frozenset({"u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64", "duration"})
TIMES_TOO = NUMERIC | {"time"}

_QUANTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,4})?)\Z")


class AggregateFunction(NamedTuple):
    """One function.

    ``takes``: the element types of fields that it accepts; None: all types.  ``rows``: it also works without a field,
    on rows; ``fields``: it works on fields.
    ``result``: of its column.  'count' u64; 'sum' u64, i64 or f64; 'rate' f64 per second; 'mean' f64, or the type of
    a time or duration; 'deviation' f64 or duration; 'element' the type of one element; 'field' the field's type.
    ``words``: the column's description, before "of FIELD".
    ``core``: the function of the compiled core, a key of `rollup.FUNCS`; there its states, merge and result are.
    ``time_core``: the same of the time field, if that is cheaper.
    ``window``: how sliding windows keep it: 'sum', 'min', 'max', 'ratio' (sum / rows) or 'share' (sum / seconds);
    '' if only roll-ups compute it.  ``zero``: of no rows it is 0; otherwise it has no value.
    """

    name: str
    words: str
    core: str
    result: str
    takes: frozenset[str] | None = NUMERIC
    rows: bool = False
    fields: bool = True
    time_core: str = ""
    window: str = ""
    zero: bool = False

    @property
    def shown(self) -> str:
        """The name in lists."""
        return "p50..p99.9" if self.name == QUANTILE else self.name


QUANTILE = "quantile"  # written pN or median
ROWS: tuple[AggregateFunction, ...] = (
    AggregateFunction("count", "rows", "count", "count", rows=True, fields=False, window="sum", zero=True),
    AggregateFunction("sum", "sum", "sum", "sum", window="sum", zero=True),
    AggregateFunction("avg", "mean", "avg", "mean", TIMES_TOO, window="ratio"),
    AggregateFunction("min", "smallest", "min", "element", None, window="min"),
    AggregateFunction("max", "largest", "max", "element", None, window="max"),
    AggregateFunction("stddev", "standard deviation", "stddev", "deviation", TIMES_TOO),
    AggregateFunction("first", "first", "first", "field", None, time_core="min"),
    AggregateFunction("last", "last", "last", "field", None, time_core="max"),
    AggregateFunction("distinct", "number of different values", "distinct", "count", None, zero=True),
    AggregateFunction("distinct~", "estimated number of different values", "hyper", "count", None, zero=True),
    AggregateFunction(QUANTILE, "quantile", "quantile", "mean"),
    AggregateFunction("rate", "sum per second", "rate", "rate", rows=True, window="share", zero=True),
)
FUNCTIONS = {row.name: row for row in ROWS}
ALIASES = {"mean": ("avg", None), "median": (QUANTILE, 0.5)}
WRITTEN = tuple(name for name in FUNCTIONS if name != QUANTILE) + tuple(ALIASES)  # and pN

KNOWN = " ".join(row.shown for row in ROWS)
ANY_FIELD = [row.name for row in ROWS if row.takes is None]


def function_of(word: str) -> tuple[AggregateFunction, float | None] | None:
    """The function that is written ``word``, in small letters, and the share of a quantile; None if there is none.

    A share of 0 is that of p0, which is refused.
    """
    quantile = _QUANTILE.match(word)
    if quantile:
        return FUNCTIONS[QUANTILE], float(quantile[1]) / 100
    name, q = ALIASES.get(word, (word, None))
    return (FUNCTIONS[name], q) if name in FUNCTIONS and word != QUANTILE else None


def written(func: str, field: str | None, q: float | None) -> str:
    """An aggregate as a user writes it: ``sum(len)``, ``p99(rtt)``, ``count``."""
    name = f"p{100 * (q or 0):g}" if func == QUANTILE else func
    return name if field is None else f"{name}({field})"
