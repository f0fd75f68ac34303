"""confluo-stream service tcp-rate: held against tshark and tcptrace, and the same however the input is cut."""

from __future__ import annotations

import csv
import gzip
import ipaddress
import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.formats.pcap import open_captures
from confluo_tools.stream.services.tcp_rate import TcpRateService
from running import CAMPUS, lines, run

SECOND = 10**9
BY_TIMESTAMP, BY_ACK = 1, 2
SYN, RST, ACK = 2, 4, 16
FIELDS = ("frame.time_epoch", "ip.src", "ipv6.src", "ip.dst", "ipv6.dst", "tcp.srcport", "tcp.dstport", "tcp.len")
FIELDS += ("tcp.flags", "tcp.options.timestamp.tsval", "tcp.options.timestamp.tsecr", "tcp.analysis.ack_rtt")
FIELDS += ("tcp.analysis.retransmission",)
Flow = tuple[str, str, int, int]


class Segment(NamedTuple):
    """A TCP segment as tshark has it; times in ns."""

    ts: int
    flow: Flow
    size: int
    flags: int
    value: int | None
    echo: int | None
    ack_rtt: int
    again: bool

    @property
    def back(self) -> Flow:
        src, dst, sport, dport = self.flow
        return dst, src, dport, sport


def ns(text: str) -> int:
    seconds, _, fraction = text.partition(".")
    return int(seconds or 0) * SECOND + int(fraction.ljust(9, "0") or 0)


def segments(capture: Path) -> list[Segment]:
    options = ("ip.defragment:FALSE", "ipv6.defragment:FALSE", "tcp.desegment_tcp_streams:FALSE")
    command = ["tshark", "-n", "-r", str(capture), *(w for o in options for w in ("-o", o)), "-Y", "tcp and !icmp"]
    command += ["-T", "fields", "-E", "occurrence=f", *(w for name in FIELDS for w in ("-e", name))]
    out = []
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        time, src, src6, dst, dst6, sport, dport, size, flags, value, echo, rtt, again = line.split("\t")
        flow = (src or src6, dst or dst6, int(sport), int(dport))
        stamps = (int(value) if value else None, int(echo) if echo else None)
        out.append(Segment(ns(time), flow, int(size), int(flags, 0), *stamps, ns(rtt), bool(again)))
    return out


def echoes(trace: list[Segment]) -> Iterator[tuple[Flow, int]]:
    """Round trips by timestamps, from the definition: one timestamp of a direction at a time, until it is echoed."""
    waiting: dict[Flow, tuple[int, int] | None] = {}
    latest: dict[Flow, int] = {}
    for s in trace:
        if s.value is None or s.echo is None or s.flags & RST:
            continue
        open_ = waiting.get(s.back)
        if open_ is not None and s.flags & ACK and (s.echo - open_[1]) % 2**32 < 2**31:
            if s.echo == open_[1] and s.ts > open_[0]:
                yield s.back, s.ts - open_[0]
            waiting[s.back] = None
        if s.flags & (SYN | ACK) == SYN:
            for flow in (s.flow, s.back):
                waiting.pop(flow, None)
                latest.pop(flow, None)
        new = s.flow not in latest or 0 < (s.value - latest[s.flow]) % 2**32 < 2**31
        if (s.size or s.flags & SYN) and new:
            if waiting.get(s.flow) is None:
                waiting[s.flow] = s.ts, s.value
            latest[s.flow] = s.value


def rates(*words: object) -> dict[Flow, dict[str, Any]]:
    done = run("confluo-stream", "service", "tcp-rate", *map(str, words), "--window", "0", "-J", "-n")
    assert done.returncode == 0, done.stderr
    found = {}
    for row in map(json.loads, lines(done)):
        found[row["src_ip"], row["dst_ip"], row["src_port"], row["dst_port"]] = row
    return found


@pytest.fixture(scope="module")
def trace() -> list[Segment]:
    return segments(CAMPUS)


@pytest.fixture(scope="module")
def campus() -> dict[Flow, dict[str, Any]]:
    return rates(CAMPUS)


def test_bytes_and_retransmissions_are_those_of_tshark(
    trace: list[Segment], campus: dict[Flow, dict[str, Any]]
) -> None:
    size: Counter[Flow] = Counter()
    good: Counter[Flow] = Counter()
    count: Counter[Flow] = Counter()
    again: Counter[Flow] = Counter()
    for s in trace:
        size[s.flow] += s.size
        good[s.flow] += 0 if s.again else s.size
        count[s.flow] += s.size > 0
        again[s.flow] += s.again
    data = {flow for flow in size if size[flow] or again[flow]}
    assert data <= campus.keys()
    assert len(data) > 100
    assert sum(again.values()) > 10
    for flow, row in campus.items():
        mine = (row["bytes"], row["segments"], row["retransmitted"])
        assert mine == (size[flow], count[flow], again[flow]), flow
        if row["throughput"]:
            assert row["goodput"] / row["throughput"] == pytest.approx(good[flow] / size[flow])


def test_round_trips_are_those_of_timestamps_or_acks(trace: list[Segment], campus: dict[Flow, dict[str, Any]]) -> None:
    stamps, acks = defaultdict(list), defaultdict(list)
    for flow, rtt in echoes(trace):
        stamps[flow].append(rtt)
    for s in trace:
        if s.ack_rtt > 0:
            acks[s.back].append(s.ack_rtt)
    for flow, row in campus.items():
        by = BY_TIMESTAMP if flow in stamps else BY_ACK if flow in acks else 0
        found = stamps[flow] if by == BY_TIMESTAMP else acks[flow] if by else [0]
        assert (row["rtt_by"], row["rtt_count"]) == (by, len(found) if by else 0), flow
        assert row["rtt_min"] == min(found)
        assert row["rtt_mean"] == pytest.approx(sum(found) / len(found), abs=1)
    assert {row["rtt_by"] for row in campus.values()} >= {BY_TIMESTAMP}


@pytest.mark.parametrize("name", ["mlab_ndt7_c2da9_5k.pcap", "mlab_ndt7_4c6fb_18k.pcap", "chris_tcp_retrans.pcapng"])
def test_sums_are_those_of_tcptrace(pcaps: Path, name: str) -> None:
    found = rates(pcaps / name)
    with gzip.open(pcaps / "truth" / f"{name}.tcptrace.csv.gz", "rt") as f:
        table = [row for row in csv.reader(line for line in f if line.strip() and line[0] != "#") if len(row) > 10]
    head = [word.strip() for word in table[0]]
    checked = 0
    for values in table[1:]:
        row = dict(zip(head, (v.strip() for v in values), strict=False))
        a, b = (str(ipaddress.ip_address(canonical(row[f"host_{side}"]))) for side in "ab")
        for ends, way in (((a, b), "a2b"), ((b, a), "b2a")):
            ports = (int(row["port_a"]), int(row["port_b"]))[:: 1 if way == "a2b" else -1]
            if int(row[f"actual_data_bytes_{way}"]):
                mine = found[(*ends, *ports)]
                assert mine["bytes"] == int(row[f"actual_data_bytes_{way}"])
                assert mine["segments"] == int(row[f"actual_data_pkts_{way}"])
                checked += 1
    assert checked


def canonical(address: str) -> str:
    """tcptrace writes IPv6 addresses with zeros."""
    return (
        ":".join(word.lstrip("0") or ("0" if word else "") for word in address.split(":"))
        if ":" in address
        else address
    )


@cache
def blocks() -> tuple[Any, list[Block]]:
    with open_captures([str(CAMPUS)]) as captures:
        return captures.schema, list(captures)


NAMES = ("src_ip", "src_ip6", "dst_ip", "dst_ip6", "src_port", "dst_port")


def results(cuts: list[int], window: int) -> list[tuple[Any, ...]]:
    """All rows, when the blocks of the capture are cut there."""
    schema, found = blocks()
    service = TcpRateService(schema, window=window, lateness=SECOND)
    out: list[Block] = []
    for block in found:
        places = sorted({0, block.rows, *(c % block.rows for c in cuts)})
        for start, end in pairwise(places):
            service.take(block.slice(start, end - start), None)
            out += service.results()
    service.finish(True)
    out += service.results()
    assert service.late == 0
    return sorted(tuple(b.get(c, r) for c in range(b.layout.n)) for b in out for r in range(b.rows))


@pytest.fixture(scope="module")
def uncut() -> list[tuple[Any, ...]]:
    return results([], SECOND)


@given(st.lists(st.integers(0, 1 << 16), max_size=8))
@settings(max_examples=25)
def test_cuts_change_nothing(uncut: list[tuple[Any, ...]], cuts: list[int]) -> None:
    assert results(cuts, SECOND) == uncut


def test_windows_add_up(uncut: list[tuple[Any, ...]]) -> None:
    layout = TcpRateService(blocks()[0], window=0, lateness=0).schema.layout
    sums = [layout.index(name) for name in ("segments", "bytes", "retransmitted")]
    keys = [layout.index(name) for name in NAMES]
    for column in sums:
        parts: Counter[tuple[Any, ...]] = Counter()
        for row in uncut:
            parts[tuple(row[k] for k in keys)] += row[column]
        assert parts == Counter({tuple(row[k] for k in keys): row[column] for row in results([], 0)})


def test_a_followed_input_needs_windows() -> None:
    done = run("confluo-stream", "service", "tcp-rate", "-", "--follow", "--window", "0", stdin=b"")
    assert done.returncode == 2
    assert done.stderr == b"confluo-stream service tcp-rate: --window 0: a followed input has no end; take a time\n"
