"""The flow table against its twin in plain Python: random packets, timeouts, evictions."""

from __future__ import annotations

import struct
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import twin_flows as twin
from confluo_tools.core.block.block import Block, Picks
from confluo_tools.core.flows.conn_table import ENTRY_BYTES, ConnTable
from confluo_tools.formats.pcap import packet_schema
from confluo_tools.schema import fold6
from flow_rows import CONN, rows_of
from twin_flows import ACK, FIN, RST, SYN, FlowTwin, Packet

MS = 10**6
S = 10**9
START = 1_700_000_000 * S
PACKETS = packet_schema(offset=False, snap=0)


def block_of(packets: list[Packet]) -> Block:
    """The packets as rows of the packet schema."""
    columns: dict[str, tuple[str, list[Any]]] = {
        "ts": ("q", [p.ts for p in packets]),
        "ip_version": ("B", [ip_address(p.src).version for p in packets]),
        "proto": ("B", [p.proto for p in packets]),
        "src_port": ("H", [0 if p.proto in twin.PAIRS else p.sport for p in packets]),
        "dst_port": ("H", [0 if p.proto in twin.PAIRS else p.dport for p in packets]),
        "icmp_type": ("B", [p.sport if p.proto in twin.PAIRS else 0 for p in packets]),
        "icmp_code": ("B", [p.dport if p.proto in twin.PAIRS else 0 for p in packets]),
        "ip_len": ("I", [p.bytes for p in packets]),
        "payload_len": ("I", [p.size for p in packets]),
        "tcp_flags": ("H", [p.flags if p.proto == 6 else 0 for p in packets]),
        "tcp_seq": ("I", [p.seq for p in packets]),
        "tcp_ack": ("I", [p.ack for p in packets]),
        "tcp_window": ("H", [p.window for p in packets]),
    }
    raw = {name: struct.pack(f"<{len(packets)}{code}", *values) for name, (code, values) in columns.items()}
    for end in ("src", "dst"):
        found = [ip_address(getattr(p, end)) for p in packets]
        raw[f"{end}_ip"] = b"".join(struct.pack("<I", int(a) if a.version == 4 else fold6(a.packed)) for a in found)
        raw[f"{end}_ip6"] = b"".join(a.packed if a.version == 6 else bytes(16) for a in found)
    return Block.wrap(PACKETS.layout, len(packets), [raw.get(c.name) for c in PACKETS.columns])


def table(most: int = 1 << 20, idle: int = 0, active: int = 0) -> ConnTable:
    return ConnTable(PACKETS.layout, CONN.layout, most, idle, active)


def records(flows: ConnTable, packets: list[Packet], cut: int = 1 << 16) -> list[dict[str, Any]]:
    found = []
    for at in range(0, len(packets), cut):
        found += rows_of(flows.process(block_of(packets[at : at + cut])))
    return found + rows_of(flows.finish())


HOSTS = ("10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2")
FLAGS = (0, ACK, ACK, ACK, SYN, SYN, SYN | ACK, SYN | ACK, FIN | ACK, FIN | ACK, RST, RST | ACK, SYN | FIN, FIN | RST)
steps = st.sampled_from([0, 1, 1000, 2 * MS, 3 * MS, 50 * MS, S, 4 * S, 6 * S, 20 * S, -MS, -30 * S])


@st.composite
def traffic(draw: st.DrawFn) -> list[Packet]:
    now, packets = START, []
    for step, kind, ends, flags, seq, ack, size, window in draw(
        st.lists(
            st.tuples(
                steps,
                st.sampled_from([6, 6, 6, 6, 17, 1, 58, 47]),
                st.integers(0, 7),
                st.sampled_from(FLAGS),
                st.sampled_from([0, 1, 2, 100, 101, 102, 200, 201, 2**32 - 1]),
                st.sampled_from([0, 1, 101, 102, 201]),
                st.sampled_from([0, 0, 1, 99, 100]),
                st.sampled_from([0, 100, 100, 200]),
            ),
            max_size=60,
        )
    ):
        now += step
        six, back, port = 2 * (ends & 1), ends >> 1 & 1, 80 + (ends >> 2)
        a, b = HOSTS[six + back], HOSTS[six + 1 - back]
        sport, dport = (port, 1000) if back else (1000, port)
        if kind in (1, 58):
            sport, dport = [(8, 0), (0, 0), (3, 3), (135, 0), (136, 0), (128, 1)][(ends + size) % 6]
        packets.append(Packet(now, a, b, sport, dport, kind, flags, seq, ack, size, window, 40 + size))
    return packets


@settings(max_examples=150, deadline=None)
@given(
    traffic(),
    st.sampled_from([1, 2, 3, 100]),
    st.sampled_from([0, 10 * MS, 3 * S, 15 * S]),
    st.sampled_from([0, 1, S, 10 * S]),
    st.sampled_from([1, 7, 1000]),
)
@example([Packet(START + i * S, "10.0.0.1", "10.0.0.2", dport=i) for i in range(9)], 3, 0, 0, 1)
def test_records_equal_the_twin(packets: list[Packet], most: int, idle: int, active: int, cut: int) -> None:
    theirs = FlowTwin(most, idle, active)
    for p in packets:
        theirs.put(p)
    expected = theirs.finish()
    flows = table(most, idle, active)
    found = records(flows, packets, cut)
    assert [{k: row[k] for k in expected[0]} for row in found] == expected if expected else not found
    assert flows.evicted == theirs.evicted
    assert flows.count == 0
    assert flows.packets == len(packets)


def test_an_entry_has_three_cache_lines() -> None:
    """Four million flows, their slots and their links then fit into 1 GB."""
    assert ENTRY_BYTES <= 192


def test_more_flows_than_a_block_has_rows() -> None:
    """Records that do not fit wait; all of them come, each once, also when one packet ends thousands of flows."""
    many = [Packet(START + i, "10.0.0.1", "10.0.0.2", 1 + i % 60000, 80 + i // 60000, 17) for i in range(70_000)]
    late = Packet(START + 60 * S, "10.0.0.1", "10.0.0.2", 9, 9, 17)
    again = late._replace(ts=late.ts + 1)  # a jump of the clock is believed when the next packet is there as well
    flows = table(1 << 17, idle=S)
    found = records(flows, [*many, late, again])
    assert [row["reason"] for row in found] == ["idle"] * 70_000 + ["end"]
    assert sorted((r["dst_port"], r["src_port"]) for r in found[:-1]) == sorted((p.dport, p.sport) for p in many)
    assert found[-1]["src_packets"] == 2


def test_one_wrong_clock_ends_no_flow() -> None:
    steady = [Packet(START + i * 100 * MS, "10.0.0.1", "10.0.0.2", proto=17) for i in range(20)]
    wrong = Packet(START + 10**17, "10.0.0.3", "10.0.0.2", proto=17)
    found = records(table(idle=S), [*steady[:10], wrong, *steady[10:]])
    assert [(r["src_ip"], r["src_packets"]) for r in found if r["src_ip"] == "10.0.0.1"] == [("10.0.0.1", 20)]


def test_a_clock_that_was_set_back_goes_on() -> None:
    before = [Packet(START + i * S, "10.0.0.1", "10.0.0.2", proto=17) for i in range(3)]
    after = [p._replace(ts=p.ts - 3600 * S) for p in before]
    found = records(table(idle=15 * S), [*before, *after])
    assert [r["src_packets"] for r in found] == [3, 3]


def test_a_silent_input_ends_flows_by_the_clock() -> None:
    flows = table(idle=S)
    assert not list(flows.advance(START))
    assert flows.now is None
    assert not rows_of(flows.process(block_of([Packet(START, "10.0.0.1", "10.0.0.2")])))
    assert not list(flows.advance(START + S))
    assert not flows.waiting
    assert not list(flows.advance(START + S + 1))
    assert flows.waiting == 1
    assert [r["reason"] for r in rows_of([flows.take()])] == ["idle"]
    assert rows_of(flows.process(block_of([Packet(START + MS, "10.0.0.3", "10.0.0.2")]))) == []
    assert flows.late == 0  # by the clock of this host, not by another packet


def test_only_the_picked_packets_count() -> None:
    packets = [Packet(START + i, "10.0.0.1", "10.0.0.2", 1000 + i % 2) for i in range(10)]
    flows = table()
    block = block_of(packets)
    found = rows_of(flows.process(block, Picks.of(block.rows, [0, 1, 3, 5]))) + rows_of(flows.finish())
    assert sorted((r["src_port"], r["src_packets"]) for r in found) == [(1000, 1), (1001, 3)]


def test_wrong_columns_are_refused() -> None:
    with pytest.raises(KeyError, match="ip_len"):
        ConnTable(CONN.layout, CONN.layout, 10)
    with pytest.raises(ValueError, match="other columns"):
        ConnTable(PACKETS.layout, PACKETS.layout, 10)
    with pytest.raises(ValueError, match="0 flows"):
        table(0)


# What each state means, in the words of Zeek's manual, as segments: who sends (o, r), flags, payload.
O_SYN, R_SYNACK, O_ACK = ("o", SYN, 0), ("r", SYN | ACK, 0), ("o", ACK, 0)
OPENED = (O_SYN, R_SYNACK, O_ACK)
O_FIN, R_FIN = ("o", FIN | ACK, 0), ("r", FIN | ACK, 0)
DATA = (("o", ACK, 10), ("r", ACK, 20))
STATES = {
    "S0": ((O_SYN,), "S"),
    "S1": (OPENED, "ShA"),
    "SF": ((*OPENED, *DATA, O_FIN, R_FIN, O_ACK), "ShADdFf"),
    "REJ": ((O_SYN, ("r", RST | ACK, 0)), "Sr"),
    "S2": ((*OPENED, O_FIN, ("r", ACK, 0)), "ShAFa"),
    "S3": ((*OPENED, R_FIN, O_ACK), "ShAf"),
    "RSTO": ((*OPENED, *DATA, ("o", RST, 0)), "ShADdR"),
    "RSTR": ((*OPENED, *DATA, ("r", RST, 0)), "ShADdr"),
    "RSTOS0": ((O_SYN, ("o", RST, 0)), "SR"),
    "RSTRH": ((R_SYNACK, ("r", RST, 0)), "^hr"),
    "SH": ((O_SYN, O_FIN), "SF"),
    "SHR": ((R_SYNACK, R_FIN), "^hf"),
    "OTH": (DATA, "Dd"),
}


@pytest.mark.parametrize("state", STATES)
def test_states_of_conn_log(state: str) -> None:
    segments, history = STATES[state]
    number = {"o": 1000, "r": 5000}
    packets = []
    for i, (who, flags, size) in enumerate(segments):
        ends = ("10.0.0.9", "10.0.0.1", 40000, 80) if who == "o" else ("10.0.0.1", "10.0.0.9", 80, 40000)
        packets.append(Packet(START + i * MS, *ends, 6, flags, number[who], number["or"[who == "o"]], size))
        number[who] += size + bool(flags & (SYN | FIN))
    found = records(table(), packets)
    assert [(r["conn_state"], r["history"]) for r in found] == [(state, history)]
    assert found[0]["src_ip"] == "10.0.0.9"
