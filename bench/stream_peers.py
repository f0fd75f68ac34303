"""Records from a log into a topic, next to kcat and to plain confluent-kafka.

usage: bench/stream_peers.py [RECORDS [ROUNDS]]         5000000 records, medians of 3 rounds

Into a topic: the packets of a MultiLog by confluo-stream publish; the same records as lines of JSON, ready in a file,
by `kcat -P` (a message each) and by a program with confluent-kafka, with a message each or 64 KiB of lines in each.
Whole commands, their start included.  The broker is librdkafka's mock cluster, in a process of its own on the same
machine.  It keeps 5 MB of a partition, so there are many partitions.

Prints TSV: what, records, seconds, million records a second, seconds of CPU of the command alone, how many times as
fast as it confluo is.  `bench/stream_count.py` counts records from a topic.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mock_cluster import Mock
from timing import ROOT, Run, header, in_turn, median, ratio, row, run

from make_capture import make

CAMPUS = ROOT / "examples" / "data" / "campus.pcap.gz"
PARTITIONS = 256
FIELDS = "ts,ip_version,src_ip,dst_ip,proto,len,payload_len,ttl,src_port,dst_port"
FIELDS += ",tcp_flags,tcp_seq,tcp_ack,tcp_window,flow_hash"

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


def said(words: Sequence[object]) -> str:
    return subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout


def shown(name: str, records: int, runs: list[Run], ours: list[Run]) -> None:
    wall = median(runs, "wall")
    row(name, records, wall, records / wall / 1e6, median(runs, "cpu"), ratio(ours, runs))


def into(log: Path, lines: Path, records: int, rounds: int) -> None:
    """Rows of what sends."""
    mock = Mock(PARTITIONS)
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


def campus_log(here: Path, records: int) -> tuple[Path, int]:
    """A log in the folder with at least ``records`` packets of `CAMPUS`, and their number."""
    plain, capture, log = here / "campus.pcap", here / "large.pcap", here / "large.ml"
    with plain.open("wb") as f:
        subprocess.run(["gzip", "-dc", CAMPUS], stdout=f, check=True)
    records = make(plain, records, capture)
    said([ROOT / "bin/confluo-capture", "-q", "-r", capture, "-w", log, "--sync", "none"])
    capture.unlink()
    return log, records


def main(records: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        log, records = campus_log(here, records)
        lines = here / "lines"
        with lines.open("wb") as f:
            words = [str(ROOT / "bin/confluo-query"), str(log), "-f", FIELDS, "-J"]
            subprocess.run(words, stdout=f, check=True)
        header("what", "records", "seconds", "M_records_s", "cpu_s", "confluo_is_faster_by")
        into(log, lines, records, rounds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
