"""Queues of a real path: two recorded hosts, a router with a drop-tail queue between them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import netns
from confluo_tools.inputs.open import open_records
from confluo_tools.network.topology_file import parse_network
from confluo_tools.replay.queues.block_columns import BlockColumns
from confluo_tools.replay.queues.collect import Collector
from netns import Lab
from real_time import in_real_time
from replay_lab import BULK, dumped, record, routed
from sessions import Shell

pytestmark = [pytest.mark.root, pytest.mark.net, pytest.mark.skipif(bool(netns.missing()), reason=str(netns.missing()))]
# The queue counts 14 bytes of a frame besides the IP packet, the model 38: its speed and size are higher by 1.6 %.
TOPOLOGY = """topology: 1
switches:
  router: {level: tor, pod: left, buffer: {size: 30481, private: true}}
  far: {level: tor, pod: right}
server_link: {speed: 100Gbit, delay: 0s}
links: [[router, far, {speed: 5.079Mbit, delay: 0s}]]
dcs: {d: {s: {left: {client: CLIENT}, right: {server: SERVER}}}}
"""
BURST = 3000 * 8 / 5e6 * 1e9  # ns: tbf sends so much at once when its queue was empty


class Packet(NamedTuple):
    size: int
    lost: int


class RoutedQueue(NamedTuple):
    """``recorded``, ``captured``: packets by flow.  ``delays``: (of the replay, from capture to capture), ns."""

    recorded: dict[str, list[Packet]]
    captured: dict[str, list[Packet]]
    dropped: list[list[str]]
    longest: int
    delays: list[tuple[int, int]]


def answer(shell: Shell, words: str) -> list[list[str]]:
    status, lines = shell.run(words)
    assert status == 0, lines
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def recorded(folder: Path, level: str, size: int, *, six: bool = False) -> None:
    """Record and capture a transfer at both ends."""
    with Lab() as lab:
        path = routed(lab, rate="5mbit", limit=30_000, version=6 if six else 4)
        with dumped(path, folder):
            record(path, folder, BULK, size, options=("--level", level))
        ends = path.client.address, path.server.address
    (folder / "path.yaml").write_text(TOPOLOGY.replace("CLIENT", f"'{ends[0]}'").replace("SERVER", f"'{ends[1]}'"))


def packets(folder: Path, *names: str) -> tuple[Collector, dict[str, list[Packet]]]:
    """What inputs say of each packet, by flow in the order of sending."""
    collector = Collector(parse_network((folder / "path.yaml").read_text(), "path.yaml").topology())
    for name in names:
        with open_records([str(folder / name)]) as reader:
            if reader.schema.kind == "recording":
                collector.add_recording(reader)
            else:
                collector.add_capture(reader)
    its = collector.packets
    found: dict[str, list[Packet]] = {}
    for size, lost, flow in zip(its.sizes, its.lost, its.flow_of, strict=True):
        found.setdefault(str(its.flows[flow]), []).append(Packet(size, lost))
    return collector, found


def replayed(folder: Path) -> RoutedQueue:
    """Record a transfer by signals, replay its queues."""
    recorded(folder, "signals", 500_000)
    shell = Shell(folder)
    answer(shell, "confluo-replay queues client.ml server.ml --topology path.yaml -q -w queues.ml")
    by_place = "confluo-query queues.ml 'event == dropped' --agg count --by switch,to,why -T"
    at = 'switch == "router" && to == "far"'
    captured = packets(folder, "client.pcap", "server.pcap")[1]
    longest = answer(shell, f"confluo-query queues.ml '{at}' --agg 'max(queue)' -T")[0][0]
    return RoutedQueue(
        packets(folder, "client.ml", "server.ml")[1],
        captured,
        answer(shell, by_place),
        int(longest),
        delays(folder, next(flow for flow in captured if flow.endswith(":5201"))),
    )


def rows(path: Path, *names: str) -> Iterator[tuple[int, ...]]:
    with open_records([str(path)]) as reader:
        for block in reader:
            columns = BlockColumns(block, str(path))
            yield from zip(*(columns[name][: block.rows] for name in names), strict=True)


def delays(folder: Path, flow: str) -> list[tuple[int, int]]:
    """Of the packets that arrived, how long the replay and the router kept them."""
    port = int(flow.split("-")[0].rsplit(":", 1)[1])
    seen = []
    for name in ("client", "server"):
        its = rows(folder / f"{name}.pcap", "ts", "ip_id", "src_port")
        seen.append({number: ts for ts, number, source in its if source == port})
    its = rows(folder / "queues.ml", "packet", "delay", "src_port", "hop")
    model = [delay for _, delay in sorted((p, delay) for p, delay, source, hop in its if source == port and hop == 1)]
    order = sorted(seen[0], key=seen[0].__getitem__)
    pairs = zip(model, order, strict=True)
    return [(delay, seen[1][n] - seen[0][n]) for delay, n in pairs if delay and n in seen[1]]


@in_real_time
def test_the_replayed_queue_is_the_real_one(tmp_path: Path) -> None:
    """Recordings without headers and captures show the same packets and losses; the replay drops these at the router,
    and delays the others as the router did.
    """
    assert differences(replayed(tmp_path)) == []


def differences(found: RoutedQueue) -> list[str]:
    """What is not as it was at the router."""
    wrong = [] if found.recorded.keys() == found.captured.keys() else ["other flows"]
    for flow, ours in found.recorded.items():
        theirs = found.captured.get(flow, [])
        if [p.lost for p in ours] != [p.lost for p in theirs]:
            wrong.append(f"{flow}: {len(ours)} and {len(theirs)} packets, or other losses")
        # data: no packet has SACK blocks
        elif (
            flow.endswith(":5201")
            and sum(a.size != b.size for a, b in zip(ours, theirs, strict=True)) > len(ours) / 100
        ):
            wrong.append(f"{flow}: other sizes")
    lost = sum(p.lost for its in found.recorded.values() for p in its)
    dropped = sum(int(row[3]) for row in found.dropped)
    if [row[:2] for row in found.dropped] not in ([["router", "far"]], []):
        wrong.append(f"dropped at {found.dropped}")
    if lost <= 3 or not lost * 0.5 <= dropped <= lost:
        wrong.append(f"{lost} lost, {dropped} dropped")
    model, real = zip(*found.delays, strict=True)
    alike = statistics.correlation(model, real)
    apart = statistics.median(a - b for a, b in found.delays)
    if found.longest <= 20_000 or alike <= 0.98 or not 0 < apart < 1.5 * BURST:
        wrong.append(f"longest {found.longest} B, correlation {alike}, {apart} apart")
    return wrong


def test_ipv6_with_headers(tmp_path: Path) -> None:
    """Recordings with headers and captures of IPv6 show the same packets, sizes and losses."""
    recorded(tmp_path, "headers", 600_000, six=True)
    collector, ours = packets(tmp_path, "client.ml", "server.ml")
    _, theirs = packets(tmp_path, "client.pcap", "server.pcap")
    assert (collector.derived, collector.unmatched) == (0, 0)
    assert ours == theirs
    assert sum(p.lost for its in ours.values() for p in its) > 3
    shell = Shell(tmp_path)
    words = "confluo-replay queues client.ml server.ml --topology path.yaml"
    places = answer(shell, f"{words} -q -o stream | confluo-query - 'event == dropped' --agg count --by switch,to -T")
    assert [row[:2] for row in places] in ([["router", "far"]], [])
    addresses = answer(shell, f"{words} -f src_ip,dst_ip,hop -T | head -3")
    assert addresses[0] == ["fd78:1::1", "fd78:2::1", "1"]
