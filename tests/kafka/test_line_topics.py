"""Topics of other programs: messages of one or several lines, as kcat and Zeek write them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import pytest

from kafka_lab import Broker
from running import BIN, environment, lines, popen, run

DEADLINE = 60.0  # s
CONN = """
schema: conn
description: connections, as Zeek logs them
fields:
- {name: ts, type: time}
- {name: uid, type: text(18)}
- {name: id_orig_h, type: ip}
- {name: id_resp_p, type: u16}
- {name: duration, type: f64}
- {name: orig_bytes, type: u64}
"""


@pytest.fixture
def topic(broker: Broker) -> str:
    """The address of a topic of two partitions."""
    from confluo_tools.kafka.address import parse
    from confluo_tools.kafka.client import make_topic

    address = broker.topic(f"lines{uuid4().hex[:8]}")
    make_topic(parse(address), {}, 2)
    return address


@pytest.fixture
def conn(tmp_path: Path) -> Path:
    path = tmp_path / "conn.yaml"
    path.write_text(CONN)
    return path


def put(topic: str, *values: bytes | None, partition: int = 0) -> None:
    from confluent_kafka import Producer

    brokers, _, name = topic.removeprefix("kafka://").rpartition("/")
    producer = Producer({"bootstrap.servers": brokers})
    for value in values:
        producer.produce(name, value, partition=partition)
    assert producer.flush(DEADLINE) == 0


def row(n: int, **more: object) -> bytes:
    return json.dumps({"ts": 1_700_000_000 + n, "uid": f"C{n}", "id_orig_h": f"10.0.0.{n}", **more}).encode()


def test_each_line_of_a_message_is_a_row(topic: str, conn: Path) -> None:
    put(topic, row(1, orig_bytes=5) + b"\n" + row(2, orig_bytes=7), None, b"", row(3, duration=0.25) + b"\n")
    put(topic, row(4, id_resp_p=443), partition=1)
    done = run("confluo-query", topic, "-i", "ndjson", "--schema", conn, "orig_bytes > 5 or id_resp_p == 443", "-J")
    assert done.stderr == b""
    found = sorted((json.loads(line) for line in lines(done)), key=lambda r: r["ts"])
    assert [(r["ts"], r["uid"], r["id_orig_h"], r["orig_bytes"]) for r in found] == [
        ("2023-11-14T22:13:22.000000000Z", "C2", "10.0.0.2", 7),
        ("2023-11-14T22:13:24.000000000Z", "C4", "10.0.0.4", 0),
    ]


def test_without_a_schema_types_are_guessed(topic: str) -> None:
    put(topic, b"name,size\nweb,10", b"mail,32\ndns,1")
    done = run("confluo-query", topic, "-i", "csv", "--agg", "count, sum(size)", "-T", "--no-header")
    assert lines(done) == ["3\t43"]


def test_lines_that_are_damaged_or_foreign_are_counted(topic: str, conn: Path) -> None:
    put(topic, row(1), b"\x00\x01\x02\xff" * 10, b"not json", b"[1, 2]", b"Obj\x01\x04avro.schema", row(2), b"{" * 5000)
    done = run("confluo-query", topic, "-i", "ndjson", "--schema", conn, "--count")
    assert (done.stdout, done.returncode) == (b"2\n", 2)
    assert len(done.stderr.splitlines()) <= 6
    assert all(topic in line for line in done.stderr.decode().splitlines())


def test_it_is_said_that_a_topic_of_lines_needs_i(topic: str) -> None:
    put(topic, row(1))
    done = run("confluo-query", topic)
    assert done.returncode == 2
    assert b"-i ndjson" in done.stderr


def test_new_lines_are_followed(topic: str, conn: Path) -> None:
    words = [BIN / "confluo-query", topic, "-i", "ndjson", "--schema", conn, "--follow", "-f", "uid", "-J", "-l"]
    put(topic, row(1))
    with popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b'{"uid":"C1"}\n'
        put(topic, row(2), row(3))
        assert [process.stdout.readline() for _ in range(2)] == [b'{"uid":"C2"}\n', b'{"uid":"C3"}\n']
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 128 + signal.SIGTERM


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_writes_what_we_read_and_reads_what_we_write(topic: str, conn: Path, broker: Broker) -> None:
    name = topic.rpartition("/")[2]
    text = b"".join(row(n) + b"\n" for n in range(100))
    subprocess.run(["kcat", "-P", "-b", broker.address, "-t", name], input=text, check=True, timeout=DEADLINE)
    end = time.monotonic() + DEADLINE
    while (done := run("confluo-query", topic, "-i", "ndjson", "--schema", conn, "--count")).stdout != b"100\n":
        assert time.monotonic() < end, done
    ours = broker.topic(f"ours{uuid4().hex[:8]}")
    rows = run("confluo-query", topic, "-i", "ndjson", "--schema", conn, "-o", "stream").stdout
    assert run("confluo-stream", "publish", "-", "--to", ours, "--create", "1", stdin=rows).returncode == 0
    words = ["kcat", "-C", "-b", broker.address, "-t", ours.rpartition("/")[2], "-e", "-q", "-D", ""]
    messages = subprocess.run(words, capture_output=True, check=True, timeout=DEADLINE).stdout
    records = [json.loads(line) for line in lines(run("confluo-stream", "unpack", stdin=messages))]
    assert sorted(r["uid"] for r in records) == sorted(f"C{n}" for n in range(100))
