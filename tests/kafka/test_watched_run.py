"""A run of publish --follow with a real broker: status, metrics, and what the broker has agree."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kafka_lab import Broker, free_ports
from running import BIN, CAMPUS, environment, lines, popen, run

pytest.importorskip("prometheus_client", reason="the package prometheus_client is not installed")
PATIENCE = 60.0  # s
TCP, PACKETS = 5167, 5735


def stages(env: dict[str, str]) -> dict[str, dict[str, int]]:
    """{stage: its row} of the run."""
    done = run("confluo-stream", "status", "live", "--every", "100ms", "-J", env=env)
    return {row["stage"]: row for row in map(json.loads, lines(done))}


def test_status_metrics_and_the_broker_agree(broker: Broker, tmp_path: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families as parse

    env = environment(XDG_RUNTIME_DIR=str(tmp_path))
    topic = broker.topic(f"w{uuid4().hex[:12]}")
    log = tmp_path / "live.ml"
    (port,) = free_ports(1)
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", log).returncode == 0
    follow = [BIN / "confluo-stream", "publish", log, "tcp", "--follow", "--to", topic, "--create", "2"]
    with popen([*follow, "--metrics", f":{port}"], env=env, stderr=subprocess.PIPE) as process:
        end = time.monotonic() + PATIENCE
        while (found := stages(env)).get("deliver", {}).get("given") != TCP:
            assert time.monotonic() < end, found
            assert process.poll() is None
        for row in found.values():
            assert row["taken"] == row["given"] + row["filtered"] + row["dropped"] + row["queued"]
        assert (found["classify"]["taken"], found["classify"]["filtered"]) == (PACKETS, PACKETS - TCP)
        assert lines(run("confluo-query", topic, "--count")) == [str(TCP)]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            families = list(parse(answer.read().decode()))
        for family in families:
            for sample in family.samples:
                if sample.name.endswith("_records_total"):
                    column = sample.name.removeprefix("confluo_stream_").removesuffix("_records_total")
                    assert sample.value == found[sample.labels["stage"]][column]
        refused = run("confluo-stream", *follow[1:], env=env)
        assert refused.returncode == 75
        assert refused.stderr.startswith(b"confluo-stream publish: live: a run with this name goes on;")
        refused = run("confluo-stream", "set", "-", stdin=b"flows: []", env=env)
        assert (refused.returncode, refused.stderr.count(b"\n")) == (2, 1)
        for _ in range(5):  # clients that hang up before their answer
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(tmp_path / "confluo" / "live.sock"))
                sock.sendall(b'{"do":"status"}\n' * 100)
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
                sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert stages(env).keys() == found.keys()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert run("confluo-stream", "status", env=env).returncode == 1


def test_a_service_shows_its_stages_and_its_lag(broker: Broker, tmp_path: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families as parse

    env = environment(XDG_RUNTIME_DIR=str(tmp_path))
    name = f"w{uuid4().hex[:12]}"
    topic = broker.topic(name)
    publish = ["confluo-stream", "publish", CAMPUS, "--to", topic, "--create", "2", "--size", "8Ki"]
    assert run(*publish).returncode == 0
    (port,) = free_ports(1)
    words = ["confluo-stream", "service", "top", topic, "tcp", "--follow", "--window", "1h", "--metrics", f":{port}"]
    with subprocess.Popen([BIN / words[0], *words[1:]], env=env, stdout=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + PATIENCE
            while sum(row["taken"] for row in fetched(env, f"top-{name}")) != PACKETS:
                assert time.monotonic() < end
                assert process.poll() is None
            rows = stage_rows(env, f"top-{name}")
            assert [row["stage"] for row in rows] == ["fetch", "fetch", "classify", "function"]
            for row in rows:
                assert row["taken"] == row["given"] + row["filtered"] + row["dropped"]
                assert row["queued"] == 0
            assert (rows[2]["taken"], rows[2]["given"], rows[3]["taken"]) == (PACKETS, TCP, TCP)
            refused = run("confluo-stream", "set", "-", stdin=b"flows: []", env=env)
            assert refused.returncode == 2
            said = "confluo-stream set: a service has no flows that could be changed; start it again"
            assert refused.stderr.decode().startswith(said)
            assert refused.stderr.count(b"\n") == 1
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
                samples = [s for family in parse(answer.read().decode()) for s in family.samples]
            lags = {s.labels["partition"]: s.value for s in samples if s.name == "confluo_stream_lag_messages"}
            assert lags == {"0": 0, "1": 0}
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


def stage_rows(env: dict[str, str], name: str) -> list[dict[str, Any]]:
    done = run("confluo-stream", "status", name, "--every", "100ms", "-J", env=env)
    return [json.loads(line) for line in lines(done)]


def fetched(env: dict[str, str], name: str) -> list[dict[str, Any]]:
    return [row for row in stage_rows(env, name) if row["stage"] == "fetch"]


def test_the_lag_is_what_the_broker_has(broker: Broker) -> None:
    """Of a reader that has read some messages and gets no time for more."""
    from confluo_tools.kafka.address import parse
    from confluo_tools.kafka.client import edges
    from confluo_tools.kafka.topic_reader import TopicReader

    topic = broker.topic(f"w{uuid4().hex[:12]}")
    publish = ["confluo-stream", "publish", CAMPUS, "--to", topic, "--create", "2", "--size", "8Ki"]
    assert run(*publish).returncode == 0
    address = parse(topic)
    reader = TopicReader(address, {}, follow=True)
    blocks = reader.blocks()
    for _ in range(10):
        next(blocks)
    reader.settle()
    there = {p: high for p, (_, high) in edges(address, {}, range(2)).items()}
    assert {p: reader.lags[p] + at for p, at in reader.consumer.next.items() if at} == {
        p: high for p, high in there.items() if reader.consumer.next[p]
    }
    assert sum(reader.lags.values()) > 10
    reader.close()
