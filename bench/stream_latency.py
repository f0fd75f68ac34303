"""How long a packet takes to a consumer: from the sender's clock, over a veth pair, publish -i and a real broker.

usage: bench/stream_latency.py [RATE [SECONDS]]     100000 packets/s, 5 s

The sender writes the time into the sequence number of each packet, 20 packets at a time.  The consumer is a program
with confluent-kafka and pyarrow; it takes the time when it has a message.  All share the clock and the CPUs of this
machine.  The first fifth of the packets does not count.  `capture` is the part up to the kernel's time stamp.

Prints TSV: options of publish, packets/s sent, packets sent and consumed, records a message, and milliseconds.
Needs root.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from blast import Header, IoVec, Message
from timing import ROOT, header, row

sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
from kafka_lab import Broker, jars
from netns import Lab, Space, missing

OPTIONS = [[], ["--linger", "5ms"], ["--linger", "1ms", "--immediate"]]
BURST = 20
FLOWS = 256
UNIT = 8  # bits: a sequence number is a time in units of 256 ns
SEQ = 38  # its place in a frame
IDLE = 2.0  # s without a message after which the consumer ends


def send(interface: str, rate: int, seconds: float) -> None:
    """Packets at a rate; prints how many, and the seconds."""
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    out.bind((interface, 0))
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 86, 1, 0, 64, 6, 0, 0x0A4D0001, 0x0A4D0002)
    ethernet = bytes.fromhex("0200000100020200000100010800")
    frames = [
        bytearray(ethernet + ip + struct.pack(">HHIIBBHHH", 1024 + k, 9000, 0, 0, 0x50, 16, 512, 0, 0) + bytes(46))
        for k in range(FLOWS)
    ]
    buffers = [(ctypes.c_char * len(f)).from_buffer(f) for f in frames]
    vectors = (IoVec * FLOWS)(*[IoVec(ctypes.addressof(b), len(b)) for b in buffers])
    messages = (Message * FLOWS)(*[Message(Header(vector=ctypes.pointer(v), vectors=1)) for v in vectors])
    libc = ctypes.CDLL(None, use_errno=True)
    began, sent = time.perf_counter(), 0
    while sent < rate * seconds:
        at = sent % (FLOWS - BURST)
        stamp = (time.time_ns() >> UNIT) & 0xFFFFFFFF
        for frame in frames[at : at + BURST]:
            struct.pack_into(">I", frame, SEQ, stamp)
        done = libc.sendmmsg(out.fileno(), ctypes.byref(messages[at]), BURST, 0)
        sent += max(done, 0)
        ahead = sent / rate - (time.perf_counter() - began)
        if ahead > 0:
            time.sleep(ahead)
    print(sent, time.perf_counter() - began)


def consume(broker: str, topic: str, partitions: int) -> None:
    """Reads until nothing comes; prints records, messages, and milliseconds: median, p99, maximum, p99 of capture."""
    import numpy as np
    import pyarrow as pa
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker, "group.id": "bench"})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    parts, captures, messages, last = [], [], 0, None
    while last is None or time.monotonic() - last < IDLE:
        message = consumer.poll(0.1)
        now = time.time_ns()
        if message is None or message.error() is not None:
            continue
        last = time.monotonic()
        batch = pa.ipc.open_stream(message.value()).read_next_batch()
        sent = batch.column("tcp_seq").to_numpy().astype(np.uint32)
        caught = batch.column("ts").cast(pa.int64()).to_numpy()
        keep = batch.column("dst_port").to_numpy() == 9000
        parts.append(((np.uint32((now >> UNIT) & 0xFFFFFFFF) - sent) << np.uint64(UNIT))[keep] / 1e6)
        captures.append((((caught >> UNIT).astype(np.uint32) - sent).astype(np.int32) * float(1 << UNIT))[keep] / 1e6)
        messages += 1
    found, captured = np.concatenate(parts), np.concatenate(captures)
    late, early = found[len(found) // 5 :], captured[len(found) // 5 :]
    print(len(found), messages, *np.percentile(late, [50, 99, 100]), np.percentile(early, 99))


def measure(here: Space, there: Space, broker: Broker, options: list[str], rate: int, seconds: float) -> None:
    from confluo_tools.kafka.address import parse
    from confluo_tools.kafka.client import make_topic

    name = "latency" + "".join(options).replace("--", ".")
    with here.inside():
        make_topic(parse(broker.topic(name)), {}, 4)
    me = [sys.executable, str(Path(__file__).resolve())]
    words = [str(ROOT / "bin/confluo-stream"), "publish", "-i", "v0", "--to", broker.topic(name), *options]
    consumer = here.popen(*me, "consume", broker.address, name, "4", stdout=subprocess.PIPE)
    tool = here.popen(*words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        time.sleep(3.0)
        sent, took = map(float, there.run(*me, "send", "v0", str(rate), str(seconds)).stdout.split())
        figures = consumer.communicate(timeout=60)[0].split()
    finally:
        tool.send_signal(signal.SIGINT)
        tool.communicate()
        consumer.kill()
    records, messages = int(figures[0]), int(figures[1])
    times = [float(f) for f in figures[2:]]
    row(" ".join(options), round(sent / took), round(sent), records, round(records / messages), *times)


def main(rate: int, seconds: float) -> None:
    libs, why = jars()
    if libs is None or missing():
        raise SystemExit(why or missing())
    header("options", "sent_per_s", "sent", "consumed", "records_a_message", "p50", "p99", "most", "capture_p99")
    with Lab() as lab, tempfile.TemporaryDirectory() as folder:
        there, here = lab.pair()
        with here.inside():
            broker = Broker(Path(folder), libs)
        try:
            for options in OPTIONS:
                measure(here, there, broker, options, rate, seconds)
        finally:
            broker.close()


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["send"]:
        send(words[1], int(words[2]), float(words[3]))
    elif words[:1] == ["consume"]:
        consume(words[1], words[2], int(words[3]))
    else:
        rate = int(words[0]) if words else 100_000
        main(rate, float(words[1]) if len(words) > 1 else 5.0)
