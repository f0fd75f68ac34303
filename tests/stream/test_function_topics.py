"""Functions of flows from a capture to topics: what a topic has is what a query of the capture gives."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

from kafka_lab import Broker
from running import BIN, lines, run

CAMPUS = Path(__file__).resolve().parents[2] / "examples" / "data" / "campus.pcap.gz"
STREAM = BIN / "confluo-stream"


def table(*words: object) -> list[str]:
    done = run("confluo-query", *map(str, words), "-T", "--no-header")
    assert done.stderr == b""
    return lines(done)


def test_windows_and_samples_in_topics_are_the_answers_of_queries(broker: Broker, tmp_path: Path) -> None:
    talkers, sizes, even = (broker.topic(f"t{uuid4().hex[:12]}") for _ in range(3))
    flows = tmp_path / "flows.yaml"
    flows.write_text(f"""flows:
- name: talkers
  continue: true
  functions: [aggregate: {{agg: 'count, sum(len), max(ttl)', by: src_ip, every: 1s, late: 10s}}]
  to: {talkers}
- name: sizes
  match: udp
  continue: true
  functions: [histogram: {{field: len - payload_len, bins: 40..60/4, every: 1m}}]
  to: {sizes}
- name: even
  match: tcp
  functions: [sample: {{rate: 100/s}}]
  to: {even}
""")
    done = run(str(STREAM), "publish", CAMPUS, "--flows", flows, "--create", "1")
    assert (done.returncode, done.stderr) == (0, b"")
    agg = ["--agg", "count, sum(len), max(ttl)", "--by", "1s, src_ip"]
    assert table(talkers) == table(CAMPUS, *agg)
    bins = run("confluo-query", sizes, "-o", "ndjson").stdout.splitlines()
    counts = {(b["ts"], b["low"]): b["count"] for b in map(json.loads, bins)}
    assert {json.loads(b)["flow"] for b in bins} == {"sizes"}
    assert sum(counts.values()) == int(table(CAMPUS, "udp", "--agg", "count")[0])
    [[packets, records]] = [line.split("\t") for line in table(even, "--agg", "sum(run_packets), count")]
    assert packets == table(CAMPUS, "tcp", "--agg", "count")[0]
    assert 0 < int(records) < int(packets)
