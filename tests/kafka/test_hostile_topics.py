"""Topics with what does not belong there: foreign messages, lies, and what grows when it is decompressed."""

from __future__ import annotations

import subprocess
import sys
from uuid import uuid4

import pytest

from hostile_messages import ROWS, honest, numbers, with_envelope
from kafka_lab import Broker
from running import environment, run

DEADLINE = 60.0  # s


@pytest.fixture
def topic(broker: Broker) -> str:
    """The address of an empty topic of one partition."""
    from confluo_tools.kafka.address import parse
    from confluo_tools.kafka.client import make_topic

    address = broker.topic(f"hostile{uuid4().hex[:8]}")
    make_topic(parse(address), {}, 1)
    return address


def put(topic: str, *values: bytes | None, **settings: object) -> None:
    from confluent_kafka import Producer

    brokers, _, name = topic.removeprefix("kafka://").rpartition("/")
    given = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": brokers, **given})
    for value in values:
        producer.produce(name, value)
    assert producer.flush(DEADLINE) == 0


def test_what_is_not_ours_is_left_out_and_counted(topic: str) -> None:
    value = honest()[2]
    lies = [with_envelope(numbers(run="NaN")), with_envelope(numbers(), body_length=2**31), value[:-9], value[:100]]
    foreign = [None, b"", b'{"a": 1}', b"Obj\x01\x04\x16avro.schema", b"\xff" * 5000]
    put(topic, *foreign, value, *lies, with_envelope(numbers(seq=4)))
    done = run("confluo-query", topic, "--count")
    assert (done.returncode, done.stdout) == (2, b"%d\n" % (2 * ROWS))
    said = done.stderr.decode().splitlines()
    assert len([line for line in said if "message 0:" in line]) == 5
    assert f"confluo-query: {topic}: messages that could not be read: 8" in said


def test_a_batch_that_grows_is_not_read(topic: str) -> None:
    """180 MiB after decompression: memory stays small."""
    put(topic, honest()[2])
    put(
        topic,
        *[bytes(60 << 20)] * 3,
        compression_type="zstd",
        message_max_bytes=10**9,
        batch_size=400 << 20,
        linger_ms=60_000,  # one batch, however slow this is; flush does not wait for it
    )
    code = (
        "import sys\n"
        "from confluo_tools.commands.query import main\n"
        "print(main([sys.argv[1], '--count']))\n"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, topic], capture_output=True, env=environment(), check=True)
    status, peak = done.stdout.split()
    assert status == b"2"
    assert b"cannot be decompressed, or is too large" in done.stderr
    assert int(peak) < 400_000
