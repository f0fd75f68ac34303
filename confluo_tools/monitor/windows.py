"""Sliding windows of triggers: which windows a set of triggers needs, and how values are computed from them.

There are three kinds: `GridWindows` (no keys), `KeyedWindows` (by key) and `TreeWindows` (aggregates that only
roll-ups compute, such as quantiles).  Triggers of equal window, period, keys and filters share one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.expr.aggregate_functions import FUNCTIONS
from confluo_tools.expr.aggregates import Aggregate
from confluo_tools.expr.group_keys import GroupKey
from confluo_tools.monitor.language import ConditionNode, Measure, Trigger
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.schema import Schema

if TYPE_CHECKING:
    from confluo_tools.core.monitor.keyed_windows import KeyedWindows
    from confluo_tools.core.monitor.window import GridWindows
    from confluo_tools.core.query.rollup import Rollup

SECOND = 10**9

Unit = tuple[str, int, int]  # kind of window sum, number of the filter, column (-1: rows)
Part = tuple[str, int, int, float]  # how a measure is computed from units: 'one', 'ratio' or 'share' of a constant


class WindowGroup:
    """Windows of one shape, and the triggers on them.

    One of ``grid``, ``keyed`` and ``tree`` is set.  ``units``: what the windows keep, with its number.
    ``tests``: numbers of the triggers, in the order of their tests; ``programs``: conditions of these as
    `program` makes them.  ``sources``: rows by number of their filter.  ``pins``: users of each pinned key.
    """

    __slots__ = ("keyed", "window", "period", "units", "tests", "sources", "pins", "grid", "tree", "programs")

    def __init__(self, window: int, period: int) -> None:
        self.window, self.period = window, period
        self.units: dict[Unit, int] = {}
        self.tests: list[int] = []
        self.programs: list[tuple[list[tuple[int, float]], list[tuple[int, float]]]] = []
        self.sources: dict[int, KeyedRows] = {}
        self.pins: dict[int, int] = {}
        self.keyed: KeyedWindows | None = None
        self.grid: GridWindows | None = None
        self.tree: Any = None

    def unit(self, unit: Unit) -> int:
        return self.units.setdefault(unit, len(self.units))


class KeyedRows:
    """Rows of one filter that wait for windows by key, as a roll-up by bucket and key."""

    __slots__ = ("question", "rollup", "number")

    def __init__(self, question: Aggregation) -> None:
        self.question, self.number = question, -1
        self.rollup: Rollup | None = None


class WindowLayout:
    """The windows that ``triggers`` on rows of ``schema`` need.

    ``groups``: the windows.  By number of the trigger: ``group_of``, ``test_of`` (its test in the group), ``parts``
    (how each measure is computed) and ``counts`` (the unit that counts rows).
    ``filter_of``: number of each filter, by text.  ``ts``: column of the time.  ``head``: ns that rows may be ahead of
    the last tick.  ``seed``: for hashes of keys.  ``max_keys``: keys per window.
    ``partials``: rows come as roll-ups by step of time and key, so no window takes them one by one.
    """

    def __init__(
        self,
        schema: Schema,
        triggers: Sequence[Trigger],
        filter_of: Mapping[str, int],
        *,
        ts: int,
        head: int,
        seed: int,
        max_keys: int,
        partials: bool = False,
    ) -> None:
        self.partials = partials
        self.schema, self.triggers, self.head, self.seed, self.max_keys = schema, triggers, head, seed, max_keys
        self.groups: list[WindowGroup] = []
        self.group_of: dict[int, WindowGroup] = {}
        self.test_of: dict[int, int] = {}
        self.parts: dict[int, list[Part]] = {}
        self.counts: dict[int, int] = {}
        self._plan(filter_of, ts)

    def _plan(self, filter_of: Mapping[str, int], ts: int) -> None:
        from confluo_tools.core.monitor.window import GridWindows

        shapes: dict[Any, WindowGroup] = {}
        for i, t in enumerate(self.triggers):
            fast = all(self._is_fast(m) for m in t.measures) and bool(t.keys or not self.partials)
            filters = tuple(sorted({filter_of[m.where] for m in t.measures}))
            keys = tuple((k.kind, k.field, k.arg, k.arg6) for k in t.keys)
            name = (t.window, t.period, keys, filters if keys else ()) if fast else i
            w = shapes.get(name)
            if w is None:
                w = shapes[name] = WindowGroup(t.window, t.period)
                self.groups.append(w)
            self.group_of[i], self.test_of[i] = w, len(w.tests)
            w.tests.append(i)
            if fast:
                self.counts[i] = w.unit(("sum", filter_of[t.measures[0].where], -1))
                self.parts[i] = [self._part(w, t, m, filter_of) for m in t.measures]
                w.programs.append(
                    (
                        program(t.condition, self.parts[i]),
                        program(t.clear, self.parts[i]) if t.clear is not None else [],
                    )
                )
                for f in filters if keys else ():
                    w.sources.setdefault(f, None)  # type: ignore[arg-type]
            else:
                from confluo_tools.monitor.tree_windows import TreeWindows

                more: dict[str, Any] = {"max_keys": self.max_keys, "partials": self.partials}
                w.tree = TreeWindows(t, filter_of, self.schema, ts, seed=self.seed, **more)
                w.sources = w.tree.sources
        for w in self.groups:
            if w.tree is None and w.sources:
                self._keys(w)
            elif w.tree is None:
                kinds = [kind for kind, _, _ in w.units]
                w.grid = GridWindows(w.window, w.period, self.head, kinds, w.programs)

    def _is_fast(self, m: Measure) -> bool:
        if m.value is not None:
            return False
        if m.field is None:
            return True
        return bool(FUNCTIONS[m.func].window) and not self.schema[m.field].type.is_list

    def _part(self, w: WindowGroup, t: Trigger, m: Measure, filter_of: Mapping[str, int]) -> Part:
        f, how = filter_of[m.where], FUNCTIONS[m.func].window
        if m.field is None:
            unit = w.unit(("sum", f, -1))
        else:
            col, type_ = self.schema.index(m.field), self.schema[m.field].type
            kind = how if how in ("min", "max") else "real" if type_.is_float or type_.size == 8 else "sum"
            unit = w.unit((kind, f, col))
        if how == "ratio":
            return "ratio", unit, w.unit(("sum", f, -1)), 0.0
        return ("share", unit, 0, t.window / SECOND) if how == "share" else ("one", unit, 0, 0.0)

    def _keys(self, w: WindowGroup) -> None:
        from confluo_tools.core.monitor.keyed_windows import KeyedWindows

        t = self.triggers[w.tests[0]]
        time = self.schema.time_field
        assert time is not None
        kinds = [kind for kind, _, _ in w.units]
        w.keyed = KeyedWindows(w.window, w.period, self.head, kinds, w.programs, self.seed, self.max_keys)
        by = [GroupKey("bucket", time.name, w.keyed.grain, 0, "bucket_"), *t.keys]
        for f in list(w.sources):
            units = [(kind, col, u) for (kind, g, col), u in w.units.items() if g == f]
            aggs = [
                Aggregate("count", None, None, f"v{u}_")
                if col < 0
                else Aggregate(
                    "sum" if kind in ("sum", "real") else kind, self.schema.columns[col].field.name, None, f"v{u}_"
                )
                for kind, col, u in units
            ]
            question = Aggregation(self.schema, aggs, by)
            columns = question.result.layout
            w.sources[f] = source = KeyedRows(question)
            keys = columns.n - len(aggs) - 1
            source.number = w.keyed.add_source(columns, keys, [(u, keys + 1 + i) for i, (_, _, u) in enumerate(units)])

    def columns(self) -> Iterator[int]:
        """Numbers of the columns that measures and keys read; filters read others."""
        for t in self.triggers:
            computed = [name for m in t.measures if m.value is not None for name in m.value.names]
            for name in [*computed, *(m.field for m in t.measures), *(n for k in t.keys for n in k.reads)]:
                if name is not None and name in self.schema:
                    yield from (i for i, c in enumerate(self.schema.columns) if c.field.name == name)
                    if self.schema[name].version:
                        yield self.schema.index(self.schema[name].version)


def program(node: ConditionNode, parts: Sequence[Part]) -> list[tuple[int, float]]:
    """A condition as steps of the compiled evaluator; ``parts``: how measures are computed from units."""
    from confluo_tools.core.monitor.window import CODES

    out: list[tuple[int, float]] = []
    for n in node.walk():
        if n.op != "agg":
            out.append((CODES[n.op], float(n.value) if n.op == "num" else 0.0))
            continue
        how, unit, other, scale = parts[n.value]
        out.append((CODES["agg"], unit))
        if how == "ratio":
            out += [(CODES["agg"], other), (CODES["/"], 0.0)]
        elif how == "share":
            out += [(CODES["num"], scale), (CODES["/"], 0.0)]
    return out


def computed(part: Part, value: Callable[[int], float]) -> float:
    """A measure, from ``value`` of each unit."""
    how, unit, other, scale = part
    if how == "ratio":
        return value(unit) / value(other) if value(other) else math.nan
    return value(unit) / scale if how == "share" else value(unit)
