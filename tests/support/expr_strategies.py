"""Random rows and random expressions over them, for hypothesis."""

from __future__ import annotations

import ipaddress
import math
import struct
from functools import cache
from random import Random
from typing import Any

from hypothesis import strategies as st

from confluo_tools.schema import Field, Schema, builtin, fold6

Row = dict[str, Any]
PACKET = builtin("packet")

# A schema with every type, and an `ip` without a version field.
ODD = Schema(
    "odd",
    [
        Field("at", "time"),
        Field("a8", "u8"),
        Field("a16", "u16"),
        Field("a32", "u32", unit="B"),
        Field("a64", "u64"),
        Field("s8", "i8"),
        Field("s16", "i16"),
        Field("s32", "i32"),
        Field("s64", "i64"),
        Field("half", "f32"),
        Field("real", "f64"),
        Field("old", "ipv4"),
        Field("peer", "ip"),
        Field("hw", "mac"),
        Field("took", "duration"),
        Field("kind", "enum", names={1: "probe", 2: "reply", 7: "lost"}),
        Field("bits", "flags(u8)", names={1: "red", 2: "green", 128: "blue"}),
        Field("tag", "bytes(6)"),
        Field("path", "list(u16, 4)"),
        Field("drift", "list(i32, 3)"),
        Field("loss", "list(f64, 3)"),
    ],
)

NOW = 1_763_632_800 * 10**9
BASE = NOW - NOW % (86400 * 10**9)

SIX = [
    ipaddress.IPv6Address(a) for a in ("::1", "2001:db8::1", "2001:db8::2", "2001:db8:1::7", "fe80::1", "::", "ff02::1")
]
# An IPv4 address that looks like the stand-in of an IPv6 address.
TWIN4 = ipaddress.IPv4Address(fold6(SIX[1].packed))
FOUR = [ipaddress.IPv4Address(a) for a in ("10.0.0.1", "10.0.0.2", "10.1.2.3", "192.168.7.1", "192.9.9.1", "224.0.0.5")]
FOUR.append(TWIN4)
MACS = [0x001122334455, 0x001122AABBCC, (1 << 48) - 1, 0x01005E000005]
PORTS = [0, 22, 53, 80, 443, 1023, 1024, 34512, 65535]
TAGS = [b"", b"eth0", b"eth1", b"lo", b"\xff\x00\x01", b"a\x00b", b"ethern"]
FLOATS = [0.0, -0.0, 0.1, 0.5, 1.0, -1.5, 1e10, math.inf, -math.inf, math.nan]
TIMES = [BASE, BASE + 1, BASE - 1, BASE + 86400 * 10**9, NOW, NOW - 900 * 10**9, 0, 1_700_000_000_250_000_000]


def choices(bounds: tuple[int, int], *extra: int) -> list[int]:
    lo, hi = bounds
    return [v for v in (lo, hi, lo + 1, hi - 1, 0, 1, 2, 5, 6, 64, 80, 100, 1500, *extra) if lo <= v <= hi]


def near(bounds: tuple[int, int], *extra: int) -> st.SearchStrategy[int]:
    return st.sampled_from(choices(bounds, *extra))


@cache
def odd_rows(seed: int) -> list[Row]:
    """Rows of ODD.  Not drawn one value at a time: that takes longer than the tests."""
    rng = Random(seed)
    return [odd_row(rng) for _ in range(40)]


@cache
def packet_rows(seed: int) -> list[Row]:
    """Rows that packets could have made, as far as the words and byte tests look at them."""
    rng = Random(seed)
    return [packet_row(rng) for _ in range(40)]


def odd_row(rng: Random) -> Row:
    row: Row = {}
    for f in ODD.fields:
        kind = f.type.kind
        if kind == "time":
            row[f.name] = rng.choice(TIMES)
        elif kind in ("f32", "f64"):
            value = rng.choice(FLOATS)
            row[f.name] = struct.unpack("f", struct.pack("f", value))[0] if kind == "f32" else value
        elif kind == "ipv4":
            row[f.name] = int(rng.choice(FOUR))
        elif kind == "ip":
            row[f.name] = rng.choice([None, *FOUR, *SIX])
        elif kind == "mac":
            row[f.name] = rng.choice([0, *MACS])
        elif kind == "duration":
            row[f.name] = rng.choice([0, 1, -5, 250_000, 900 * 10**9, 5400 * 10**9])
        elif kind == "bytes":
            row[f.name] = rng.choice(TAGS).ljust(f.type.size, b"\0")
        elif kind == "list" and f.type.is_float:
            row[f.name] = tuple(rng.choices(FLOATS, k=3))
        elif kind == "list":
            some = [0, 1, 2, 5] if rng.random() < 0.7 else [0, *choices(f.type.bounds)]
            row[f.name] = tuple(rng.choices(some, k=f.type.count))
        else:
            row[f.name] = rng.choice(choices(f.type.bounds, 7, 128))
    return row


def packet_row(rng: Random) -> Row:
    row: Row = {f.name: (0,) * f.type.count if f.type.is_list else 0 for f in PACKET.fields}
    pick = rng.choice
    version = row["ip_version"] = pick([0, 4, 4, 4, 6, 6])
    row["ts"] = pick(TIMES)
    row["len"] = pick([0, 60, 64, 65, 1000, 1500, 65536])
    row["cap_len"] = min(row["len"], 64)
    row["eth_src"], row["eth_dst"] = pick(MACS), pick(MACS)
    row["eth_type"] = {4: 0x800, 6: 0x86DD}.get(version, pick([0x806, 0x8035, 0x88CC, 0x800]))
    row["vlan_count"] = pick([0, 0, 1, 2])
    row["vlan"] = pick([0, 5, 100]) if row["vlan_count"] else 0
    row["vlan2"] = pick([0, 5, 100]) if row["vlan_count"] > 1 else 0
    row["mpls_count"] = pick([0, 0, 1])
    row["mpls_label"] = pick([0, 100]) if row["mpls_count"] else 0
    row["tunnel"] = pick([0, 0, 2, 3])
    row["vni"] = pick([0, 7]) if row["tunnel"] else 0
    row["switch_path"] = tuple(rng.choices([0, 1, 7, 9, 65535], k=8))
    if version == 0:
        pool: list[Any] = [None, *FOUR] if row["eth_type"] in (0x806, 0x8035) else [None]
        row["src_ip"], row["dst_ip"] = pick(pool), pick(pool)
        return row
    pool = [*FOUR, ipaddress.IPv4Address(0)] if version == 4 else SIX
    row["src_ip"], row["dst_ip"] = pick(pool), pick(pool)
    row["ttl"], row["dscp"], row["ecn"] = pick(choices((0, 255))), pick(choices((0, 63))), pick(choices((0, 3)))
    row["ip_len"] = pick([20, 40, 1500, 65535, 80052])
    row["proto"] = pick([1, 2, 6, 6, 17, 17, 47, 58, 132])
    if version == 4:
        row["ip_id"] = pick(choices((0, 65535)))
        row["ip_flags"] = pick(range(8))
    row["frag_offset"] = pick([0, 0, 0, 8, 1480, 65528])
    if row["frag_offset"]:
        return row
    if row["proto"] in (6, 17, 132):
        row["src_port"], row["dst_port"] = pick(PORTS), pick(PORTS)
    if row["proto"] == 6:
        row["tcp_flags"] = pick([0, 1, 2, 4, 16, 18, 24, 64, 128, 256, 511])
        row["tcp_seq"], row["tcp_ack"] = pick(choices((0, 2**32 - 1))), pick(choices((0, 2**32 - 1)))
        row["tcp_window"] = pick(choices((0, 65535)))
    if row["proto"] in (1, 58):
        row["icmp_type"], row["icmp_code"] = pick([0, 3, 8, 128]), pick([0, 1])
    return row


# -- expressions

ORDER = st.sampled_from(["<", "<=", ">", ">="])
EQUAL = st.sampled_from(["==", "=", "!="])


def numbers(field: Field) -> st.SearchStrategy[str]:
    forms = [str, hex] if field.type.bounds[0] == 0 else [str]
    return st.builds(lambda v, f: f(v), near(field.type.bounds, 7, 128), st.sampled_from(forms))


def constants(field: Field) -> st.SearchStrategy[str]:
    """Texts of single values of a field."""
    kind = field.type.element
    if kind == "time":
        texts = [
            "now",
            "15m",
            "15m ago",
            "1h",
            "now-15m",
            "@1700000000.25",
            "2025-11-20",
            "2025-11-20T10:00:00Z",
            "2025-11-19",
            str(NOW),
            "0",
        ]
        return st.sampled_from(texts)
    if kind == "duration":
        return st.sampled_from(["0", "250us", "1ns", "15m", "1h30m", "-5ns", "1.5s"])
    if kind in ("f32", "f64"):
        return st.sampled_from(["0", "0.1", "0.5", "1", "-1.5", "1e10", "inf", "-inf", "1e-3", "10G"])
    if kind == "mac":
        return st.sampled_from(["00:11:22:33:44:55", "00:11:22:AA:bb:cc", "ff:ff:ff:ff:ff:ff", "0:0:0:0:0:0"])
    if kind == "ipv4":
        return st.sampled_from([str(a) for a in FOUR])
    if kind in ("enum", "flags"):
        names = list(field.names.values())
        texts = st.sampled_from([*names, *[n.upper() for n in names[:2]], *map(str, field.names)])
        if kind == "flags":
            return st.one_of(texts, st.sampled_from([f"{names[0]}+{names[1]}", f"{names[0]}|{names[2]}", "0", "0x3"]))
        return texts
    if field.name.endswith("port"):
        return st.one_of(numbers(field), st.sampled_from(["http", "ssh", "https"]))
    if field.unit == "B" and field.type.size > 2:
        return st.one_of(numbers(field), st.sampled_from(["1k", "1Ki", "64B", "1.5kB", "64KiB"]))
    return numbers(field)


def ranges(field: Field) -> st.SearchStrategy[str]:
    kind = field.type.element
    if kind == "time":
        return st.sampled_from(["2025-11-19..2025-11-20", "1h..now", "..2025-11-20", "2025-11-20.."])
    if kind == "duration":
        return st.sampled_from(["1us-15m", "1us..15m", "..1s"])
    if kind == "mac":
        return st.just("00:11:22:00:00:00..00:11:22:ff:ff:ff")
    if kind == "ipv4":
        return st.sampled_from(
            ["10.0.0.0/8", "10.0.0.1-10.0.0.2", "10.0.0.2..192.255.255.255", "0.0.0.0/0", "192.0.0.0/7"]
        )
    if kind in ("f32", "f64"):
        return st.sampled_from(["0..1", "-1.5..0.5", "0.1-0.5", "..0", "0.."])
    if kind == "flags":
        return st.just("1..3")
    values = st.lists(near(field.type.bounds, 7, 128), min_size=2, max_size=2).map(sorted)
    dots = values.map(lambda v: f"{v[0]}..{v[1]}")
    if field.type.bounds[0] < 0:
        return dots
    return st.one_of(dots, values.map(lambda v: f"{v[0]}-{v[1]}"), st.just("..9"), st.just("5.."))


ADDRESSES = st.sampled_from([str(a) for a in (*FOUR, *SIX)])
NETS = st.sampled_from(
    [
        "10.0.0.0/8",
        "10.0.0.0/31",
        "0.0.0.0/0",
        "0.0.0.0",
        "192.0.0.0/7",
        "2001:db8::/32",
        "::/0",
        "::/127",
        "fe80::/10",
        "10.0.0.1-10.1.2.3",
        "2001:db8::1..2001:db8::2",
        "::-::1",
        "0.0.0.0-10.0.0.1",
        "128.0.0.0/1",
    ]
)
WILD = st.sampled_from(["192.*.*.1", "*.*.*.*", "*.0.0.*", "10.*.*.*", "0.*.*.*", "*.*.*.1"])


def joined(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A set of one to four."""
    items = st.lists(texts, min_size=1, max_size=4)
    return st.builds(lambda i, b: b[0] + ", ".join(i) + b[1], items, st.sampled_from(["{}", "()"]))


NUMERIC = ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64", "enum", "flags")
MASKED_IPS = [
    ("255.255.0.0", "10.0.0.0"),
    ("0.0.0.1", "0.0.0.1"),
    ("0.0.0.7", "0.0.0.0"),
    ("ffff::", "2001::"),
    ("::1", "::"),
    ("255.0.0.0", "10.1.0.0"),
]
TEXTS = ['"eth0"', "'lo'", "lo", "eth1", '"a\\x00b"', '"\\xff\\x00\\x01"', "0xff0001", '""']
PATTERNS = ["eth*", "*", '""', "?o", "*t*", "eth", '"*\\x01"']
MEMBER = st.sampled_from(["in", "not in", "==", "!="])


@st.composite
def comparisons(draw: Any, schema: Schema) -> str:
    """One comparison, or a field alone."""
    field = draw(st.sampled_from(schema.fields))
    name, kind = field.name, field.type.kind
    if draw(st.integers(0, 9)) == 0:
        name = name.upper()
    way = draw(st.integers(0, 9))
    if way == 0 and name.lower() != "vlan":
        return str(name)
    if kind == "ip":
        return draw_ip(draw, name, way)
    if kind == "bytes":
        return draw_bytes(draw, name, way)
    values = constants(field)
    if kind == "list":
        texts = values.filter(lambda t: t not in ("0", "0x0"))
        if way < 3:
            return draw_list(draw, field, name, texts)
        if way < 6:
            return f"{name} {draw(st.one_of(EQUAL, ORDER, st.just('has')))} {draw(texts)}"
        many = ranges(field).filter(lambda t: t not in ("0..0", "0-0"))
        return f"{name} {draw(st.sampled_from(['in', 'not in']))} {draw(joined(st.one_of(texts, many)))}"
    if way < 3:
        return f"{name} {draw(EQUAL)} {draw(values)}"
    if way < 5:
        return f"{name} {draw(ORDER)} {draw(values)}"
    if way < 6:
        return f"{name} {draw(MEMBER)} {draw(ranges(field))}"
    if way < 7 and kind in NUMERIC and not field.type.is_float:
        most = min(field.type.bounds[1], 2**31)
        mask = draw(st.sampled_from([m for m in (1, 2, 6, 0x12, 0x7F, 0xC0, 0xFF00) if m <= most]))
        value = draw(near((0, most)))
        test = draw(
            st.sampled_from(["", f"== {value}", f"!= {value}", f"< {value}", f">= {value}", f"in 1..{value + 1}"])
        )
        return f"({name} & {mask:#x}) {test}" if value < most else f"({name} & {mask:#x})"
    if way < 8 and kind == "flags":
        return f"{name} has {draw(values.filter(lambda t: t != '0'))}"
    if way < 8 and kind in NUMERIC:
        others = [f.name for f in schema.fields if f.type.kind in NUMERIC]
        return f"{name} {draw(st.one_of(EQUAL, ORDER))} {draw(st.sampled_from(others))}"
    if way < 8 and kind == "mac":
        return f"{name} like 00:11:22:*:*:*"
    if way < 8 and kind == "ipv4":
        return f"{name} == {draw(WILD)}"
    return f"{name} {draw(MEMBER)} {draw(joined(st.one_of(values, ranges(field))))}"


def draw_list(draw: Any, field: Field, name: str, texts: st.SearchStrategy[str]) -> str:
    """A test of an element, of the length or of a sequence."""
    most, form = field.type.count, draw(st.integers(0, 5))
    if form == 0:
        test = draw(st.sampled_from(["", f"== {most}", "> 1", "in {0, 2..3}", "!= 1", f"<= {most - 1}"]))
        return f"len({name}) {test}"
    if form < 3:
        test = f"{draw(st.one_of(EQUAL, ORDER, st.just('in')))} {draw(texts)}" if form == 1 else ""
        return f"{name}[{draw(st.integers(-most, most - 1))}] {test}"
    some = [draw(texts) for _ in range(draw(st.integers(1, most)))]
    if form == 3:
        return f"{name} has {' before '.join([*some, some[0]][: max(2, len(some))])}"
    if form == 4 and len(some) > 1:
        return f"{name} {draw(st.sampled_from(['==', '!=', 'has', 'starts']))} {', '.join(some)}"
    return f"{name} {draw(st.sampled_from(['==', '!=', 'has', 'starts']))} [{', '.join(some)}]"


def draw_ip(draw: Any, name: str, way: int) -> str:
    one = st.one_of(ADDRESSES, NETS, WILD)
    if way < 4:
        return f"{name} {draw(MEMBER)} {draw(one)}"
    if way < 6:
        return f"{name} {draw(ORDER)} {draw(ADDRESSES)}"
    if way < 7:
        mask, value = draw(st.sampled_from(MASKED_IPS))
        return f"({name} & {mask}) {draw(EQUAL)} {value}"
    if way < 8:
        return f"{name} like {draw(WILD)}"
    return f"{name} {draw(MEMBER)} {draw(joined(one))}"


def draw_bytes(draw: Any, name: str, way: int) -> str:
    if way < 4:
        text = draw(st.sampled_from(["lo", "eth1", ""]))
        return f'{name} {draw(st.one_of(EQUAL, ORDER))} "{text}"'
    if way < 6:
        return f"{name} like {draw(st.sampled_from(PATTERNS))}"
    if way < 8:
        return f"{name} has {draw(st.sampled_from(['eth', 'th', 'o', '{lo, eth1}']))}"
    return f"{name} {draw(MEMBER)} {draw(joined(st.sampled_from(TEXTS)))}"


@st.composite
def primitives(draw: Any) -> str:
    """Words of pcap-filter, bytes of headers, flows."""
    four = draw(st.sampled_from([str(a) for a in FOUR]))
    address = draw(ADDRESSES)
    port = draw(st.sampled_from(["80", "443", "0", "http", "22"]))
    side = draw(st.sampled_from(["", "src ", "dst ", "src or dst ", "src and dst "]))
    version = "ip6" if ":" in address else "ip"
    mac = draw(st.sampled_from(["00:11:22:33:44:55", "ff:ff:ff:ff:ff:ff"]))
    plain = st.sampled_from(
        [
            "ip",
            "ip6",
            "tcp",
            "udp",
            "icmp",
            "icmp6",
            "arp",
            "rarp",
            "sctp",
            "igmp",
            "vlan",
            "mpls",
            "vlan 5",
            "vlan 100",
            "vlan 0",
            "mpls 100",
            "mpls 0",
            "vxlan",
            "geneve 7",
            "broadcast",
            "multicast",
            "ether multicast",
            "ip multicast",
            "ip6 multicast",
            "greater 1000",
            "less 64",
            "ip proto 47",
            "proto gre",
            "ip6 proto 58",
            "ip proto \\tcp",
            "ether proto 0x806",
            "ether proto arp",
        ]
    )
    tcp = draw(st.sampled_from(["", "tcp ", "udp ", "ip ", "ip6 ", "sctp "]))
    words = st.sampled_from(
        [
            f"{side}host {address}",
            f"{side}net 10",
            f"{side}net 192.168",
            f"{side}net 10.0.0.0/8",
            f"net {four}/31",
            "net 2001:db8::/32",
            "net 10.0.0.0 mask 255.0.0.0",
            f"{tcp}{side}port {port}",
            f"{tcp}{side}portrange 1-1023",
            f"{tcp}{side}portrange 0-80",
            f"{version} {side}host {address}",
            f"arp {side}host {four}",
            f"{four}",
            f"port {port} or 53",
            f"{side}port (80 or 443 and 22)",
            f"not port {port} and 53",
            f"ether {side}host {mac}",
            f"tcp {side}net 10",
            f"src {address}",
            f"dst {four} or 10.0.0.1",
        ]
    )
    left = draw(
        st.sampled_from(
            [
                "tcp[13]",
                "tcp[tcpflags]",
                "tcp[0:2]",
                "tcp[2:2]",
                "tcp[0:4]",
                "tcp[4:4]",
                "tcp[14:2]",
                "tcp[1]",
                "udp[2:2]",
                "icmp[icmptype]",
                "icmp[0:2]",
                "icmp6[0]",
                "ip[1]",
                "ip[2:2]",
                "ip[4:2]",
                "ip[6:2]",
                "ip[8]",
                "ip[9]",
                "ip[8:2]",
                "ip[12:4]",
                "ip[16:2]",
                "ip6[7]",
                "ether[0]",
                "ether[0:4]",
                "ether[6:2]",
                "sctp[0:2]",
            ]
        )
    )
    wide = 8 * int(left[-2]) if ":" in left else 8
    most = (1 << wide) - 1
    value = draw(near((0, most), 2, 18, 8, 0x1FFF, 0x4000, 443, 1480))
    mask = draw(st.sampled_from([m for m in (1, 2, 3, 0x12, 0xC0, 0xFC, 0x1FFF, 0x3FFF, 0xFF00) if m <= most]))
    op = draw(st.sampled_from(["==", "=", "!=", "<", "<=", ">", ">="]))
    names = "(tcp-syn|tcp-ack)" if left in ("tcp[13]", "tcp[tcpflags]") else str(mask)
    tests = st.sampled_from(
        [
            f"{left} {op} {value}",
            f"{left} & {mask} {op} {value}",
            f"({left} & {names}) {op} {value}",
            f"{left} & {names} != 0",
            f"{left} & {names}",
            f"{left} in {{{value}, {mask}}}",
            f"{left} in {min(mask, value)}..{max(mask, value)}",
            f"{value} {op} {left}",
        ]
    )
    six = draw(st.sampled_from([str(a) for a in SIX[1:3]]))
    flows = st.sampled_from(
        [
            f"flow == {four}:34512-10.0.0.1:80/tcp",
            f"conn == 10.0.0.1:80-{four}:34512",
            f"flow != {four}-10.0.0.2",
            f"conn in {{[{six}]:80-[2001:db8::1]:443/tcp, {four}-10.0.0.2/udp}}",
            f"flow == {six}-2001:db8::1",
            f"port == {port}",
            "port in {80, 443}",
            f"host == {address}",
            "net != 10.0.0.0/8",
        ]
    )
    return str(draw(st.one_of(plain, words, tests, flows)))


def conditions(leaf: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Conditions joined and negated, brackets around every part."""
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(
                lambda a, op, b: f"({a}) {op} ({b})", inner, st.sampled_from(["&&", "||", "and", "or", "AND"]), inner
            ),
            st.builds(lambda n, a: f"{n}({a})", st.sampled_from(["!", "not ", "! !", "not not not "]), inner),
            st.builds(
                lambda a, b, c, o, p: f"{a} {o} {b} {p} {c}",
                leaf,
                leaf,
                leaf,
                st.sampled_from(["&&", "||"]),
                st.sampled_from(["&&", "||"]),
            ),
        ),
        max_leaves=6,
    )
