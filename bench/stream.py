"""Records a second into Kafka: packed by the compiled sink, next to the plain Python producer and Kafka's own.

    .venv/bin/python bench/stream.py [--seconds 3] [--broker HOST:PORT] [--jars FOLDER]

Two kinds of records: packets, with the fields that topics of packets have; and 64 bytes, to compare with other
programs.  Messages are of some KiB, or (64 bytes) of 10 records.
Without a broker, librdkafka's mock cluster takes the messages in the same process: it shows what the sender can do.
``--broker``: also a real one, with new topics of 4 partitions.  ``--jars``: a folder with the jars of
Kafka; its own kafka-producer-perf-test sends messages of the same size there, in the same run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from uuid import uuid4

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from confluent_kafka import Producer

from confluo_tools.core.kafka import producer as core
from confluo_tools.core.kafka.message import MessagePacker
from confluo_tools.core.kafka.topic_sink import TopicSink
from confluo_tools.formats.block_builder import blocks_of_rows
from confluo_tools.kafka.address import parse
from confluo_tools.kafka.client import library, make_topic
from confluo_tools.kafka.message import shape_of
from confluo_tools.kafka.short_message import short_shape
from confluo_tools.kafka.topic_writer import DEFAULTS
from confluo_tools.schema import builtin
from confluo_tools.stream.telemetry import TELEMETRY

ROWS = 16384
SIZES = (16, 64, 256)  # KiB of a message
# 64 bytes a record
SHORT = [
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
SHORT += ["tcp_window", "ip_len", "flow_hash", "tcp_mss", "eth_src", "ip_id", "frag_offset", "vlan"]
FEW = 10  # records of a message
MOCK = {"test.mock.num.brokers": "1", "enable.idempotence": "false", "message.timeout.ms": "60000"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--broker")
    parser.add_argument("--jars", type=Path)
    args = parser.parse_args()
    core.load(library())
    packet = builtin("packet")
    whole = records(packet.project([f.name for f in packet.fields if f.name in TELEMETRY]))
    short = records(packet.project(SHORT))
    print("to\tsender\tbytes_a_record\tmessage_KiB\trecords_a_message\trecords_M_s\tMB_s\tcpu_ns_a_record")
    for schema, block in (whole, short):
        for size in SIZES:
            for name in ["mock", "broker"] if args.broker else ["mock"]:
                measure(args, name, schema, block, size)
    measure(args, "mock", *short, 0)


def records(schema):
    """(schema, a block of made-up rows)."""
    random = Random(1)
    fields = [c.name for c in schema.columns if c.name not in ("src_ip6", "dst_ip6")]
    rows = [
        {name: random.randrange(200) for name in fields} | {"flow_hash": random.randrange(1 << 32)} for _ in range(ROWS)
    ]
    return schema, next(iter(blocks_of_rows(schema, rows)))


def measure(args, name, schema, block, size):
    """Rows of both senders, and of Kafka's own.  ``size``: KiB of a message, 0: of `FEW` records."""
    settings = MOCK if name == "mock" else {"bootstrap.servers": args.broker}
    width = schema.layout.row_bytes
    for sender in (sink, short, plain) if size <= 16 else (sink, plain):
        topic = f"bench{uuid4().hex[:8]}"
        if name == "broker":
            make_topic(parse(f"kafka://{args.broker}/{topic}"), {}, 4)
        shape = shape_of(schema, "bench", 0, 0)
        capacity = (size * 1024 - len(shape.head)) // width if size else FEW
        before, start = time.process_time(), time.perf_counter()
        count, bytes_ = sender({**DEFAULTS, **settings}, topic, shape, capacity, block, args.seconds)
        took, cpu = time.perf_counter() - start, time.process_time() - before
        rates = f"{count / took / 1e6:.2f}\t{bytes_ / took / 1e6:.0f}\t{1e9 * cpu / count:.0f}"
        print(f"{name}\t{sender.__name__}\t{width}\t{size}\t{capacity}\t{rates}", flush=True)
    if name == "broker" and args.jars:
        own(args, width, size, capacity)


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


def own(args, width, size, capacity):
    """kafka-producer-perf-test, as Kafka brings it."""
    topic = f"bench{uuid4().hex[:8]}"
    make_topic(parse(f"kafka://{args.broker}/{topic}"), {}, 4)
    count = int(args.seconds * 100e6 / (size * 1024))
    words = ["java", "-cp", f"{args.jars}/*", "org.apache.kafka.tools.ProducerPerformance", "--topic", topic]
    words += ["--num-records", str(count), "--record-size", str(size * 1024), "--throughput", "-1", "--producer-props"]
    words += [f"bootstrap.servers={args.broker}", "acks=all", "batch.size=1048576", "linger.ms=5"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ)
    rate = float(re.findall(r"\(([\d.]+) MB/sec\)", done.stdout)[-1]) * 1.048576  # it prints MiB
    records = rate / (size * 1024) * capacity
    print(f"broker\tkafka-producer-perf-test\t{width}\t{size}\t{capacity}\t{records:.2f}\t{rate:.0f}\t", flush=True)


if __name__ == "__main__":
    main()
