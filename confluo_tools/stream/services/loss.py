"""Loss, delay and reordering between two observation points, by flow and window; the pairing is in the core.

RFC 7680 (loss) and RFC 7679 (delay) define one-way metrics between two hosts; here the packets of users are the
probes.  Reordered is type-P-reordered of RFC 4737: a packet that came after one that left later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from confluo_tools.schema import Schema, builtin
from confluo_tools.stream.services.fields import check_fields
from confluo_tools.stream.services.windows import by_window

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup

A, B, BOTH = 1, 2, 3  # `seen` of passages
A_TO_B, B_TO_A = 1, 2
FLOW = ("ip_version", "proto", "src_ip", "dst_ip", "src_port", "dst_port")
FLOW_COLUMNS = ("ip_version", "proto", "src_ip", "src_ip6", "dst_ip", "dst_ip6", "src_port", "dst_port")
MEASURES = "count, min(delay), avg(delay), max(delay), p99(delay), p1(delay), sum(reordered)"
MAX_GROUPS = 1 << 20  # of a window; then it is reported in parts
MAX_WAYS = 1 << 16  # conversations with a way that is known
MAX_HELD = 1 << 16  # rows that wait for it

Flow = tuple[Any, ...]


class Points(Protocol):
    """The point (0: a, 1: b) of the last block, and the time that both have reached."""

    point: int

    def mark(self) -> int | None: ...


class LossService:
    """Packets of two points as flows in windows of ``window`` ns (0: a single one), or ``each`` packet.

    A packet is lost when the other point does not have it within ``timeout`` ns.  ``offset``: ns that the clock of b is
    ahead.  ``everyone``: also conversations without a packet at both points.
    """

    name = "loss"

    def __init__(
        self,
        packets: Sequence[Schema],
        points: Points,
        *,
        window: int,
        timeout: int,
        lateness: int,
        offset: int = 0,
        each: bool = False,
        everyone: bool = False,
    ) -> None:
        from confluo_tools.core.stream.packet_pairs import NEEDED, USED, PacketPairs
        from confluo_tools.expr import parse_aggregates, parse_by
        from confluo_tools.multilog.query.aggregation import Aggregation

        for schema in packets:
            check_fields(schema, NEEDED)
        names = [n for n in USED if all(n in schema for schema in packets)]  # those of both points
        self._packets = packets[0].project(names)
        self._passage = builtin("passage")
        self.schema = self._passage if each else builtin("loss")
        self._core = PacketPairs(
            self._packets.layout, self._passage.layout, timeout=timeout, lateness=lateness, offset=offset
        )
        self.points, self.window, self.each, self.everyone, self.offset = points, window, each, everyone, offset
        self._hold = timeout + 2 * lateness  # after the end of a window
        self._question = Aggregation(
            self._passage,
            parse_aggregates(MEASURES, self._passage),
            parse_by(", ".join([*FLOW, "seen"]), self._passage),
        )
        self._windows: dict[int, Rollup] = {}
        self._ways: OrderedDict[Flow, int] = OrderedDict()
        self._held: OrderedDict[Flow, list[tuple[int, Any]]] = OrderedDict()  # windows of flows without a known way
        self._done: list[Block] = []
        self.packets = self.unknown = self._holding = 0
        self._first = (1 << 63) - 1
        self._least: list[int | None] = [None, None]  # of B minus A, on the way to b; of A minus B on the way to a

    def take(self, block: Block, picks: Picks | None) -> None:
        self.packets += block.rows if picks is None else len(picks)
        self._core.take(block.project(self._packets.layout), self.points.point, picks)
        mark = self.points.mark()
        if mark is not None:
            self.until(mark)

    def due(self) -> int | None:
        return None

    def until(self, now: int) -> None:
        """All packets up to ``now`` have been taken."""
        self._count(self._core.until(now))
        for start in sorted(self._windows):
            if self.window and start + self.window + self._hold <= now:
                self._close(start)

    def finish(self, ended: bool) -> None:
        self._count(self._core.until())
        for start in sorted(self._windows):
            self._close(start)

    def results(self) -> Iterator[Block]:
        yield from self._done
        self._done.clear()

    # -- windows

    def _count(self, passages: Iterator[Block]) -> None:
        for block in passages:
            if self.each:
                self._done.append(block)
                continue
            if not self.window:  # one window, which begins with the first packet
                self._first = min([self._first, *block.buffer(0).cast("q")])
            for start, picks in by_window(block, None, 0, self.window) if self.window else [(0, None)]:
                if start not in self._windows:
                    self._windows[start] = self._question.rollup()
                self._windows[start].update(block, picks)
                if len(self._windows[start]) > MAX_GROUPS:
                    self._close(start)

    def _close(self, start: int) -> None:
        from confluo_tools.formats.block_builder import blocks_of_rows

        flows: dict[Flow, dict[int, tuple[Any, ...]]] = {}
        for block in self._question.answer(self._windows.pop(start)):
            columns = [block.layout.index(name) for name in FLOW_COLUMNS]
            values = range(block.layout.index("seen"), block.layout.n)
            for row in range(block.rows):
                flow = tuple(block.get(c, row) for c in columns)
                seen, *measures = (block.get(c, row) for c in values)
                flows.setdefault(flow, {})[seen] = tuple(measures)
        rows = [self._row(start, flow, found, flows.get(back(flow), {})) for flow, found in flows.items()]
        rows += [row for flow in flows for row in self._known_now(flow)] if self._held else []
        self._done += blocks_of_rows(self.schema, [row for row in rows if row])

    def _known_now(self, flow: Flow) -> Iterator[dict[str, Any]]:
        """The rows of earlier windows that waited for the way of this flow."""
        for each in (flow, back(flow)):
            if each in self._held and self._way(each, None, None):
                held = self._held.pop(each)
                self._holding -= len(held)
                self.unknown -= len(held)
                yield from (self._row(start, each, found, {}) for start, found in held)

    def _hold_back(self, start: int, flow: Flow, found: Any) -> None:
        # Its first packets may be the lost ones: a later window can tell where they went.
        self._held.setdefault(flow, []).append((start, found))
        self.unknown += 1
        self._holding += 1
        while self._holding > MAX_HELD:
            self._holding -= len(self._held.popitem(last=False)[1])

    def _row(self, start: int, flow: Flow, found: dict[int, Any], other: dict[int, Any]) -> dict[str, Any]:
        way = self._way(flow, found.get(BOTH), other.get(BOTH))
        if not way:
            if not self.everyone:
                self._hold_back(start, flow, found)
                return {}
            way = A_TO_B if A in found else B_TO_A
        first, second = (A, B) if way == A_TO_B else (B, A)
        lost, missed = (found[seen][0] if seen in found else 0 for seen in (first, second))
        passed, least, mean, most, high, low, reordered = found.get(BOTH, (0,) * 7)
        sign = 1 if way == A_TO_B else -1
        if way == B_TO_A:
            least, most, high = -most, -least, -low
        if passed:
            i = 0 if way == A_TO_B else 1
            known = self._least[i]
            self._least[i] = least if known is None else min(known, least)
        return {
            **dict(zip(FLOW_COLUMNS, flow, strict=True)),
            "ts": start if self.window else self._first,
            "window": self.window,
            "way": way,
            "sent": passed + lost,
            "lost": lost,
            "loss": lost / (passed + lost) if passed + lost else 0.0,
            "missed": missed,
            "reordered": reordered,
            "delay_min": int(least),
            "delay_mean": round(sign * mean),
            "delay_p99": round(high),
        }

    def _way(self, flow: Flow, both: Any, other: Any) -> int:
        """The way of a flow, 0 if it is not known.

        Of the two directions of a conversation, the one that takes longer from a to b goes there, whatever the clocks
        say; of one direction alone, the sign of its delay decides.
        """
        if both:
            to_b = both[2] >= other[2] if other else both[2] >= 0
            if other and both[2] == other[2]:
                to_b = flow < back(flow)
            way = A_TO_B if to_b else B_TO_A
        elif other:
            way = B_TO_A if self._way(back(flow), other, None) == A_TO_B else A_TO_B
        else:
            there, here = self._ways.get(flow, 0), self._ways.get(back(flow), 0)
            return there or (A_TO_B + B_TO_A - here if here else 0)
        self._ways[flow] = way
        self._ways.move_to_end(flow)
        if len(self._ways) > MAX_WAYS:
            self._ways.popitem(last=False)
        return way

    @property
    def late(self) -> int:
        return int(self._core.late)

    def counts(self) -> str:
        core = self._core
        return f"{self.packets} packets, {core.paired} seen at both points, {core.waiting} waiting, {core.late} late"

    def notes(self) -> Iterator[str]:
        to_b, to_a = self._least
        if to_b is not None and to_a is not None:
            from confluo_tools.units import format_duration

            ahead = self.offset + (to_b - to_a) // 2
            text = format_duration(ahead)
            hint = f"; --offset {text}" if min(to_b, to_a) < 0 else ""
            yield f"the clock of b is ahead of a's by {text}, if the shortest delays of both ways are equal{hint}"
        if self.unknown and not self.everyone:
            yield f"{self.unknown} flows were seen at one point only; --all prints them"
        if self._core.late:
            yield f"{self._core.late} packets came too late for their window; --lateness TIME waits longer"
        if self._core.forgotten:
            yield f"{self._core.forgotten} packets were forgotten: too many at once between the points"


def back(flow: Flow) -> Flow:
    """The other direction of a flow, by FLOW_COLUMNS."""
    version, proto, src, src6, dst, dst6, sport, dport = flow
    return version, proto, dst, dst6, src, src6, dport, sport
