"""The decoder of exported records: round trips of all protocols, templates that lie, limits, lost datagrams."""

from __future__ import annotations

import struct
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.capture.flow_exports import FlowExports
from damaged_bytes import damaged
from export_rows import RECEIVED, SCHEMA, Row, add, decoded, decoder, rows
from flow_exporters import (
    LIMITS,
    NUMBERS,
    REVERSE,
    SECOND,
    Element,
    Template,
    counter_sample,
    data_set,
    flow_sample,
    gateway,
    ipfix,
    ntp,
    number,
    packed,
    raw_header,
    record,
    router,
    sflow,
    template_set,
    v5,
    v9,
)
from nic_lab import frame

NOW = 1_700_000_000
FLOW = Template(256, [Element(8, 4), Element(12, 4), Element(1, 4), Element(2, 4)])
u16, u32 = st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)


def flow(packets: int = 1, src: str = "10.0.0.1") -> list[bytes]:
    return [packed(src), packed("10.0.0.2"), number(100 * packets, 4), number(packets, 4)]


def templates(*of: Template, ipfix: bool = False) -> bytes:
    return template_set(of, ipfix=ipfix)


def only(d: FlowExports) -> dict[str, int]:
    """The counters that are not zero."""
    return {k: v for k, v in d.counts.items() if v and k not in ("datagrams", "bytes", "exporters", "state_bytes")}


@given(st.lists(st.tuples(u32, u32, u16, u16, u16), max_size=3), u32, st.integers(0, 999_999_999), u16)
def test_netflow5_round_trip(flows: list[Any], uptime: int, part: int, engine: int) -> None:
    """Times are exact, also when the clock of the exporter wraps between the flow and the export."""
    time = NOW * SECOND + part
    values = [
        {"src": number(a, 4), "dst": number(b, 4), "packets": a, "bytes": b, "src_port": s, "dst_port": d, "proto": 6,
         "flags": 0x1B, "tos": 0x2A, "first": (uptime - age - 5) % 2**32, "last": (uptime - age) % 2**32,
         "src_as": s, "dst_as": d, "src_mask": 24, "dst_mask": 16, "next": number(b, 4), "in_if": s, "out_if": d}
        for a, b, s, d, age in flows
    ]  # fmt: skip
    found = decoded(v5(values, uptime=uptime, time=time, engine=engine, sampling=0x4000 | 100))
    assert len(found) == len(flows)
    for row, (a, b, s, d, age) in zip(found, flows, strict=True):
        last = time - age * 10**6
        expected = {
            "ts": last - 5 * 10**6, "last_ts": last, "duration": 5 * 10**6, "ip_version": 4, "proto": 6, "packets": a,
            "bytes": b, "src_port": s, "dst_port": d, "tcp_flags": 0x1B, "dscp": 10, "ecn": 2, "src_as": s, "dst_as": d,
            "src_mask": 24, "dst_mask": 16, "in_if": s, "out_if": d, "sampling": 100, "source_id": engine, "export": 5,
            "exporter": "192.0.2.9", "exported": time, "received": RECEIVED,
        }  # fmt: skip
        texts = {"src_ip": a, "dst_ip": b, "next_hop": b}
        expected |= {name: ".".join(map(str, number(v, 4))) for name, v in texts.items()}
        assert row == {k: v for k, v in expected.items() if v and v != "0.0.0.0"}


@st.composite
def exported(draw: st.DrawFn) -> tuple[bool, Template, list[list[bytes]], list[Row]]:
    """A template of some fields in any order, records of it, and what they mean."""
    is_ipfix = draw(st.booleans())
    chosen = draw(st.lists(st.sampled_from(NUMBERS), unique_by=lambda n: n[2], max_size=8))
    six = draw(st.booleans())
    size = 16 if six else 4
    parts: list[tuple[Element, str]] = [
        (Element(27 if six else 8, size), "src_ip"),
        (Element(28 if six else 12, size), "dst_ip"),
    ]
    parts += [(Element(id, draw(st.sampled_from(sizes))), name) for id, sizes, name in chosen]
    kind = draw(st.sampled_from(["seconds", "ms", "us", "ns", "none"]))
    if kind != "none":
        first = {"seconds": 150, "ms": 152, "us": 154, "ns": 156}[kind]
        parts += [
            (Element(first, 4 if kind == "seconds" else 8), "ts"),
            (Element(first + 1, 4 if kind == "seconds" else 8), "last_ts"),
        ]
    unknown = draw(st.lists(st.tuples(st.sampled_from([3, 300, 9999]), st.none() | st.integers(0, 9)), max_size=3))
    for id, length in unknown:
        if is_ipfix:
            parts.append((Element(id, length, draw(st.sampled_from([0, 9, 6871]))), ""))
        else:
            parts.append((Element(id, length or 0), ""))
    parts = draw(st.permutations(parts))
    records, meant = [], []
    for _ in range(draw(st.integers(1, 3))):
        values, row = [], {"ip_version": 6 if six else 4}
        start = draw(st.integers(0, 2**31)) * SECOND + draw(st.integers(0, SECOND - 1))
        for element, name in parts:
            if not name:
                values.append(
                    draw(st.binary(min_size=element.size or 0, max_size=300 if element.size is None else element.size))
                )
            elif name in ("ts", "last_ts"):
                t = start + (2 * SECOND if name == "last_ts" else 0)
                unit = {"seconds": SECOND, "ms": 10**6, "us": 1000, "ns": 1}[kind]
                t -= t % unit
                values.append(number(t // unit, element.size or 0) if kind in ("seconds", "ms") else ntp(t))
                row[name] = t
            elif name in ("src_ip", "dst_ip"):
                values.append(draw(st.binary(min_size=size, max_size=size).filter(any)))
                row[name] = values[-1]
            else:
                v = draw(st.integers(0, min(256**element.size - 1, LIMITS.get(name, 2**63))))
                values.append(number(v, element.size or 0))
                row[name] = v
        if kind == "none":
            row["ts"] = row["last_ts"] = NOW * SECOND
        row["duration"] = row["last_ts"] - row["ts"]
        records.append(values)
        meant.append(row)
    return is_ipfix, Template(draw(st.integers(256, 65535)), [e for e, _ in parts]), records, meant


@given(exported(), st.sampled_from([1, 4]), st.booleans())
@settings(max_examples=60)
def test_templates_round_trip(case: Any, pad: int, long: bool) -> None:
    """NetFlow v9 and IPFIX: fields of any order and length, variable lengths, enterprises, padding."""
    is_ipfix, template, records, meant = case
    if sum(e.size or 1 for e in template.fields) < 4:
        pad = 1
    sets = [template_set([template], ipfix=is_ipfix), data_set(template, records, pad=pad, long=long)]
    d = decoder()
    add(d, ipfix(sets, seconds=NOW) if is_ipfix else v9(sets, seconds=NOW))
    found = rows(d)
    assert only(d) == {"templates": 1}
    assert len(found) == len(meant)
    for row, want in zip(found, meant, strict=True):
        for name in ("src_ip", "dst_ip"):
            assert packed(row[name]) == want.pop(name)
        assert {k: row.get(k, 0) for k in want} == want


@pytest.mark.parametrize("six", [False, True])
def test_sflow_round_trip(six: bool) -> None:
    """The header of a packet goes through the parser of packets; routers add next hops and autonomous systems."""
    agent = "2001:db8::9" if six else "192.0.2.1"
    packet = frame()
    more = [router("10.9.9.9", 24, 16), gateway("10.8.8.8", 64500, 0, [64501, 64502])]
    sample = flow_sample([raw_header(packet[:60], 1400), *more], rate=512, wide=six)
    d = decoder()
    add(d, sflow([counter_sample(), sample], agent=agent, sub=3), sflow=True)
    (row,) = rows(d)
    assert only(d) == {"counters": 1}
    assert row["exporter"] == agent
    del row["exporter"]
    ports = struct.unpack(">HH", packet[34:38])
    assert row == {
        "ts": RECEIVED, "last_ts": RECEIVED, "received": RECEIVED, "ip_version": 4, "proto": packet[23], "export": 1,
        "src_ip": ".".join(map(str, packet[26:30])), "dst_ip": ".".join(map(str, packet[30:34])), "src_port": ports[0],
        "dst_port": ports[1], "packets": 1, "bytes": struct.unpack(">H", packet[16:18])[0], "ttl": packet[22],
        "sampling": 512, "in_if": 3, "out_if": 4, "src_as": 64500, "dst_as": 64502, "src_mask": 24, "dst_mask": 16,
        "next_hop": "10.9.9.9", "bgp_next_hop": "10.8.8.8", "source_id": 3,
        **({"tcp_flags": packet[47]} if packet[23] == 6 else {}),
        "eth_src": int.from_bytes(packet[6:12], "big"), "eth_dst": int.from_bytes(packet[:6], "big"),
    }  # fmt: skip


def test_sflow_without_headers() -> None:
    """The fields of a packet instead of its header."""
    body = packed("10.0.0.1") + packed("10.0.0.2") + struct.pack(">IIII", 5, 80, 2, 8)
    (row,) = decoded(sflow([flow_sample([record(3, 1000, 6, extra=body)])]), sflow=True)
    assert (row["src_ip"], row["dst_ip"], row["dst_port"], row["bytes"]) == ("10.0.0.1", "10.0.0.2", 80, 1000)
    assert (row["proto"], row["tcp_flags"], row["dscp"], row["sampling"]) == (6, 2, 2, 100)


def test_both_directions_and_uptimes_of_ipfix() -> None:
    """RFC 5103, and times since the start of the exporter, which only an options record gives."""
    boot = NOW * 1000 - 50 * 86_400_000  # its clock has wrapped
    options = Template(257, [Element(149, 4), Element(160, 8)], scopes=1)
    fields = [
        *FLOW.fields,
        Element(1, 4, REVERSE),
        Element(2, 4, REVERSE),
        Element(6, 1, REVERSE),
        Element(22, 4),
        Element(21, 4),
    ]
    both = Template(256, fields)
    up = (NOW * 1000 - boot) % 2**32
    values = [*flow(), number(7, 4), number(8, 4), b"\x12", number(up - 3000, 4), number(up - 1000, 4)]
    said = data_set(options, [[number(0, 4), number(boot, 8)]])
    sets = [templates(options, ipfix=True), templates(both, ipfix=True), said, data_set(both, [values])]
    (row,) = decoded(ipfix(sets, seconds=NOW))
    assert (row["reverse_bytes"], row["reverse_packets"], row["reverse_flags"]) == (7, 8, 0x12)
    assert (row["ts"], row["last_ts"]) == ((NOW - 3) * SECOND, (NOW - 1) * SECOND)


def test_icmp_has_no_port() -> None:
    (row, tcp) = decoded(v5([{"proto": 1, "dst_port": 0x0303}, {"proto": 6, "dst_port": 0x0303}]))
    assert (row["icmp_type"], row["icmp_code"]) == (3, 3)
    assert "dst_port" not in row
    assert tcp["dst_port"] == 0x0303
    assert "icmp_type" not in tcp


def test_options_give_sampling_rates_and_names() -> None:
    """The rate of the sampler that a record names; the names of its interfaces; --scale-samples."""
    samplers = Template(300, [Element(1, 4), Element(48, 2), Element(50, 4)], scopes=1)
    names = Template(301, [Element(2, 4), Element(82, 8)], scopes=1)
    data = Template(256, [*FLOW.fields, Element(48, 2), Element(10, 2), Element(14, 2)])
    sets = [
        templates(samplers), templates(names), templates(data),
        data_set(samplers, [[number(0, 4), number(n, 2), number(100 * n, 4)] for n in (1, 2)]),
        data_set(names, [[number(n, 4), b"eth%d\0\0\0\0" % n] for n in (1, 2)]),
        data_set(data, [[*flow(3), number(n, 2), number(1, 2), number(2, 2)] for n in (2, 1, 9)]),
    ]  # fmt: skip
    kept, scaled = (decoded(v9(sets), scale=scale) for scale in (False, True))
    assert [r.get("sampling") for r in kept] == [200, 100, None]
    assert [r["packets"] for r in kept] == [3, 3, 3]
    assert {(r["in_name"], r["out_name"]) for r in kept} == {("eth1", "eth2")}
    assert [(r["packets"], r["bytes"], r["notes"] & 1) for r in scaled] == [
        (600, 60_000, 1),
        (300, 30_000, 1),
        (3, 300, 0),
    ]


def test_rates_of_selectors() -> None:
    """IPFIX: an interval and a space, or a size and a population (RFC 5477)."""
    for elements, values, rate in (
        ((305, 306), (1, 99), 100),
        ((309, 310), (2, 100), 50),
        ((305,), (64,), 64),
        ((34,), (7,), 7),
    ):
        options = Template(300, [Element(302, 8), *(Element(e, 4) for e in elements)], scopes=1)
        row = [number(5, 8), *(number(v, 4) for v in values)]
        sets = [
            templates(options, ipfix=True),
            templates(FLOW, ipfix=True),
            data_set(options, [row]),
            data_set(FLOW, [flow()]),
        ]
        assert decoded(ipfix(sets))[0]["sampling"] == rate


def test_counters_do_not_overflow() -> None:
    big = Template(256, [Element(8, 4), Element(1, 8), Element(2, 8), Element(34, 8), Element(10, 8)])
    values = [packed("10.0.0.1"), number(2**63, 8), number(2**64 - 1, 8), number(2**40, 8), number(2**64 - 1, 8)]
    (row,) = decoded(v9([templates(big), data_set(big, [values])]), scale=True)
    assert (row["bytes"], row["packets"], row["sampling"], row["in_if"]) == (2**64 - 1, 2**64 - 1, 2**32 - 1, 2**32 - 1)


# -- templates


def test_data_waits_for_its_template() -> None:
    """Of this exporter and domain only, in order."""
    d = decoder()
    add(d, v9([data_set(FLOW, [flow(1), flow(2)])], source=1, sequence=0))
    add(d, v9([data_set(FLOW, [flow(3)])], source=1, sequence=1))
    add(d, v9([templates(FLOW)], source=2))
    add(d, v9([templates(FLOW)], source=1, sequence=2), source="192.0.2.8")
    assert rows(d) == []
    assert d.counts["waiting"] == 2
    add(d, v9([templates(FLOW)], source=1, sequence=2))
    found = rows(d)
    assert [r["packets"] for r in found] == [1, 2, 3]
    assert all(r["notes"] & 4 for r in found)
    assert (d.counts["waiting"], d.counts["waited"], d.counts["without_template"]) == (0, 2, 0)


def test_what_waits_is_bounded() -> None:
    d = decoder()
    for n in range(400):
        add(d, v9([data_set(FLOW, [flow(n)])], sequence=n))
    assert d.counts["waiting"] == 256
    assert d.counts["without_template"] == 144
    for n in range(40):  # 64 KiB each: the oldest make room
        add(d, v9([data_set(FLOW, [flow()] * 4000)]), source=f"10.1.0.{n}")
    assert d.counts["waiting"] <= 40
    assert d.counts["waiting"] + d.counts["without_template"] == 440
    add(d, v9([templates(FLOW)]), source="10.1.0.39")
    assert d.waiting == 4000


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([Element(8, 0)], id="of no length"),
        pytest.param([], id="without fields"),
        pytest.param([Element(8, 4)] * 1025, id="too many fields"),
        pytest.param([Element(8, 4), Element(9999, 65535)], id="longer than a datagram"),
    ],
)
def test_impossible_templates(fields: list[Element]) -> None:
    """They are counted, and what came before under their number is not used for their records."""
    d, lie = decoder(), Template(256, fields)
    add(d, v9([templates(FLOW), templates(lie), data_set(FLOW, [flow()])]))
    assert rows(d) == []
    assert (d.counts["bad_templates"], d.counts["waiting"]) == (1, 1)


def test_fields_that_do_not_fit_are_skipped() -> None:
    """An address of 5 bytes, a counter of 9, a time of NTP of 4: the others of the record are read."""
    odd = Template(256, [Element(12, 5), Element(1, 9), Element(156, 4), Element(8, 4), Element(2, 3)])
    values = [b"\1" * 5, b"\1" * 9, b"\1" * 4, packed("10.0.0.1"), number(77, 3)]
    (row,) = decoded(ipfix([templates(odd, ipfix=True), data_set(odd, [values])]))
    assert (row["src_ip"], row["packets"]) == ("10.0.0.1", 77)
    assert not {"dst_ip", "bytes"} & row.keys()
    assert row["ts"] == NOW * SECOND


def test_lengths_that_lie() -> None:
    """A set longer than its datagram, a template that ends too early, a field of a record that does."""
    good = v9([templates(FLOW), data_set(FLOW, [flow()])])
    longer = good[:-20] + struct.pack(">HH", 256, 9999) + good[-16:]
    cut = v9([struct.pack(">HHHH", 0, 8, 256, 4)])
    open_ended = Template(256, [Element(8, 4), Element(82, None)])
    runs_out = ipfix(
        [templates(open_ended, ipfix=True), struct.pack(">HH", 256, 4 + 6) + packed("10.0.0.1") + b"\x09x"]
    )
    for datagram in (longer, cut, good[:15], v5([{}])[:30], ipfix([b""])[:9], runs_out, b"", b"\0"):
        d = decoder()
        add(d, datagram)
        assert rows(d) == []
        if datagram is not runs_out:  # what is left of a set may be padding
            assert d.counts["malformed"] + d.counts["unknown"] == 1
    d = decoder()
    add(d, v5([{"packets": 1}, {"packets": 2}])[:-1])  # the first one is whole
    assert [r["packets"] for r in rows(d)] == [1]


def test_ipfix_withdraws_templates() -> None:
    for id in (256, 2):
        d = decoder()
        add(d, ipfix([templates(FLOW, ipfix=True), struct.pack(">HHHH", 2, 8, id, 0), data_set(FLOW, [flow()])]))
        assert (rows(d), d.counts["waiting"]) == ([], 1)


def test_a_million_templates_are_bounded() -> None:
    """One exporter, then very many: memory stays, what is given up is counted, and a real exporter goes on."""
    d = decoder()
    add(d, v9([templates(FLOW), data_set(FLOW, [flow()])]))
    sequence = count(1)
    wide = [Element(8, 4)] + [Element(1, 4)] * 40
    for start in range(256, 65000, 300):
        many = [Template(start + i, wide) for i in range(300)]
        add(d, v9([templates(*many)], sequence=next(sequence)), source="203.0.113.1")
    assert d.counts["evicted_templates"] >= 65000 - 256 - 2048 - 300
    assert d.counts["state_bytes"] < 1 << 22
    body = v9([templates(*[Template(256 + i, wide) for i in range(16)])])
    for n in range(20_000):
        d.add(body, struct.pack(">QQ", 0x20010DB8 << 32, n), 1, RECEIVED)
    assert d.counts["exporters"] <= 16384
    assert d.counts["evicted_exporters"] >= 20_000 - 16384
    assert d.counts["state_bytes"] < 80 << 20
    add(d, v9([data_set(FLOW, [flow(5)])], sequence=1))
    assert [r["packets"] for r in rows(d)] == [1, 5]


# -- sequences


def lost(d: FlowExports) -> list[tuple[int, int, int]]:
    rows = [e[6:] for e in d.exporters()]
    assert d.losses() == tuple(map(sum, zip(*rows, strict=True)))
    return rows


def test_lost_and_late_datagrams_are_counted() -> None:
    """NetFlow v5 and IPFIX number records, NetFlow v9 and sFlow datagrams."""
    d = decoder()
    for sequence in (0, 2, 7, 5):  # 3 records are missing, then 3, and one of 2 comes late
        add(d, v5([{}, {}], sequence=sequence))
    assert lost(d) == [(1, 1, 0)]
    d = decoder()
    for sequence in (2**32 - 1, 0, 3, 1):
        add(d, v9([templates(FLOW)], sequence=sequence))
    assert lost(d) == [(1, 1, 0)]
    d = decoder()
    add(d, ipfix([templates(FLOW, ipfix=True), data_set(FLOW, [flow()] * 3)], sequence=10))
    add(d, ipfix([data_set(FLOW, [flow()] * 2)], sequence=13))
    add(d, ipfix([data_set(FLOW, [flow()])], sequence=20))
    assert lost(d) == [(5, 0, 0)]
    d = decoder()
    for sequence in (1, 2, 5):
        add(d, sflow([], sequence=sequence), sflow=True)
    assert lost(d) == [(2, 0, 0)]


def test_an_exporter_starts_again() -> None:
    """Its templates are those of before: nothing is read with them; its sequence begins, nothing is lost."""
    d = decoder()
    add(d, v9([templates(FLOW), data_set(FLOW, [flow()])], uptime=10**9, sequence=1000, seconds=NOW))
    add(d, v9([data_set(FLOW, [flow()])], uptime=20_000, sequence=0, seconds=NOW + 30))
    assert len(rows(d)) == 1
    assert d.counts["waiting"] == 1
    assert lost(d) == [(0, 0, 1)]
    d = decoder()  # 50 days: the clock wraps, and all goes on
    add(d, v9([templates(FLOW)], uptime=2**32 - 10_000, sequence=1, seconds=NOW))
    add(d, v9([data_set(FLOW, [flow()])], uptime=20_000, sequence=2, seconds=NOW + 30))
    assert len(rows(d)) == 1
    assert lost(d) == [(0, 0, 0)]


def test_domains_and_sessions_have_templates_of_their_own() -> None:
    """NetFlow v9 goes by address and source, IPFIX by port as well."""
    other = Template(256, [Element(12, 4), Element(8, 4), Element(1, 4), Element(2, 4)])
    d = decoder()
    add(d, v9([templates(FLOW)], source=1), port=1)
    add(d, v9([templates(other)], source=2), port=1)
    add(d, v9([data_set(FLOW, [flow()])], source=1, sequence=1), port=2)
    add(d, ipfix([templates(other, ipfix=True)]), port=1)
    add(d, ipfix([templates(FLOW, ipfix=True)]), port=2)
    add(d, ipfix([data_set(FLOW, [flow()])]), port=1)
    assert [r["src_ip"] for r in rows(d)] == ["10.0.0.1", "10.0.0.2"]


# -- anything


OPEN = Template(258, [Element(8, 4), Element(82, None), Element(10, 2)])
OPTIONS = Template(257, [Element(2, 4), Element(82, 8), Element(48, 2), Element(50, 4)], scopes=1)
OPEN_ROW = [packed("10.0.0.1"), b"x" * 300, b"\0\1"]
ROUTED = [raw_header(frame(), 80), router("10.1.1.1", 8, 8), gateway("10.1.1.1", 1, 2, [3, 4])]
GOOD = [
    (v5([{"packets": 1, "proto": 1}] * 3), False),
    (v9([templates(FLOW), templates(OPTIONS), data_set(FLOW, [flow()] * 3, pad=4)]), False),
    (ipfix([templates(FLOW, OPEN, ipfix=True), data_set(OPEN, [OPEN_ROW]), data_set(FLOW, [flow()])]), False),
    (sflow([counter_sample(), flow_sample(ROUTED, wide=True)]), True),
]


@given(st.data())
@settings(max_examples=120)
def test_damaged_datagrams_do_no_harm(data: st.DataObject) -> None:
    """Also with the state that those before left; the sanitizer build runs this as well."""
    d = decoder()
    for _ in range(data.draw(st.integers(1, 4))):
        good, is_sflow = data.draw(st.sampled_from(GOOD))
        add(d, good if data.draw(st.booleans()) else damaged(good, data)[:65535], sflow=is_sflow)
    rows(d)
    counts = d.counts
    assert counts["datagrams"] >= counts["malformed"] + counts["unknown"]


def test_a_block_that_is_used_again_has_no_old_values() -> None:
    """Rows of all columns, then rows of few columns in the same block."""
    wide = Template(300, [Element(id, sizes[-1]) for id, sizes, _ in NUMBERS] + [Element(27, 16), Element(28, 16)])
    names = Template(301, [Element(2, 4), Element(82, 8)], scopes=1)
    full = [number(1, element.size or 0) for element in wide.fields]
    sets = [templates(names), data_set(names, [[number(1, 4), b"eth1\0\0\0\0"]])]
    first = v9([*sets, templates(wide), data_set(wide, [full] * 40)])
    second = v9([templates(FLOW), data_set(FLOW, [flow(i) for i in range(1, 60)])], source=7)
    d = decoder()
    add(d, first)
    block = d.take()
    assert block.rows == 40
    assert block.get(SCHEMA.layout.names.index("in_name"), 39).startswith(b"eth1")
    d.reuse(block)
    assert block.rows == 0
    d.take()  # the block that was begun before
    add(d, second)
    again = d.take()
    assert again is block
    fresh = decoder()
    add(fresh, second)
    new = fresh.take()
    assert [again.get(k, i) for i in range(59) for k in range(len(SCHEMA.layout.names))] == [
        new.get(k, i) for i in range(59) for k in range(len(SCHEMA.layout.names))
    ]
