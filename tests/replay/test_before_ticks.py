"""Inputs that were processed before a timer that was late: a replay makes them before the tick of the timer."""

from __future__ import annotations

import os

import pytest

from confluo_tools.core.replay.busy_processor import BusyProcessor, counts_ticks
from confluo_tools.kernel.tick import tick_length
from confluo_tools.replay.engine.attempt import Applied, Attempt
from confluo_tools.replay.engine.before_ticks import AHEAD, LEAST_DELAY, NEAR, Ticks, after_difference, before_ticks
from confluo_tools.replay.engine.script import GATE, PACKET, RECV, SEND, Script, Step
from confluo_tools.replay.engine.segments import SentPacket
from confluo_tools.replay.engine.tick import on_time
from confluo_tools.replay.engine.verdict import Difference, Verdict
from confluo_tools.replay.recording import ConnectionEnd, FiveTuple, RecordedConnection
from confluo_tools.replay.recording.kinds import Role

TICK = tick_length()
DELAY = LEAST_DELAY // TICK + 1  # ticks after which a delayed acknowledgement is sent
LATER = 600_000  # ns after the tick
US = 1000


def script_with(client: list[Step], server: list[Step]) -> Script:
    flow = FiveTuple(4, "10.9.0.1", 4711, "10.9.0.2", 8080)
    ends = ConnectionEnd(flow, 1, Role.CLIENT), ConnectionEnd(flow.reversed, 2, Role.SERVER)
    return Script(RecordedConnection(*ends), (client, server), (0, 0))


def request_after(wait: int, *, sent: int = 1) -> Script:
    """A client gets a packet in the middle of a tick, and sends a request some ns after the tick of its timer.

    ``sent``: packets that it had sent before the request: 2 when the timer sent one.
    """
    tick = DELAY * TICK + wait
    client = [
        Step(TICK // 2, kind=PACKET, result=TICK // 2 - 30 * US, sent=1),
        Step(TICK // 2 + 50 * US, kind=RECV, sent=1),
        Step(tick, kind=SEND, size=100, sent=sent),
        Step(tick + TICK, sent=sent + 1),
    ]
    server = [Step(TICK // 2 - 40 * US, kind=SEND, sent=0), Step(tick + 40 * US, kind=PACKET, result=tick, sent=1)]
    return script_with(client, server)


def test_a_request_that_came_before_the_late_timer_goes_before_its_tick() -> None:
    client = before_ticks(request_after(LATER), 0).steps[0]
    assert [step.at for step in client[:3]] == [TICK // 2, TICK // 2 + 50 * US, DELAY * TICK - AHEAD]
    assert client[3] == request_after(LATER).steps[0][3]


@pytest.mark.parametrize("phase", [0, 5 * TICK + 300 * US])
def test_ticks_are_those_of_the_start(phase: int) -> None:
    moved = before_ticks(request_after(LATER + TICK - phase % TICK), phase).steps[0][2].at
    assert (moved + phase) % TICK == TICK - AHEAD


def test_a_call_just_before_a_tick_ends_before_it() -> None:
    script = script_with([Step(0, kind=RECV, sent=0), Step(5 * TICK - 5 * US, kind=SEND, sent=0)], [])
    assert before_ticks(script, 0).steps[0][1].at == 5 * TICK - NEAR


@pytest.mark.parametrize(("wait", "sent"), [(-LATER, 1), (2 * TICK, 1), (LATER, 2)])
def test_others_stay(wait: int, sent: int) -> None:
    """Before the tick; so late that nothing can have waited to be acknowledged; after the timer."""
    script = request_after(wait, sent=sent)
    assert before_ticks(script, 0).steps == script.steps


def timer_was_early(script: Script, at: int) -> Attempt:
    """A try in which the server sent its second packet at ``at``, before the acknowledgement came."""
    applied = [Applied(script.steps[1][0].at, 0, 0, 0)]
    segments = [SentPacket(at=when, seq=1, ack=1, len=80, flags=24, window=1) for when in (TICK // 2, at)]
    for sent in (TICK // 2, 20 * TICK + LATER + 35 * US):
        script.connection.server.sent.append({"ts": sent, "count": 1})
    return Attempt(script, script.steps, ([], applied), ([], []), ([], segments), 1, of_timers=(b"", b"\0\1"))


def late_acknowledgement(sender: int) -> Script:
    """The client sends an acknowledgement after a tick, ``sender`` ns after its input; the server gets it."""
    left = 20 * TICK + LATER
    client = [Step(TICK, kind=RECV, sent=0), Step(left - sender, kind=SEND, sent=0), Step(30 * TICK, sent=1)]
    server = [
        Step(TICK // 2 - 5 * US, kind=SEND, sent=0),
        Step(left + 30 * US, kind=PACKET, result=left, packet=0, sent=1),
        Step(30 * TICK, sent=2),
    ]
    return script_with(client, server)


def test_what_sent_a_packet_moves_with_it() -> None:
    """A loss probe was sent too early: the acknowledgement comes before its tick, and so does the call that sent it."""
    script = late_acknowledgement(5 * US)
    done = timer_was_early(script, 20 * TICK + 70 * US)
    again = after_difference(done, Verdict("headers", [Difference(1, 1, 0, "", "", "")], [], 2), 0)
    assert again is not None
    assert again.steps[1][1].at == 20 * TICK - AHEAD
    assert again.steps[0][0].at == TICK
    assert again.steps[0][1].at < again.steps[1][1].at
    assert [step.kind for step in again.steps[1]] == [SEND, PACKET, GATE]


def test_a_packet_of_a_timer_cannot_move() -> None:
    script = late_acknowledgement(5 * TICK)
    done = timer_was_early(script, 20 * TICK + 70 * US)
    assert after_difference(done, Verdict("headers", [Difference(1, 1, 0, "", "", "")], [], 2), 0) is None


def test_numbers_and_edges_of_ticks_agree() -> None:
    ticks = Ticks(3 * TICK + 5)
    for number in (3, 4, 900):
        assert (ticks.number(ticks.edge(number)), ticks.number(ticks.edge(number) - 1)) == (number, number - 1)


def test_a_replay_runs_where_ticks_are_counted_and_leaves_nothing() -> None:
    threads, cpus = os.listdir("/proc/self/task"), os.sched_getaffinity(0)
    with on_time() as fixed:
        if not fixed:
            pytest.skip("no real-time priority here")
        assert len(os.sched_getaffinity(0)) == 1
        assert isinstance(counts_ticks(), bool)
        (busy,) = set(os.listdir("/proc/self/task")) - set(threads)
        assert os.sched_getscheduler(int(busy)) == os.SCHED_IDLE
        assert os.sched_getaffinity(int(busy)) == os.sched_getaffinity(0)
    assert (os.listdir("/proc/self/task"), os.sched_getaffinity(0)) == (threads, cpus)
    busy_twice = BusyProcessor()
    busy_twice.close()
    busy_twice.close()
