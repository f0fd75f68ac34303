"""The queue engine against ns-3: one port with a private drop-tail queue; times of departure and drops are equal.

ns-3 has no shared buffer, and a frame leaves its queue when its first bit is sent.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from test_queue_engine import engine, run

from twin_queues import TwinPacket, TwinPort, TwinSwitch

SOURCE = Path(__file__).with_name("ns3_drop_tail.cc")
LIBRARIES = ("core", "network", "point-to-point", "stats")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/usr/include/ns3").is_dir(), reason="ns-3 is not installed (libns3-dev)"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]


@pytest.fixture(scope="module")
def ns3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("ns3") / "drop-tail"
    libraries = [f"-lns3-{name}" for name in LIBRARIES]
    subprocess.run(["g++", "-o", program, SOURCE, *libraries], check=True, timeout=300)
    return program


@pytest.mark.parametrize("limit", [1538, 20_000, 250_000])
@pytest.mark.parametrize("gigabits", [1, 10, 25])
def test_departures_and_drops_are_those_of_ns3(ns3: Path, gigabits: int, limit: int) -> None:
    rng = random.Random(gigabits + limit)
    step = 8000 // gigabits
    ports = [*(TwinPort(None, 1 + n, 1000 * n) for n in range(8)), TwinPort(0, step, 1000)]
    routes = [[n, 8] for n in range(8)]
    packets, flows, time = [], [], 0
    for _ in range(4000):
        time += rng.choice((0, 100 * step, 600 * step, rng.randrange(2500 * step)))
        flow = rng.randrange(8)
        packets.append(TwinPacket(time + rng.randrange(1000), rng.choice((84, 600, 1538)), routes[flow]))
        flows.append(flow)
    rows = run(engine([TwinSwitch(limit, None)], ports, routes, until_sent=False), packets, flows, room=4096)
    assert len({row.time for row in rows} | {row.leaves for row in rows if row.leaves}) == len(rows) + sum(
        not row.dropped for row in rows
    )  # ns-3 has an order of its own for what happens at one time
    text = f"{gigabits}000000000 {limit}\n" + "".join(f"{r.time} {packets[r.packet].size}\n" for r in rows)
    done = subprocess.run([ns3], input=text, capture_output=True, text=True, check=True, timeout=120)
    theirs = {int(number): int(leaves) for number, leaves in map(str.split, done.stdout.splitlines())}
    ours = {i: -1 if row.dropped else row.leaves for i, row in enumerate(rows)}
    assert theirs == ours
    assert 0 < sum(leaves == -1 for leaves in ours.values()) < len(ours)
