"""The counters of a monitor for Prometheus."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import pytest

from follow_lab import growing
from kafka_lab import free_ports
from running import BIN, environment, next_line, popen

pytest.importorskip("prometheus_client", reason="the package prometheus_client is not installed")


def test_the_counters_of_a_monitor(tmp_path: Path) -> None:
    """A trigger that fires, its alert, and the records in its window, read by the parser of prometheus_client."""
    from prometheus_client.parser import text_string_to_metric_families as parse

    (port,) = free_ports(1)
    log = tmp_path / "a.ml"
    words = [log, "-t", "quiet: count < 1 over 50ms every 10ms", "--metrics", f":{port}", "-J", "--exec", "true"]
    with growing(log) as append:
        append(time.time_ns())
        with popen([BIN / "confluo-monitor", *map(str, words)], stdout=-1, stderr=-1, env=environment()) as process:
            try:
                assert b'"fire"' in next_line(process.stdout)
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                    families = list(parse(answer.read().decode()))
            finally:
                process.kill()
    found = {s.name: s for family in families for s in family.samples if s.name.startswith("confluo_monitor_")}
    value = {name.removeprefix("confluo_monitor_"): sample.value for name, sample in found.items()}
    assert {sample.labels["log"] for sample in found.values()} == {str(log)}
    assert (value["triggers"], value["firing"], value["alerts_total"]) == (1, 1, 1)
    assert value["ticks_total"] > 0
    assert value["late_records_total"] == value["commands_failed_total"] == 0
    assert 0 <= value["tick_age_seconds"] < 60
