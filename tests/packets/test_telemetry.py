"""In-band telemetry: traces built by hand from the RFCs, the dissector of tshark, and routers of the kernel."""

from __future__ import annotations

import itertools
import random
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import make_capture as make
from confluo_tools.core.packets.packet import Packets
from confluo_tools.schema import Field, Schema, builtin
from make_telemetry import (
    IOAM4,
    IOAM6,
    NAMES,
    SCHEMA,
    UDP,
    Hop,
    Trace,
    carried,
    ethernet,
    frames,
    ip4,
    ip6,
    option,
    parse,
    read,
)
from netns import Lab, Space

WIDE = Schema("wide", [Field(name, "list(u32, 8)") for name in ("switch_path", "queue_depth")] + [Field("notes", "u8")])
TELEMETRY = ("switch_path", "queue_depth")
TRUNCATED, MALFORMED, OPTIONS, INNER = 1, 2, 16, 32


def told(row: dict[str, Any]) -> dict[str, Any]:
    """The telemetry in it: lists that are not all zeros."""
    return {name: row[name] for name in TELEMETRY if name in row and any(row[name])}


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    parts = draw(st.lists(st.sampled_from([*NAMES, "future", "snapshot"]), unique=True, min_size=1))
    if parts == ["snapshot"]:
        parts.append("id")
    hop = st.builds(
        Hop,
        st.integers(0, 2**56 - 1) | st.integers(0, 70_000),
        st.none() | st.integers(0, 2**32 - 2),
        st.integers(0, 255),
        st.integers(0, 3).map(lambda n: b"snap" * n),
    )
    trace = Trace(draw(st.lists(hop, max_size=12)), parts, 4 * draw(st.integers(0, 8)), draw(st.integers(0, 65535)))
    while len(trace.data()) > 255:
        trace.hops.pop()
    return trace


@given(traces(), st.sampled_from([b"", b"\0", b"\1\1\0", b"\x05\2\0\0\0\0"]), st.sampled_from([b"", b"\x1e\0"]))
@settings(max_examples=300)
def test_every_trace_in_ipv6_is_read(trace: Trace, before: bytes, after: bytes) -> None:
    frame = carried(trace, 6, before, after)
    row = parse(frame)
    assert told(row) == trace.fields(65535)
    assert told(parse(frame, WIDE)) == trace.fields(2**32 - 1)
    assert (row["notes"], row["dst_port"], row["payload_len"]) == (OPTIONS, 2000, 4)


@given(st.lists(st.builds(Hop, st.integers(0, 2**24 - 1), st.integers(0, 2**32 - 2)), max_size=3), st.integers(0, 4))
def test_every_trace_in_ipv4_is_read(hops: list[Hop], nops: int) -> None:
    trace = Trace(hops, free=8 * (3 - len(hops)))
    row = parse(carried(trace, 4, b"\1" * nops))
    assert told(row) == trace.fields(65535)
    assert (row["notes"], row["dst_port"], row["payload_len"]) == (OPTIONS, 2000, 4)


@given(traces(), st.data())
@settings(max_examples=300)
def test_a_changed_trace_is_what_its_twin_reads_and_a_cut_one_is_none(trace: Trace, data: st.DataObject) -> None:
    frame = carried(trace, 6)
    for _ in range(4):
        text = bytearray(trace.data())
        for _ in range(data.draw(st.integers(1, 3))):
            text[data.draw(st.integers(0, min(len(text) - 1, 12)))] ^= 1 << data.draw(st.integers(0, 7))
        row, twin = parse(ethernet(ip6(option(IOAM6, bytes(text)), 17, UDP)), WIDE), read(bytes(text))
        assert told(row) == (twin or {})
        assert bool(row["notes"] & MALFORMED) == (twin is None and text[:2] == b"\0\0")
    for cut in range(14 + 40, 14 + 40 + 2 + len(trace.data())):  # the options are not all there
        assert told(parse(carried(trace, 6)[:cut], length=len(frame))) == {}


NOW = 1_795_000_000
SECONDS = st.sampled_from([NOW, NOW + 1, NOW + 2208988800, 2208988799, 0xFFFFFFFF])
FRACTIONS = (
    st.integers(0, 2**32 - 1) | st.integers(0, 1_000_000) | st.sampled_from([0, 999_999, 999_999_999, 0xFFFFFFFF])
)


@given(
    st.lists(st.builds(Hop, st.integers(1, 9), seconds=SECONDS, fraction=FRACTIONS), max_size=10),
    st.sets(st.sampled_from(NAMES)),
    st.booleans(),
)
def test_times_of_hops_and_between_them(hops: list[Hop], more: set[str], ns: bool) -> None:
    trace = Trace(hops, sorted(more | {"id"}))
    while len(trace.data()) > 255:
        trace.hops.pop()
    packets = Packets(SCHEMA.layout, rows=1, hop_ns=ns)
    packets.add(carried(trace, 6))
    block = packets.take()
    row = {name: block.get(SCHEMA.index(name), 0) for name in ("hop_time", "hop_latency")}
    times = [hop.time(ns) if {"seconds", "fraction"} <= set(trace.parts) else 0 for hop in trace.hops[:8]]
    between = [b - a if a and b else 0 for a, b in itertools.pairwise(times)]
    assert row == {"hop_time": (*times, *[0] * (8 - len(times))), "hop_latency": (*between, *[0] * (8 - len(between)))}


GOOD = Trace([Hop(1, 5), Hop(2, 7)], free=8)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (4, b"\0\2"),  # no node length
        (4, b"\x18\2"),  # three words a node, and a type of two
        (4, b"\x10\x7f"),  # more room left than the option has
        (4, b"\x10\1"),  # the rest is not a multiple of the node length
        (6, b"\x82\0\1"),  # the reserved bit is for others, an unknown length is not: the type has a bit more
        (6, b"\x82\0\x04"),
    ],
)
def test_contradictions(at: int, value: bytes) -> None:
    data = bytearray(GOOD.data())
    data[at : at + len(value)] = value
    good = value == b"\x82\0\1"  # RFC 9197 4.4.1: bit 23 is reserved and ignored
    six, four = (
        parse(ethernet(ip6(option(IOAM6, bytes(data)), 17, UDP))),
        parse(ethernet(ip4(option(IOAM4, bytes(data)), 17, UDP))),
    )
    assert told(six) == told(four) == (GOOD.fields(65535) if good else {})
    assert six["notes"] == (OPTIONS if good else OPTIONS | MALFORMED)
    assert four["notes"] == OPTIONS  # the number of the IPv4 option is anybody's: no accusation
    assert six["dst_port"] == four["dst_port"] == 2000


def test_other_ioam_options_and_places_are_not_traces() -> None:
    data = bytearray(GOOD.data())
    data[1] = 2  # proof of transit
    assert told(parse(ethernet(ip6(option(IOAM6, bytes(data)), 17, UDP)))) == {}
    in_destination = ip6(b"", 60, bytes([17, 4]) + option(0x31, GOOD.data()) + bytes(8) + UDP)
    assert told(parse(ethernet(in_destination))) == {}
    short = ip6(option(IOAM6, b"\0\0\0\0"), 17, UDP)
    assert parse(ethernet(short))["notes"] == OPTIONS | MALFORMED
    over = ip6(bytes([IOAM6, 200]) + GOOD.data(), 17, UDP)
    assert parse(ethernet(over))["notes"] == OPTIONS | MALFORMED
    after_the_end = b"\1\0" + option(IOAM4, Trace([Hop(1, 1)]).data())
    assert told(parse(ethernet(ip4(after_the_end, 17, UDP)))) == {}


def vxlan(inner: bytes) -> bytes:
    body = struct.pack(">II", 0x08000000, 7 << 8) + ethernet(inner)
    return struct.pack(">HHHH", 40000, 4789, 8 + len(body), 0) + body


def test_tunnels_the_underlay_first() -> None:
    """The path is that of the outermost header that has one; --decap changes the addresses, not the fabric crossed."""
    under, over = Trace([Hop(1, 1)]), Trace([Hop(8, 8), Hop(9, 9)])
    inner = ip4(option(IOAM4, over.data()), 17, UDP)
    both = ethernet(ip6(option(IOAM6, under.data()), 17, vxlan(inner)))
    only_inner = ethernet(ip4(b"", 17, vxlan(inner)))
    plain = ethernet(ip6(option(IOAM6, under.data()), 17, vxlan(ip4(b"", 17, UDP))))
    for frame, outer, decapped in ((both, under, under), (only_inner, Trace([]), over), (plain, under, under)):
        a, b = parse(frame), parse(frame, inner=True)
        assert (told(a), told(b)) == (outer.fields(65535), decapped.fields(65535))
        assert (a["dst_port"], b["dst_port"], b["tunnel"]) == (4789, 2000, 2)


def test_rows_without_telemetry_between_rows_with_it() -> None:
    packets = Packets(SCHEMA.layout, rows=4)
    i = SCHEMA.layout.index("switch_path")
    for _ in range(6):  # the pool's blocks come again
        for frame in (carried(GOOD, 6), ethernet(ip4(b"", 17, UDP)), carried(Trace([Hop(3, 1)]), 4)):
            packets.add(frame)
        block = packets.take()
        assert [block.get(i, k)[:3] for k in range(3)] == [(1, 2, 0), (0, 0, 0), (3, 0, 0)]
        packets.add(ethernet(ip4(b"", 17, UDP)))
        assert packets.take().get(i, 0) == (0,) * 8


def test_types_that_cannot_hold_it() -> None:
    for text in ("list(u16, 4)", "u16", "list(f32, 8)"):
        with pytest.raises(ValueError, match="switch_path"):
            Packets(Schema("odd", [Field("switch_path", text)]).layout)
    assert builtin("packet")["switch_path"].type.text == "list(u16, 8)"


@pytest.mark.skipif(not shutil.which("tshark"), reason="no tshark here")
def test_tshark_reads_the_same(tmp_path: Path) -> None:
    """tshark lists nodes as they stand, the newest first."""
    rng = random.Random(9197)
    made: list[Trace] = []
    for _ in range(300):
        parts = rng.sample([*NAMES, "snapshot"], rng.randint(1, 8))
        hops = [
            Hop(rng.randrange(65535), rng.choice([None, rng.randrange(65535)]), rng.randrange(256), b"snap" * k)
            for k in range(rng.randint(0, 2))
        ]
        made.append(Trace(hops, sorted({*parts, "id"}), 4 * rng.randint(0, 3), rng.randrange(65536)))
    packets = [(k * 10**9, carried(trace, 6)) for k, trace in enumerate(made)]
    path = tmp_path / "t.pcap"
    path.write_bytes(make.pcap(packets))
    ioam = "ipv6.opt.ioam.trace"
    names = ["node.id", "node.qdepth", "invalid_nodelen", "invalid_remlen", "invalid_type"]
    words = [word for name in names for word in ("-e", f"{ioam}.{name}")]
    lines = subprocess.run(
        ["tshark", "-r", path, "-T", "fields", *words], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(lines) == len(packets)
    seen = 0
    for line, (_, frame) in zip(lines, packets, strict=True):
        ids, queues, *invalid = line.split("\t")
        assert not any(invalid)
        path_ = [int(word, 0) for word in ids.split(",") if word][::-1]
        depths = [int(word, 0) % 0xFFFFFFFF for word in queues.split(",") if word][::-1]
        row = parse(frame)
        assert list(row.get("switch_path", ()))[: len(path_)] == path_
        assert list(row.get("queue_depth", ()))[: len(depths)] == depths
        seen += len(path_)
    assert seen > 200


def router(space: Space, number: int, depth_of: str) -> None:
    space.run(
        "sh",
        "-c",
        f"""
        cd /proc/sys/net/ipv6 && echo 0 >conf/all/disable_ipv6 && echo 1 >conf/all/forwarding &&
        echo {number} >ioam6_id && for i in conf/v*; do echo 0 >$i/disable_ipv6; done &&
        echo 1 >conf/{depth_of}/ioam6_enabled && echo {number} >conf/{depth_of}/ioam6_id""",
    )


@pytest.mark.root
@pytest.mark.net
def test_routers_of_the_kernel_write_it() -> None:
    """Three Linux routers fill a trace that we sent empty."""
    if not Path("/proc/sys/net/ipv6/ioam6_id").exists():
        pytest.skip("this kernel does not write IOAM")
    with Lab() as lab:
        a, b = lab.space("a"), lab.space("b")
        routers = [lab.space(f"r{k}") for k in (1, 2, 3)]
        chain = [a, *routers, b]
        for k in range(4):
            lab.link(chain[k], chain[k + 1], (f"v{k}r", f"v{k + 1}l"))
        for k, space in enumerate(routers, 1):
            if space.run("ip", "ioam", "namespace", "add", "7", check=False).returncode:
                pytest.skip("ip(8) or the kernel knows no IOAM namespaces")
            router(space, 100 + k, f"v{k}l")
            mac = f"02:00:00:{k + 1:02x}:00:02"
            space.ip("addr", "add", f"fd00:{k}::1/64", "dev", f"v{k}r", "nodad")
            space.ip("-6", "route", "add", "fd00:99::/64", "via", f"fd00:{k}::2", "dev", f"v{k}r")
            space.ip("-6", "neigh", "add", f"fd00:{k}::2", "lladdr", mac, "dev", f"v{k}r", "nud", "permanent")
        src, dst = socket.inet_pton(socket.AF_INET6, "fd00:98::1"), socket.inet_pton(socket.AF_INET6, "fd00:99::1")
        empty = Trace([], ["id", "seconds", "fraction", "queue"], free=64, namespace=7)
        packet = ip6(option(1, b"") + option(IOAM6, empty.data()), 17, UDP, src=src, dst=dst)
        to_first = bytes.fromhex("020000010002") + bytes.fromhex("020000010001") + b"\x86\xdd" + packet
        with b.inside():
            taker = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
            taker.bind(("v4l", 0x86DD))
            taker.settimeout(0.2)
        with a.inside():
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            sender.bind(("v0r", 0))
        with taker, sender:
            row: dict[str, Any] = {}
            began = time.time_ns()
            deadline = time.monotonic() + 10
            while row.get("dst_port") != 2000 and time.monotonic() < deadline:
                sender.send(to_first)
                try:
                    row = parse(taker.recv(2000))
                except TimeoutError:
                    continue
    assert row["switch_path"] == (101, 102, 103, 0, 0, 0, 0, 0)
    assert (row["dst_port"], row["ttl"], row["notes"]) == (2000, 61, OPTIONS)
    times = [*row["hop_time"][:3], time.time_ns()]
    assert began // 1000 * 1000 <= times[0]
    assert times == sorted(times)
    assert row.get("hop_latency", (0,) * 8)[:3] == (times[1] - times[0], times[2] - times[1], 0)


def test_seeds_of_the_fuzzer_have_telemetry() -> None:
    rows = [parse(frame) for frame in frames()]
    assert all(told(row) for row in rows)
    assert rows[3]["switch_path"] == (1, 2, 3, 4, 5, 6, 7, 8)  # twenty hops: the first eight
