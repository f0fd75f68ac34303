"""The packets that are sent into a network: columns, and errors of their times (DETER, section 4.3)."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from confluo_tools import units
from confluo_tools.core.replay.queue_engine import time_order
from confluo_tools.core.replay.rate_sampling import RunSampler, infer_times

WIRE = 38  # bytes of a packet on the wire besides its IP packet: Ethernet header, checksum, preamble, gap


class QueueFlow(NamedTuple):
    """A flow: numbers of its hosts in the topology, and what rows say of it.  IPv6 addresses have 16 bytes."""

    src: int
    dst: int
    version: int
    proto: int
    src_ip: int
    dst_ip: int
    src_port: int
    dst_port: int
    src_ip6: bytes = b""
    dst_ip6: bytes = b""

    def __str__(self) -> str:
        src = units.format_ip(self.src_ip, self.src_ip6 or bytes(16), self.version)
        dst = units.format_ip(self.dst_ip, self.dst_ip6 or bytes(16), self.version)
        left, right = (f"[{src}]", f"[{dst}]") if self.version == 6 else (src, dst)
        return f"{left}:{self.src_port}-{right}:{self.dst_port}"


@dataclass
class SentPackets:
    """``times`` (ns), ``sizes`` (bytes on the wire), ``flow_of`` (place in ``flows``), ``lost`` (1: known to be lost),
    one for each packet; those of a flow are in the order of sending.
    """

    flows: list[QueueFlow] = field(default_factory=list)
    times: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("I"))
    flow_of: array[int] = field(default_factory=lambda: array("I"))
    lost: array[int] = field(default_factory=lambda: array("B"))

    def __len__(self) -> int:
        return len(self.times)

    def add(self, time: int, size: int, flow: int, lost: bool = False) -> None:
        self.times.append(time)
        self.sizes.append(size)
        self.flow_of.append(flow)
        self.lost.append(lost)


def sampled_times(packets: SentPackets, threshold: int) -> array[int]:
    """The times as Algorithm 1 with this threshold (ns) would give them, flow by flow."""
    by_flow = time_order(array("q", packets.flow_of))
    times, found = packets.times, array("q", packets.times)
    start = 0
    while start < len(by_flow):
        end, flow = start, packets.flow_of[by_flow[start]]
        while end < len(by_flow) and packets.flow_of[by_flow[end]] == flow:
            end += 1
        sampler = RunSampler(threshold)
        runs = sampler.offer(array("q", [times[i] for i in by_flow[start:end]]))
        last = sampler.flush()
        inferred = infer_times(runs.times + last.times, runs.steps + last.steps, runs.counts + last.counts)
        for i, time in zip(by_flow[start:end], inferred, strict=True):
            found[i] = time
        start = end
    return found


def shifted_times(packets: SentPackets, times: array[int], most: int, seed: int) -> array[int]:
    """The times by clocks that are off: each host's by a constant from 0 to ``most`` ns."""
    offsets: dict[int, int] = {}
    rng = random.Random(seed)
    for host in sorted({flow.src for flow in packets.flows}):
        offsets[host] = rng.randint(0, most)
    of_flow = [offsets[flow.src] for flow in packets.flows]
    return array("q", [time + of_flow[flow] for time, flow in zip(times, packets.flow_of, strict=True)])
