"""Probes counted by pair of servers, for `silent_servers`, next to a `WindowTally` by other groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from confluo_tools.engine.partial import Partial
from confluo_tools.engine.state_pieces import pack, unpack
from confluo_tools.pingmesh.analysis.drop_tally import DROPPED
from confluo_tools.pingmesh.analysis.pair_tally import ANSWERED, PROBES, read_values
from confluo_tools.pingmesh.analysis.silent_servers import LostProbe, SilentServer, silent_servers

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.schema import Schema

PAIR = ("src", "dst", "src_pod", "dst_pod")
NEEDS = (*PAIR, "ts", "kind", "outcome", "retries", "notes")
FAILED = "outcome in (timeout, unreachable)"
MAX_LOST = 1_000_000  # kept; see `SilentTally.crowded`


class SilentTally(Partial):
    """Counts of probes between servers.  Use it only if `possible`; feed blocks with `update`, then call `find`.

    Its states merge exactly: lost probes are kept in the order of the rows, up to `MAX_LOST`.
    """

    name = "silent"

    def __init__(self, schema: Schema) -> None:
        from confluo_tools.expr import compile, parse_aggregates, parse_by
        from confluo_tools.multilog.query.aggregation import Aggregation

        self._schema = self.schema = schema
        self.columns = [i for i, c in enumerate(schema.columns) if c.field.name in NEEDS]
        self._lost = [(compile(f"{PROBES} && {what}", schema), failed) for what, failed in ((DROPPED, 0), (FAILED, 1))]
        count = Aggregation(schema, parse_aggregates("count", schema), parse_by(", ".join(PAIR), schema))
        self._count = count
        self._counted = [(compile(f"{PROBES} && {what}", schema), count.rollup()) for what in (ANSWERED, FAILED)]
        self._drops: list[tuple[int, str, str, str, str, int]] = []
        self.crowded = 0  # lost probes beyond `MAX_LOST`: then no server is judged
        self.begin, self.end = 1 << 63, 0

    @staticmethod
    def possible(schema: Schema) -> bool:
        """Whether records have all fields that are needed."""
        return all(name in schema for name in NEEDS)

    def settings(self) -> dict[str, Any]:
        return {}

    @classmethod
    def of(cls, schema: Schema, settings: Mapping[str, Any]) -> Self:
        return cls(schema)

    def update(self, block: Block, picks: Picks | None) -> None:
        """Count the picked rows."""
        if picks is not None and len(picks) < block.rows:
            block = block.take_columns(picks, self.columns)
        for expr, rollup in self._counted:
            found = expr.program.select(block)
            if len(found):
                rollup.update(block, found)
        times = memoryview(block.buffer(self._schema.index("ts"))).cast("q")
        self.begin, self.end = min(self.begin, min(times)), max(self.end, max(times) + 1)
        for expr, failed in self._lost:
            found = expr.program.select(block)
            if len(found):
                columns = read_values(self._schema, block.take(found), ("ts", *PAIR))
                room = MAX_LOST - len(self._drops)
                self._drops += [(*row, failed) for row in zip(*columns, strict=True)][:room]
                self.crowded += max(0, len(found) - room)

    def dump(self) -> bytes:
        from json import dumps

        from confluo_tools.core.query.rollup_codec import dump

        head = dumps([self.begin, self.end, self.crowded, self._drops], separators=(",", ":")).encode()
        return pack([head, *[dump(rollup) for _, rollup in self._counted]])

    def merge(self, data: bytes | memoryview) -> None:
        from confluo_tools.core.query.rollup_codec import load

        head, *states = unpack(data, 1 + len(self._counted))
        begin, end, crowded, drops = _counts(head)
        for (_, rollup), state in zip(self._counted, states, strict=True):
            other = self._count.rollup()
            load(other, state)
            rollup.merge(other)
        room = MAX_LOST - len(self._drops)
        self.begin, self.end = min(self.begin, begin), max(self.end, end)
        self.crowded += crowded + max(0, len(drops) - room)
        self._drops += drops[:room]

    def find(self) -> list[SilentServer]:
        """Servers that did not answer for a while."""
        pairs: dict[tuple[str, str], list[int]] = {}
        pod_of: dict[str, str] = {}
        for i, (_, rollup) in enumerate(self._counted):
            for result in self._count.answer(rollup):
                for src, dst, src_pod, dst_pod, n in zip(*read_values(self._count.result, result), strict=True):
                    pairs.setdefault((src, dst), [0, 0])[i] += n
                    for server, pod in ((src, src_pod), (dst, dst_pod)):
                        if pod and server:
                            pod_of[server] = pod
        if not self._drops or self.crowded:
            return []
        counts = {pair: (ok, failed) for pair, (ok, failed) in pairs.items()}
        drops = [LostProbe(ts, src, dst, bool(failed)) for ts, src, dst, _, _, failed in self._drops]
        return silent_servers(counts, drops, pod_of, self.begin, self.end)

    def by_class(
        self, silent: Iterable[SilentServer], classes: Mapping[str, Mapping[str, int]]
    ) -> dict[tuple[int, ...], list[int]]:
        """{classes of the fields `PAIR`: [dropped, failed]}: the lost probes of these servers.

        ``classes``: {field: {value: class}}; 0 for other values.
        """
        found: dict[tuple[int, ...], list[int]] = {}
        for server in silent:
            for i in server.drops:
                _, *values, failed = self._drops[i]
                key = tuple(classes[name].get(value, 0) for name, value in zip(PAIR, values, strict=True))
                found.setdefault(key, [0, 0])[failed] += 1
        return found


def _counts(head: bytes) -> tuple[int, int, int, list[tuple[int, str, str, str, str, int]]]:
    # First and last time, lost probes that are not kept, and those that are, of a state.  Raises ValueError.
    from json import loads

    try:
        begin, end, crowded, rows = loads(head)
        drops = [(ts, src, dst, src_pod, dst_pod, failed) for ts, src, dst, src_pod, dst_pod, failed in rows]
    except (TypeError, RecursionError) as e:
        raise ValueError(f"the state of a share of probes is damaged: {e}") from None
    numbers = [begin, end, crowded, *[n for ts, *_, failed in drops for n in (ts, failed)]]
    if not all(type(n) is int for n in numbers) or crowded < 0 or not all(0 <= failed <= 1 for *_, failed in drops):
        raise ValueError("the state of a share of probes is damaged: lost probes")
    if not all(isinstance(word, str) for _, *words, _ in drops for word in words):
        raise ValueError("the state of a share of probes is damaged: names of servers")
    return begin, end, crowded, drops
