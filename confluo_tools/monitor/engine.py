"""Evaluation of triggers: rows go into sliding windows, a tick finds the changes, a state machine makes events of them.

`TriggerEngine` does no I/O and reads no clock: the caller gives it blocks of rows and calls `tick`.
Its windows are those of windows.py.  Paper: section 4.2, monitor module.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluo_tools.monitor.language import Trigger
from confluo_tools.monitor.windows import SECOND, WindowGroup, WindowLayout, computed
from confluo_tools.multilog.query.aggregation import Aggregation
from confluo_tools.schema import Schema

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block

LAST = (1 << 63) - 1
NEVER = -(1 << 65)
MAX_KEYS = 1 << 20
HEAD_STEPS = 1 << 20


class Event:
    """A change at a tick: ``kind`` 'fire', 'clear' or 'repeat' of trigger number ``trigger``.

    ``value`` and ``threshold``: both sides of the deciding comparison; ``values`` of all measures.
    ``rows``: in the window.  ``lasted``: ns since it fired.  ``hash``: of the key; ``key``: its bytes, b'' for none.
    """

    __slots__ = ("tick", "trigger", "kind", "hash", "key", "value", "threshold", "values", "rows", "lasted", "known")

    def __init__(self, tick: int, trigger: int, kind: str, hash: int, key: bytes, known: Any) -> None:
        self.tick, self.trigger, self.kind, self.hash, self.key, self.known = tick, trigger, kind, hash, key, known
        self.value = self.threshold = math.nan
        self.values: list[float] = []
        self.rows = self.lasted = 0


class TriggerState:
    """State of one trigger and key.  ``phase``: 0 at rest, 1 waiting until ``due``, 2 firing."""

    __slots__ = ("phase", "due", "fired", "last", "ready", "on", "off", "id", "key", "known")

    def __init__(self, known: Any = None) -> None:
        self.phase = self.due = self.fired = self.last = 0
        self.ready = -LAST  # it must not fire earlier
        self.on = self.off = False
        self.id, self.key = -1, b""
        self.known = known  # the `AlertKey` of an earlier run


class PartCounts:
    """Counts of rows that came as roll-ups, as `RowFeed` has them."""

    def __init__(self) -> None:
        self.rows = self.late = self.lost = 0
        self.late_from, self.newest = LAST, NEVER


class TriggerEngine:
    """Evaluates all ``triggers`` on rows of ``schema``.

    ``lag``: ns between a tick and its evaluation; ``seed``: for hashes of keys; ``filters``: named filters as text;
    ``max_keys``: keys per window.  ``head``: ns that rows may be ahead of the last tick; ``reach``: ns from a tick back
    to the oldest row that it can see.
    ``partials``: the rows come as roll-ups, which other processes made (partials.py), not as blocks.
    """

    def __init__(
        self,
        schema: Schema,
        triggers: Sequence[Trigger],
        *,
        lag: int = 0,
        seed: bytes = b"",
        max_keys: int = MAX_KEYS,
        filters: Mapping[str, str] | None = None,
        partials: bool = False,
    ) -> None:
        from confluo_tools.core.block.block import Picks
        from confluo_tools.core.monitor.window import GridTicks, RowFeed
        from confluo_tools.core.query.shared_filters import SharedFilters
        from confluo_tools.errors import UsageError
        from confluo_tools.expr import compile

        if schema.time_field is None:
            raise UsageError(f"schema '{schema.kind}' has no time", hint="windows slide over a field of type time")
        self.schema, self.triggers = schema, list(triggers)
        self.ts = schema.index(schema.time_field.name)
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
        filter_of = {w: trees.setdefault(compile(w, schema, filters=filters).tree, len(trees)) for w in self._filters}
        number = int.from_bytes(seed[:8].ljust(8, b"\1"), "little")
        layout = WindowLayout(
            schema,
            self.triggers,
            filter_of,
            ts=self.ts,
            head=self.head,
            seed=number,
            max_keys=max_keys,
            partials=partials,
        )
        self.windows, self._layout = layout.groups, layout
        self.texts = {number: text for text, number in reversed(filter_of.items())}
        bank = SharedFilters(list(trees), schema.layout)
        grids = [w for w in self.windows if w.grid is not None]
        puts = [(f, i, u, col) for i, w in enumerate(grids) for (_, f, col), u in w.units.items()]
        outside = sorted({f for w in self.windows if w.grid is None for f in w.sources})
        self._grids = grids
        self._pass = GridTicks([w.grid for w in grids if w.grid is not None])
        self._others = [w for w in self.windows if w.grid is None]
        self.rows = RowFeed(bank, self._pass.grids, puts, outside, self.ts)
        self.feed: RowFeed | PartCounts = PartCounts() if partials else self.rows
        self._takers = {f: [w for w in self._others if f in w.sources] for f in outside}
        self.columns = sorted({*bank.columns, *layout.columns(), self.ts})
        self._picks = Picks()
        self.clock = 0
        self._whole = NEVER
        self.states: dict[tuple[int, int], TriggerState] = {}
        self._timers: list[tuple[int, int, int]] = []
        self._again: list[tuple[int, int]] = []

    # -- rows and ticks

    def start(self, after: int, *, whole: int | None = None) -> None:
        """Empty all windows and states; the first ticks are those later than ``after``.

        ``whole``: rows older than that may be missing, so a trigger waits until its window begins there.
        """
        self._whole = NEVER if whole is None else whole
        for w in self.windows:
            (w.grid or w.keyed or w.tree).start(max(after, self._whole + w.window))
        for w in self._others:
            w.pins.clear()
            for source in w.sources.values():
                source.rollup = None
        self.clock = after
        self.states.clear()
        self._timers.clear()
        self._again.clear()

    def take(self, block: Block, start: int, stop: int, lo: int, hi: int) -> int:
        """Take the rows start .. stop with lo <= time < hi; returns their number.

        Afterwards ``rows.ahead`` is the earliest time at or after ``hi``.
        """
        feed = self.rows
        n = feed.take_rows(block, start, stop, lo, hi, self.clock)
        if n and self._others:
            for f in feed.hits():
                picks = feed.picks(f, self._picks)
                if not len(picks):
                    continue
                rows = block.slice(feed.start, feed.stop - feed.start)
                for w in self._takers[f]:
                    source = w.sources[f]
                    if w.tree is not None:
                        w.tree.take(source, rows, picks)
                        continue
                    if source.rollup is None:
                        source.rollup = source.question.rollup()
                    source.rollup.update(rows, picks)
        return n

    @property
    def lost(self) -> int:
        """Matches that were too old for any window."""
        return self.feed.lost + sum((w.keyed or w.tree).lost for w in self._others)

    @property
    def dropped(self) -> int:
        """Matches of keys beyond ``max_keys``."""
        return sum((w.keyed or w.tree).dropped for w in self._others)

    @property
    def next(self) -> int:
        """The next tick of any trigger."""
        t = self._pass.next
        for w in self._others:
            t = min(t, (w.keyed or w.tree).next)
        return t

    def tick(self, t: int) -> list[Event]:
        """Evaluate all triggers that have a tick at ``t``, which is `next`; returns the events, by trigger and hash."""
        changed: list[tuple[int, int, int, int]] = []  # trigger, hash, state, id
        found = self._pass.tick(t)
        if found is not None:
            for i in found:
                w = self._grids[i]
                changed += [(w.tests[k], 0, s, -1) for k, s in w.grid.changed_tests()]  # type: ignore[union-attr]
        for w in self._others:
            if w.tree is not None:
                if w.tree.next == t:
                    changed += [(w.tests[0], h, s, -1) for h, s in w.tree.tick()]
            elif w.keyed is not None and w.keyed.next == t:
                self._flush(w)
                if w.keyed.tick():
                    changed += [(w.tests[k], h, s, id) for id, h, k, s in w.keyed.changed_tests()]
        self.clock = t
        if not changed and not self._again and not (self._timers and self._timers[0][0] <= t):
            return []
        return self._judge(t, changed)

    @staticmethod
    def _flush(w: WindowGroup) -> None:
        for source in w.sources.values():
            if source.rollup is not None and w.keyed is not None:
                for block in source.rollup.finish(source.question.result.layout, 1.0).blocks():
                    w.keyed.add(source.number, block)
                source.rollup = None

    def quiet(self) -> bool:
        """Whether nothing can happen until the next row or timer: all windows are empty, and evaluated."""
        return self.clock - self.reach > self.feed.newest and not self._again

    @property
    def due(self) -> int:
        """The end of the next timer."""
        return self._timers[0][0] if self._timers else LAST

    def skip(self, after: int) -> None:
        """Skip the ticks up to ``after``.  The engine must be `quiet`, and no row or timer may come before."""
        for w in self.windows:
            window = w.grid or w.keyed or w.tree
            if window.next <= after:  # a window that waits until it is full stays
                window.skip(after)
        self.clock = max(self.clock, after)

    # -- the state machine

    def _judge(self, t: int, changed: list[tuple[int, int, int, int]]) -> list[Event]:
        events: list[Event] = []
        changed += [(i, h, -1, -1) for i, h in self._again if not t % self.triggers[i].period]
        self._again = [(i, h) for i, h in self._again if t % self.triggers[i].period]
        changed.sort(key=lambda c: (c[0], c[1], c[2] < 0))  # changes first, then repeated evaluations
        for i, h, state, id in changed:
            s = self.states.get((i, h))
            if s is None:
                if not state & 1 or state < 0:
                    continue
                s = self.states[i, h] = TriggerState()
                w = self._layout.group_of[i]
                s.key = w.keyed.key_of(id) if w.keyed is not None else w.tree.key_of(h) if w.tree is not None else b""
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

    def _step(self, t: int, i: int, h: int, s: TriggerState, events: list[Event]) -> None:
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

    def _rest(self, t: int, i: int, h: int, s: TriggerState) -> None:
        if s.ready > t:
            self._timer(i, h, s.ready)  # to forget it
        else:
            self.states.pop((i, h), None)

    def _pin(self, i: int, s: TriggerState, on: bool) -> None:
        w = self._layout.group_of[i]
        if w.keyed is None or s.id < 0:
            return
        count = w.pins.get(s.id, 0) + (1 if on else -1)
        if count <= 0:
            w.pins.pop(s.id, None)
            w.keyed.pin(s.id, False)
        else:
            w.pins[s.id] = count
            w.keyed.pin(s.id, True)

    def _event(self, t: int, i: int, h: int, s: TriggerState, kind: str) -> Event:
        trigger = self.triggers[i]
        event = Event(t, i, kind, h, s.key, s.known)
        event.lasted = t - s.fired
        event.values, event.rows = self.measured(i, h, s.id)
        node = trigger.clear if kind == "clear" and trigger.clear is not None else trigger.condition
        event.value, event.threshold = node.decisive(event.values)
        return event

    def measured(self, i: int, h: int, id: int) -> tuple[list[float], int]:
        """(values of the measures of trigger i as of the last tick, rows in its window)."""
        w = self._layout.group_of[i]
        if w.tree is not None:
            values, rows = w.tree.values(h)
            return values, rows
        value: Any = w.grid.value if w.grid is not None else w.keyed.values(id).__getitem__  # type: ignore[union-attr]
        return [computed(part, value) for part in self._layout.parts[i]], int(value(self._layout.counts[i]))

    def firing(self) -> list[Event]:
        """A 'fire' event for each trigger and key that fires as of the last tick."""
        found = sorted((i, h) for (i, h), s in self.states.items() if s.phase == 2 and s.on)
        return [self._event(self.clock, i, h, self.states[i, h], "fire") for i, h in found]

    def key_question(self, i: int) -> Aggregation | None:
        """The query that names the key columns of trigger ``i``; None without keys."""
        w = self._layout.group_of[i]
        return next((source.question for source in w.sources.values()), None) if self.triggers[i].keys else None

    # -- an earlier run

    def memory(self) -> list[tuple[int, int, int, int, int, Any]]:
        """Triggers that fire or must not fire yet, for `restore`: (trigger, hash, fired, last, ready, known)."""
        found = []
        for (i, h), s in self.states.items():
            if s.phase == 2 or s.ready > self.clock:
                found.append((i, h, s.fired if s.phase == 2 else 0, s.last, s.ready, s.known))
        return found

    def restore(self, earlier: Iterable[tuple[int, int, int, int, int, Any]]) -> None:
        """Replace the states after a warm-up by those of the alerts: (trigger, hash, fired, last, ready, known).

        ``fired`` 0: it was cleared, and may fire from ``ready`` on.  A trigger that fires here but is not among
        ``earlier`` becomes due.
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
                s = self.states[name] = TriggerState()
                w = self._layout.group_of[i]
                if w.keyed is not None:
                    s.id = w.keyed.adopt(h) if fired else -1
                else:
                    state = w.tree.state_of(h) if w.tree is not None else w.grid.states()[self._layout.test_of[i]]  # type: ignore[union-attr]
                    s.on, s.off = bool(state & 1), bool(state & 2)
            fired, last, ready, known = truth.get(name, (0, 0, -LAST, None))
            before = s.phase
            s.known, s.ready = known if s.known is None else s.known, ready
            if fired:
                s.phase, s.fired, s.last = 2, fired, last
                if trigger.repeat:
                    self._timer(i, h, last + trigger.repeat)
            elif before == 2:  # the condition holds, but the trigger has not fired yet
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
