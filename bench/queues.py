"""Replay of switch queues: `.venv/bin/python bench/queues.py [ROUNDS]`.

Bars: 10 M hop events a second on one core; drop error by tags at most 2.5 % where it is above 50 % without (fat tree of
16-port switches, load 30 %, clocks and times off by up to 5 us).  In process, least of ROUNDS (3).  A hop event is a
packet at a switch.  ns-3, where it is installed, runs one port with the packets of its busiest queue, in the same run.
At the end, how fast packets are collected: from recordings of both ends, in runs of four, and from captures of both.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from timing import ROOT, header, row

from confluo_tools.core.block.block import Block
from confluo_tools.formats.block_builder import block_of
from confluo_tools.formats.reader import Reader
from confluo_tools.network.topology_file import parse_network
from confluo_tools.replay.queues.collect import Collector
from confluo_tools.replay.queues.open_loop import OpenLoop, drops_of
from confluo_tools.replay.queues.ports import PortMap
from confluo_tools.replay.queues.score import compare_drops, queue_differences
from confluo_tools.replay.queues.sent_packets import SentPackets, sampled_times, shifted_times
from confluo_tools.replay.queues.synthetic import make_traffic
from confluo_tools.schema import builtin

CASES = ((8, 0.3, 4), (16, 0.3, 4), (16, 0.8, 3))  # ports of a switch, load, ms
CLOCKS, SAMPLING = 5000, 5000  # ns: largest errors
SWEEP = (
    (0, 0),
    (0, 2000),
    (0, 5000),
    (0, 10_000),
    (1000, 5000),
    (5000, 0),
    (5000, 2000),
    (5000, 10_000),
    (10_000, 10_000),
)
LOADS = (0.1, 0.3, 0.5, 0.8)
SCORES = ("case", "clocks_us", "sampling_us", "lost", "plain_error", "tagged_error", "false_accepts", "wrong_places",
          "diff_mtu", "diff_p99")  # fmt: skip
COLLECTED = 10_000_000  # packets
TREE = parse_network("topology: 1\nfat_tree: 4\n", "fat.yaml").topology()
ENDS = ((0x0A000002, 1000), (0x0A030103, 80))  # addresses and ports
LIBRARIES = ("core", "network", "point-to-point", "stats")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    header("case", "packets", "hop_events", "drops", "seconds", "M_events_s", "M_named_s", "ns3_M_events_s")
    replays = []
    for k, load, ms in CASES:
        replay = made(k, load, ms)
        best = min(timed(replay, False) for _ in range(rounds))
        named = min(timed(replay, True) for _ in range(rounds))
        events = replay.events / 1e6
        row(
            f"K={k} load {load:.0%} {ms} ms",
            len(replay.packets),
            replay.events,
            replay.drops,
            best,
            events / best,
            events / named,
            ns3_rate(replay) if (k, load) == (16, 0.3) else "",
        )
        replays.append((k, load, replay))
    print()
    header(*SCORES)
    for k, load, replay in replays:
        score(f"K={k} load {load:.0%}", replay, CLOCKS, SAMPLING)
    for clocks, sampling in SWEEP:
        score("K=16 load 30%", replays[1][2], clocks, sampling)
    for load in LOADS:
        score(f"K=16 load {load:.0%}", made(16, load, 3), CLOCKS, SAMPLING)
    print()
    header("input", "packets", "seconds", "M_packets_s")
    for name, collect in (("recordings", recordings), ("captures", captures)):
        best = min(collect() for _ in range(rounds))
        row(name, COLLECTED, best, COLLECTED / best / 1e6)


def recordings() -> float:
    """CPU seconds to collect both ends of 10 connections."""
    blocks = []
    for connection in range(10):
        runs = COLLECTED // 40
        for kind, ends in ((8, ENDS), (7, ENDS[::-1])):
            (src, sport), (dst, dport) = ends
            fixed = {"kind": kind, "src_ip": src, "dst_ip": dst, "src_port": sport, "dst_port": dport, "cookie": 1}
            fixed |= {"dst_port" if kind == 8 else "src_port": 80 + connection, "role": 1 if kind == 8 else 2}
            fixed |= {"ip_version": 4, "proto": 6, "count": 4, "segments": 1, "step": 900}
            steps = {"ts": 4000, "ip_id": 4, "tx" if kind == 8 else "rx": 4}
            blocks += blocks_with("recording", runs, fixed, steps)
    collector = Collector(TREE)
    start = time.process_time()
    collector.add_recording(blocks)
    assert len(collector.packets) == COLLECTED
    return time.process_time() - start


def captures() -> float:
    """CPU seconds to collect captures of the sender and the receiver."""
    (src, sport), (dst, dport) = ENDS
    fixed = {"src_ip": src, "dst_ip": dst, "src_port": sport, "dst_port": dport, "ip_version": 4, "proto": 6}
    fixed |= {"ip_len": 1500, "payload_len": 1460}
    both = [list(blocks_with("packet", COLLECTED, fixed, {"ts": 1000, "ip_id": 1, "tcp_seq": 1460})) for _ in range(2)]
    collector = Collector(TREE)
    start = time.process_time()
    for blocks in both:
        collector.add_capture(Blocks("packet", blocks))
    assert len(collector.packets) == COLLECTED
    return time.process_time() - start


class Blocks(Reader):
    """Blocks as an input."""

    def __init__(self, kind: str, blocks: list[Block]) -> None:
        super().__init__(kind)
        self.schema, self._blocks = builtin(kind), blocks

    def blocks(self) -> Iterator[Block]:
        yield from self._blocks


def blocks_with(kind: str, rows: int, fixed: dict[str, int], steps: dict[str, int]) -> Iterator[Block]:
    """Blocks of rows with ``fixed`` values, and values that grow by a step from row to row."""
    for first in range(0, rows, 65536):
        some = range(first, min(first + 65536, rows))
        columns: dict[str, Any] = {name: [value] * len(some) for name, value in fixed.items()}
        for name, step in steps.items():
            bits = {"ts": 63, "ip_id": 16}.get(name, 32)
            columns[name] = [i * step & (1 << bits) - 1 for i in some]
        yield block_of(builtin(kind), columns, len(some))


def made(k: int, load: float, ms: float) -> OpenLoop:
    network = parse_network(f"topology: 1\nfat_tree: {k}\n", "fat.yaml").topology()
    hosts = sorted(network.tor_of)
    packets = make_traffic(
        hosts, {h: h for h in hosts}, length=int(ms * 1e6), load=load, incasts=2400, speed=10**10, seed=1
    )
    return OpenLoop(PortMap(network), packets)


def timed(replay: OpenLoop, named: bool) -> float:
    """CPU seconds of one replay, sorting included; ``named``: rows name the flows that share a queue."""
    start = time.process_time()
    for _ in replay.run(name_flows=named):
        pass
    return time.process_time() - start


def score(case: str, replay: OpenLoop, clocks: int, sampling: int) -> None:
    truth = drops_of(replay.run(sample=64))
    contents = replay.contents()
    packets: SentPackets = replay.packets
    tags = array("B", [0]) * len(packets)
    for packet in truth:
        tags[packet] = 1
    times = shifted_times(packets, sampled_times(packets, sampling), clocks, 2)
    plain = compare_drops(truth, drops_of(replay.run(times)))
    tagged = compare_drops(truth, drops_of(replay.run(times, tags, sample=64)))
    apart = queue_differences(contents, replay.contents())
    row(
        case,
        clocks / 1000,
        sampling / 1000,
        len(truth) / len(packets),
        plain.error,
        tagged.error,
        tagged.false_accepts,
        tagged.wrong_places,
        sum(apart) / len(apart) / 1500,
        apart[len(apart) * 99 // 100] / 1500,
    )


def ns3_rate(replay: OpenLoop) -> float | str:
    """M packets a second of ns-3 at one port; '' where it is not installed."""
    if not Path("/usr/include/ns3").is_dir():
        return ""
    arrivals: Counter[int] = Counter()
    for rows in replay.run():
        arrivals.update(rows.port[: rows.count])
    busiest = arrivals.most_common(1)[0][0]
    times = [rows.time[i] for rows in replay.run() for i in range(rows.count) if rows.port[i] == busiest]
    repeats = 400_000 // len(times)  # enough for its start-up not to count
    last = times[-1] + 10**8
    text = "10000000000 500000\n" + "".join(f"{t + n * last} 1538\n" for n in range(repeats) for t in times)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "drop-tail"
        source = Path(ROOT) / "tests" / "replay" / "ns3_drop_tail.cc"
        subprocess.run(["g++", "-O2", "-o", program, source, *(f"-lns3-{n}" for n in LIBRARIES)], check=True)
        start = time.perf_counter()
        subprocess.run([program], input=text.encode(), stdout=subprocess.DEVNULL, check=True)
        return repeats * len(times) / (time.perf_counter() - start) / 1e6


if __name__ == "__main__":
    main()
