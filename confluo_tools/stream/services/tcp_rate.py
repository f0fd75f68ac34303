"""Rates of TCP flows by window: throughput, goodput, retransmissions, round trips.

Segments are classified by the analysis of ``--analyze tcp``; round trips by timestamps follow K. Nichols, passive ping
(pping): the time until a timestamp is echoed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from confluo_tools.schema import Field, Schema, builtin
from confluo_tools.stream.services.fields import check_fields
from confluo_tools.stream.services.windows import by_window

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.rollup import Rollup

SECOND = 10**9
FIRST = -(1 << 63)
TCP_SAMPLE = Schema(
    "tcp_sample",
    [
        Field("ts", "time", "ns"),
        Field("ip_version", "u8"),
        Field("proto", "u8"),
        Field("src_ip", "ip", version="ip_version"),
        Field("dst_ip", "ip", version="ip_version"),
        Field("src_port", "u16"),
        Field("dst_port", "u16"),
        Field("segments", "u8"),
        Field("bytes", "u32"),
        Field("good", "u32"),
        Field("retransmitted", "u8"),
        Field("kind", "u8"),
        Field("rtt", "duration", "ns"),
    ],
)
DATA, BY_TIMESTAMP, BY_ACK = 0, 1, 2  # kinds
MEASURES = "min(ts), max(ts), sum(segments), sum(bytes), sum(good), sum(retransmitted), min(rtt), avg(rtt), count"
FLOW_COLUMNS = ("ip_version", "proto", "src_ip", "src_ip6", "dst_ip", "dst_ip6", "src_port", "dst_port")
MAX_GROUPS = 1 << 20  # of a window; then it is reported in parts


class TcpRateService:
    """Flows in windows of ``window`` ns (0: a single one), each judged ``lateness`` ns after its end."""

    name = "tcp-rate"

    def __init__(self, packets: Schema, *, window: int, lateness: int) -> None:
        from confluo_tools.core.packets.tcp_columns import NEEDED
        from confluo_tools.core.stream.tcp_samples import TcpSamples
        from confluo_tools.expr import parse_aggregates, parse_by
        from confluo_tools.multilog.query.aggregation import Aggregation
        from confluo_tools.multilog.query.derived_fields import Analysis

        check_fields(packets, NEEDED)
        self.schema = builtin("tcp_rate")
        self._analysis = Analysis(packets, "tcp")
        self._core = TcpSamples(self._analysis.schema.layout, TCP_SAMPLE.layout)
        by = "ip_version, proto, src_ip, dst_ip, src_port, dst_port, kind"
        self._question = Aggregation(TCP_SAMPLE, parse_aggregates(MEASURES, TCP_SAMPLE), parse_by(by, TCP_SAMPLE))
        self._windows: dict[int, Rollup] = {}
        self._done: list[Block] = []
        self.window, self.lateness = window, lateness
        self._mark = self._closed = FIRST
        self.reach = window + lateness if window else 0
        self.late = 0

    def take(self, block: Block, picks: Picks | None) -> None:
        if picks is not None and len(picks) < block.rows:
            block = block.take(picks)
        for samples in self._core.samples(self._analysis.apply(block)):
            self._count(samples)
        times = block.buffer(block.layout.index("ts")).cast("q")
        if block.rows:
            self.until(max(times))

    def due(self) -> int | None:
        return min(self._windows) + self.window + self.lateness if self._windows and self.window else None

    def until(self, now: int) -> None:
        self._mark = max(self._mark, now)
        for start in sorted(self._windows):
            if self.window and start + self.window + self.lateness <= self._mark:
                self._close(start)
                self._closed = max(self._closed, start)

    def finish(self, ended: bool) -> None:
        for start in sorted(self._windows):
            self._close(start)

    def restart(self) -> None:
        self.finish(True)
        self._mark = self._closed = FIRST

    def results(self) -> Iterator[Block]:
        yield from self._done
        self._done.clear()

    def _count(self, samples: Block) -> None:
        for start, picks in by_window(samples, None, 0, self.window) if self.window else [(0, None)]:
            if self.window and start <= self._closed:
                self.late += samples.rows if picks is None else len(picks)
                continue
            if start not in self._windows:
                self._windows[start] = self._question.rollup()
            self._windows[start].update(samples, picks)
            if len(self._windows[start]) > MAX_GROUPS:
                self._close(start)

    def _close(self, start: int) -> None:
        from confluo_tools.formats.block_builder import blocks_of_rows

        flows: dict[tuple[Any, ...], dict[int, tuple[Any, ...]]] = {}
        for block in self._question.answer(self._windows.pop(start)):
            columns = [block.layout.index(name) for name in FLOW_COLUMNS]
            values = range(block.layout.index("kind"), block.layout.n)
            for row in range(block.rows):
                flow = tuple(block.get(c, row) for c in columns)
                kind, *measures = (block.get(c, row) for c in values)
                flows.setdefault(flow, {})[kind] = tuple(measures)
        self._done += blocks_of_rows(self.schema, [self._row(start, f, kinds) for f, kinds in flows.items()])

    def _row(self, start: int, flow: tuple[Any, ...], kinds: dict[int, Any]) -> dict[str, Any]:
        first = min(k[0] for k in kinds.values())
        last = max(k[1] for k in kinds.values())
        _, _, segments, size, good, retransmitted, *_ = kinds.get(DATA, (0,) * 9)
        by = BY_TIMESTAMP if BY_TIMESTAMP in kinds else BY_ACK if BY_ACK in kinds else 0
        *_, least, mean, count = kinds.get(by, (0, 0.0, 0)) if by else (0, 0.0, 0)
        seconds = (self.window or last - first) / SECOND
        return {
            **dict(zip(FLOW_COLUMNS, flow, strict=True)),
            "ts": start if self.window else first,
            "window": self.window,
            "segments": segments,
            "bytes": size,
            "retransmitted": retransmitted,
            "throughput": size / seconds if seconds else 0.0,
            "goodput": good / seconds if seconds else 0.0,
            "rtt_min": int(least),
            "rtt_mean": round(mean),
            "rtt_count": count,
            "rtt_by": by,
        }

    def counts(self) -> str:
        return f"{self._core.segments} TCP segments, {len(self._windows)} windows open, {self.late} late"

    def notes(self) -> Iterator[str]:
        if self.late:
            yield f"{self.late} segments came too late for their window; --lateness TIME waits longer"
        evicted = self._core.evicted + self._analysis.evicted
        if evicted:
            yield f"{evicted} connections were forgotten: too many at once"
