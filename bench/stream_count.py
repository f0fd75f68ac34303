"""Records counted from a topic, next to a program with confluent-kafka, pyarrow and numpy.

usage: bench/stream_count.py [RECORDS [ROUNDS]]         20000000 records, medians of 3 rounds

Records have the 18 fields that topics of packets have (89 bytes), and those that a count of SYNs needs (64 bytes).
How many SYNs came, and how many each address got, by confluo-query; and the second by a program that reads the same
messages.  The answers are compared.  Whole commands, their start included.  The broker is librdkafka's mock cluster, in
a process of its own on the same machine.  It keeps 5 MB of a partition and drops older messages, so there are many
partitions, and the topic may have fewer records than were sent to it.  A fetch gets one batch of a sender from each
partition; so batches are large: --linger is 3 s.

Prints TSV: bytes of a record, what, records, seconds, million records a second, seconds of CPU of the command alone,
how many times as fast as it the first count of addresses is.  The bar: 10 million records a second.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from mock_cluster import Mock
from stream_peers import campus_log, said
from timing import ROOT, header, in_turn, median, ratio, row, run

PARTITIONS = 640
SYN = "tcp_flags has syn"
SMALL = "ts,ip_version,src_ip,dst_ip,proto,len,src_port,dst_port,tcp_flags,flow_hash"
RECORDS = {89: [], 64: ["-f", SMALL]}  # bytes, with the options of publish

COUNT = """
import sys
import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
broker, topic, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
given = {"bootstrap.servers": broker, "group.id": "bench", "enable.partition.eof": True}
consumer = Consumer(given | {"auto.offset.reset": "earliest"})
consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
counts, ended = {}, set()
while len(ended) < partitions:
    for message in consumer.consume(1000, 0.1):
        if message.error() is not None:
            if message.error().code() != KafkaError._PARTITION_EOF:
                raise SystemExit(message.error().str())
            ended.add(message.partition())
            continue
        batch = pa.ipc.open_stream(message.value()).read_next_batch()
        flags, to = batch.column("tcp_flags").to_numpy(), batch.column("dst_ip").to_numpy()
        for address, n in zip(*np.unique(to[flags & 2 != 0], return_counts=True)):
            counts[address] = counts.get(address, 0) + int(n)
for address, n in counts.items():
    print(address, n)
"""


def main(records: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, _ = campus_log(Path(folder), records)
        header("bytes", "what", "records", "seconds", "M_records_s", "cpu_s", "confluo_is_faster_by")
        for size, options in RECORDS.items():
            counted(log, size, options, rounds)


def counted(log: Path, size: int, options: list[str], rounds: int) -> None:
    """Rows for records of ``size`` bytes."""
    query = str(ROOT / "bin/confluo-query")
    mock = Mock(PARTITIONS)
    try:
        said([ROOT / "bin/confluo-stream", "publish", log, "--to", mock.address, "--linger", "3s", *options])
        found = int(said([query, mock.address, "--count"]))
        program = [sys.executable, "-c", COUNT, mock.broker, mock.topic, str(PARTITIONS)]
        by_address = [query, mock.address, SYN, "--agg", "count", "--by", "dst_ip"]
        ours = dict(line.split("\t") for line in said([*by_address, "-T", "--no-header"]).splitlines())
        theirs = dict(line.split() for line in said(program).splitlines())
        count = int(said([query, mock.address, SYN, "--count"]))
        if sorted(ours.values()) != sorted(theirs.values()) or sum(map(int, ours.values())) != count:
            raise SystemExit("the counts differ")
        commands = {
            "confluo-query --agg count --by dst_ip": by_address,
            "confluo-query --count": [query, mock.address, SYN, "--count"],
            "confluent-kafka, pyarrow and numpy": program,
        }
        results = in_turn({name: lambda words=words: run(words) for name, words in commands.items()}, rounds)
    finally:
        mock.close()
    ours_ = next(iter(results.values()))
    for name, runs in results.items():
        wall = median(runs, "wall")
        row(size, name, found, wall, found / wall / 1e6, median(runs, "cpu"), ratio(ours_, runs))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
