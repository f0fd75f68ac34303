"""The parts of confluo-trace that need no network: bucket, probes, quotes, the book of flows, lookups, aliases."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import dpkt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block, Staging
from confluo_tools.core.trace.flow_table import FIELDS, NOTES, FlowTable, NumberMap
from confluo_tools.core.trace.traceroute_packets import probe, quoted
from confluo_tools.errors import FormatError, UsageError
from confluo_tools.network.aliases import read_aliases
from confluo_tools.schema import builtin, fold6
from confluo_tools.trace.token_bucket import SECOND, TokenBucket
from confluo_tools.trace.traceroute_sockets import Allowed, kind_of
from confluo_tools.trace.vip_lookup import CommandLookup, End, FileLookup, Vips

# ---------------------------------------------------------------- bucket

moves = st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(0, 40)), max_size=60)


@given(st.floats(0.01, 1e5), st.integers(1, 50), moves)
def test_bucket_keeps_its_bound_in_every_window(rate: float, depth: int, asked: list[tuple[int, int]]) -> None:
    bucket, now, given_at = TokenBucket(rate, depth), 0, []
    for step, want in asked:
        now += step
        got = bucket.take(now, want)
        assert 0 <= got <= want
        given_at.append((now, got))
    for i, (begin, _) in enumerate(given_at):
        total = 0
        for end, got in given_at[i:]:
            total += got
            assert total <= depth + rate * (end - begin) / SECOND + 1e-9


@given(st.floats(0.01, 1e5), st.integers(1, 50), moves)
def test_bucket_gives_what_a_leaking_one_has(rate: float, depth: int, asked: list[tuple[int, int]]) -> None:
    """Compared with a plain float bucket: never more, and less only by the rounding of an interval to a nanosecond."""
    bucket, level, last, now = TokenBucket(rate, depth), float(depth), 0, 0
    for step, want in asked:
        now += step
        level = min(depth, level + rate * (now - last) / SECOND)
        last = now
        got = bucket.take(now, want)
        assert got <= level + 1e-6
        assert got >= min(want, int(level - 1e-3 - 60 * 40 * rate / SECOND))
        level -= got


@given(st.floats(0.01, 1e5), st.integers(1, 5), st.integers(0, SECOND))
def test_bucket_says_when(rate: float, depth: int, now: int) -> None:
    bucket = TokenBucket(rate, depth)
    assert bucket.wait(now) == 0
    assert bucket.take(now, 100) == depth
    assert bucket.take(now, 1) == 0
    later = now + bucket.wait(now)
    assert later - now == pytest.approx(SECOND / rate, rel=1e-6, abs=1.5)
    assert bucket.take(later - 1, 1) == 0
    assert bucket.take(later, 5) == 1


@pytest.mark.parametrize(("rate", "depth"), [(0, 1), (-1, 1), (1e9, 1), (float("nan"), 1), (1, 0)])
def test_bucket_refuses(rate: float, depth: int) -> None:
    with pytest.raises(ValueError, match=r"a rate|a depth"):
        TokenBucket(rate, depth)


# ---------------------------------------------------------------- probes

v4 = st.binary(min_size=4, max_size=4)
v6 = st.binary(min_size=16, max_size=16)
ports = st.integers(0, 65535)


@given(st.data(), st.sampled_from([4, 6]), ports, ports, st.integers(1, 15), st.integers(0, (1 << 28) - 1))
def test_a_probe_is_what_dpkt_reads(data: Any, version: int, sport: int, dport: int, hop: int, secret: int) -> None:
    src, dst = (data.draw(v4 if version == 4 else v6) for _ in range(2))
    packet = probe(version, src, dst, sport, dport, hop, secret)
    if version == 4:
        ip = dpkt.ip.IP(packet)
        assert (ip.ttl, ip.id, ip.p, ip.len, ip.hl, ip.df, ip.offset) == (hop, hop, 6, 40, 5, 1, 0)
    else:
        ip = dpkt.ip6.IP6(packet)
        assert (ip.hlim, ip.nxt, ip.plen, ip.flow, ip.fc) == (hop, 6, 20, 0, 0)
    assert (ip.src, ip.dst) == (src, dst)
    tcp = ip.data
    assert (tcp.sport, tcp.dport, tcp.seq, tcp.flags, tcp.off, bytes(tcp.data)) == (
        sport,
        dport,
        secret << 4 | hop,
        dpkt.tcp.TH_ACK,
        5,
        b"",
    )
    wrong, tcp.sum = tcp.sum, 0
    head = struct.pack("!xBH", 6, 20) if version == 4 else struct.pack("!IxxxB", 20, 6)
    right = dpkt.in_cksum(src + dst + head + bytes(tcp))
    assert wrong not in (right, right ^ 0xFFFF)


def error4(sender: bytes, to: bytes, packet: bytes, kind: int = 11, code: int = 0, keep: int = 28) -> bytes:
    """An ICMP error as a raw socket gets it, by dpkt."""
    body = struct.pack("!BBHI", kind, code, 0, 0) + packet[:keep]
    body = body[:2] + struct.pack("!H", dpkt.in_cksum(body)) + body[4:]
    return bytes(dpkt.ip.IP(src=sender, dst=to, p=1, len=20 + len(body), data=body))


@given(
    v4,
    v4,
    v4,
    ports,
    ports,
    st.integers(1, 15),
    st.integers(0, (1 << 28) - 1),
    st.integers(28, 40),
    st.sampled_from([(11, 0, "exceeded"), (3, 1, "unreachable"), (3, 13, "unreachable")]),
)
def test_what_an_error_quotes_is_read(
    sender: bytes,
    src: bytes,
    dst: bytes,
    sport: int,
    dport: int,
    hop: int,
    secret: int,
    keep: int,
    kind: tuple[int, int, str],
) -> None:
    packet = probe(4, src, dst, sport, dport, hop, secret)
    found = quoted(4, error4(sender, src, packet, kind[0], kind[1], keep))
    assert found == (kind[2], sender, src, dst, sport, dport, secret << 4 | hop, hop)
    six = [bytes(12) + b for b in (sender, src, dst)]
    packet = probe(6, six[1], six[2], sport, dport, hop, secret)
    for type, word in ((3, "exceeded"), (1, "unreachable")):
        found = quoted(6, struct.pack("!BBHI", type, 0, 0, 0) + packet, six[0])
        assert found == (word, *six, sport, dport, secret << 4 | hop, 0)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda p: p[:27], ValueError),
        (lambda p: p[:20], ValueError),
        (lambda p: b"", ValueError),
        (lambda p: p[:24] + b"\1" + p[25:], ValueError),  # the checksum is wrong now
        (lambda p: b"\x65" + p[1:], ValueError),
        (lambda p: p[:9] + b"\x06" + p[10:], None),
    ],
)
def test_errors_that_are_none(change: Any, found: Any) -> None:
    good = error4(b"\x0a\0\0\1", b"\x0a\0\0\2", probe(4, b"\x0a\0\0\2", b"\x0a\0\0\3", 1, 2, 3, 4))
    if found is ValueError:
        with pytest.raises(ValueError, match="cut short"):
            quoted(4, change(good))
    else:
        assert quoted(4, change(good)) is found


def test_errors_about_other_packets() -> None:
    here, there = b"\x0a\0\0\2", b"\x0a\0\0\3"
    udp = bytes(dpkt.ip.IP(src=here, dst=there, p=17, len=36, data=bytes(16)))
    assert quoted(4, error4(there, here, udp)) is None
    tcp = probe(4, here, there, 1, 2, 3, 4)
    assert quoted(4, error4(there, here, tcp, 3, 4)) is None  # fragmentation needed
    assert quoted(4, error4(there, here, tcp, 11, 1)) is None  # reassembly
    later = tcp[:6] + b"\x00\x10" + tcp[8:]
    assert quoted(4, error4(there, here, later)) is None  # of a later fragment there are no ports


@given(st.sampled_from([4, 6]), st.binary(max_size=120))
@settings(max_examples=500)
def test_any_bytes_may_come(version: int, data: bytes) -> None:
    for packet in (data, b"\x45" + data, b"\x03\0\0\0\0\0\0\0\x60" + data):
        with suppress(ValueError):
            assert quoted(version, packet, bytes(16)) is None or len(packet) >= 28


# ---------------------------------------------------------------- the book

SCHEMA = builtin("path")


def block(rows: list[dict[str, Any]]) -> Block:
    columns = []
    for column in SCHEMA.columns:
        size = column.size * column.count
        raw = b""
        for row in rows:
            value = row.get(column.name, 0)
            raw += value if isinstance(value, bytes) else (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        columns.append(raw)
    return Block.wrap(SCHEMA.layout, len(rows), columns)


def address(n: int, version: int) -> dict[str, Any]:
    six = bytes(15) + bytes([n])
    return {"": n + 0x0A000000} if version == 4 else {"": fold6(six), "6": six}


row_of = st.fixed_dictionaries(
    {
        "version": st.sampled_from([4, 4, 6]),
        "src": st.integers(1, 3),
        "dst": st.integers(1, 3),
        "src_port": st.integers(1, 3),
        "dst_port": st.integers(1, 2),
        "proto": st.sampled_from([6, 6, 6, 17]),
        "lost": st.sampled_from([0, 0, 1, 5, (1 << 32) - 1]),
        "sent": st.integers(0, 1 << 31),
        "ts": st.integers(0, 50),
        "kind": st.sampled_from([0, 1, 1, 2]),
    }
)


def as_row(r: dict[str, Any]) -> dict[str, Any]:
    row = {
        "ts": r["ts"],
        "kind": r["kind"],
        "ip_version": r["version"],
        "proto": r["proto"],
        "sent": r["sent"],
        "lost": r["lost"],
        "retrans": r["lost"],
        "src_port": r["src_port"],
        "dst_port": r["dst_port"],
    }
    for side in ("src", "dst"):
        row |= {f"{side}_ip{suffix}": v for suffix, v in address(r[side], r["version"]).items()}
    return row


def written(book: FlowTable, tors: NumberMap | None = None, rows: int = 3) -> list[dict[str, Any]]:
    out, at, found = Staging(SCHEMA.layout, rows), 0, []
    while at < len(book):
        at = book.emit(out, at, NOTES["capped"], tors)
        found += [{name: out.get(out.layout.index(name), i) for name in FIELDS} for i in range(out.rows)]
    return found


@given(st.lists(row_of, max_size=60), st.booleans(), st.integers(0, 50), st.integers(0, 20))
def test_book_adds_up_as_a_dictionary_does(rows: list[dict[str, Any]], healthy: bool, until: int, since: int) -> None:
    book = FlowTable(SCHEMA.layout, healthy=healthy)
    stop = book.take(block([as_row(r) for r in rows]), until=until, since=since) if rows else 0
    twin: dict[Any, dict[str, int]] = {}
    queue = []
    end = len(rows)
    for i, r in enumerate(rows):
        if r["ts"] < since:
            continue
        if r["ts"] >= until:
            end = i
            break
        if r["proto"] != 6 or r["kind"] == 2 or (not r["lost"] and not healthy):
            continue
        key = r["version"], r["src"], r["dst"], r["src_port"], r["dst_port"]
        one = twin.setdefault(key, {"ts": r["ts"], "sent": 0, "lost": 0})
        if r["lost"] and not one["lost"]:
            queue.append(key)
        one["sent"] += r["sent"]
        one["lost"] += r["lost"]
        one["ts"] = max(one["ts"], r["ts"])
    assert stop == end
    assert (len(book), book.queued) == (len(twin), len(queue))
    found = written(book)
    assert len(found) == len(twin)
    for row, (key, one) in zip(found, twin.items(), strict=True):
        version, src, dst, sport, dport = key
        most = (1 << 32) - 1
        assert (row["ip_version"], row["src_port"], row["dst_port"], row["proto"], row["kind"]) == (
            version,
            sport,
            dport,
            6,
            1,
        )
        assert (row["src_ip"], row["dst_ip"]) == (address(src, version)[""], address(dst, version)[""])
        assert row["dst_ip6"] == address(dst, version).get("6", bytes(16))
        assert (row["sent"], row["lost"], row["retrans"]) == (min(one["sent"], most), *[min(one["lost"], most)] * 2)
        assert (row["ts"], row["hops"]) == (one["ts"], 0)
        assert row["notes"] == (NOTES["capped"] if one["lost"] else 0)  # it was not taken
    taken = []
    while (flow := book.pop()) is not None:
        _, version, src_ip, dst_ip, sport, dport, _ = flow
        taken.append((version, src_ip[-1], dst_ip[-1], sport, dport))
    assert taken == queue


def flow_row(port: int, lost: int = 1, **more: Any) -> dict[str, Any]:
    return (
        as_row(
            {
                "version": 4,
                "src": 1,
                "dst": 2,
                "src_port": port,
                "dst_port": 443,
                "proto": 6,
                "kind": 1,
                "ts": 7,
                "lost": lost,
                "sent": 10,
            }
        )
        | more
    )


def test_book_has_room_for_so_many() -> None:
    book = FlowTable(SCHEMA.layout, max_flows=5)
    book.take(block([flow_row(port, 3) for port in range(1, 11)] + [flow_row(2, 4)]))
    assert (len(book), book.overflow, book.overflow_lost, book.records) == (5, 5, 15, 11)
    assert [row["lost"] for row in written(book)] == [3, 7, 3, 3, 3]


def test_book_keeps_paths_and_uses_those_of_before() -> None:
    rows = block([flow_row(1), flow_row(2), flow_row(3)])
    old = FlowTable(SCHEMA.layout)
    old.take(rows)
    for port, now in ((1, 1000), (2, 2000)):
        flow = old.pop()
        assert flow is not None
        assert flow[4] == port
        old.store(flow[0], b"\x0a\x09\x09\x09", 8443, NOTES["partial"], [11, 0, 13], b"", now)
    book = FlowTable(SCHEMA.layout, before=old, fresh=1500)
    book.take(rows)
    assert book.waiting == 2  # the first path is too old, the third flow was not traced
    first, second, third = written(book, NumberMap({0x0A000001: 77, 0x0A090909: 88}))
    assert (second["hops"], second["path"][:4], second["notes"]) == (3, (11, 0, 13, 0), NOTES["partial"])
    assert (second["dst_ip"], second["dst_port"]) == (0x0A090909, 8443)
    assert (second["src_tor"], second["dst_tor"]) == (77, 88)
    assert [(r["hops"], r["notes"]) for r in (first, third)] == [(0, NOTES["capped"])] * 2


def test_book_writes_each_flow_once_and_those_under_way_later() -> None:
    book = FlowTable(SCHEMA.layout)
    book.take(block([flow_row(port) for port in (1, 2, 3)]))
    first, second = book.pop(), book.pop()
    assert first is not None
    assert second is not None
    book.store(second[0], b"\x0a\x00\x00\x02", 443, 0, [5], b"", 1)
    assert [(r["src_port"], r["hops"]) for r in written(book)] == [(2, 1), (3, 0)]
    assert written(book) == []
    book.store(first[0], b"\x0a\x00\x00\x02", 443, 0, [5, 6], b"", 2)
    assert [(r["src_port"], r["hops"]) for r in written(book)] == [(1, 2)]


def test_book_needs_flows() -> None:
    for name in ("packet", "retx", "path"):
        FlowTable(builtin(name).layout)
    with pytest.raises(KeyError, match="proto"):
        FlowTable(SCHEMA.project([f.name for f in SCHEMA.fields if f.name != "proto"]).layout)


@given(
    st.dictionaries(st.integers(1, (1 << 32) - 1), st.integers(1, (1 << 32) - 1), max_size=200),
    st.lists(st.integers(0, (1 << 32) - 1), max_size=20),
)
def test_number_map(numbers: dict[int, int], others: list[int]) -> None:
    found = NumberMap(numbers)
    for key in [*numbers, *others]:
        assert found.find(key) == numbers.get(key, 0)


# ---------------------------------------------------------------- where probes may go


@given(st.sampled_from([4, 6]), st.data())
def test_kinds_of_addresses_as_the_library_knows_them(version: int, data: Any) -> None:
    special = [b"\x7f\0\0\1", b"\xe0\0\0\5", b"\xff\xff\xff\xff", bytes(4), b"\xf0\0\0\1"]
    address = data.draw(st.one_of(v4, st.sampled_from(special)) if version == 4 else v6)
    its: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address)
    if getattr(its, "ipv4_mapped", None) is not None:
        return
    kind = kind_of(version, address)
    assert (kind == "multicast") == its.is_multicast
    assert (kind == "loopback") == its.is_loopback
    if version == 4:
        assert (kind == "broadcast") == (address[0] == 0 or (its.is_reserved and not its.is_multicast))


def test_ipv4_in_ipv6_is_no_way_around() -> None:
    assert kind_of(6, bytes(10) + b"\xff\xff\x7f\0\0\1") == "loopback"
    assert kind_of(6, bytes(10) + b"\xff\xff\x0a\0\0\1") == "foreign"


def test_only_some_prefixes() -> None:
    here = socket.inet_aton("127.0.0.1")
    allowed = Allowed(["10.1.0.0/16", "fd00::/8"], ["foreign"])
    assert allowed.refusal(4, here, socket.inet_aton("10.1.2.3")) == ""
    assert allowed.refusal(4, here, socket.inet_aton("10.2.2.3")) == "not among --only"
    assert allowed.refusal(6, here, socket.inet_pton(socket.AF_INET6, "fd12::1")) == ""
    assert allowed.refusal(6, here, socket.inet_pton(socket.AF_INET6, "2001:db8::1")) == "not among --only"
    for bad in (["10.1.2.3.4"], ["all"]):
        with pytest.raises(UsageError, match="is not a prefix"):
            Allowed(bad)
    with pytest.raises(UsageError, match="unknown kind of address"):
        Allowed([], ["martian"])
    assert Allowed().refusal(4, socket.inet_aton("192.0.2.77"), socket.inet_aton("10.1.2.3")) == "foreign"
    assert Allowed([], ["loopback"]).refusal(4, here, socket.inet_aton("127.0.0.2")) == ""


# ---------------------------------------------------------------- lookups and aliases

SRC, VIP, OTHER = (socket.inet_aton(a) for a in ("10.1.1.1", "10.9.0.1", "10.1.2.3"))


def answer(lookup: Any, dst: bytes = VIP, dport: int = 443, src: bytes = SRC, sport: int = 40000) -> Any:
    lookup.ask("x", src, sport, dst, dport)
    end = time.monotonic() + 10
    while not (got := lookup.answers()):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert [what for what, _ in got] == ["x"]
    return got[0][1]


def test_mapping_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "vips"
    path.write_text(
        "# load balancer\n10.1.1.1:40000 10.9.0.1:443 10.1.2.4\n10.9.0.1:443  10.1.2.3:8443 # web\n"
        "10.9.0.1 10.1.2.5\n10.9.0.7 -\n[fd09::1]:80 [fd01::1]:8080\nfd09::2 fd01::2\n"
    )
    lookup = FileLookup(str(path), Vips([]))
    assert answer(lookup) == End(socket.inet_aton("10.1.2.4"), 443)
    assert answer(lookup, sport=40001) == End(OTHER, 8443)
    assert answer(lookup, dport=80) == End(socket.inet_aton("10.1.2.5"), 80)
    assert answer(lookup, socket.inet_aton("10.9.0.7")) is None
    assert answer(lookup, OTHER) == End(OTHER, 443)  # a real one
    six = {n: socket.inet_pton(socket.AF_INET6, n) for n in ("fd09::1", "fd01::1", "fd09::2", "fd01::2")}
    assert answer(lookup, six["fd09::1"], 80) == End(six["fd01::1"], 8080)
    assert answer(lookup, six["fd09::2"], 81) == End(six["fd01::2"], 81)
    strict = FileLookup(str(path), Vips(["10.9.0.0/16"]))
    assert answer(strict, socket.inet_aton("10.9.0.9")) is None
    assert answer(strict, OTHER) == End(OTHER, 443)


@pytest.mark.parametrize(
    "line",
    [
        "10.9.0.1",
        "10.9.0.1 x",
        "10.9.0.1:0 10.1.1.1",
        "10.9.0.1:70000 10.1.1.1",
        "a b c",
        "1 2 3 4",
        "fd09::1 10.1.1.1",
        "10.9.0.1:² 10.1.1.1",
        "fd09::1:80x fd01::1",
    ],
)
def test_mappings_that_are_none(tmp_path: Path, line: str) -> None:
    path = tmp_path / "vips"
    path.write_text(f"10.9.0.9 10.1.1.9\n{line}\n")
    with pytest.raises(FormatError, match=":2: "):
        FileLookup(str(path), Vips([]))


SCRIPT = """
import sys
for line in sys.stdin:
    words = line.split()
    print({'443': '10.1.2.3 8443', '80': '10.1.2.5', '1': '=', '2': '?', '3': '::1', '4': '10.1.2.3 99999'}[words[3]],
          flush=True)
"""


def test_mapping_of_a_command() -> None:
    lookup = CommandLookup([sys.executable, "-c", SCRIPT], Vips(["10.9.0.0/16"]), 5.0)
    try:
        assert answer(lookup) == End(OTHER, 8443)
        assert answer(lookup, dport=80) == End(socket.inet_aton("10.1.2.5"), 80)
        assert answer(lookup, dport=1) == End(VIP, 1)
        for port in (2, 3, 4):
            assert answer(lookup, dport=port) is None
        assert answer(lookup, OTHER, 5) == End(OTHER, 5)  # not looked up: it is not among --vip
        for i in range(500):
            lookup.ask(i, SRC, i + 1, VIP, 443)
        got: list[Any] = []
        end = time.monotonic() + 10
        while len(got) < 500 and time.monotonic() < end:
            got += lookup.answers()
        assert got == [(i, End(OTHER, 8443)) for i in range(500)]
        assert answer(lookup, dport=9) is None  # the command dies of it
        assert lookup.problem == "has ended"
        assert answer(lookup) is None
    finally:
        lookup.close()


@pytest.mark.parametrize(
    "script",
    [
        "import time; time.sleep(60)",
        "print('10.1.1.1\\n' * 9, flush=True); input()",
        "print('x' * 99999, flush=True); import time; time.sleep(60)",
    ],
)
def test_a_command_that_does_not_answer_well(script: str) -> None:
    lookup = CommandLookup([sys.executable, "-c", script], Vips([]), 0.3)
    try:
        assert answer(lookup) is None
        assert lookup.problem
        assert answer(lookup) is None
    finally:
        lookup.close()


def test_aliases(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# switches\n10.0.0.1 t1-1 # lo\n10.0.0.2\tt1-1 other\n10.0.1.1 7\nfd00::1 t1-1\n10.0.2.1 core\n")
    one = 0x0A000001
    six = fold6(socket.inet_pton(socket.AF_INET6, "fd00::1"))
    alias, names = read_aliases(str(path), {"core": 99})
    assert alias == {one: one, one + 1: one, 0x0A000101: 7, six: one, 0x0A000201: 99}
    assert names == {one: "t1-1", 7: "7", 99: "core"}
    for bad in ("x y", "10.0.0.1", "7 t1", "10.0.0.1 a\n10.0.0.1 b"):
        path.write_text(bad)
        with pytest.raises(FormatError, match=r"is not an alias|belongs to"):
            read_aliases(str(path))
    with pytest.raises(FormatError, match="No such file"):
        read_aliases(str(tmp_path / "none"))
