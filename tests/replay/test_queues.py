"""Routes, errors of times, scores and inputs of queue replays; made-up traffic through a fat tree."""

from __future__ import annotations

import itertools
import random
from array import array
from typing import Any

import pytest
from test_collect import Rows

from confluo_tools.errors import FormatError
from confluo_tools.formats.block_builder import address_columns
from confluo_tools.network.hardware import LinkSpeed, SwitchBuffer
from confluo_tools.network.topology import Topology
from confluo_tools.network.topology_file import parse_network
from confluo_tools.network.topology_writer import text_of
from confluo_tools.replay.queues.open_loop import OpenLoop, drops_of
from confluo_tools.replay.queues.path_input import read_paths
from confluo_tools.replay.queues.ports import PortMap
from confluo_tools.replay.queues.score import compare_drops, queue_differences
from confluo_tools.replay.queues.sent_packets import QueueFlow, SentPackets, sampled_times, shifted_times
from confluo_tools.replay.queues.synthetic import make_traffic

GBIT = 10**9


def fat_tree(k: int, more: str = "") -> Topology:
    return parse_network(f"topology: 1\nfat_tree: {k}\n{more}", "fat.yaml").topology()


def traffic(network: Topology, ms: float, **more: Any) -> SentPackets:
    hosts = sorted(network.tor_of)
    given = {"load": 0.3, "incasts": 2400.0, "speed": 10 * GBIT, "seed": 1} | more
    return make_traffic(hosts, {host: host for host in hosts}, length=int(ms * 1e6), **given)


# -- topology ---------------------------------------------------------------------------------------------------


def test_a_fat_tree_has_the_size_and_the_links_of_the_paper() -> None:
    network = fat_tree(16)
    assert (len(network.switches), len(network.tor_of)) == (320, 1024)
    assert {len(near) + network.hosts_at().get(n, 0) for n, near in network.neighbours.items()} == {16}
    tors = network.tors
    assert len(list(network.paths(tors[0], tors[-1]))) == 64  # one for each core switch
    assert len(list(network.paths(tors[0], tors[1]))) == 8


def test_hardware_of_a_file() -> None:
    text = """topology: 1
link: {speed: 100Gbit}
server_link: {speed: 25Gbit, delay: 500ns}
buffer: {size: 4MB, alpha: 0.5}
switches: {a: {level: tor, pod: p, buffer: {private: true, size: 64Ki}}, b: t1}
links: [[a, b, {delay: 3us}]]
dcs: {d: {s: {p: {h: 10.0.0.1, g: 10.0.0.2}}}}
"""
    file = parse_network(text, "t.yaml")
    network = file.topology()
    number = {name: n for n, name in network.names.items()}
    hardware, a, b = network.hardware, number["a"], number["b"]
    assert hardware.link == LinkSpeed(100 * GBIT, 1000)
    assert hardware.server_link == LinkSpeed(25 * GBIT, 500)
    assert hardware.buffer == SwitchBuffer(4_000_000, 512)
    assert hardware.buffers == {a: SwitchBuffer(65536, 0)}
    assert hardware.links == {(a, b): LinkSpeed(100 * GBIT, 3000), (b, a): LinkSpeed(100 * GBIT, 3000)}
    columns = PortMap(network).columns()
    assert list(columns.ps_per_byte) == [320, 320, 80, 320, 320, 80]  # two hosts; a to b and to them; b to a
    assert list(columns.delay) == [500_000, 500_000, 3_000_000, 500_000, 500_000, 3_000_000]
    assert parse_network(text_of(file), "t.yaml") == file


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fat_tree: 5", "fat_tree is odd"),
        ("fat_tree: 50", "fat_tree is not a number from 1 to 48"),
        ("fat_tree: 4\nlinks: []", "'fat_tree' and 'links' exclude each other"),
        ("fat_tree: 4\nclos: {}", "'clos' and 'fat_tree' exclude each other"),
        ("fat_tree: 4\nlink: 10", "link is invalid"),
        ("fat_tree: 4\nlink: {speed: 0}", "speed of link is not from 10kbit to 8Tbit"),
        ("fat_tree: 4\nlink: {speed: fast}", "speed of link: 'fast' is not a rate"),
        ("fat_tree: 4\nlink: {delay: -1s}", "delay of link is not from 0"),
        ("fat_tree: 4\nbuffer: {alpha: 0}", "alpha of buffer is not a number above 0"),
        ("fat_tree: 4\nbuffer: {alpha: 1, private: true}", "buffer is invalid"),
        ("fat_tree: 4\nbuffer: {private: maybe}", "private of buffer is neither"),
        ("fat_tree: 4\nbuffer: {size: 2TiB}", "size of buffer is above 1 TiB"),
        ("fat_tree: 4\nswitches: {t2-1: {level: t1}}", "only its addresses and its buffer"),
    ],
)
def test_hardware_that_is_refused(line: str, said: str) -> None:
    with pytest.raises(FormatError) as error:
        parse_network("topology: 1\n" + line, "t.yaml")
    assert said in str(error.value)


# -- routes -----------------------------------------------------------------------------------------------------


def test_a_route_is_one_of_the_shortest_paths_and_flows_spread_over_all() -> None:
    network = fat_tree(4)
    ports, hosts = PortMap(network), sorted(network.tor_of)
    rng = random.Random(3)
    for _ in range(40):
        src, dst = rng.sample(hosts, 2)
        want = {(src, *path, dst) for path in network.paths(network.tor_of[src], network.tor_of[dst])}
        got = set()
        for _ in range(60):
            route = ports.route(src, dst, rng.getrandbits(64))
            assert route is not None
            ends = [ports.ends[port] for port in route]
            assert all(b == c for (_, b), (c, _) in itertools.pairwise(ends))
            got.add((ends[0][0], *(b for _, b in ends)))
        assert got == want
    assert ports.route(hosts[0], hosts[0], 1) is None
    assert ports.route(hosts[0], 4_000_000_000, 1) is None


def test_paths_of_flows_are_taken_where_they_are_known() -> None:
    network = fat_tree(4)
    ports, hosts = PortMap(network), sorted(network.tor_of)
    src, dst = hosts[0], hosts[-1]
    known = list(network.paths(network.tor_of[src], network.tor_of[dst]))
    row = {"kind": 1, "proto": 6, "src_port": 1000, "dst_port": 80, "hops": 5}
    row |= address_columns("src", "10.0.0.2") | address_columns("dst", "10.3.1.3")
    rows = [row | {"path": known[2]}, row | {"src_port": 1001, "path": (known[1][0], 0, 3, 4, 5)}]
    paths = read_paths(Rows("path", rows), network)
    flow = QueueFlow(src, dst, 4, 6, src, dst, 1000, 80)
    assert paths == {flow: list(known[2])}
    packets = SentPackets([flow])
    packets.add(0, 1538, 0)
    replay = OpenLoop(ports, packets, paths)
    (rows_of_it,) = [some for some in replay.run() if some.count]
    assert [ports.ends[port][0] for port in rows_of_it.port[: rows_of_it.count]] == list(known[2])


# -- errors and scores ------------------------------------------------------------------------------------------


def test_errors_of_times_are_bounded() -> None:
    packets = traffic(fat_tree(4), 0.5)
    sampled = sampled_times(packets, 2000)
    assert sampled != packets.times
    assert max(abs(a - b) for a, b in zip(sampled, packets.times, strict=True)) <= 2000
    assert sampled_times(packets, 0) == packets.times
    shifted = shifted_times(packets, packets.times, 5000, 1)
    offsets: dict[int, set[int]] = {}
    for a, b, flow in zip(shifted, packets.times, packets.flow_of, strict=True):
        offsets.setdefault(packets.flows[flow].src, set()).add(a - b)
    assert all(len(its) == 1 and 0 <= min(its) <= 5000 for its in offsets.values())
    assert len(set().union(*offsets.values())) > 1


def test_scores_by_hand() -> None:
    found = compare_drops({1: 7, 2: 7, 3: 8, 4: 9}, {2: 7, 3: 9, 4: 9, 5: 1, 6: 1})
    assert (found.false_accepts, found.false_drops, found.wrong_places, found.dropped) == (1, 2, 1, 6)
    assert found.error == pytest.approx(4 / 6)
    assert compare_drops({}, {}).error == 0
    truth = {(0, 0): {1: 100, 2: 50}, (0, 1): {}, (1, 0): {3: 10}}
    assert queue_differences(truth, {(0, 0): {2: 70, 4: 5}, (0, 1): {}}) == [0, 125]


def test_drops_are_right_with_tags_where_they_are_wrong_without() -> None:
    """Section 5.4 of the paper on a smaller fat tree: clocks and times off by up to 5 us."""
    network = fat_tree(8)
    packets = traffic(network, 2)
    replay = OpenLoop(PortMap(network), packets)
    truth = drops_of(replay.run(sample=64))
    contents = replay.contents()
    assert len(truth) > 500
    assert drops_of(replay.run()) == truth
    tags = array("B", [0]) * len(packets)
    for packet in truth:
        tags[packet] = 1
    times = shifted_times(packets, sampled_times(packets, 5000), 5000, 2)
    plain = compare_drops(truth, drops_of(replay.run(times)))
    tagged = compare_drops(truth, drops_of(replay.run(times, tags, sample=64)))
    assert plain.error > 0.3
    assert tagged.error < 0.05
    assert tagged.false_drops == 0
    apart = queue_differences(contents, replay.contents())
    assert 0 < sum(apart) / len(apart) < 5 * 1500


def test_made_up_traffic_has_the_load_and_repeats_by_its_seed() -> None:
    network = fat_tree(4)
    hosts = len(network.tor_of)
    packets = traffic(network, 5, load=0.2, incasts=0.0)
    assert traffic(network, 5, load=0.2, incasts=0.0).times == packets.times
    assert traffic(network, 5, load=0.2, incasts=0.0, seed=2).times != packets.times
    share = sum(packets.sizes) * 8 / (hosts * 10 * GBIT * 0.005)
    assert 0.2 <= share < 0.25
    assert max(packets.times) < 5_000_000


def test_the_queue_of_an_incast() -> None:
    """The longest queue is that to the client of an incast."""
    network = fat_tree(4)
    packets = traffic(network, 1, load=0.0, incasts=1500.0)
    clients = {flow.dst for flow in packets.flows}
    assert clients
    ports = PortMap(network)
    longest, where = 0, 0
    for rows in OpenLoop(ports, packets).run():
        for i in range(rows.count):
            if rows.queue[i] > longest:
                longest, where = rows.queue[i], rows.port[i]
    assert ports.ends[where][1] in clients
