"""Conditions on flows that choose packets: the same records as of all packets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.expr import compile
from confluo_tools.formats.reader import Reader
from confluo_tools.multilog.query.flow_records import FlowReader, conn_table
from confluo_tools.schema import builtin
from running import CAMPUS, run
from twin_rollup import Row, block_of

PACKETS, CONN = builtin("packet"), builtin("conn")
SECOND = 10**9
V4 = ["10.0.0.1", "10.0.0.2", "192.0.2.9"]
V6 = ["2001:db8::1", "2001:db8::2"]
TESTS = (
    "src_ip == 10.0.0.1",
    "dst_ip in 10.0.0.0/24",
    "src_ip == 2001:db8::1",
    "host 10.0.0.2",
    "not host 10.0.0.2",
    "src_port == 443",
    "dst_port == 443",
    "port 8",
    "dst_port > 80 and src_ip == 10.0.0.1",
    "src_ip == 10.0.0.1 or dst_port == 443",
    "src_port > dst_port",
    "proto == icmp",
    "ip6",
    "src_ip == 10.0.0.1 and conn_state == S1",
    "src_packets > 1 or src_ip == 10.0.0.1",
    "dst_port == 0",
    "src_ip == dst_ip",
)


class Packets(Reader):
    """Packets of a list, in the order of time."""

    by_time = True

    def __init__(self, rows: list[Row]) -> None:
        super().__init__("rows")
        self.schema, self._rows = PACKETS, rows

    def blocks(self) -> Iterator[Block]:
        for start in range(0, len(self._rows), 9):
            yield block_of(self._rows[start : start + 9], PACKETS)


def packet(draw: Any) -> Row:
    version = draw(st.sampled_from([4, 4, 4, 6, 0]))
    proto = draw(st.sampled_from([6, 6, 17, 1 if version == 4 else 58])) if version else 0
    names = {4: V4, 6: V6, 0: [None]}[version]
    row: Row = {"ip_version": version, "proto": proto, "ip_len": 40}
    row |= {"src_ip": draw(st.sampled_from(names)), "dst_ip": draw(st.sampled_from(names))}
    if proto in (6, 17):
        row |= {f"{end}_port": draw(st.sampled_from([0, 8, 80, 443, 40000])) for end in ("src", "dst")}
    if proto == 6:
        row |= {"tcp_flags": draw(st.sampled_from([2, 18, 16, 17, 4])), "tcp_seq": draw(st.integers(1, 3))}
    if proto in (1, 58):
        row |= {"icmp_type": draw(st.sampled_from([0, 8, 3, 128, 129])), "icmp_code": draw(st.sampled_from([0, 1]))}
    return row


@st.composite
def traffic(draw: Any) -> list[Row]:
    times = sorted(draw(st.lists(st.integers(0, 9), max_size=30)))
    return [{"ts": t * SECOND, **packet(draw)} for t in times]


def records(rows: list[Row], test: str, active: int, alone: bool) -> tuple[list[list[Any]], int]:
    """The flow records, and the packets that were read for them."""
    table = conn_table(PACKETS, 100, 0, active)
    reader = FlowReader(Packets(rows), compile("", PACKETS), table, alone=alone)
    found = []
    for block, picks in reader.select(compile(test, CONN)):
        part = block if picks is None else block.take(picks)
        found += [[part.get(i, k) for i in range(len(CONN.columns))] for k in range(part.rows)]
    return found, table.packets + table.skipped


@settings(max_examples=250, deadline=None)
@given(rows=traffic(), test=st.sampled_from(TESTS), active=st.sampled_from([0, 2 * SECOND]))
def test_the_same_records(rows: list[Row], test: str, active: int) -> None:
    expected, all_packets = records(rows, test, active, False)
    found, read = records(rows, test, active, True)
    assert found == expected
    assert all_packets == len(rows) >= read


def test_packets_of_other_flows_are_not_read() -> None:
    rows: list[Row] = [
        {"ts": i, "ip_version": 4, "proto": 6, "src_ip": V4[i % 3], "dst_ip": V4[(i + 1) % 3], "tcp_flags": 16}
        for i in range(9)
    ]
    assert records(rows, "src_ip == 10.0.0.1 and dst_ip == 10.0.0.2", 0, True)[1] == 3
    assert records(rows, "src_ip == 10.0.0.1 or src_packets > 7", 0, True)[1] == 9


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("conditions") / "campus.ml"
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", path).returncode == 0
    for name in ("src_ip", "dst_ip"):
        assert run("confluo-index", path, "add", name).returncode == 0
    return path


@pytest.mark.parametrize("words", [[], ["--idle-timeout", "100ms"], ["--active-timeout", "50ms"]], ids=" ".join)
def test_a_log_with_indexes(log: Path, words: list[str]) -> None:
    """Records of a log, where indexes may select packets, and of its capture, which is read completely."""
    for test in ("src_ip == 10.1.0.13", "dst_ip == 10.1.0.11", "src_ip == 10.1.0.12 and dst_port == 443"):
        here = run("confluo-query", log, "--flows", test, *words, "-T")
        assert (here.returncode, here.stderr) == (0, b"")
        assert here.stdout == run("confluo-query", CAMPUS, "--flows", test, *words, "-T").stdout


def test_an_index_finds_the_packets(log: Path) -> None:
    done = run("confluo-query", log, "--flows", "src_ip == fd00:2::12", "--explain")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"dst_ip (1 blocks), src_ip (1 blocks)" in done.stdout
    timed = run("confluo-query", log, "--flows", "src_ip == fd00:2::12", "--idle-timeout", "1m", "--explain")
    assert b"dst_ip (" not in timed.stdout
