"""Triggers at work: rows go into sliding windows, ticks find what changed, and a state machine makes events of it.

`Engine` knows nothing of logs, clocks or files: it is given blocks of rows and told to tick.  Three kinds of windows:
`Grid` (no keys), `Keyed` (by key) and `Slow` (aggregates that only roll-ups know, such as quantiles).
Paper: section 4.2, monitor module.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.expr.aggregates import Agg, By
from confluo_tools.expr.trigger import Measure, Node, Trigger
from confluo_tools.schema import Schema
from confluo_tools.store.aggregate import Question

if TYPE_CHECKING:
    from confluo_tools.core.block import Block
    from confluo_tools.core.keywindow import Keyed
    from confluo_tools.core.rollup import Rollup
    from confluo_tools.core.window import Grid

SECOND = 10**9
LAST = (1 << 63) - 1
NEVER = -(1 << 65)
MOST_KEYS = 1 << 20
FAST = frozenset({"count", "rate", "sum", "avg", "min", "max"})
HEAD_STEPS = 1 << 20

Unit = tuple[str, int, int]  # kind of window sum, number of the filter, column (-1: rows)
Part = tuple[str, int, int, float]  # how a measure is made of units: 'one', 'ratio' or 'share' of a constant


class Event:
    """What happened at a tick: ``kind`` 'fire', 'clear' or 'repeat', of trigger number ``trigger``.

    ``value`` and ``threshold``: both sides of the comparison that decided; ``values`` of all measures.
    ``rows``: in the window.  ``lasted``: ns since it fired.  ``hash``, ``key``: of the key, its bytes (b'' none).
    """

    __slots__ = ("tick", "trigger", "kind", "hash", "key", "value", "threshold", "values", "rows", "lasted", "known")

    def __init__(self, tick: int, trigger: int, kind: str, hash: int, key: bytes, known: Any) -> None:
        self.tick, self.trigger, self.kind, self.hash, self.key, self.known = tick, trigger, kind, hash, key, known
        self.value = self.threshold = math.nan
        self.values: list[float] = []
        self.rows = self.lasted = 0


class State:
    """Of one trigger and key that is not at rest.  ``phase``: 0 at rest, 1 waiting for ``due``, 2 firing."""

    __slots__ = ("phase", "due", "fired", "last", "ready", "on", "off", "id", "key", "known")

    def __init__(self, known: Any = None) -> None:
        self.phase = self.due = self.fired = self.last = 0
        self.ready = -LAST  # not before
        self.on = self.off = False
        self.id, self.key = -1, b""
        self.known = known  # of an earlier run: what an alert says of the key


class Windows:
    """Windows of one shape: a `Grid`, `Keyed` or `Slow` and the triggers on it, by the number of their test."""

    __slots__ = ("keyed", "window", "period", "units", "tests", "sources", "pins", "table", "slow", "programs")

    def __init__(self, window: int, period: int) -> None:
        self.window, self.period = window, period
        self.units: dict[Unit, int] = {}
        self.tests: list[int] = []
        self.programs: list[tuple[list[tuple[int, float]], list[tuple[int, float]]]] = []
        self.sources: dict[int, Source] = {}
        self.pins: dict[int, int] = {}
        self.keyed: Keyed | None = None
        self.table: Grid | None = None
        self.slow: Any = None

    def unit(self, unit: Unit) -> int:
        return self.units.setdefault(unit, len(self.units))


class Source:
    """Rows of one filter on their way to windows by key: a roll-up by bucket and key."""

    __slots__ = ("question", "rollup", "number")

    def __init__(self, question: Question) -> None:
        self.question, self.number = question, -1
        self.rollup: Rollup | None = None


class Engine:
    """All ``triggers`` on rows of ``schema``.

    ``lag``: how far behind ticks will be, ns; ``seed``: for keys' hashes; ``filters``: named filters as text.
    ``head``: rows may be so far ahead of the last tick; ``reach``: how far back a tick can see.
    """

    def __init__(
        self, schema: Schema, triggers: Sequence[Trigger], *, lag: int = 0, seed: bytes = b"", most: int = MOST_KEYS,
        filters: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        from confluo_tools.core.bank import Bank
        from confluo_tools.core.block import Picks
        from confluo_tools.core.window import Feed, Grid, Pass
        from confluo_tools.errors import UsageError
        from confluo_tools.expr import compile

        if schema.time_field is None:
            raise UsageError(f"schema '{schema.kind}' has no time", hint="windows slide over a field of type time")
        self.schema, self.triggers = schema, list(triggers)
        self.ts = schema.index(schema.time_field.name)
        self.seed = int.from_bytes(seed[:8].ljust(8, b"\1"), "little")
        self.most = most
        periods = [t.period for t in triggers]
        grains = [t.grain for t in triggers]
        self.head = max(SECOND, 2 * lag, 16 * min(periods))
        self.head = max(min(self.head, HEAD_STEPS * min(grains)), 2 * lag, max(periods))
        self.reach = max(t.window for t in triggers) + max(periods)
        self.hold = max(t.hold for t in triggers)
        texts: dict[str, int] = {}
        self._filters: list[str] = []
        for t in triggers:
            for m in t.measures:
                if texts.setdefault(m.where, len(texts)) == len(self._filters):
                    self._filters.append(m.where)
        trees: dict[Any, int] = {}
        self._filter = {
            w: trees.setdefault(compile(w, schema, filters=filters).tree, len(trees)) for w in self._filters
        }
        self._where: dict[int, Windows] = {}  # by trigger
        self._test: dict[int, int] = {}
        self._parts: dict[int, list[Part]] = {}
        self._counts: dict[int, int] = {}
        self.windows: list[Windows] = []
        self._shape(Grid)
        bank = Bank(list(trees), schema.layout)
        grids = [w for w in self.windows if w.table is not None]
        puts = [(f, i, u, col) for i, w in enumerate(grids) for (_, f, col), u in w.units.items()]
        outside = sorted({f for w in self.windows if w.table is None for f in w.sources})
        self._grids = grids
        self._pass = Pass([w.table for w in grids if w.table is not None])
        self._others = [w for w in self.windows if w.table is None]
        self.feed = Feed(bank, self._pass.grids, puts, outside, self.ts)
        self._takers = {f: [w for w in self._others if f in w.sources] for f in outside}
        self.columns = sorted({*bank.columns, *self._needed(), self.ts})
        self._picks = Picks()
        self.clock = 0
        self._whole = NEVER
        self.states: dict[tuple[int, int], State] = {}
        self._timers: list[tuple[int, int, int]] = []
        self._again: list[tuple[int, int]] = []

    # -- what goes where

    def _shape(self, grid: Any) -> None:
        shapes: dict[Any, Windows] = {}
        for i, t in enumerate(self.triggers):
            fast = all(self._fast(m) for m in t.measures)
            filters = tuple(sorted({self._filter[m.where] for m in t.measures}))
            keys = tuple((k.kind, k.field, k.arg, k.arg6) for k in t.keys)
            name = (t.window, t.period, keys, filters if keys else ()) if fast else i
            w = shapes.get(name)
            if w is None:
                w = shapes[name] = Windows(t.window, t.period)
                self.windows.append(w)
            self._where[i], self._test[i] = w, len(w.tests)
            w.tests.append(i)
            if fast:
                self._counts[i] = w.unit(("sum", self._filter[t.measures[0].where], -1))
                self._parts[i] = [self._part(w, t, m) for m in t.measures]
                w.programs.append((program(t.condition, self._parts[i]),
                                   program(t.clear, self._parts[i]) if t.clear is not None else []))
                for f in filters if keys else ():
                    w.sources.setdefault(f, None)  # type: ignore[arg-type]
            else:
                from confluo_tools.store.slow import Slow

                w.slow = Slow(t, self._filter, self.schema, self.ts, seed=self.seed, most=self.most)
                w.sources = w.slow.sources
        for w in self.windows:
            if w.slow is None and w.sources:
                self._keys(w)
            elif w.slow is None:
                kinds = [kind for kind, _, _ in w.units]
                w.table = grid(w.window, w.period, self.head, kinds, w.programs)

    def _fast(self, m: Measure) -> bool:
        if m.field is None:
            return True
        return m.func in FAST and not self.schema[m.field].type.is_list

    def _part(self, w: Windows, t: Trigger, m: Measure) -> Part:
        f = self._filter[m.where]
        seconds = t.window / SECOND
        if m.field is None:
            unit = w.unit(("sum", f, -1))
            return ("share", unit, 0, seconds) if m.func == "rate" else ("one", unit, 0, 0.0)
        col = self.schema.index(m.field)
        if m.func in ("min", "max"):
            return "one", w.unit((m.func, f, col)), 0, 0.0
        type_ = self.schema[m.field].type
        unit = w.unit(("real" if type_.is_float or type_.size == 8 else "sum", f, col))
        if m.func == "avg":
            return "ratio", unit, w.unit(("sum", f, -1)), 0.0
        return ("share", unit, 0, seconds) if m.func == "rate" else ("one", unit, 0, 0.0)

    def _keys(self, w: Windows) -> None:
        from confluo_tools.core.keywindow import Keyed

        t = self.triggers[w.tests[0]]
        time = self.schema.time_field
        assert time is not None
        kinds = [kind for kind, _, _ in w.units]
        w.keyed = Keyed(w.window, w.period, self.head, kinds, w.programs, self.seed, self.most)
        by = [By("bucket", time.name, w.keyed.grain, 0, "bucket_"), *t.keys]
        for f in list(w.sources):
            units = [(kind, col, u) for (kind, g, col), u in w.units.items() if g == f]
            aggs = [Agg("count", None, None, f"v{u}_") if col < 0 else
                    Agg("sum" if kind in ("sum", "real") else kind, self.schema.columns[col].field.name, None, f"v{u}_")
                    for kind, col, u in units]  # fmt: skip
            question = Question(self.schema, aggs, by)
            columns = question.result.layout
            w.sources[f] = source = Source(question)
            keys = columns.n - len(aggs) - 1
            source.number = w.keyed.add_source(columns, keys, [(u, keys + 1 + i) for i, (_, _, u) in enumerate(units)])

    def _needed(self) -> Iterator[int]:
        # Columns beside those of the filters.
        for t in self.triggers:
            for name in [*(m.field for m in t.measures), *(k.field for k in t.keys)]:
                names = ("src_ip", "dst_ip", "src_port", "dst_port", "proto") if name == "flow" else (name,)
                for n in names:
                    if n is not None and n in self.schema:
                        yield from (i for i, c in enumerate(self.schema.columns) if c.field.name == n)
                        if self.schema[n].version:
                            yield self.schema.index(self.schema[n].version)

    # -- rows and ticks

    def start(self, after: int, *, whole: int | None = None) -> None:
        """Everything is empty and at rest; the first ticks are those later than ``after``.

        ``whole``: rows of before that time may be missing, so a trigger waits until its window begins there.
        """
        self._whole = NEVER if whole is None else whole
        for w in self.windows:
            (w.table or w.keyed or w.slow).start(max(after, self._whole + w.window))
        for w in self._others:
            w.pins.clear()
            for source in w.sources.values():
                source.rollup = None
        self.clock = after
        self.states.clear()
        self._timers.clear()
        self._again.clear()

    def take(self, block: Block, start: int, stop: int, lo: int, hi: int) -> int:
        """The rows start .. stop with lo <= time < hi; how many.  ``feed.ahead`` is the next time beyond."""
        feed = self.feed
        n = feed.take_rows(block, start, stop, lo, hi, self.clock)
        if n and self._others:
            for f in feed.hits():
                picks = feed.picks(f, self._picks)
                if not len(picks):
                    continue
                rows = block.slice(feed.start, feed.stop - feed.start)
                for w in self._takers[f]:
                    source = w.sources[f]
                    if w.slow is not None:
                        w.slow.take(source, rows, picks)
                        continue
                    if source.rollup is None:
                        source.rollup = source.question.rollup()
                    source.rollup.update(rows, picks)
        return n

    @property
    def lost(self) -> int:
        """Matches that were too old for any window."""
        return self.feed.lost + sum((w.keyed or w.slow).lost for w in self._others)

    @property
    def dropped(self) -> int:
        """Matches of keys beyond those that there is room for."""
        return sum((w.keyed or w.slow).dropped for w in self._others)

    @property
    def next(self) -> int:
        """The next tick of any trigger."""
        t = self._pass.next
        for w in self._others:
            t = min(t, (w.keyed or w.slow).next)
        return t

    def tick(self, t: int) -> list[Event]:
        """Judge all triggers whose next tick is ``t``, the smallest `next`; what happened, in a fixed order."""
        changed: list[tuple[int, int, int, int]] = []  # trigger, hash, state, id
        found = self._pass.tick(t)
        if found is not None:
            for i in found:
                w = self._grids[i]
                changed += [(w.tests[k], 0, s, -1) for k, s in w.table.changed_tests()]  # type: ignore[union-attr]
        for w in self._others:
            if w.slow is not None:
                if w.slow.next == t:
                    changed += [(w.tests[0], h, s, -1) for h, s in w.slow.tick()]
            elif w.keyed is not None and w.keyed.next == t:
                self._flush(w)
                if w.keyed.tick():
                    changed += [(w.tests[k], h, s, id) for id, h, k, s in w.keyed.changed_tests()]
        self.clock = t
        if not changed and not self._again and not (self._timers and self._timers[0][0] <= t):
            return []
        return self._judge(t, changed)

    @staticmethod
    def _flush(w: Windows) -> None:
        for source in w.sources.values():
            if source.rollup is not None and w.keyed is not None:
                for block in source.rollup.finish(source.question.result.layout, 1.0).blocks():
                    w.keyed.add(source.number, block)
                source.rollup = None

    def quiet(self) -> bool:
        """No window holds a row, and this has been judged: until the next row or timer nothing happens."""
        return self.clock - self.reach > self.feed.newest and not self._again

    @property
    def due(self) -> int:
        """When the next timer ends."""
        return self._timers[0][0] if self._timers else LAST

    def skip(self, after: int) -> None:
        """Leave out the ticks up to ``after``: the engine is `quiet`, and no row or timer comes before."""
        for w in self.windows:
            window = w.table or w.keyed or w.slow
            if window.next <= after:  # not one that waits until it is full
                window.skip(after)
        self.clock = max(self.clock, after)

    # -- the state machine

    def _judge(self, t: int, changed: list[tuple[int, int, int, int]]) -> list[Event]:
        events: list[Event] = []
        changed += [(i, h, -1, -1) for i, h in self._again if not t % self.triggers[i].period]
        self._again = [(i, h) for i, h in self._again if t % self.triggers[i].period]
        changed.sort(key=lambda c: (c[0], c[1], c[2] < 0))  # what changed first, then what is only looked at again
        for i, h, state, id in changed:
            s = self.states.get((i, h))
            if s is None:
                if not state & 1 or state < 0:
                    continue
                s = self.states[i, h] = State()
                w = self._where[i]
                s.key = w.keyed.key_of(id) if w.keyed is not None else w.slow.key_of(h) if w.slow is not None else b""
            if state >= 0:
                s.on, s.off = bool(state & 1), bool(state & 2)
            if id >= 0:
                s.id = id
            self._step(t, i, h, s, events)
        while self._timers and self._timers[0][0] <= t:
            _, i, h = heapq.heappop(self._timers)
            s = self.states.get((i, h))
            if s is not None:
                self._step(t, i, h, s, events)
        return events

    def _step(self, t: int, i: int, h: int, s: State, events: list[Event]) -> None:
        trigger = self.triggers[i]
        if t <= self._whole + trigger.window:
            self._timer(i, h, self._whole + trigger.window + 1)  # its window is not full yet
            return
        if s.phase == 2:
            if not s.on and (s.off or trigger.clear is None):
                events.append(self._event(t, i, h, s, "clear"))
                s.phase, s.ready = 0, t + trigger.rearm
                self._pin(i, s, False)
                self._rest(t, i, h, s)
            elif trigger.repeat and t - s.last >= trigger.repeat:
                s.last = t
                events.append(self._event(t, i, h, s, "repeat"))
                self._timer(i, h, t + trigger.repeat)
            return
        if not s.on:
            if s.phase:
                s.phase = 0
                self._pin(i, s, False)
            self._rest(t, i, h, s)
            return
        if s.phase == 0:
            s.phase, s.due = 1, max(t + trigger.hold, s.ready)
            self._pin(i, s, True)
            if s.due > t:
                self._timer(i, h, s.due)
        if s.due <= t:
            s.phase, s.fired, s.last = 2, t, t
            events.append(self._event(t, i, h, s, "fire"))
            if trigger.repeat:
                self._timer(i, h, t + trigger.repeat)

    def _timer(self, i: int, h: int, due: int) -> None:
        period = self.triggers[i].period
        heapq.heappush(self._timers, (-(-due // period) * period, i, h))

    def _rest(self, t: int, i: int, h: int, s: State) -> None:
        if s.ready > t:
            self._timer(i, h, s.ready)  # to forget it
        else:
            self.states.pop((i, h), None)

    def _pin(self, i: int, s: State, on: bool) -> None:
        w = self._where[i]
        if w.keyed is None or s.id < 0:
            return
        count = w.pins.get(s.id, 0) + (1 if on else -1)
        if count <= 0:
            w.pins.pop(s.id, None)
            w.keyed.pin(s.id, False)
        else:
            w.pins[s.id] = count
            w.keyed.pin(s.id, True)

    def _event(self, t: int, i: int, h: int, s: State, kind: str) -> Event:
        trigger = self.triggers[i]
        event = Event(t, i, kind, h, s.key, s.known)
        event.lasted = t - s.fired
        event.values, event.rows = self.measured(i, h, s.id)
        node = trigger.clear if kind == "clear" and trigger.clear is not None else trigger.condition
        event.value, event.threshold = node.decisive(event.values)
        return event

    def measured(self, i: int, h: int, id: int) -> tuple[list[float], int]:
        """(values of the measures of trigger i as of the last tick, rows in its window)."""
        w = self._where[i]
        if w.slow is not None:
            values, rows = w.slow.values(h)
            return values, rows
        value: Any = w.table.value if w.table is not None else w.keyed.values(id).__getitem__  # type: ignore[union-attr]
        return [_made(part, value) for part in self._parts[i]], int(value(self._counts[i]))

    def firing(self) -> list[Event]:
        """What holds as of the last tick, each as an event of its own."""
        found = sorted((i, h) for (i, h), s in self.states.items() if s.phase == 2 and s.on)
        return [self._event(self.clock, i, h, self.states[i, h], "fire") for i, h in found]

    def key_question(self, i: int) -> Question | None:
        """What names the columns of the keys of trigger i."""
        w = self._where[i]
        return next((source.question for source in w.sources.values()), None) if self.triggers[i].keys else None

    # -- an earlier run

    def memory(self) -> list[tuple[int, int, int, int, int, Any]]:
        """What fires, and what may not fire yet, for `restore`."""
        found = []
        for (i, h), s in self.states.items():
            if s.phase == 2 or s.ready > self.clock:
                found.append((i, h, s.fired if s.phase == 2 else 0, s.last, s.ready, s.known))
        return found

    def restore(self, earlier: Iterable[tuple[int, int, int, int, int, Any]]) -> None:
        """After a warm-up: the truth of what fires, from the alerts: (trigger, hash, fired, last, ready, known).

        ``fired`` 0: it was cleared, and may fire from ``ready`` on.  Whatever else fires here does not: it is due.
        """
        truth = {(i, h): rest for i, h, *rest in earlier}
        for name in dict.fromkeys([*self.states, *truth]):
            i, h = name
            trigger = self.triggers[i]
            s = self.states.get(name)
            if s is None:
                fired, last, ready, known = truth[name]
                if not fired and ready <= self.clock:
                    continue
                s = self.states[name] = State()
                w = self._where[i]
                if w.keyed is not None:
                    s.id = w.keyed.adopt(h) if fired else -1
                else:
                    state = w.slow.state_of(h) if w.slow is not None else w.table.states()[self._test[i]]  # type: ignore[union-attr]
                    s.on, s.off = bool(state & 1), bool(state & 2)
            fired, last, ready, known = truth.get(name, (0, 0, -LAST, None))
            before = s.phase
            s.known, s.ready = known if s.known is None else s.known, ready
            if fired:
                s.phase, s.fired, s.last = 2, fired, last
                if trigger.repeat:
                    self._timer(i, h, last + trigger.repeat)
            elif before == 2:  # it holds, but has not fired yet
                s.phase, s.due = 1, max(self.clock + 1, ready)
                self._timer(i, h, s.due)
            elif before == 1:
                s.due = max(s.due, ready)
                self._timer(i, h, s.due)
            else:
                self._timer(i, h, ready)
            if s.phase and not before:
                self._pin(i, s, True)
            self._again.append(name)


def program(node: Node, parts: Sequence[Part]) -> list[tuple[int, float]]:
    """A condition as steps of the compiled evaluator; ``parts``: how measures are made of units."""
    from confluo_tools.core.window import CODES

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


def _made(part: Part, value: Callable[[int], float]) -> float:
    how, unit, other, scale = part
    if how == "ratio":
        return value(unit) / value(other) if value(other) else math.nan
    return value(unit) / scale if how == "share" else value(unit)
