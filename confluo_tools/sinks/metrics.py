"""What an agent counts of its probes, and Prometheus' view of it.

Counting is a few dictionary entries a probe; prometheus_client is loaded only where somebody wants an endpoint.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from confluo_tools.schema import builtin

if TYPE_CHECKING:
    from confluo_tools.core.block import Block

# Upper edges of the histogram in seconds: 25 us to 5 s; 4 ms and 5 ms are where the paper's colours change.
EDGES = (25e-6, 50e-6, 1e-4, 2e-4, 3e-4, 5e-4, 75e-5, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 7.5e-3, 1e-2, 2e-2, 5e-2, 0.1,
         0.25, 0.5, 1.0, 5.0)  # fmt: skip
SLOW = 5.0  # s that somebody who asks for metrics may take to say so
FIRST_OTHER = 16  # kinds from here on are not probes
OK = 1


class Tally:
    """Counts of probes since the start, by (kind, level).  One thread adds, others read.

    ``outcomes``: {(kind, level, outcome): probes}.  ``dropped``, ``retries``: probes that went well though packets
    were sent again, and how many were.  ``rtt``: {(kind, level): [probes by `EDGES`, and above]}; ``rtt_sum`` in ns.
    """

    def __init__(self) -> None:
        schema = builtin("probe")
        self._names = {f: dict(schema[f].names) for f in ("kind", "level", "outcome")}
        layout = schema.layout
        self._layout = layout
        self._at = [layout.index(n) for n in ("kind", "level", "outcome", "retries", "rtt")]
        self._edges = [round(e * 1e9) for e in EDGES]
        self.outcomes: dict[tuple[int, int, int], int] = {}
        self.dropped: dict[tuple[int, int], int] = {}
        self.retries: dict[tuple[int, int], int] = {}
        self.rtt: dict[tuple[int, int], list[int]] = {}
        self.rtt_sum: dict[tuple[int, int], int] = {}
        self.probes = 0
        self.local = 0  # of them, those that this host could not send

    def add(self, block: Block) -> None:
        """Count the probes among the rows (of the layout of schema `probe`)."""
        if not block.rows:
            return
        kinds, levels, outcomes, retries, rtts = (
            memoryview(bytes(block.buffer(i))).cast("Q" if i == self._at[4] else "B") for i in self._at
        )
        for kind, level, outcome, again, rtt in zip(kinds, levels, outcomes, retries, rtts, strict=True):
            if kind >= FIRST_OTHER:
                continue
            self.probes += 1
            key = kind, level
            one = kind, level, outcome
            self.outcomes[one] = self.outcomes.get(one, 0) + 1
            self.local += outcome == 6
            if again:
                self.retries[key] = self.retries.get(key, 0) + again
                if outcome == OK:
                    self.dropped[key] = self.dropped.get(key, 0) + 1
            if rtt:
                counts = self.rtt.get(key)
                if counts is None:
                    counts = self.rtt[key] = [0] * (len(EDGES) + 1)
                counts[bisect_left(self._edges, rtt)] += 1
                self.rtt_sum[key] = self.rtt_sum.get(key, 0) + rtt

    def named(self, field: str, value: int) -> str:
        return self._names[field].get(value, str(value))

    def count(self, outcome: int) -> int:
        """Probes that ended so."""
        return sum(n for (_, _, o), n in list(self.outcomes.items()) if o == outcome)


class Collector:
    """What Prometheus gets: the tally, and ``gauges()`` {name: (help, value)}, ``counters()`` likewise, and
    ``facts()``: words about the agent.
    """

    def __init__(
        self, tally: Tally, gauges: Callable[[], Mapping[str, tuple[str, float]]],
        counters: Callable[[], Mapping[str, tuple[str, float]]], facts: Callable[[], Mapping[str, str]],
    ) -> None:  # fmt: skip
        self.tally, self.gauges, self.counters, self.facts = tally, gauges, counters, facts

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import GaugeMetricFamily as Gauge
        from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily

        t = self.tally
        probes = Counter("pingmesh_probes", "Probes that ended, and how", labels=["kind", "level", "outcome"])
        for (kind, level, outcome), n in list(t.outcomes.items()):
            probes.add_metric([t.named("kind", kind), t.named("level", level), t.named("outcome", outcome)], n)
        yield probes
        for name, text, values in (
            ("pingmesh_dropped_probes", "Probes that went well though packets were lost", t.dropped),
            ("pingmesh_retries", "Packets that the kernel sent again", t.retries),
        ):
            family = Counter(name, text, labels=["kind", "level"])
            for kind, level in dict.fromkeys(key[:2] for key in list(t.outcomes)):  # 0 of a good network is said, too
                family.add_metric([t.named("kind", kind), t.named("level", level)], values.get((kind, level), 0))
            yield family
        rtt = HistogramMetricFamily("pingmesh_rtt_seconds", "Round-trip time as the kernel took it",
                                    labels=["kind", "level"])  # fmt: skip
        for (kind, level), counts in list(t.rtt.items()):
            total, buckets = 0, []
            for edge, n in zip([*(f"{e:g}" for e in EDGES), "+Inf"], counts, strict=True):
                total += n
                buckets.append((edge, total))
            words = [t.named("kind", kind), t.named("level", level)]
            rtt.add_metric(words, buckets, t.rtt_sum.get((kind, level), 0) / 1e9)
        yield rtt
        for name, (text, value) in self.gauges().items():
            yield Gauge(name, text, value)
        for name, (text, value) in self.counters().items():
            yield Counter(name, text, value)
        yield InfoMetricFamily("pingmesh_agent", "Who this is", dict(self.facts()))


class Endpoint:
    """``GET /metrics`` on a socket that listens, answered one after the other by a thread of its own."""

    def __init__(self, sock: Any, collector: Collector) -> None:
        from http.server import HTTPServer

        from prometheus_client import CollectorRegistry, MetricsHandler, ProcessCollector

        registry = CollectorRegistry()
        registry.register(collector)
        ProcessCollector(registry=registry)

        class Handler(MetricsHandler.factory(registry)):  # type: ignore[misc]
            timeout = SLOW  # of each read: whoever says nothing is hung up on

            def log_message(self, *args: object) -> None:
                pass

        class Server(HTTPServer):
            def handle_error(self, *args: object) -> None:
                pass

        self._server = Server(sock.getsockname()[:2], Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = sock
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
