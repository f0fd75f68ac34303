"""Probe counters of an agent, for Prometheus.

Counting is a few dictionary entries per probe; prometheus_client is loaded only with --metrics, and renders the text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from confluo_tools.schema import builtin

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block

# Upper edges of the histogram in seconds; 4 ms and 5 ms are the colour limits of the paper.
EDGES = (
    25e-6,
    50e-6,
    1e-4,
    2e-4,
    3e-4,
    5e-4,
    75e-5,
    1e-3,
    2e-3,
    3e-3,
    4e-3,
    5e-3,
    7.5e-3,
    1e-2,
    2e-2,
    5e-2,
    0.1,
    0.25,
    0.5,
    1.0,
    5.0,
)
FIRST_OTHER = 16  # kinds below are probes
OK = 1


class ProbeCounts:
    """Counts of probes since the start, by (kind, level).  One thread adds, others read.

    ``outcomes``: {(kind, level, outcome): probes}.  ``dropped``: successful probes with retries; ``retries``: packets
    sent again.  ``rtt``: {(kind, level): [probes by `EDGES`, and above]}; ``rtt_sum`` in ns.
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
        self.local = 0  # probes that this host could not send

    def add(self, block: Block) -> None:
        """Count the probes of a block of schema `probe`."""
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
        """Probes with this outcome."""
        return sum(n for (_, _, o), n in list(self.outcomes.items()) if o == outcome)


class MetricsCollector:
    """Collector of prometheus_client: the probe counts, ``gauges()`` and ``counters()`` {name: (help, value)}, and
    ``facts()`` {label: text} about the agent.
    """

    def __init__(
        self,
        tally: ProbeCounts,
        gauges: Callable[[], Mapping[str, tuple[str, float]]],
        counters: Callable[[], Mapping[str, tuple[str, float]]],
        facts: Callable[[], Mapping[str, str]],
    ) -> None:
        self.tally, self.gauges, self.counters, self.facts = tally, gauges, counters, facts

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import GaugeMetricFamily as Gauge
        from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily

        t = self.tally
        probes = Counter("pingmesh_probes", "Probes by outcome", labels=["kind", "level", "outcome"])
        for (kind, level, outcome), n in list(t.outcomes.items()):
            probes.add_metric([t.named("kind", kind), t.named("level", level), t.named("outcome", outcome)], n)
        yield probes
        for name, text, values in (
            ("pingmesh_dropped_probes", "Successful probes with lost packets", t.dropped),
            ("pingmesh_retries", "Packets that the kernel sent again", t.retries),
        ):
            family = Counter(name, text, labels=["kind", "level"])
            for kind, level in dict.fromkeys(
                key[:2] for key in list(t.outcomes)
            ):  # also 0: a series without a value looks missing
                family.add_metric([t.named("kind", kind), t.named("level", level)], values.get((kind, level), 0))
            yield family
        rtt = HistogramMetricFamily(
            "pingmesh_rtt_seconds", "Round-trip time measured by the kernel", labels=["kind", "level"]
        )
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
        yield InfoMetricFamily("pingmesh_agent", "Name and list of the agent", dict(self.facts()))
