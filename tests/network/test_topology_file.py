"""One topology file for vote, trace and pingmesh; an older file means the same after conversion."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from confluo_tools.errors import FormatError
from confluo_tools.network.links_file import parse_links
from confluo_tools.network.node_numbers import read_number
from confluo_tools.network.topology import T1, TOR, Clos, Topology
from confluo_tools.network.topology_file import parse_network, read_fleet, read_network, read_topology
from confluo_tools.network.topology_writer import from_links, join, text_of
from sessions import Shell

ROOT = Path(__file__).resolve().parents[2]
HEAD = "topology: 1\n"
SMALL = (
    HEAD
    + """
switches:
  tor1: {level: tor, pod: p1, addresses: [10.9.1.1, 'fd09::1']}
  tor2: {pod: p2}
  agg: {level: t1, number: 7}
links: [[tor1, agg], [tor2, agg]]
dcs: {dc: {ps: {p1: {a: 10.0.1.1}, p2: {b: {address: 10.0.2.1, addresses: ['fd00::2']}, c: {number: 55}}}}}
"""
)


def write(folder: Path, text: str, name: str = "topology.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def manual() -> str:
    return (ROOT / "man" / "man5" / "confluo-topology.5").read_text().replace("\\-", "-")


def test_the_manual_s_file_has_the_parts_of_all_commands(tmp_path: Path) -> None:
    small, clos = re.findall(r"^\.EX\n(.*?)^\.EE", manual(), re.M | re.S)
    path = write(tmp_path, small)
    topology, fleet = read_topology(path), read_fleet(path)
    assert {topology.name(n): topology.level[n] for n in topology.switches} == {"tor1": TOR, "tor2": TOR, "agg1": T1}
    assert {topology.name(h): topology.name(t) for h, t in topology.tor_of.items()} == {
        "disk01": "tor1",
        "disk02": "tor1",
        "disk03": "tor2",
        "disk04": "tor2",
    }
    assert topology.node(0x0A090201) == 7
    assert [topology.name(topology.node(read_number(a) or 0)) for a in ("2001:db8::1", "fd00::3")] == ["tor1", "disk03"]
    assert fleet.pods.keys() == {"rack1", "rack2"}
    assert (fleet.server("disk04").port, fleet.server("disk04").active) == (9765, False)
    assert fleet.services["search"] == ("disk01", "disk02", "disk03")
    assert fleet.vips == {"search-vip": ("10.9.0.1", 443)}
    assert read_topology(write(tmp_path, clos)).clos == Clos(2, 20, 8, 10, 40)


@settings(max_examples=25, deadline=None)
@given(st.builds(Clos, *(st.integers(1, 4) for _ in range(5))))
def test_a_clos_has_a_server_for_each_host_below_the_tor_of_its_pod(clos: Clos) -> None:
    keys = f"podsets: {clos.pods}, tors: {clos.tors}, t1s: {clos.t1s}, t2s: {clos.t2s}, servers: {clos.hosts}"
    file = parse_network(f"{HEAD}clos: {{{keys}}}\n", "x")
    topology, fleet = file.topology(), file.fleet()
    assert topology.clos == clos
    assert {s.name for s in fleet.servers} == {topology.name(h) for h in topology.tor_of}
    tor_of_pod: dict[str, int] = {}
    for server in fleet.servers:
        host = topology.node(read_number(server.address) or 0)
        assert topology.name(host) == server.name
        assert tor_of_pod.setdefault(server.pod, topology.tor_of[host]) == topology.tor_of[host]
    assert sorted(tor_of_pod.values()) == topology.tors
    above = {pod: topology.neighbours[tor] for pod, tor in tor_of_pod.items()}
    for podset, pods in fleet.podsets.items():
        assert len({above[pod] for pod in pods}) == 1, podset
    assert parse_network(text_of(file), "x").topology() == topology


def same(a: Topology, b: Topology) -> None:
    """The same network: numbers, names, levels, ToRs, links, addresses."""
    assert {n: set(near) for n, near in a.neighbours.items()} == {n: set(near) for n, near in b.neighbours.items()}
    assert (a.level, a.tor_of, a.clos) == (b.level, b.tor_of, b.clos)
    nodes = [*a.neighbours, *a.tor_of]
    assert {n: a.name(n) for n in nodes} == {n: b.name(n) for n in nodes}
    assert {k: n for k, n in a.alias.items() if k != n} == {k: n for k, n in b.alias.items() if k != n}


def converted(text: str) -> Topology:
    written = text_of(from_links(*parse_links(text, "old"), "old"))
    assert written.startswith(HEAD)
    assert text_of(parse_network(written, "new")) == written
    return parse_network(written, "new").topology()


@pytest.mark.parametrize(
    "text",
    [
        (
            "switches: {a: {level: tor, addresses: [10.1.0.1, 'fd00::1']}, b: {number: 10.2.2.2}, 7: t1}\n"
            "links: [[a, '7'], [b, '7'], [d, '7']]\nhosts: {h1: a, 10.0.0.1: b}\n"
            "aliases: {'fd00::9': h1, 10.0.0.7: h1}\n"
        ),
        "1 3\n2 3\n10001->1\n10002->2\n0->2\n",
        "1 2\n10.0.0.5->1\n",
        "10.1.1.1 10.2.2.2\n10.0.0.5->10.1.1.1\n4 5\n6->4\n",
        "links: [[x, y], [y, z]]\n",
        (
            "switches: {tor of rack 1: tor, a-very-long-name-of-a-switch: tor, t: t1}\n"
            "links: [[tor of rack 1, t], [a-very-long-name-of-a-switch, t]]\n"
            "hosts: {pod-t: tor of rack 1, 10.0.0.1: a-very-long-name-of-a-switch}\n"
        ),
        "clos: {pods: 2, tors: 2, t1s: 2, t2s: 2, hosts: 2}\naliases: {10.9.0.1: tor-1-1, 10.8.0.1: host-1-1-1}\n",
    ],
)
def test_an_older_file_is_the_same_network_after_conversion(text: str) -> None:
    same(converted(text), parse_links(text, "old")[0] if "clos" not in text else expanded(text))


def expanded(text: str) -> Topology:
    topology = parse_links(text, "old")[0]
    topology.clos = None  # addresses of hosts: it is written part by part
    return topology


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)).filter(lambda link: link[0] != link[1]), min_size=1),
    st.dictionaries(st.integers(100, 130), st.integers(1, 9)),
)
@settings(max_examples=100, deadline=None)
def test_any_list_of_links_is_the_same_network_after_conversion(
    links: list[tuple[int, int]], hosts: dict[int, int]
) -> None:
    text = "".join([*(f"{a} {b}\n" for a, b in links), *(f"{h}->{t}\n" for h, t in hosts.items())])
    same(converted(text), parse_links(text, "old")[0])


def test_an_older_clos_keeps_its_parameters(tmp_path: Path) -> None:
    old = "clos: {pods: 2, tors: 2, t1s: 2, t2s: 2, hosts: 2}\naliases: {10.9.0.1: tor-1-1}\n"
    text = text_of(read_network(write(tmp_path, old)))
    assert text == (
        HEAD
        + "clos: {podsets: 2, tors: 2, t1s: 2, t2s: 2, servers: 2}\nswitches:\n  tor-1-1: {addresses: [10.9.0.1]}\n"
    )
    new = read_topology(write(tmp_path, text))
    assert new.name(new.node(0x0A090001)) == "tor-1-1"


@pytest.mark.parametrize("name", ["topology.yaml", "grid.yaml", "loopback.yaml"])
def test_an_older_fleet_is_the_same_after_conversion(tmp_path: Path, name: str) -> None:
    path = ROOT / "examples" / "pingmesh" / name
    text = text_of(read_network(str(path)))
    assert text.startswith(HEAD)
    assert read_fleet(write(tmp_path, text)) == read_fleet(str(path))


def test_what_a_command_needs_and_a_file_lacks(tmp_path: Path) -> None:
    links = "1 2\n10.0.0.1->1\n"
    for text in ("dcs: {a: {b: {c: {d: 10.0.0.1}}}}\n", "grid: {dcs: 1, podsets: 1, pods: 1, servers: 1}\n"):
        for head in ("", HEAD):
            path = write(tmp_path, head + text)
            with pytest.raises(FormatError) as caught:
                read_topology(path, "confluo-trace")
            assert str(caught.value) == (
                f"{path}: has no links; confluo-trace needs switches and links ('clos', or 'switches' and 'links')"
            )
    new = text_of(from_links(*parse_links("links: [[a, b]]\n", "old"), "old"))
    for text in (links, "links: [[a, b]]\nhosts: {h: a}\n", new):
        path = write(tmp_path, text)
        with pytest.raises(FormatError) as caught:
            read_fleet(path)
        assert str(caught.value) == f"{path}: has no servers; confluo-pingmesh needs the servers of each pod ('dcs')"
    path = write(tmp_path, SMALL)
    with pytest.raises(FormatError) as caught:
        read_fleet(path)
    assert str(caught.value) == f"{path}: server 'c' has no address; confluo-pingmesh needs one"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("links: [[a, b]]\ndcs: {}\n", "is not of format 1; begin the file with 'topology: 1'"),
        ("topology: 2\nlinks: [[a, b]]\n", "topology of format '2'; this version reads 1"),
        (HEAD + "hosts: {a: b}\n", "unknown key 'hosts'; the keys are buffer, clos, dcs, fat_tree, grid, link,"),
        (
            HEAD + "clos: {pods: 2, tors: 2, t1s: 2, t2s: 2, hosts: 2}\n",
            "'clos' is invalid; its keys are podsets, tors",
        ),
        (HEAD + "clos: {podsets: 2, tors: 2, t1s: 2, t2s: 2, servers: 0}\n", "servers of clos is not a number from 1"),
        (HEAD + "clos: {podsets: 9999, tors: 999, t1s: 2, t2s: 2, servers: 9}\n", "has more than 2097152 nodes"),
        (HEAD + "clos: {podsets: 2, tors: 2, t1s: 2, t2s: 2, servers: 2}\nlinks: []\n", "'clos' and 'links' exclude"),
        (HEAD + "clos: {podsets: 2, tors: 2, t1s: 2, t2s: 2, servers: 2}\nswitches: {x: }\n", "'x' is not a switch of"),
        (
            HEAD + "clos: {podsets: 2, tors: 2, t1s: 2, t2s: 2, servers: 2}\nswitches: {t2-1: {number: 5}}\n",
            "only its addresses and its buffer can be given with 'clos'",
        ),
        (HEAD + "switches: {a: {level: leaf}}\n", "switch 'a' has the unknown level 'leaf'; tor, t1 or t2"),
        (HEAD + "switches: {a: {level: t1, pod: p}}\n", "switch 'a' has a pod, but its level is t1"),
        (HEAD + "switches: {a: {pod: p}}\nlinks: [[a, b]]\n", "switch 'a' has pod 'p', which is not in dcs"),
        (
            HEAD + "switches: {a: {pod: p}, b: {pod: p}}\ndcs: {d: {s: {p: {x: 10.0.0.1}}}}\n",
            "pod 'p' has two ToRs, 'a' and 'b'",
        ),
        (HEAD + "links: [[a, x]]\ndcs: {d: {s: {p: {x: 10.0.0.1}}}}\n", "'x' is a switch and a server; links join"),
        (
            HEAD + "switches: {a: {addresses: 10.0.0.1}}\nlinks: [[a, b]]\ndcs: {d: {s: {p: {x: 10.0.0.1}}}}\n",
            "two nodes have the address 10.0.0.1",
        ),
        (HEAD + "links: [[a, b]]\ndcs: {d: {s: {p: {x: 10.0.0.1}, q: {x: 10.0.0.2}}}}\n", "name of two servers"),
        (HEAD + "switches: {a: {addresses: [7]}}\nlinks: [[a, b]]\n", "'7' of 'a' is not an address"),
        (HEAD + "switches: {a: {number: x}}\nlinks: [[a, b]]\n", "number 'x' of 'a' is neither below 16777216 nor"),
        (HEAD + "links: [[a, b]]\nlinks: []\n", ":3: 'links' occurs twice"),
        (HEAD + "links: [[a, a]]\n", "links 'a' with itself"),
        (HEAD + "links: [a]\n", "'a' is not a link; write [a, b]"),
        (HEAD + "links: a\n", "links is not a list"),
        (HEAD + "links: [[a, [b]]]\n", "has a list or a mapping where a name"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(FormatError) as caught:
        read_topology(path)
    assert str(caught.value).startswith(path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@example("\n 0")
@given(st.text(alphabet="abc 0123456789->:[]{},\n#.", max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    complaint = ""
    for take in ("topology", "fleet"):
        try:
            getattr(parse_network(HEAD + text, "x"), take)()
        except FormatError as e:
            complaint += str(e)
    assert "\n" not in complaint


# ---------------------------------------------------------------- two files, and the command

LINKS = (
    "switches: {t: {level: tor}, u: {level: tor}, s: t1}\nlinks: [[t, s], [u, s]]\nhosts: {10.0.1.1: t, 10.0.2.1: u}\n"
)
FLEET = "port: 99\ndcs: {dc: {ps: {p1: {a: 10.0.1.1}, p2: {b: 10.0.2.1, c: 10.0.2.9}}}}\nservices: {web: [p2]}\n"


def test_switches_of_one_file_and_servers_of_another(tmp_path: Path) -> None:
    links, servers = write(tmp_path, LINKS, "links.yaml"), write(tmp_path, FLEET, "fleet.yaml")
    file, lost = join(read_network(links), read_network(servers))
    assert lost == 1
    topology, fleet = file.topology(), file.fleet()
    assert {topology.name(h): topology.name(t) for h, t in topology.tor_of.items()} == {"a": "t", "b": "u", "c": "u"}
    assert topology.level[file.topology().neighbours[topology.tor_of[0x0A000101]][0]] == T1
    assert fleet == read_fleet(servers)
    assert parse_network(text_of(file), "x").topology() == topology


def test_the_command_converts_and_joins(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    write(tmp_path, LINKS, "links.yaml")
    write(tmp_path, FLEET, "fleet.yaml")
    status, printed = shell.run("confluo-topology links.yaml fleet.yaml -w one.yaml --stats")
    assert (status, printed) == (
        0,
        [
            "confluo-topology: 1 servers of fleet.yaml have no ToR: links.yaml has no host with their address",
            "confluo-topology: 3 switches, 2 links between them, 2 pods, 3 servers",
        ],
    )
    for command in ("confluo-vote bound --topology one.yaml", "confluo-pingmesh plan one.yaml -T"):
        assert shell.run(command)[0] == 0
    assert shell.run("confluo-topology one.yaml") == shell.run("cat one.yaml")
    assert shell.run("confluo-topology - <one.yaml") == shell.run("cat one.yaml")
    assert shell.run("confluo-topology links.yaml -w one.yaml")[0] == 2
    assert shell.run("confluo-topology links.yaml -w one.yaml --force")[0] == 0
    write(tmp_path, FLEET.replace("10.0.2.1", "10.0.1.9").replace("10.0.1.1", "10.0.7.7"), "fleet.yaml")
    assert shell.run("confluo-topology links.yaml fleet.yaml") == (
        2,
        [
            (
                "confluo-topology: links.yaml: has none of the servers of fleet.yaml; "
                "servers and hosts are compared by address"
            )
        ],
    )
    write(tmp_path, "dcs: {dc: {ps: {p1: {a: 10.0.1.1, b: 10.0.2.1}}}}\n", "fleet.yaml")
    assert shell.run("confluo-topology links.yaml fleet.yaml") == (
        2,
        ["confluo-topology: fleet.yaml: pod 'p1' has servers below 't' and 'u'"],
    )


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".xz"])
def test_no_command_writes_compressed_yaml(tmp_path: Path, suffix: str) -> None:
    """None could read it."""
    shell, name = Shell(tmp_path), f"x.yaml{suffix}"
    (tmp_path / "links.txt").write_text("1 2\n")
    for words in (
        f"confluo-topology links.txt -w {name}",
        f"confluo-snapshot none.ml -w {name}",
        f"confluo-vote simulate --epochs 1 --write-topology {name}",
    ):
        command = " ".join(words.split()[: 2 if "vote" in words else 1])
        assert shell.run(words) == (2, [f"{command}: {name}: YAML is not compressed; leave {suffix} out"])
        assert not (tmp_path / name).exists()


def test_one_clos_file_for_all_commands(tmp_path: Path) -> None:
    """The link that fails is found with the file that also plans who probes whom."""
    shell = Shell(tmp_path)
    write(tmp_path, f"{HEAD}clos: {{podsets: 2, tors: 4, t1s: 3, t2s: 2, servers: 5}}\n", "one.yaml")
    simulate = "confluo-vote simulate --topology one.yaml --fail tor-1-2:t1-1-3=2% -o stream"
    status, printed = shell.run(f"{simulate} | confluo-vote - --topology one.yaml -T -f link_a,link_b --top 1")
    assert (status, printed[-1]) == (0, "tor-1-2\tt1-1-3")
    status, printed = shell.run("confluo-pingmesh plan one.yaml -T -f src,dst,level --no-header")
    assert status == 0
    assert "host-1-1-1\thost-1-1-2\tpod" in printed
    assert "host-1-1-1\thost-2-4-1\tdc" in printed
    assert shell.run("confluo-pingmesh simulate --topology one.yaml --span 20s -w probes.ml -q")[0] == 0
    record = (
        '{"kind": "flow", "ip_version": 4, "src_ip": "10.0.0.1", "dst_ip": "10.0.4.1", "sent": 9, "lost": 2, '
        '"hops": 5, "path": [1, 9, 15, 12, 5]}'
    )
    (tmp_path / "paths.ndjson").write_text(record + "\n")
    status, printed = shell.run(
        "confluo-vote paths.ndjson -i ndjson --topology one.yaml --floor 0 --adjust none "
        "-T -f link_a,link_b --no-header"
    )
    assert status == 0
    assert "host-1-1-1\ttor-1-1" in printed  # servers of confluo-pingmesh are hosts of confluo-vote
    assert "t2-1\tt1-2-1" in printed
