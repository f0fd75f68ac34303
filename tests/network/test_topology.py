"""Topologies: files of three kinds, ECMP shares against the enumeration of all paths, the Clos of the paper."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import make_flock
from confluo_tools.errors import FormatError
from confluo_tools.network.topology import T1, T2, TOR, ZERO, Clos, Topology, as_clos, make_clos, make_topology
from confluo_tools.network.topology_file import read_topology
from confluo_tools.network.traceroute_rate import trace_rate
from confluo_tools.schema import fold6

ROOT = Path(__file__).resolve().parents[2]
FAT_TREE = Path(os.environ.get("CONFLUO_TEST_DATA", ROOT.parent / "shared")) / "traces" / "fat-tree"
PAPER = Clos(2, 20, 8, 10, 40)


BOMB = "x0: &x0 [a, b]\n" + "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 10))


def write(folder: Path, text: str) -> str:
    path = folder / "topology"
    path.write_text(text)
    return str(path)


def test_the_paper_s_network_has_4160_links() -> None:
    topology = make_clos(PAPER)
    links = topology.links()
    assert len(links) == len(set(links)) == PAPER.links == 4160
    kinds = Counter((topology.level[a], topology.level[b]) for a, b in links)
    assert kinds == {(0, 1): 1600, (1, 0): 1600, (1, 2): 320, (2, 1): 320, (2, 3): 160, (3, 2): 160}
    assert all((b, a) in set(links) for a, b in links[:100])
    assert len(set(topology.names.values())) == len(topology.names) == 1600 + 40 + 16 + 10


def test_shares_in_the_paper_s_network() -> None:
    topology = make_clos(PAPER)
    near = topology.shares(PAPER.tor(0, 0), PAPER.tor(0, 1))
    assert len(near) == 16
    assert all(share == 1 / 8 for share in near.values())
    far = topology.shares(PAPER.tor(0, 0), PAPER.tor(1, 5))
    assert {round(share, 12) for share in far.values()} == {1 / 8, 1 / 80}
    assert far[(PAPER.tor(0, 0), PAPER.t1(0, 3))] == 1 / 8
    assert far[(PAPER.t2(9), PAPER.t1(1, 7))] == pytest.approx(1 / 80)
    assert topology.shares(1, 1) == {}
    assert topology.visits(1, 1) == {1: 1.0}
    assert len(list(topology.paths(PAPER.tor(0, 0), PAPER.tor(1, 0)))) == 8 * 10 * 8


@st.composite
def graphs(draw: st.DrawFn) -> Topology:
    """Any graph of a few switches, also in several pieces, every second switch with hosts."""
    n = draw(st.integers(2, 9))
    links = draw(
        st.lists(
            st.tuples(st.integers(1, n), st.integers(1, n)).filter(lambda link: link[0] != link[1]),
            min_size=1,
            max_size=20,
        )
    )
    return make_topology(links, {100 + tor: tor for tor in range(1, n + 1, 2)})


@settings(max_examples=200, deadline=None)
@given(graphs(), st.data())
def test_shares_are_those_of_walks_along_shortest_paths(topology: Topology, data: st.DataObject) -> None:
    src, dst = (data.draw(st.sampled_from(topology.switches)) for _ in range(2))
    paths = list(topology.paths(src, dst))
    expected: Counter[tuple[int, int]] = Counter()
    for path in paths:
        share = Fraction(1)
        for i in range(len(path) - 1):
            share /= len({p[i + 1] for p in paths if p[: i + 1] == path[: i + 1]})  # next hops there
        for link in pairwise(path):
            expected[link] += share  # type: ignore[assignment]
    assert topology.shares(src, dst) == pytest.approx({link: float(share) for link, share in expected.items()})
    crossed = {link for path in paths for link in pairwise(path)}
    assert crossed == {
        (a, b) for a in topology.switches for b in topology.neighbours[a] if topology.on_the_way(src, a, b, dst)
    }
    assert len({len(p) for p in paths}) <= 1
    assert len(set(paths)) == len(paths)
    visits: Counter[int] = Counter()
    for (a, _), share in expected.items():
        visits[a] += share  # type: ignore[assignment]
    if paths:
        visits[dst] = 1
    assert topology.visits(src, dst) == pytest.approx({n: float(share) for n, share in visits.items()})


@given(st.builds(Clos, *(st.integers(1, 4) for _ in range(5))))
@settings(max_examples=50, deadline=None)
def test_a_clos_is_recognized_without_its_parameters(clos: Clos) -> None:
    topology = dataclasses.replace(make_clos(clos), clos=None)
    found = as_clos(topology)
    assert found == clos
    a = next(iter(topology.neighbours))
    b = topology.neighbours[a][0]
    if len(topology.neighbours[a]) > 1:
        topology.neighbours[a] = topology.neighbours[a][1:]
        topology.neighbours[b] = tuple(n for n in topology.neighbours[b] if n != a)
        assert as_clos(topology) is None or clos.tors == 1  # a pod of one ToR with fewer T1s: pods differ


def test_leaf_and_spine_without_t2_are_not_a_clos() -> None:
    topology = make_topology([(1, 3), (2, 3)], {100: 1, 101: 2})
    assert as_clos(topology) is None
    assert trace_rate(topology) == 50  # each ToR answers for both directions


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("whose", ["made", "others"] if FAT_TREE.exists() else ["made"])
def test_the_edge_list_of_a_fat_tree(whose: str, tmp_path: Path) -> None:
    path = FAT_TREE / "topology.edgelist"
    if whose == "made":
        path = tmp_path / "topology.edgelist"
        path.write_text(make_flock.edge_list())
    topology = read_topology(str(path))
    assert (len(topology.switches), len(topology.tor_of), len(topology.links())) == (125, 750, 2500)
    assert Counter(topology.level[n] for n in topology.switches) == {TOR: 50, T1: 50, T2: 25}
    assert topology.names[ZERO] == "0"  # 0 would say that a hop did not answer
    assert as_clos(topology) is None  # a fat tree: a T1 has links with some T2s only
    far = {len(next(topology.paths(1, tor))) for tor in topology.tors}
    assert far == {1, 3, 5}


def test_parameters_in_yaml(tmp_path: Path) -> None:
    text = "clos: {pods: 2, tors: 20, t1s: 8, t2s: 10, hosts: 40}\naliases: {10.9.0.1: tor-2-20}\n"
    topology = read_topology(write(tmp_path, text))
    assert topology.clos == PAPER
    assert topology.name(topology.node(0x0A090001)) == "tor-2-20"


def test_parts_in_yaml(tmp_path: Path) -> None:
    topology = read_topology(
        write(
            tmp_path,
            """
switches:
  leaf1: {level: tor, addresses: [10.1.0.1, "2001:db8::1"]}
  leaf2: {level: tor}
  192.0.2.1: {level: t2}
links: [[leaf1, 192.0.2.1], [192.0.2.1, leaf2]]
hosts: {10.0.1.1: leaf1, 10.0.2.1: leaf2}
aliases: {10.1.0.9: leaf2}
""",
        )
    )
    leaf1, leaf2 = topology.tor_of[0x0A000101], topology.tor_of[0x0A000201]
    assert [topology.name(n) for n in (leaf1, leaf2, 0xC0000201, 0x0A000101)] == [
        "leaf1",
        "leaf2",
        "192.0.2.1",
        "10.0.1.1",
    ]
    assert list(topology.paths(leaf1, leaf2)) == [(leaf1, 0xC0000201, leaf2)]
    assert topology.level[0xC0000201] == T2
    assert topology.node(0x0A010001) == leaf1
    assert topology.node(0x0A010009) == leaf2
    assert sorted(topology.alias.values()) == sorted([leaf1, leaf1, leaf2])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "describes no network; confluo-topology(5)"),
        ("# nothing\n", "describes no network"),
        ("1 2\n3\n", ":2: '3' is not a link; write 'a b'"),
        ("1 2\na b\n", ":2: 'a' is neither a number nor an address"),
        ("1 2\n3 99999999\n", ":2: '99999999' is neither"),
        ("1 2\n5 5\n", ":2: links a node with itself"),
        ("1 2\n100->1\n100->2\n", ":3: host 100 has two ToRs"),
        ("1 2\n1->2\n", "'1' is a host and a switch"),
        ("clos: {pods: 2}\n", "the Clos is invalid; it has pods, tors, t1s, t2s, hosts"),
        ("clos: {pods: 2, tors: 20, t1s: 8, t2s: 10, hosts: 0}\n", "hosts is not a number from 1 to"),
        ("clos: {pods: true, tors: 20, t1s: 8, t2s: 10, hosts: 4}\n", "pods is not a number from 1 to"),
        ("clos: {pods: 2000000, tors: 200000, t1s: 8, t2s: 10, hosts: 40}\n", "has more than 2097152 nodes"),
        (
            "clos: {pods: 2, tors: 2, t1s: 2, t2s: 2, hosts: 2}\nlinks: []\n",
            "'clos' excludes switches, links and hosts",
        ),
        (
            "clos: {pods: 2, tors: 2, t1s: 2, t2s: 2, hosts: 2}\naliases: {10.0.0.1: who}\n",
            "of 'who', which is unknown",
        ),
        ("nodes: [a, b]\n", "is not a topology; it has the keys"),
        ("links: [a, b]\n", "'a' is not a link; write [a, b]"),
        ("links: {a: b}\n", "'links' is not a list"),
        ("links: [[a, a]]\n", "links 'a' with itself"),
        ("hosts: []\n", "'hosts' is not a mapping"),
        ("links: [[a, b]]\nhosts: {a: b}\n", "'a' is a host and a switch"),
        ("switches: {a: {level: 7}}\nlinks: [[a, b]]\n", "switch 'a' has an unknown level"),
        ("switches: {a: {colour: red}}\nlinks: [[a, b]]\n", "switch 'a' is invalid"),
        ("switches: {a: {number: 7}, b: {number: 7}}\nlinks: [[a, b]]\n", "'b' and 'a' have the same number 7"),
        ("switches: {a: {addresses: 7}}\nlinks: [[a, b]]\n", "'7' is not an address"),
        ("links: [[a, b]\n", "is not YAML"),
        ("links: !!python/object:os.system [x]\n", "is not YAML"),
        ("[" * 3000, "is not"),
        ("links: [[a, [b]]]\n", "has a list, a mapping or nothing where a name is expected"),
        ("links: [{a: b}]\n", "one of the links is not a link; write [a, b]"),
        ("links: [[a, b]]\nhosts: {c: }\n", "has a list, a mapping or nothing"),
        ("links: [[a, b]]\naliases: {10.0.0.1: [a]}\n", "has a list, a mapping or nothing"),
        ("switches: {a: {addresses: [{b: c}]}}\nlinks: [[a, b]]\n", "has a list, a mapping or nothing"),
        (BOMB + "links: [[a, *x9]]\n", "contains an anchor or alias"),
        (
            "links: [&x0 [a, b], " + ", ".join(f"&x{i} [*x{i - 1}, *x{i - 1}]" for i in range(1, 99)) + "]\n",
            "contains an anchor",
        ),
        ("links: &l [[a, b], *l]\n", "contains an anchor"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(FormatError) as caught:
        read_topology(path)
    assert str(caught.value).startswith(path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_that_are_written_as_addresses(tmp_path: Path) -> None:
    topology = read_topology(write(tmp_path, "1 2\n0.0.39.16->1\n2001:db8::7 2\n10.1.2.3 2\n"))
    assert topology.tor_of == {10000: 1}
    assert sorted(topology.neighbours[2]) == sorted([1, 0x0A010203, fold6(bytes.fromhex("20010db8" + "0" * 23 + "7"))])
    assert {"2001:db8::7", "0.0.39.16"} <= set(topology.names.values())


def test_the_manual_s_files_are_read(tmp_path: Path) -> None:
    page = (ROOT / "man" / "man5" / "confluo-topology.5").read_text().replace("\\-", "-")
    parts, clos, edges = (
        read_topology(write(tmp_path, block)) for block in re.findall(r"^\.nf\n(.*?)^\.fi", page, re.M | re.S)
    )
    assert clos.clos == PAPER
    assert {"tor-1-2", "t1-1-2", "t2-3", "host-1-2-40"} <= set(clos.names.values())
    leaf1, spine = parts.tor_of[0x0A000101], 7
    assert parts.neighbours[leaf1] == (spine,)
    assert [parts.name(parts.node(n)) for n in (0x0A010003, 0x0A090909)] == ["leaf1", "spine"]
    assert edges.tor_of == {10001: 1, 10002: 2}
    assert edges.level[3] == T1


def test_what_is_no_file_of_text(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="No such file"):
        read_topology(str(tmp_path / "none"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="is not text"):
        read_topology(str(tmp_path / "bytes"))


@given(st.text(alphabet="abc 0123456789->:[]{},\n#.", max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_text(text)
    complaint = ""
    try:
        assert read_topology(str(path)).switches
    except FormatError as e:
        complaint = str(e)
    assert "\n" not in complaint
