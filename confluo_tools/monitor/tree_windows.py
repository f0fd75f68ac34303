"""Windows of aggregates that only roll-ups compute: distinct, quantiles, first, last, those of lists and arithmetic.

There is a roll-up per bucket and a tree of their merges, so a window of n buckets costs about 2 log2(n) merges.
Exact, but slower than the other windows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from confluo_tools.expr.aggregate_functions import FUNCTIONS
from confluo_tools.expr.aggregates import Aggregate
from confluo_tools.expr.group_keys import GroupKey
from confluo_tools.monitor.language import Measure, Trigger
from confluo_tools.multilog.query.aggregation import Aggregation

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup
    from confluo_tools.schema import Schema


MAX_TIME = 1 << 62  # ns: a step of time that has all times from 1970 to 2116


class RollupTree:
    """Roll-ups of one filter, by bucket, and a tree of their merges."""

    def __init__(self, question: Aggregation, measures: list[tuple[int, Measure]]) -> None:
        self.question, self.measures = question, measures
        self.rollup = None  # for the windows by key; not used here
        self.leaf: dict[int, Rollup] = {}
        self.made: dict[tuple[int, int], Rollup | None] = {}
        self.levels = 0

    def change(self, bucket: int) -> Rollup:
        """The roll-up of a bucket, for adding rows; merges that contain it are dropped."""
        for level in range(1, self.levels + 1):
            self.made.pop((level, bucket >> level), None)
        roll = self.leaf.get(bucket)
        if roll is None:
            roll = self.leaf[bucket] = self.question.rollup()
        return roll

    def any_of(self, buckets: range) -> bool:
        if len(buckets) > len(self.leaf):
            return any(b in buckets for b in self.leaf)
        return any(b in self.leaf for b in buckets)

    def node(self, level: int, i: int) -> Rollup | None:
        if level == 0:
            return self.leaf.get(i)
        name = level, i
        if name not in self.made:
            a, b = self.node(level - 1, 2 * i), self.node(level - 1, 2 * i + 1)
            if a is not None and b is not None:
                both = self.question.rollup()
                both.merge(a)
                both.merge(b)
                a = both
            self.made[name] = a if a is not None else b
        return self.made[name]

    def window(self, first: int, after: int) -> Rollup | None:
        """A roll-up of the buckets first <= bucket < after; None if all are empty."""
        found = []
        while first < after:
            level = min((first & -first).bit_length() - 1 if first else 62, (after - first).bit_length() - 1)
            self.levels = max(self.levels, level)
            part = self.node(level, first >> level)
            if part is not None:
                found.append(part)
            first += 1 << level
        if len(found) < 2:
            return found[0] if found else None
        whole = self.question.rollup()
        for part in found:
            whole.merge(part)
        return whole

    def forget(self, before: int) -> None:
        for bucket in [b for b in self.leaf if b < before]:
            del self.leaf[bucket]
        for level, i in [n for n in self.made if (n[1] + 1) << n[0] <= before]:
            del self.made[level, i]


def one_group(schema: Schema, grain: int) -> GroupKey:
    """A key that all rows have: distinct values by time add up to those by a key, and not to those of all rows."""
    assert schema.time_field is not None
    return GroupKey("bucket", schema.time_field.name, MAX_TIME // grain * grain, 0, "all_")


class TreeWindows:
    """The windows of one trigger, with the interface of `KeyedWindows`."""

    def __init__(
        self,
        trigger: Trigger,
        filters: Mapping[str, int],
        schema: Schema,
        ts: int,
        *,
        seed: int,
        max_keys: int,
        partials: bool = False,
    ) -> None:
        self.trigger, self.ts, self.seed = trigger, ts, seed.to_bytes(8, "little")
        self.window, self.period, self.grain = trigger.window, trigger.period, trigger.grain
        self.n, self.step, self.slots = self.window // self.grain, self.period // self.grain, 0
        self.max_keys, self.dropped, self.lost = max_keys, 0, 0
        groups: dict[int, list[tuple[int, Measure]]] = {}
        for number, m in enumerate(trigger.measures):
            groups.setdefault(filters[m.where], []).append((number, m))
        self.first = filters[trigger.measures[0].where]
        self.sources: dict[int, Any] = {}
        keys = trigger.keys or ((one_group(schema, self.grain),) if partials else ())
        for f, measures in groups.items():
            aggs = [Aggregate("count", None, None, "rows_")] + [
                Aggregate(m.func, m.field, m.q, f"v{k}_", m.value) for k, m in measures
            ]
            self.sources[f] = RollupTree(Aggregation(schema, aggs, keys), measures)
        self.start(0)

    def start(self, after: int) -> None:
        self.skip(after)
        for tree in self.sources.values():
            tree.forget(1 << 62)
        self._state: dict[int, int] = {}
        self._now: dict[int, tuple[list[float], int, bytes]] = {}
        self._stale, self._before = True, (0, 0)

    def skip(self, after: int) -> None:
        self.end = after // self.period * self.step
        self.next = self.end * self.grain + self.period

    def take(self, tree: RollupTree, block: Block, picks: Picks) -> None:
        from confluo_tools.core.monitor.window import split

        for bucket, some in split(block, picks, self.ts, self.grain):
            if bucket < self.end - self.n:
                self.lost += len(some)
                continue
            tree.change(bucket).update(block, some)
            self._stale = self._stale or bucket < self.end

    def take_part(self, tree: RollupTree, bucket: int, part: Rollup) -> None:
        """Take a roll-up of the rows of one bucket."""
        if bucket >= self.end - self.n:
            tree.change(bucket).merge(part)
            self._stale = self._stale or bucket < self.end

    def tick(self) -> list[tuple[int, int]]:
        """The changes: [(hash, state)]."""
        self.end += self.step
        self.next += self.period
        cut = self.end - self.n
        edges = (range(cut - self.step, cut), range(self.end - self.step, self.end))
        if not self._stale and not any(tree.any_of(edge) for tree in self.sources.values() for edge in edges):
            return []
        self._now = self._look(cut)
        for tree in self.sources.values():
            tree.forget(cut)
        self._stale = False
        states: dict[int, int] = {}
        t = self.trigger
        for h, (values, _, _) in self._now.items():
            on = t.condition.eval(values) != 0
            states[h] = on | (2 if t.clear is not None and t.clear.eval(values) else 0)
        gone = self._nothing()
        rest = int(t.condition.eval(gone) != 0) | (2 if t.clear is not None and t.clear.eval(gone) else 0)
        changed = [(h, s) for h, s in states.items() if self._state.get(h, 0 if t.keys else 128) != s]
        changed += [(h, rest) for h, s in self._state.items() if h not in states and s != rest]
        self._state = states
        return sorted(changed)

    def _nothing(self) -> list[float]:
        return [0.0 if FUNCTIONS[m.func].zero else math.nan for m in self.trigger.measures]

    def _look(self, cut: int) -> dict[int, tuple[list[float], int, bytes]]:
        out: dict[int, tuple[list[float], int, bytes]] = {}
        if not self.trigger.keys:
            out[0] = self._nothing(), 0, b""
        for f, tree in self.sources.items():
            roll = tree.window(cut, self.end)
            if roll is None:
                continue
            result = tree.question.result
            width = len(result.columns) - len(tree.measures) - 1
            for block in roll.finish(tree.question.wide.layout, self.window / 1e9).blocks():
                keys = [bytes(block.buffer(i)) for i in range(width)] if self.trigger.keys else []
                for row in range(block.rows):
                    rows = block.get(width, row)
                    if not rows and not self.trigger.keys:
                        continue
                    key = b"".join(k[len(k) // block.rows * row : len(k) // block.rows * (row + 1)] for k in keys)
                    digest = hashlib.blake2b(key, key=self.seed, digest_size=8).digest()
                    h = int.from_bytes(digest, "little") if key else 0
                    if h not in out:
                        if len(out) >= self.max_keys:
                            self.dropped += 1
                            continue
                        out[h] = self._nothing(), 0, key
                    values, n, _ = out[h]
                    for i, (number, _) in enumerate(tree.measures):
                        values[number] = float(block.get(width + 1 + i, row))
                    out[h] = values, rows if f == self.first else n, key
        return out

    def state_of(self, h: int) -> int:
        return self._state.get(h, 0) & 3

    def values(self, h: int) -> tuple[list[float], int]:
        values, rows, _ = self._now.get(h, (self._nothing(), 0, b""))
        return values, rows

    def key_of(self, h: int) -> bytes:
        return self._now[h][2] if h in self._now else b""
