"""Topology files of Pingmesh: what is read, and what is refused in one line."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.errors import FormatError
from confluo_tools.network.addresses import address_port, canonical
from confluo_tools.network.fleet import Fleet, FleetServer, make_fleet, make_grid
from confluo_tools.network.topology_file import parse_fleet, read_fleet

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "pingmesh" / "topology.yaml"


def parsed(text: str) -> Fleet:
    return parse_fleet(text.encode(), "t.yaml")


def test_the_example() -> None:
    fleet = read_fleet(str(EXAMPLE))
    assert len(fleet.servers) == 17
    assert fleet.dcs == {"east": ("storage", "search"), "west": ("mixed",)}
    assert fleet.podsets["storage"] == ("rack1", "rack2")
    assert [s.name for s in fleet.pods["rack4"]] == ["web04", "web05", "web06"]
    assert fleet.server("web05") == FleetServer("web05", "10.1.4.2", 8765, "rack4", "search", "east", False)
    assert fleet.server("web06").port == 9765
    assert fleet.at("fd00:2:5::3") is fleet.server("web09")
    assert fleet.at("10.0.0.1") is None
    assert fleet.services["storage"] == tuple(f"disk{i:02}" for i in range(1, 9))
    assert fleet.services_of()["web08"] == ("search",)
    assert fleet.vips == {"search-vip": ("10.9.0.1", 443)}
    assert "web05" in fleet
    assert "rack4" not in fleet


def test_a_grid_has_what_it_says() -> None:
    fleet = make_grid(2, 3, 4, 5)
    assert len(fleet.servers) == 2 * 3 * 4 * 5
    assert len(fleet.pods) == 24
    assert list(fleet.dc_of.items())[:4] == [("ps01", "dc1"), ("ps02", "dc1"), ("ps03", "dc1"), ("ps04", "dc2")]
    assert fleet.servers[0] == FleetServer("p001s01", "10.0.0.1", 8765, "p001", "ps01", "dc1")
    assert fleet.servers[-1] == FleetServer("p024s05", "10.0.23.5", 8765, "p024", "ps06", "dc2")
    # it keeps the rules that all others have to keep
    assert make_fleet(fleet.servers) == fleet


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 1, 300), (1, 2, 300, 250), (3, 7, 11, 13)])
def test_addresses_of_a_grid_are_good_and_there_once(shape: tuple[int, int, int, int]) -> None:
    fleet = make_grid(*shape)
    seen = {ipaddress.ip_address(s.address) for s in fleet.servers}
    assert len(seen) == len(fleet.servers)
    assert all(a in ipaddress.ip_network("10.0.0.0/8") for a in seen)
    assert all(str(ipaddress.ip_address(s.address)) == s.address for s in fleet.servers)
    assert len({s.name for s in fleet.servers} | set(fleet.pods)) == len(fleet.servers) + len(fleet.pods)


def test_words_are_taken_as_they_are_written() -> None:
    fleet = parsed("dcs: {on: {1.10: {017: {no: 10.0.0.1, null: 10.0.0.2, 0x1f: 10.0.0.3}}}}")
    assert [s.name for s in fleet.servers] == ["no", "null", "0x1f"]
    assert (fleet.servers[0].pod, fleet.servers[0].podset, fleet.servers[0].dc) == ("017", "1.10", "on")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.yaml: is not a topology; confluo-topology(5)"),
        ("[1]", "is not a topology"),
        ("dcs: {}", "t.yaml: has no servers"),
        ("dcs: {}\ngrid: {dcs: 1}", "'grid' and 'dcs' exclude each other"),
        (
            "dcs: {a: {b: {c: {d: 10.0.0.1}}}}\nmore: 1",
            "t.yaml: unknown key 'more'; the keys are buffer, clos, dcs, fat_tree, grid",
        ),
        ("dcs: {a: {b: {c: {}}}}", "pod 'c' has no servers"),
        ("dcs: {a: {b: {c: }}}", "pod 'c' has no servers"),
        ("dcs: {a: {b: {}}}", "podset 'b' has no pods"),
        ("dcs: {a: {}}", "data centre 'a' has no podsets"),
        ("dcs: {a: {b: {c: [d]}}}", "pod 'c' is not a mapping"),
        ("dcs: {a: {b: {c: {d: 10.0.0.1, e: 10.0.0.1}}}}", "servers 'd' and 'e' have the same address 10.0.0.1"),
        ("dcs: {a: {b: {c: {d: 'fd00::1', e: 'FD00:0::1'}}}}", "servers 'd' and 'e' have the same address fd00::1"),
        (
            "dcs: {a: {b: {c: {d: 10.0.0.1, e: '::ffff:10.0.0.1'}}}}",
            "servers 'd' and 'e' have the same address 10.0.0.1",
        ),
        ("dcs:\n a:\n  b:\n   c: {d: 10.0.0.1}\n   c: {e: 10.0.0.2}", "t.yaml:5: 'c' occurs twice"),
        ("dcs: {a: {b: {c: {d: 10.0.0.1}, e: {d: 10.0.0.2}}}}", "'d' is the name of two servers"),
        ("dcs: {a: {b: {c: {d: 10.0.0.1}}}, e: {b: {f: {g: 10.0.0.2}}}}", "podset 'b' is in data centres 'a' and 'e'"),
        ("dcs: {a: {b: {c: {d: 10.0.0.1}}, e: {c: {f: 10.0.0.2}}}}", "pod 'c' is in podsets 'b' and 'e'"),
        ("dcs: {a: {b: {c: {a: 10.0.0.1}}}}", "'a' is the name of a "),
        ("dcs: {a: {b: {c: {d: example.org}}}}", "server 'd' has no address: 'example.org' is not a host address"),
        (
            "dcs: {a: {b: {c: {d: }}}}",
            "server 'd' has no address; write 10.0.0.1 or 'fd00::1'; names are not looked up",
        ),
        ("dcs:\n a: [1}", "t.yaml:2: is not YAML: did not find expected ',' or ']'"),
        ("dcs: {a: {b: {c: {d: 10.0.0.300}}}}", "server 'd' has no address"),
        ("dcs: {a: {b: {c: {d: 224.0.0.1}}}}", "server 'd' has no address"),
        ("dcs: {a: {b: {c: {d: 'ff02::1'}}}}", "server 'd' has no address"),
        ("dcs: {a: {b: {c: {d: 'fe80::1'}}}}", "server 'd' has no address"),
        ("dcs: {a: {b: {c: {d: 0.0.0.0}}}}", "server 'd' has no address"),
        ("dcs: {a: {b: {c: {d: '10.0.0.1:0'}}}}", "server 'd' has no address"),
        (
            "dcs: {a: {b: {c: {d: {address: 10.0.0.1, port: 70000}}}}}",
            "port of server 'd' is not a number from 1 to 65535",
        ),
        ("dcs: {a: {b: {c: {d: {address: 10.0.0.1, active: maybe}}}}}", "active of server 'd' is neither"),
        ("dcs: {a: {b: {c: {d: {adress: 10.0.0.1}}}}}", "server 'd' is invalid"),
        ("dcs: {a: {b: {c: {../../etc/passwd: 10.0.0.1}}}}", "'../../etc/passwd' is not a valid name of a server"),
        ("dcs: {a: {b: {c: {d.sig: 10.0.0.1}}}}", "'d.sig' is not a valid name of a server: it ends with .sig"),
        ("dcs: {a: {b: {c: {" + "d" * 33 + ": 10.0.0.1}}}}", "is not a valid name of a server: up to 32"),
        ("dcs: {a: {b: {" + "c" * 17 + ": {d: 10.0.0.1}}}}", "is not a valid name of a pod: up to 16"),
        ("dcs: {a: {b: {c: {d: 10.0.0.1}}}}\nport: 0", "port is not a number from 1 to 65535"),
        ("dcs: {a: {b: {c: {d: 10.0.0.1}}}}\nservices: {s: [x]}", "service 's' has 'x', which is not a server, pod"),
        ("dcs: {a: {b: {c: {d: 10.0.0.1}}}}\nservices: {s: []}", "service 's' has no servers"),
        ("dcs: {a: {b: {c: {d: 10.0.0.1}}}}\nvips: {v: 10.0.0.2}", "vip 'v' has no address and port"),
        ("dcs: {a: {b: {c: {d: 10.0.0.1}}}}\nvips: {v: '10.0.0.1:80'}", "vip 'v' has the address of server 'd'"),
        ("dcs: {a: {b: {c: {d: 10.0.0.1}}}}\nvips: {d: '10.0.0.2:80'}", "'d' is the name of a server and a vip"),
        (
            "dcs: {a: {b: {c: {d: 10.0.0.1}}}}\nvips: {v: '10.0.0.2:80', w: '10.0.0.2:80'}",
            "two vips have the same address",
        ),
        ("grid: {dcs: 1, podsets: 1, pods: 1}", "'grid' is invalid; its keys are dcs, podsets, pods, servers"),
        ("grid: {dcs: 1, podsets: 1, pods: 1, servers: 0}", "servers of grid is not a number from 1"),
        ("grid: {dcs: 1, podsets: 1, pods: 1, servers: 1e9}", "servers of grid is not a number from 1"),
        ("grid: {dcs: 1000, podsets: 1000, pods: 1000, servers: 1000}", "a grid has from 1 to 1048576 servers"),
        ("dcs: {a: {b: {c: {d: 10.0.0.1", "is not YAML"),
        ("a: &a [*a]", "is not "),
        ("[" * 5000, "is not YAML"),
        ("dcs: {<<: {a: 1}}", "contains a merge key"),
        ("x: &x {y: 1}\n? *x\n: 1", "is not "),
    ],
)
def test_what_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(FormatError) as error:
        parsed(text)
    line = str(error.value)
    assert line.startswith("t.yaml:")
    assert said in line
    assert "\n" not in line


def test_files_that_are_none(tmp_path: Path) -> None:
    for make in (lambda p: None, lambda p: p.mkdir(), lambda p: p.write_bytes(b"\xff\xfe\0")):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        make(path)
        with pytest.raises(FormatError, match=str(path)):
            read_fleet(str(path))


@given(st.ip_addresses())
def test_addresses_as_another_program_writes_them(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    mapped = getattr(address, "ipv4_mapped", None)
    bare = mapped or address
    bad = bare.is_multicast or bare.is_unspecified or (bare.version == 4 and int(bare) < 1 << 24)
    bad = bad or (bare.version == 4 and int(bare) >= 224 << 24) or (bare.version == 6 and bare.is_link_local)
    assert canonical(str(address)) == (None if bad else str(bare))


@given(st.ip_addresses(v=6).filter(lambda a: canonical(str(a)) is not None), st.integers(1, 65535))
def test_addresses_with_ports(address: ipaddress.IPv6Address, port: int) -> None:
    assert address_port(f"[{address}]:{port}", 5) == (canonical(str(address)), port)
    assert address_port(str(address), 5) == (canonical(str(address)), 5)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_garbage_is_a_fleet_or_one_line(data: bytes) -> None:
    said = ""
    try:
        parse_fleet(data, "t.yaml")
    except FormatError as error:
        said = str(error)
    assert "\n" not in said
