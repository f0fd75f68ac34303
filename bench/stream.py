"""Records a second into Kafka: packed by the compiled sink, next to the plain Python producer and Kafka's own.

    .venv/bin/python bench/stream.py [--seconds 3] [--kafka]

Two kinds of records: packets, with the fields that topics of packets have; and 64 bytes, to compare with other
programs.  Messages are of some KiB, or (64 bytes) of 10 records; `short` has them without a schema.
librdkafka's mock cluster takes the messages in the same process: it shows what the sender can do.
``--kafka``: also a real broker, which is started here, with new topics of 4 partitions; there Kafka's own
kafka-producer-perf-test sends messages of the same size in the same run, with the same acks, batches and linger.
The bars: 15 million records a second of 10 in a message and 25 million in 64 KiB into the mock cluster, and 95 % of
kafka-producer-perf-test into the broker.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from uuid import uuid4

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from confluent_kafka import Producer

from confluo_tools.core.kafka import producer as core
from confluo_tools.core.kafka.message import MessagePacker
from confluo_tools.core.kafka.topic_sink import TopicSink
from confluo_tools.formats.block_builder import blocks_of_rows
from confluo_tools.kafka.address import parse
from confluo_tools.kafka.client import library, make_topic
from confluo_tools.kafka.message import shape_of
from confluo_tools.kafka.short_message import short_shape
from confluo_tools.kafka.topic_writer import DEFAULTS, QUEUE
from confluo_tools.schema import builtin
from confluo_tools.stream.telemetry import TELEMETRY
from kafka_lab import Broker, jars

ROWS = 16384
SIZES = (16, 64, 256)  # KiB of a message
# 64 bytes a record
NARROW = [
    "ts",
    "len",
    "payload_len",
    "src_port",
    "dst_port",
    "tcp_seq",
    "tcp_ack",
    "tcp_tsval",
    "tcp_tsecr",
    "tcp_flags",
]
NARROW += ["tcp_window", "ip_len", "flow_hash", "tcp_mss", "eth_src", "ip_id", "frag_offset", "vlan"]
FEW = 10  # records of a message
WARM = 5.0  # s
MOCK = {"test.mock.num.brokers": "1", "enable.idempotence": "false", "message.timeout.ms": "60000"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--kafka", action="store_true")
    args = parser.parse_args()
    core.load(library())
    packet = builtin("packet")
    whole = records(packet.project([f.name for f in packet.fields if f.name in TELEMETRY]))
    narrow = records(packet.project(NARROW))
    print("to\tsender\tbytes_a_record\tmessage_KiB\trecords_a_message\trecords_M_s\tMB_s\tcpu_ns_a_record")
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder), jars()[0]) if args.kafka else None
        try:
            if broker is not None:
                warm_up(broker, *narrow)
            for schema, block, size in (*((*w, size) for w in (whole, narrow) for size in SIZES), (*narrow, 0)):
                for to in (None, broker) if broker is not None else (None,):
                    measure(to, schema, block, size, args.seconds)
        finally:
            if broker is not None:
                broker.close()


def records(schema):
    """(schema, a block of made-up rows)."""
    random = Random(1)
    fields = [c.name for c in schema.columns if c.name not in ("src_ip6", "dst_ip6")]
    rows = [
        {name: random.randrange(200) for name in fields} | {"flow_hash": random.randrange(1 << 32)} for _ in range(ROWS)
    ]
    return schema, next(iter(blocks_of_rows(schema, rows)))


def measure(broker, schema, block, size, seconds):
    """Rows of all senders, and of Kafka's own.  ``broker``: None: the mock.  ``size``: KiB of a message, 0: `FEW`."""
    width = schema.layout.row_bytes
    for sender in (sink, short, plain) if size <= 16 else (sink, plain):
        settings = MOCK if broker is None else {"bootstrap.servers": broker.address}
        shape = shape_of(schema, "bench", 0, 0)
        capacity = (size * 1024 - len(shape.head)) // width if size else FEW
        topic = new_topic(broker)
        before, start = time.process_time(), time.perf_counter()
        count, bytes_ = sender({**DEFAULTS, **settings}, topic, shape, capacity, block, seconds)
        took, cpu = time.perf_counter() - start, time.process_time() - before
        rates = f"{count / took / 1e6:.2f}\t{bytes_ / took / 1e6:.0f}\t{1e9 * cpu / count:.0f}"
        name = "mock" if broker is None else "broker"
        print(f"{name}\t{sender.__name__}\t{width}\t{size}\t{capacity}\t{rates}", flush=True)
        if broker is not None and sender is not plain:
            own(broker, width, size, capacity, round(bytes_ / (count / capacity)), count // capacity)


def warm_up(broker, schema, block):
    """A broker that has just started takes some seconds to become as fast as it can be."""
    shape = shape_of(schema, "bench", 0, 0)
    plain({**DEFAULTS, "bootstrap.servers": broker.address}, new_topic(broker), shape, 100, block, WARM)


def new_topic(broker):
    topic = f"bench{uuid4().hex[:8]}"
    if broker is not None:
        make_topic(parse(broker.topic(topic)), {}, 4)
    return topic


def sink(settings, topic, shape, capacity, block, seconds, small=None):
    """The compiled sink."""
    client = core.KafkaProducer(settings)
    key = block.layout.index("flow_hash")
    out = TopicSink(client, client.topic(topic), shape, 4, capacity=capacity, key=key, short=small)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        out.write(block)
        client.poll()
    out.flush()
    while client.flush(1000):
        pass
    return client.counts["records_acked"], client.counts["bytes_acked"]


def short(settings, topic, shape, capacity, block, seconds):
    """The compiled sink with short messages; their schema is elsewhere."""
    small = short_shape(shape.layout, bytes(16), "bench", 0, 0)
    return sink(settings, topic, shape, capacity, block, seconds, small)


def plain(settings, topic, shape, capacity, block, seconds):
    """confluent-kafka with one message that was packed before: what it costs only to send."""
    client = Producer(settings)
    value = MessagePacker(shape, capacity).pack(block.slice(0, capacity))
    sent, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(100):
            try:
                client.produce(topic, value, partition=sent % 4)
                sent += 1
            except BufferError:
                client.poll(0.01)
        client.poll(0)
    client.flush()
    return sent * capacity, sent * len(value)


def own(broker, width, size, capacity, length, count):
    """kafka-producer-perf-test, as Kafka brings it: ``count`` messages of ``length`` bytes."""
    words = ["java", "-cp", f"{broker.libs}/*", "org.apache.kafka.tools.ProducerPerformance"]
    words += ["--topic", new_topic(broker), "--num-records", str(count), "--record-size", str(length)]
    words += ["--throughput", "-1", "--producer-props", f"bootstrap.servers={broker.address}", "acks=all"]
    words += ["batch.size=1048576", "linger.ms=5", f"buffer.memory={QUEUE << 10}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ)
    rate = float(re.findall(r"\(([\d.]+) MB/sec\)", done.stdout)[-1]) * 1.048576  # it prints MiB
    records_ = rate / length * capacity
    print(f"broker\tkafka-producer-perf-test\t{width}\t{size}\t{capacity}\t{records_:.2f}\t{rate:.0f}\t", flush=True)


if __name__ == "__main__":
    main()
