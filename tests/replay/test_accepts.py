"""Accept calls and the connections that they return."""

from __future__ import annotations

from typing import Any

from test_recording import place

from confluo_tools.replay.record.accepts import Accepts
from confluo_tools.replay.record.end_recorder import EndRecorder
from confluo_tools.replay.recording.kinds import Role


def server_end(port: int) -> EndRecorder:
    rows: list[dict[str, Any]] = []
    where = place("10.0.0.2", "10.0.0.1", (port, 4711), role=Role.SERVER)
    return EndRecorder(where, rows.append, threshold=0, headers=False, earlier=False)


def test_connections_are_accepted_in_their_order() -> None:
    accepts = Accepts()
    ends = [server_end(80) for _ in range(3)]
    for end in ends:
        accepts.established(end)
    accepts.gone(ends[1])
    assert [accepts.accepted(7) for _ in range(3)] == [(ends[0], True), (ends[2], True), None]


def test_a_process_accepts_of_the_port_that_it_has_accepted_of() -> None:
    accepts = Accepts()
    web, other, again = server_end(80), server_end(81), server_end(80)
    accepts.established(web)
    assert accepts.accepted(7) == (web, True)
    accepts.established(other)
    accepts.established(again)
    assert accepts.accepted(7) == (again, False)
    assert accepts.accepted(8) == (other, True)
