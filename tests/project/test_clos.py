"""The Clos of namespaces: packets go where traceroute says, over all links, and what is dropped is counted.

The second half removes one setting at a time, and the fabric must then fail the checks of a Clos.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import ROOT

from clos_lab import FIVE, Fabric, Mistake, clos, drops, load, needs_root, needs_seed, probe, up, wait_until, ways
from confluo_tools.network.node_numbers import read_number
from confluo_tools.network.topology_file import read_topology
from sessions import Shell

pytestmark = [pytest.mark.root, pytest.mark.net]


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    with up(tmp_path_factory.mktemp("clos")) as made:
        yield made


@pytest.fixture(autouse=True)
def _healed(request: pytest.FixtureRequest) -> None:
    if "fabric" in request.fixturenames:
        made = request.getfixturevalue("fabric")
        drops.forget(made.state, made.plan)


# ---------------------------------------------------------------- the plan


def test_the_file_is_the_fabric_as_the_commands_read_it(tmp_path: Path) -> None:
    plan = clos.Clos(3, 2, 4, 5, 3)
    (tmp_path / "clos.yaml").write_text(clos.describe(plan))
    read = read_topology(str(tmp_path / "clos.yaml"))
    number = {name: n for n, name in read.names.items()}
    assert set(number) == set(plan.nodes)
    assert Counter(read.level[number[name]] for name in plan.nodes) == {0: 18, 1: 6, 2: 12, 3: 5}
    for address, name in plan.owner().items():
        found = read_number(address)
        assert found is not None
        assert read.alias.get(found, found) == number[name], address
    assert {read.names[h]: read.names[t] for h, t in read.tor_of.items()} == {h.name: h.tor for h in plan.host_nodes()}
    shares = read.shares(number["tor1"], number["tor6"])
    assert shares[number["tor1"], number["agg3"]] == pytest.approx(1 / 4)
    assert shares[number["agg3"], number["core5"]] == pytest.approx(1 / 20)
    assert len(plan.directed()) == 2 * (18 + 6 * 4 + 12 * 5)
    addresses = [a for link in plan.links for a in link.ip4 + link.ip6]
    assert len(set(addresses)) == len(addresses) == 4 * len(plan.links)


@pytest.mark.parametrize(
    ("sizes", "what"),
    [((0, 2, 2, 2, 2), "pods: 0"), ((2, 2, 2, 2, 65), "hosts: 65"), ((8, 8, 8, 8, 8), "more than 400 namespaces")],
)
def test_what_cannot_be_built(sizes: tuple[int, ...], what: str) -> None:
    with pytest.raises(Mistake, match=what):
        clos.Clos(*sizes)


# ---------------------------------------------------------------- the fabric


def consistent(fabric: Fabric, flows: list[load.Flow], way: dict[drops.Key, list[str]]) -> tuple[int, int]:
    """Of how many flows the probes went the way of the data; and of those, how many sources of ICMP name the link."""
    owner = fabric.plan.owner()
    named = {
        (name, peer.name): link.ip4[side] for name in fabric.plan.nodes for peer, link, side in fabric.plan.around(name)
    }
    same = right = 0
    for flow in flows:
        switches = way[flow.key][1:-1]
        found = probe(fabric, flow, len(switches))
        if [owner.get(found.get(ttl, "")) for ttl in range(1, len(switches) + 1)] == switches:
            same += 1
            entered = [named[here, before] for before, here in zip(way[flow.key], switches, strict=False)]
            right += [found[ttl] for ttl in range(1, len(switches) + 1)] == entered
    return same, right


@needs_root
@needs_seed
def test_probes_go_the_way_of_the_data_over_all_links(fabric: Fabric) -> None:
    flows = fabric.load(300)
    assert all(flow.done for flow in flows)
    way = ways(fabric, flows)
    used = Counter(link for nodes in way.values() for link in pairwise(nodes))
    assert set(used) == set(fabric.plan.directed())
    for level, least in ((clos.T2, 5), (clos.T1, 10)):  # no link has much less than its share
        counts = [n for (a, b), n in used.items() if fabric.plan.nodes[a].level == level]
        assert min(counts) > sum(counts) / len(counts) / 2 > least
    assert {len(nodes) for nodes in way.values()} == {5, 7}
    some = flows[:60]
    assert consistent(fabric, some, way) == (60, 60)


@needs_root
@needs_seed
def test_paths_over_ipv6_are_those_of_the_routes_too(fabric: Fabric) -> None:
    flows = fabric.load(200, ip=6)
    assert all(flow.done for flow in flows)
    way = ways(fabric, flows)
    used = {link for nodes in way.values() for link in pairwise(nodes)}
    assert used == set(fabric.plan.directed())


def settled(fabric: Fabric) -> list[drops.Seen]:
    """The counters of all links, when two readings agree: the rules of one node are not read at one instant."""
    last: list[drops.Seen] = []

    def same() -> bool:
        nonlocal last
        before, last = last, drops.counts(fabric.state, fabric.plan)
        return before == last

    wait_until(same, "packets still pass although all flows are done")
    return last


@needs_root
@needs_seed
@pytest.mark.parametrize("ip", [4, 6])
@pytest.mark.parametrize("kind", FIVE)
def test_drops_are_counted_where_they_happen(fabric: Fabric, kind: str, ip: int) -> None:
    """What TCP sends again, flow by flow, is what the link dropped; lost acknowledgements need no retransmission."""
    link = FIVE[kind]
    drops.drop(fabric.state, fabric.plan, *link, "1/50")
    flows = fabric.load(200, ip=ip)
    assert all(flow.done for flow in flows)
    seen = settled(fabric)
    dropping = [one for one in seen if one.dropped]
    assert [one.link for one in dropping] == [link]
    bad = dropping[0]
    assert bad.dropped == bad.packets // 50 == sum(bad.lost.values()) + sum(bad.acks.values()) > 5
    assert sum(bad.flows.values()) == bad.packets
    way = ways(fabric, flows)
    for key in bad.lost | bad.acks:
        assert key not in way or link in pairwise(way[key])

    again = {flow.key: flow.retrans - flow.dsack for flow in flows if flow.retrans > flow.dsack}
    assert again
    plain = [flow for flow in flows if flow.key not in bad.acks]  # no acknowledgement of it or for it was dropped
    plain = [flow for flow in plain if (back := flow.key[2:] + flow.key[:2]) not in bad.acks and back not in bad.lost]
    odd = [flow for flow in plain if again.get(flow.key, 0) != bad.lost.get(flow.key, 0)]
    assert len(plain) > 150
    assert len(odd) <= 3, odd  # none, unless the machine stops for longer than TCP waits


@needs_root
@needs_seed
def test_a_share_by_chance_and_two_links(fabric: Fabric) -> None:
    drops.drop(fabric.state, fabric.plan, "agg1", "core1", "3%")
    drops.drop(fabric.state, fabric.plan, "h5", "tor3", "1/100")
    fabric.load(300)
    found = {one.link: one for one in drops.counts(fabric.state, fabric.plan) if one.dropped}
    assert set(found) == {("agg1", "core1"), ("h5", "tor3")}
    assert 0.005 < found["agg1", "core1"].dropped / found["agg1", "core1"].packets < 0.09
    drops.heal(fabric.state, fabric.plan, "agg1", "core1")
    before = found["agg1", "core1"].dropped
    fabric.load(50)
    after = {one.link: one.dropped for one in drops.counts(fabric.state, fabric.plan)}
    assert after["agg1", "core1"] == before
    assert after["h5", "tor3"] > found["h5", "tor3"].dropped


# ---------------------------------------------------------------- why the settings are what they are


@needs_root
@needs_seed
def test_with_the_hash_of_the_socket_probes_go_another_way(fabric: Fabric) -> None:
    """Policy 1 uses the hash that a packet brought along from its socket, which knows nothing of its ports."""
    for switch in [n.name for n in fabric.plan.nodes.values() if n.level != clos.HOST]:
        fabric.set(switch, "ipv4/fib_multipath_hash_policy", "1")
    try:
        flows = fabric.load(60)
        try:
            same = consistent(fabric, flows, ways(fabric, flows))[0]
        except Mistake:  # of one flow, packets that went two ways: a time-out makes another hash
            same = 0
        assert same < 50
    finally:
        for switch in [n.name for n in fabric.plan.nodes.values() if n.level != clos.HOST]:
            fabric.set(switch, "ipv4/fib_multipath_hash_policy", "3")


@needs_root
@needs_seed
def test_with_one_seed_for_all_switches_half_of_the_links_are_idle(tmp_path: Path) -> None:
    with up(tmp_path, pods=2, tors=2, t1s=2, t2s=2, hosts=1) as made:
        for node in made.plan.nodes.values():
            if node.level != clos.HOST:
                made.set(node.name, "ipv4/fib_multipath_hash_seed", "7")
        way = ways(made, made.load(200))
        used = {link for nodes in way.values() for link in pairwise(nodes)}
        upward = {link for link in made.plan.directed() if made.plan.nodes[link[1]].level == clos.T2}
        assert len(used & upward) == len(upward) // 2


@needs_root
@needs_seed
def test_without_the_inbound_address_the_answer_does_not_name_the_link(fabric: Fabric) -> None:
    switches = [n.name for n in fabric.plan.nodes.values() if n.level != clos.HOST]
    for switch in switches:
        fabric.set(switch, "ipv4/icmp_errors_use_inbound_ifaddr", "0")
    try:
        flows = fabric.load(40)
        same, right = consistent(fabric, flows, ways(fabric, flows))
        assert same == 40
        assert right < 30
    finally:
        for switch in switches:
            fabric.set(switch, "ipv4/icmp_errors_use_inbound_ifaddr", "1")


# ---------------------------------------------------------------- the command


@needs_root
@needs_seed
def test_the_command_from_up_to_down(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    tool = "python3 examples/clos"

    def run(words: str, status: int = 0) -> list[str]:
        got, printed = shell.run(f"{tool} {words}")
        assert got == status, "\n".join(printed)
        return printed

    run("up clos.yaml --icmp 100")
    try:
        assert "take it down first" in run("up clos.yaml", 2)[0]
        run("drop clos.yaml tor1 agg1 1/20")
        assert "there is no link from 'tor1' to 'tor2'" in run("drop clos.yaml tor1 tor2 1/20", 2)[0]
        assert "'a lot' is not a share" in run("drop clos.yaml tor1 agg1 'a lot'", 2)[0]
        said = run("load clos.yaml --flows 100 --size 20k -w flows.tsv")
        sums = "confluo-query flows.tsv --agg 'count, sum(sent), sum(retrans), sum(dsack)' -T --no-header"
        count, sent, again, dsack = shell.run(sums)[1][0].split("\t")
        assert said == [f"{count} flows, {sent} packets; {again} sent again, {dsack} of them for nothing"]
        assert (count, int(again) > 5) == ("100", True)
        top = [line.split("\t") for line in run("counts clos.yaml")][2]
        assert top[:2] == ["tor1", "agg1"]
        assert int(top[3]) == int(top[2]) // 20
        run("forget clos.yaml")
        assert {line.split("\t")[3] for line in run("counts clos.yaml")[2:]} == {"0"}
        hosts = [f"h{i} tor{(i + 1) // 2}" for i in range(1, 9)]
        assert sorted(run("each clos.yaml -- sh -c 'echo $HOST $TOR'")) == hosts
        assert run("each clos.yaml -- sh -c 'test $HOST != h3'", 1) == []
        assert run("exec clos.yaml agg1 cat /proc/sys/net/ipv4/icmp_msgs_per_sec") == ["100"]
        assert "there is no 'spine'" in run("exec clos.yaml spine true", 2)[0]
    finally:
        run("down clos.yaml")
    assert "is not the file of a fabric that is up" in run("down clos.yaml", 2)[0]
    assert "pods: 0" in run("up clos.yaml --pods 0", 2)[0]


@needs_root
@needs_seed
def test_what_a_killed_tool_left_goes_by_its_file(tmp_path: Path) -> None:
    """SIGKILL in the midst of a load, with a command running on each host: down finds all of it, and only that."""
    name = f"k{os.getpid()}"
    tool = [sys.executable, str(ROOT / "examples" / "clos")]
    file = tmp_path / "clos.yaml"
    subprocess.run([*tool, "up", file, "--hosts", "1", "--name", name], check=True, stdout=subprocess.DEVNULL)
    spaces = {path.name for path in Path("/run/netns").iterdir() if path.name.startswith(f"lab-{name}-")}
    try:
        assert len(spaces) == 14
        words = [*tool, "load", file, "--flows", "20000", "--during", f"touch {tmp_path}/$HOST; sleep 1000"]
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_until(lambda: all((tmp_path / f"h{i}").exists() for i in range(1, 5)), "nothing begins")
        inside = subprocess.run(["ip", "netns", "pids", f"lab-{name}-h1"], capture_output=True, text=True, check=True)
        assert inside.stdout.split()
        child.send_signal(signal.SIGKILL)
        child.wait()
    finally:
        subprocess.run([*tool, "down", file], check=True)
    assert not [path for path in Path("/run/netns").iterdir() if path.name.startswith(f"lab-{name}-")]
    wait_until(lambda: not any(alive(pid) for pid in inside.stdout.split()), "a command of a host still runs")
    assert not Path("/run/confluo-lab", name).exists()


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@needs_root
@needs_seed
def test_a_fabric_that_cannot_be_finished_is_removed(tmp_path: Path) -> None:
    name = f"f{os.getpid()}"
    subprocess.run(["ip", "netns", "add", f"lab-{name}-core2"], check=True)
    try:
        shell = Shell(tmp_path)
        status, printed = shell.run(f"python3 examples/clos up clos.yaml --name {name}")
        assert (status, "is there already" in printed[0]) == (2, True)
        left = [path.name for path in Path("/run/netns").iterdir() if path.name.startswith(f"lab-{name}-")]
        assert left == [f"lab-{name}-core2"]
        status, printed = shell.run(f"python3 examples/clos up no/such/folder/clos.yaml --name {name}x")
        assert (status, "No such file" in printed[0]) == (2, True)
        assert not [path for path in Path("/run/netns").iterdir() if path.name.startswith(f"lab-{name}x-")]
    finally:
        subprocess.run(["ip", "netns", "del", f"lab-{name}-core2"], check=True)
