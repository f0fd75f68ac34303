"""The endpoint of Prometheus and what offers it: the same numbers as the stages of the run have."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from confluo_tools.endpoint import listen_address
from confluo_tools.errors import UsageError
from confluo_tools.stream.operation.operation import RunOperation
from kafka_lab import free_ports
from running import CAMPUS, environment, run
from stream_runs import ROWS, ScriptedRun

pytest.importorskip("prometheus_client", reason="the package prometheus_client is not installed")
PATIENCE = 30.0  # s
Labels = frozenset[tuple[str, str]]


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port at which the metrics of a run are."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (number,) = free_ports(1)
    with RunOperation("eth0", [], f":{number}") as operation:
        operation.serve(ScriptedRun())
        yield number


def samples(port: int) -> dict[tuple[str, Labels], float]:
    """{(name, labels): value}, read by the parser of prometheus_client."""
    from prometheus_client.parser import text_string_to_metric_families as parse

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        text = answer.read().decode()
    families = list(parse(text))
    assert all(family.documentation for family in families)
    found = [((s.name, frozenset(s.labels.items())), s.value) for family in families for s in family.samples]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_each_counter_of_each_stage(port: int) -> None:
    found = samples(port)
    expected = {}
    for row in ROWS:
        labels = frozenset({"run": "eth0", "stage": row.stage, "name": row.name, "pipeline": str(row.pipeline)}.items())
        for column in ("taken", "given", "filtered", "dropped"):
            expected[f"confluo_stream_{column}_records_total", labels] = getattr(row, column)
        for column in ("queued", "space"):
            if row.stage == "receive":
                expected[f"confluo_stream_ring_{column}_bytes", labels] = getattr(row, column)
            elif row.stage != "fetch":
                expected[f"confluo_stream_{column}_records", labels] = getattr(row, column)
    lag = frozenset({"run": "eth0", "topic": "telemetry", "partition": "3"}.items())
    expected["confluo_stream_lag_messages", lag] = 9
    ours = {key: value for key, value in found.items() if key[0].startswith("confluo_")}
    assert [dict(labels)["run"] for name, labels in ours if name == "confluo_stream_run_info"] == ["eth0"]
    assert {key: value for key, value in ours.items() if not key[0].endswith("_info")} == expected
    assert found["process_resident_memory_bytes", frozenset()] > 1e6


def test_it_listens_on_loopback_alone(port: int) -> None:
    assert listen_address.parse(":1", "--metrics", host="127.0.0.1") == ("127.0.0.1", 1)
    assert listen_address.parse("[::1]:1", "--metrics", host="127.0.0.1") == ("::1", 1)
    assert listen_address.parse("0.0.0.0:1", "--metrics", host="127.0.0.1") == ("0.0.0.0", 1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), PATIENCE)


def test_clients_that_hang_up_or_write_rubbish(port: int) -> None:
    for request in (b"", b"\0" * 70_000, b"GET /metrics HTTP/1.1\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"GET"):
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
            sock.sendall(request)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # hang up with a reset
    assert len(samples(port)) > 20


def test_a_port_that_is_in_use(tmp_path: Path) -> None:
    log = tmp_path / "x.ml"
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-c", "5", "-w", log).returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["publish", str(log), "--to", "kafka://127.0.0.1:1/t", "--metrics", place]
        done = run("confluo-stream", *words, env=environment(XDG_RUNTIME_DIR=str(tmp_path)))
    error = f"confluo-stream publish: {place}: cannot listen: Address already in use\n"
    assert (done.returncode, done.stderr.decode()) == (2, error)
    assert list((tmp_path / "confluo").glob("*.sock") if (tmp_path / "confluo").exists() else []) == []


@pytest.mark.parametrize("place", ["", "x", "9464", "127.0.0.1", ":99999", "localhost:9464", "[::1:5"])
def test_what_is_not_an_address(place: str) -> None:
    with pytest.raises(UsageError):
        listen_address.parse(place, "--metrics")
