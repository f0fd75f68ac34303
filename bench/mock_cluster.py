"""A mock cluster of librdkafka in a process of its own: prints its address, lives until its input ends.

usage: bench/mock_cluster.py TOPIC PARTITIONS

It keeps 5 MB of each partition, and drops older messages.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from confluo_tools.kafka.client import library

PRODUCER = 0


class Mock:
    """A process with a mock cluster that has one topic."""

    def __init__(self, partitions: int) -> None:
        self.topic = f"t{uuid4().hex[:8]}"
        words = [sys.executable, __file__, self.topic, str(partitions)]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=null)
        assert self.process.stdout is not None
        self.broker = self.process.stdout.readline().decode().strip()

    @property
    def address(self) -> str:
        return f"kafka://{self.broker}/{self.topic}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def main(topic: str, partitions: int) -> None:
    kafka = ctypes.CDLL(library())
    for name in ("conf_new", "new", "mock_cluster_new", "mock_cluster_bootstraps"):
        getattr(kafka, f"rd_kafka_{name}").restype = ctypes.c_void_p
    text = ctypes.create_string_buffer(512)
    client = kafka.rd_kafka_new(PRODUCER, ctypes.c_void_p(kafka.rd_kafka_conf_new()), text, ctypes.c_size_t(512))
    cluster = ctypes.c_void_p(kafka.rd_kafka_mock_cluster_new(ctypes.c_void_p(client), 1))
    if kafka.rd_kafka_mock_topic_create(cluster, topic.encode(), partitions, 1):
        raise SystemExit("cannot make the topic")
    address = ctypes.cast(kafka.rd_kafka_mock_cluster_bootstraps(cluster), ctypes.c_char_p).value
    print(address.decode(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(sys.argv[1], int(sys.argv[2]))
