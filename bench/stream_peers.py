"""Records from a log into a topic, and counted from it, next to kcat and to plain confluent-kafka.

usage: bench/stream_peers.py [RECORDS [ROUNDS]]         5000000 records, medians of 3 rounds

Into a topic: the packets of a MultiLog by confluo-stream publish; the same records as lines of JSON, ready in a file,
by `kcat -P` (a message each) and by a program with confluent-kafka, with a message each or 64 KiB of lines in each.
From a topic: how many SYNs each address got, by confluo-query, and by a program with confluent-kafka, pyarrow and
numpy that reads the same messages; both answers are compared.
Whole commands, their start included.  The broker is librdkafka's mock cluster, in a process of its own on the same
machine.  It keeps 5 MB of a partition, so there are many partitions.

Prints TSV: what, records, seconds, million records a second, seconds of CPU of the command alone, how many times as
fast as it confluo is.  The bar: 10 million records a second are counted.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from timing import ROOT, Run, header, in_turn, median, ratio, row, run

from make_capture import make

CAMPUS = ROOT / "examples" / "data" / "campus.pcap.gz"
PARTITIONS = 256
FIELDS = "ts,ip_version,src_ip,dst_ip,proto,len,payload_len,ttl,src_port,dst_port"
FIELDS += ",tcp_flags,tcp_seq,tcp_ack,tcp_window,flow_hash"
QUERY = ["tcp_flags has syn", "--agg", "count", "--by", "dst_ip"]

PRODUCE = """
import sys
from confluent_kafka import Producer
broker, topic, path, size = sys.argv[1:]
producer = Producer({"bootstrap.servers": broker, "linger.ms": 5, "batch.size": 1 << 20})
def send(value):
    while True:
        try:
            return producer.produce(topic, value)
        except BufferError:
            producer.poll(0.01)
held, n = [], 0
for line in open(path, "rb"):
    held.append(line)
    n += len(line)
    if n >= int(size):
        send(b"".join(held))
        held, n = [], 0
if held:
    send(b"".join(held))
producer.flush()
"""

COUNT = """
import sys
import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
broker, topic, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
consumer = Consumer({"bootstrap.servers": broker, "group.id": "bench", "enable.partition.eof": True})
consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
counts, ended = {}, 0
while ended < partitions:
    for message in consumer.consume(1000, 0.1):
        if message.error() is not None:
            ended += 1
            continue
        batch = pa.ipc.open_stream(message.value()).read_next_batch()
        flags, to = batch.column("tcp_flags").to_numpy(), batch.column("dst_ip").to_numpy()
        for address, n in zip(*np.unique(to[flags & 2 != 0], return_counts=True)):
            counts[address] = counts.get(address, 0) + int(n)
for address, n in counts.items():
    print(address, n)
"""


class Mock:
    """A mock cluster with one topic."""

    def __init__(self) -> None:
        self.topic = f"t{uuid4().hex[:8]}"
        words = [sys.executable, str(ROOT / "bench" / "mock_cluster.py"), self.topic, str(PARTITIONS)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(words, **pipes)
        self.broker = self.process.stdout.readline().decode().strip()

    @property
    def address(self) -> str:
        return f"kafka://{self.broker}/{self.topic}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def said(words: Sequence[object]) -> str:
    return subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout


def shown(name: str, records: int, runs: list[Run], ours: list[Run]) -> None:
    wall = median(runs, "wall")
    row(name, records, wall, records / wall / 1e6, median(runs, "cpu"), ratio(ours, runs))


def into(log: Path, lines: Path, records: int, rounds: int) -> None:
    """Rows of what sends."""
    mock = Mock()
    try:
        program = [sys.executable, "-c", PRODUCE, mock.broker, mock.topic, str(lines)]
        publish = [str(ROOT / "bin/confluo-stream"), "publish", "--to", mock.address, str(log)]
        commands = {
            "publish": publish,
            "publish --codec lz4": [*publish, "--codec", "lz4"],
            "kcat -P, a line in a message": ["kcat", "-P", "-b", mock.broker, "-t", mock.topic, "-l", str(lines)],
            "confluent-kafka, a line in a message": [*program, "1"],
            "confluent-kafka, 64 KiB of lines in a message": [*program, str(64 << 10)],
        }
        results = in_turn({name: lambda words=words: run(words) for name, words in commands.items()}, rounds)
    finally:
        mock.close()
    for name, runs in results.items():
        shown(name, records, runs, results["publish"])


def out_of(log: Path, records: int, rounds: int) -> None:
    """Rows of what counts."""
    mock = Mock()
    try:
        said([ROOT / "bin/confluo-stream", "publish", log, "--to", mock.address])
        query = [str(ROOT / "bin/confluo-query"), mock.address, *QUERY]
        program = [sys.executable, "-c", COUNT, mock.broker, mock.topic, str(PARTITIONS)]
        ours = dict(line.split("\t") for line in said([*query, "-T", "--no-header"]).splitlines())
        theirs = dict(line.split() for line in said(program).splitlines())
        whole = dict(
            line.split("\t")
            for line in said([ROOT / "bin/confluo-query", log, *QUERY, "-T", "--no-header"]).splitlines()
        )
        if ours != whole or sorted(ours.values()) != sorted(theirs.values()):
            raise SystemExit("the counts differ")
        results = in_turn({"confluo-query": lambda: run(query), "program": lambda: run(program)}, rounds)
    finally:
        mock.close()
    shown("confluo-query counts SYNs", records, results["confluo-query"], results["confluo-query"])
    shown("confluent-kafka, pyarrow and numpy", records, results["program"], results["confluo-query"])


def main(records: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        plain, capture, log = here / "campus.pcap", here / "large.pcap", here / "large.ml"
        with plain.open("wb") as f:
            subprocess.run(["gzip", "-dc", CAMPUS], stdout=f, check=True)
        records = make(plain, records, capture)
        said([ROOT / "bin/confluo-capture", "-q", "-r", capture, "-w", log, "--sync", "none"])
        capture.unlink()
        lines = here / "lines"
        with lines.open("wb") as f:
            words = [str(ROOT / "bin/confluo-query"), str(log), "-f", FIELDS, "-J"]
            subprocess.run(words, stdout=f, check=True)
        header("what", "records", "seconds", "M_records_s", "cpu_s", "confluo_is_faster_by")
        into(log, lines, records, rounds)
        out_of(log, records, rounds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
