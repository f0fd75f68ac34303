"""confluo-stream publish on a veth pair next to confluo-capture: packets lost, CPU a packet, and what functions cost.

usage: bench/stream_live.py [FRAMES [RATE...]]      500000 frames; 100k, 200k frames/s and 0: all that one sender can do

A broker of Kafka runs in the same namespace; its CPU, that of the sender and that of the kernel are not counted, but
they share the machine.  Two flows: TCP with a filter, everything else sampled.  Frames are those of
examples/data/campus.pcap.gz.

Prints two tables of TSV: of each tool, packets sent, received, lost in rings and in queues, delivered, nanoseconds of
CPU a packet received (all threads, with those of librdkafka); then nanoseconds a packet of each function in a chain.
The bars: publish loses no packet that confluo-capture keeps; a filter or a sample costs at most 10 ns a packet.
Needs root.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from live import cpu_of
from timing import ROOT, header, row

sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
from confluo_tools.core.block.block import Block
from confluo_tools.core.stream.stage import StreamStage
from confluo_tools.formats.pcap import open_captures, packet_schema
from confluo_tools.stream.functions import read
from confluo_tools.stream.telemetry import chosen
from kafka_lab import Broker, jars
from netns import Lab, Space, missing

CAMPUS = ROOT / "examples" / "data" / "campus.pcap.gz"
FLOWS = """flows:
- name: tcp
  match: tcp
  functions: [filter: len > 60]
- name: rest
  functions: [sample: 1/2]
"""
FUNCTIONS = {
    "filter: len > 100": ("filter", "len > 100"),
    "filter: tcp_flags has syn": ("filter", "tcp_flags has syn"),
    "sample: 1/10": ("sample", "1/10"),
    "sample by flow: 1/10": ("sample", {"share": "1/10", "by": "flow"}),
}


def measure(command: list[str], here: Space, there: Space, frames: int, rate: int) -> tuple[int, int, float, str]:
    """(packets sent, frames a second, seconds of CPU, what the tool said)."""
    tool = here.popen(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        time.sleep(3.0)
        before = cpu_of(tool.pid)
        sent, seconds = there.run(
            sys.executable, ROOT / "bench" / "blast.py", "v0", str(frames), str(rate)
        ).stdout.split()
        time.sleep(1.0)
        used = cpu_of(tool.pid) - before
    finally:
        tool.send_signal(signal.SIGINT)
        said = tool.communicate()[1].decode()
    return int(sent), round(int(sent) / float(seconds)), used, said


def live(frames: int, rates: list[int]) -> None:
    libs, why = jars()
    if libs is None or missing():
        raise SystemExit(why or missing())
    header(
        "asked_per_s", "sent_per_s", "tool", "sent", "received", "lost_in_rings", "lost_later", "delivered", "cpu_ns"
    )
    with Lab() as lab, tempfile.TemporaryDirectory() as folder:
        there, here = lab.pair()
        (Path(folder) / "flows.yaml").write_text(FLOWS)
        with here.inside():
            broker = Broker(Path(folder), libs)
        try:
            for number, rate in enumerate(rates):
                for name in ("capture", "publish", "publish flows"):
                    if name == "capture":
                        words = ["confluo-capture", "-w", f"{folder}/log{number}", "--sync", "none"]
                    else:
                        topic = broker.topic(f"t{number}{'f' if 'flows' in name else ''}")
                        words = ["confluo-stream", "publish", "--to", topic, "--create", "4", "--stats"]
                        words += ["--flows", f"{folder}/flows.yaml"] if "flows" in name else []
                    command = [str(ROOT / "bin" / words[0]), *words[1:], "-i", "v0"]
                    sent, speed, used, said = measure(command, here, there, frames, rate)
                    received, rings, later, delivered = figures(said)
                    cpu = round(1e9 * used / max(received, 1))
                    row(rate or "all", speed, name, sent, received, rings, later, delivered, cpu)
        finally:
            broker.close()


def figures(said: str) -> tuple[int, int, int, int]:
    """Packets received, lost in rings, lost later, delivered: of either tool."""
    if "by the kernel" in said:
        kept, dropped = (int(re.findall(rf"(\d+) {w}", said)[-1]) for w in ("kept", "dropped by the kernel"))
        return kept, dropped, 0, kept
    table = [line.split() for line in said.splitlines() if re.match(r"(receive|queue|send|deliver) ", line)]
    number = {stage: [list(map(int, cells[3:])) for cells in table if cells[0] == stage] for stage, *_ in table}
    later = sum(cells[2] for stage in ("queue", "send", "deliver") for cells in number[stage])
    received = number["receive"]
    return sum(c[4] for c in received), sum(c[2] for c in received), later, sum(c[4] for c in number["deliver"])


def functions() -> None:
    """What a function adds to a chain."""
    whole = packet_schema(offset=False)
    schema = whole.project(chosen(None, whole))
    with open_captures([str(CAMPUS)], whole) as captures:
        captures.begin()
        blocks = [block.project(schema.layout) for block in captures]
    rows = sum(block.rows for block in blocks)
    header("function", "records_a_block", "ns_a_packet")
    plain = [through(StreamStage(schema.layout), blocks) for _ in range(9)]
    for text, (word, value) in FUNCTIONS.items():
        function = read(word, value, schema, "bench")
        took = [through(function.stage(schema), blocks) for _ in range(9)]
        row(text, rows // len(blocks), f"{1e9 * (median(took) - median(plain)) / rows / 100:.2f}")


def through(stage: StreamStage, blocks: list[Block]) -> float:
    """Seconds for 100 passes of the blocks."""
    stage.then(StreamStage(stage.layout))
    start = time.perf_counter()
    for _ in range(100):
        for block in blocks:
            stage.write(block)
    return time.perf_counter() - start


if __name__ == "__main__":
    live(int(sys.argv[1]) if len(sys.argv) > 1 else 500_000, [int(w) for w in sys.argv[2:]] or [100_000, 200_000, 0])
    functions()
