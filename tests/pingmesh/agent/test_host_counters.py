"""What the kernel counts, against what was done to it, and against nstat(8)."""

from __future__ import annotations

import json
import mmap
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.pingmesh.agent.host_counters import (
    FIELDS,
    HostCounters,
    HostCounts,
    ProcessLoad,
    host_row,
    load,
    parse,
)
from confluo_tools.schema import builtin
from netns import Lab, Space


@pytest.fixture
def space() -> Iterator[Space]:
    with Lab() as lab:
        yield lab.space()


def test_parse() -> None:
    text = "TcpExt: A B C\nTcpExt: 1 -2 x\nIpExt: A\nIpExt: 7\nOdd: A\nEven: 3\nTcp: A B\nTcp: 5\nlast"
    assert parse(text) == {("TcpExt", "A"): 1, ("TcpExt", "B"): -2, ("IpExt", "A"): 7, ("Tcp", "A"): 5}
    assert parse("") == {}


def test_this_kernel_has_all_of_them() -> None:
    found: dict[tuple[str, str], int] = {}
    for name in ("netstat", "snmp"):
        found |= parse(Path(f"/proc/self/net/{name}").read_text())
    assert set(FIELDS) <= set(found)


@given(st.lists(st.integers(0, 2**33), min_size=8, max_size=8), st.lists(st.integers(0, 10**6), min_size=8, max_size=8))
def test_differences(start: list[int], steps: list[int]) -> None:
    before, after = HostCounts._make(start), HostCounts._make(a + b for a, b in zip(start, steps, strict=True))
    assert after - before == tuple(steps)


def test_counters_that_went_round_or_began_again() -> None:
    zero = HostCounts._make([0] * 8)
    assert (zero._replace(overflows=5) - zero._replace(overflows=2**32 - 3)).overflows == 8
    assert (zero._replace(overflows=5) - zero._replace(overflows=100)).overflows == 5  # another boot's
    assert (zero._replace(overflows=5) - zero._replace(overflows=2**40)).overflows == 5


def test_load_is_ours() -> None:
    before = load()
    end = time.process_time() + 0.05
    # Pages of its own: what the heap gives may be what an earlier test let go of, and then nothing grows.
    ballast = mmap.mmap(-1, 30 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ballast.write(bytes(30 << 20))
    while time.process_time() < end:
        pass
    after = load()
    assert after.rss - before.rss > 20 << 20
    assert after.cpu - before.cpu >= 50_000_000
    assert 0 < after.share(before) < 4
    assert before.share(before) == 0
    ballast.close()


def test_the_record_of_a_host() -> None:
    gone = HostCounts(3, 4, 5, 0, 0, 0, 0, 10_000_000_000)
    row = host_row(gone, ProcessLoad(1000, 3_000_000, 200_000_000), ProcessLoad(0, 1_000_000, 100_000_000))
    assert row.pop("ts") > 1e18
    assert row == {
        "kind": 16,
        "elapsed": 10**10,
        "overflows": 3,
        "listen_drops": 4,
        "syn_retrans": 5,
        "rss": 1000,
        "cpu": 0.02,
    }
    assert set(row) <= {c.name for c in builtin("probe").columns}
    assert builtin("probe")["kind"].names[16] == "host"
    assert host_row(gone._replace(overflows=1 << 40), load(), load())["overflows"] == 2**32 - 1


@pytest.mark.net
@pytest.mark.root
def test_of_the_namespace_in_which_it_was_made(space: Space) -> None:
    """A listener that never accepts overflows in there: counted there, and read from out here."""
    with space.inside():
        counters = HostCounters()
        outside_now = counters.read()
        server = socket.create_server(("127.0.0.1", 0), backlog=0)
        clients = [socket.socket() for _ in range(8)]
        for s in clients:
            s.setblocking(False)
            s.connect_ex(server.getsockname())
    for _ in range(300):
        gone = counters.read() - outside_now
        if gone.syn_retrans:
            break
        time.sleep(0.02)
    told = json.loads(space.run("nstat", "-asjz").stdout)["kernel"]  # another program's reading
    again = counters.read() - outside_now
    for s in (server, *clients):
        s.close()
    counters.close()
    assert outside_now[:7] == (0,) * 7
    assert gone.overflows >= 7  # backlog 0 lets one in
    assert gone.syn_retrans > 0
    assert gone.span > 0
    for (group, name), low, high in zip(FIELDS, gone, again, strict=False):
        assert low <= told[group + name] <= high
