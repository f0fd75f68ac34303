"""Many connections at once, recorded and replayed: persistent requests, incast, callers of several kinds."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import rpc_traffic as rpc
from confluo_tools.inputs.open import open_records
from confluo_tools.replay.engine.network import missing
from confluo_tools.replay.engine.script import script_of
from confluo_tools.replay.engine.tries import outcomes
from confluo_tools.replay.recording import RecordedConnection, pair_ends, read_ends
from confluo_tools.replay.recording.kinds import Call
from netns import Lab
from replay_lab import record, routed

pytestmark = [
    pytest.mark.root,
    pytest.mark.net,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(missing() != "", reason=f"no network for a replay: {missing()}"),
]
MANY, TRIES = 8, 5
CASES = {
    "epoll": (rpc.SERVER_EPOLL, "epoll", rpc.poisson(MANY, 60, 300, 4000)),
    "threads": (rpc.SERVER_THREADS, "timeouts", rpc.poisson(MANY, 60, 300, 4000)),  # a server with blocking calls
    "incast": (rpc.SERVER_THREADS, "epoll", rpc.incast(MANY, 2, 20_000, 0.3)),
}


def recorded(folder: Path, case: str) -> list[RecordedConnection]:
    server, caller, plan = CASES[case]
    with Lab() as lab:
        path = routed(lab, towards="client", limit=60_000)
        server = server.replace("sys.argv[2]", str(MANY))
        logs = record(path, folder, rpc.CLIENT, MANY, caller, rpc.written(plan), server=server)
    connections, alone = pair_ends([end for log in logs for end in read_ends(open_records([str(log)]))])
    assert (len(connections), alone) == (MANY, [])
    return connections


def sent_and_read(connection: RecordedConnection) -> tuple[int, int, int, int]:
    """Bytes that the client sent and the server read, and back."""
    found = []
    for end, call in (
        (connection.client, Call.SEND),
        (connection.server, Call.RECV),
        (connection.server, Call.SEND),
        (connection.client, Call.RECV),
    ):
        pairs = zip(*end.events.in_order("call", "bytes"), strict=True)
        found.append(sum(size for which, size in pairs if which == call and size > 0))
    return found[0], found[1], found[2], found[3]


@pytest.mark.parametrize("case", CASES)
def test_connections_are_recorded_whole_and_replay_the_same(case: str, tmp_path: Path) -> None:
    """Of all connections each byte of each call; two are replayed, and one at least is the same."""
    plan = CASES[case][2]
    connections = sorted(recorded(tmp_path, case), key=lambda c: c.client.flow.src_port)
    assert [c.problems for c in connections if c.problems] == []
    assert sum(sent_and_read(c)[0] for c in connections) == 100 * sum(len(who) for _, who, _ in plan)
    for connection in connections:
        sent, read, answered, got = sent_and_read(connection)
        assert (sent, answered) == (read, got)
        assert answered > 0
    last = [list(outcomes(script_of(c), TRIES))[-1].verdict for c in connections[:2]]
    assert any(verdict.same for verdict in last), [verdict.differences for verdict in last]


def test_plans_have_the_sizes_of_their_distribution() -> None:
    """The shares of web search, of some thousand responses; and a fifth of the bytes of a mix asked of ten at once."""
    chance = random.Random(3)
    sizes = [rpc.search_size(chance, 1) for _ in range(4000)]
    for kilobytes, share in rpc.SEARCH:
        assert abs(sum(size <= kilobytes * 1000 for size in sizes) / len(sizes) - share) < 0.03
    plan = rpc.search_mix(20, 400, 1e6, 1 / 20)
    total = sum(size * len(who) for _, who, size in plan)
    assert abs(sum(size * len(who) for _, who, size in plan if len(who) > 1) / total - rpc.INCAST_SHARE) < 0.08
    assert abs(total / 400 / 1e6 - 1) < 0.15
    assert {n for _, who, _ in plan for n in who} == set(range(20))
