"""The counters of a capture for Prometheus, compared with those that it prints and with the packets that were sent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netns import Space
from nic_lab import capture, end_all, frame, send

pytest.importorskip("prometheus_client", reason="the package prometheus_client is not installed")
pytestmark = [pytest.mark.net, pytest.mark.root]
READ = """
import sys, urllib.request
print(urllib.request.urlopen("http://127.0.0.1:9/metrics", timeout=20).read().decode())
"""


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    end_all()


def samples(space: Space) -> dict[str, float]:
    """{name: value} of our metrics, read by the parser of prometheus_client."""
    import sys

    from prometheus_client.parser import text_string_to_metric_families as parse

    text = space.run(sys.executable, "-c", READ).stdout.decode()
    found = {s.name: s.value for family in parse(text) for s in family.samples if s.name.startswith("confluo_capture_")}
    assert len(found) == 10
    return found


@pytest.mark.parametrize("to_log", [True, False])
def test_the_counters_of_a_capture(to_log: bool, tmp_path: Path, pair: tuple[Space, Space]) -> None:
    a, b = pair
    b.ip("link", "set", "lo", "up")
    out = ["-w", tmp_path / "x.ml"] if to_log else ["-w", tmp_path / "x.tsv"]
    live = capture(b, "-i", "v0", *out, "--metrics", ":9", "dst_port == 80")
    send(a, [frame(dport=80)] * 30 + [frame(dport=81)] * 12)
    end = time.monotonic() + 30
    while (found := samples(b))["confluo_capture_packets_kept_total"] < 30 and time.monotonic() < end:
        time.sleep(0.05)
        send(a, [frame(dport=81)])  # without packets there are no new figures
    assert found["confluo_capture_packets_kept_total"] == 30
    assert found["confluo_capture_packets_received_total"] >= 42
    gone = found["confluo_capture_packets_filtered_total"]
    assert gone == found["confluo_capture_packets_received_total"] - 30
    assert live.end()[0] == 130
