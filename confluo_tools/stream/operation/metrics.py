"""The counters of a run for Prometheus: the same rows as those of `status`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluo_tools.stream.stage_counts import StageCount, WatchedRun

PREFIX = "confluo_stream_"
LABELS = ("run", "stage", "name", "pipeline")
COUNTERS = {
    "taken": "Records that came into a stage",
    "given": "Records that went out of a stage",
    "filtered": "Records that a stage left out on purpose",
    "dropped": "Records that a stage lost",
}
QUEUES = {
    "queued": "Records that wait in the queue of a stage",
    "space": "Records that the queue of a stage has room for",
}


class StageMetrics:
    """Collector of prometheus_client for the stages of ``run``.

    Counters ``confluo_stream_{taken,given,filtered,dropped}_records_total`` and gauges ``..._{queued,space}_records``,
    in bytes ``..._ring_{queued,space}_bytes`` for a ring, and ``..._lag_messages`` for what waits in a topic.
    """

    def __init__(self, name: str, run: WatchedRun) -> None:
        self.name, self.watched = name, run

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        from confluo_tools import __version__

        rows = self.watched.rows()
        yield InfoMetricFamily(
            f"{PREFIX}run",
            "The run and its host",
            {"run": self.name, "host": os.uname().nodename, "version": __version__},
        )
        for column, text in COUNTERS.items():
            counter = CounterMetricFamily(f"{PREFIX}{column}_records", text, labels=LABELS)
            for row in rows:
                counter.add_metric(self._labels(row), getattr(row, column))
            yield counter
        for column, text in QUEUES.items():
            gauge = GaugeMetricFamily(f"{PREFIX}{column}_records", text, labels=LABELS)
            ring = GaugeMetricFamily(f"{PREFIX}ring_{column}_bytes", text.replace("Records", "Bytes"), labels=LABELS)
            for row in rows:
                if row.stage != "fetch":
                    of = ring if row.stage == "receive" else gauge
                    of.add_metric(self._labels(row), getattr(row, column))
            yield gauge
            yield ring
        lag = GaugeMetricFamily(
            f"{PREFIX}lag_messages", "Messages that wait in a topic", labels=["run", "topic", "partition"]
        )
        for row in rows:
            if row.stage == "fetch":
                lag.add_metric([self.name, row.name, str(row.pipeline)], row.queued)
        yield lag

    def _labels(self, row: StageCount) -> list[str]:
        return [self.name, row.stage, row.name, str(row.pipeline)]
