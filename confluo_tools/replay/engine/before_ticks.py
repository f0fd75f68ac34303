"""Inputs that came before a timer of the kernel although they were late for its tick.

A timer of TCP expires at a tick, but its function may run some ms later: on a busy processor, and on one that slept.
An input that comes in between is processed before it, e.g. a request that takes the delayed acknowledgement along.  In
a replay timers are on time, so such an input is made just before the tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from confluo_tools.kernel.tick import tick_length
from confluo_tools.replay.engine.attempt import Attempt
from confluo_tools.replay.engine.script import ANY_COUNT, GATE, PACKET, SEND, Script, Step, sent_times
from confluo_tools.replay.engine.verdict import Difference, Verdict

AHEAD = 200_000  # ns before the tick
WIRE = 30_000  # ns from an input to the arrival of what it sends at the other end
OWN = 200_000  # ns: packets that an end sends later than this after an input were sent by a timer
LEAST_DELAY = 40_000_000  # ns: TCP_DELACK_MIN
LATE = 2  # ticks by which the timer of a delayed acknowledgement is late at most
NEAR, IDLE = 40_000, 1_000_000  # ns: a call that begins so soon before a tick, after such a pause, may end after it
MAX_LATE = 16_000_000  # ns by which any timer is late at most
Steps = tuple[list[Step], list[Step]]


class Ticks:
    """The ticks of a replay.  ``phase``: place of time 0 among them, ns."""

    def __init__(self, phase: int) -> None:
        self.length, self._phase = tick_length(), phase

    def number(self, at: int) -> int:
        return (self._phase + at) // self.length

    def edge(self, number: int) -> int:
        """Time of a tick, ns after the start."""
        return number * self.length - self._phase


def before_ticks(script: Script, phase: int) -> Script:
    """A script in which calls and packets that came before a delayed acknowledgement, or a tick, will do so."""
    ticks, steps = Ticks(phase), (list(script.steps[0]), list(script.steps[1]))
    delay = LEAST_DELAY // ticks.length + 1  # the timer wheel rounds up
    for side in script.sides if script.feeds is None else ():
        before, waiting, sent = 0, -1, 0  # tick at which a packet came that may not be acknowledged
        for place, step in enumerate(script.steps[side]):
            if step.sent != ANY_COUNT and step.sent > sent:
                waiting, sent = -1, step.sent
            if waiting >= 0 and step.kind in (SEND, PACKET) and 0 <= ticks.number(step.at) - waiting - delay < LATE:
                move(steps, side, place, ticks.edge(waiting + delay) - AHEAD)
            elif (
                step.kind == SEND and step.at - before > IDLE and ticks.edge(ticks.number(step.at) + 1) - step.at < NEAR
            ):
                move(steps, side, place, ticks.edge(ticks.number(step.at) + 1) - NEAR)
            before = step.at
            if step.kind == PACKET and waiting < 0:
                waiting = ticks.number(step.at)
    return replace(script, steps=steps)


def after_difference(done: Attempt, verdict: Verdict, phase: int) -> Script | None:
    """The script of a try that differs because a timer was too early, with the next input before the timer.

    None: it differs for another reason.
    """
    if not verdict.differences or done.script.feeds is not None:
        return None
    first = verdict.differences[0]
    side, came = first.side, done.segments[first.side]
    packets = range(first.packet, min(max(first.packet, first.last) + 1, len(came)))
    packet = next((n for n in packets if done.of_timers[side][n] and _was_of_input(done, side, n)), -1)
    ticks, steps = Ticks(phase), (list(done.steps[0]), list(done.steps[1]))
    if packet < 0:
        return _at_once(done, first, ticks, steps)
    at = came[packet].at
    applied = sum(applied.at <= at for applied in done.applied[side])
    place = next((n for n in range(applied, len(steps[side])) if steps[side][n].kind != GATE), -1)
    if place < 0 or steps[side][place].at - at > MAX_LATE or steps[side][place].sent > packet:
        return None
    place = _sending(steps[side], place, packet)
    moved = move(steps, side, place, ticks.edge(ticks.number(at)) - AHEAD)
    return replace(done.script, steps=steps) if moved else None


def _at_once(done: Attempt, first: Difference, ticks: Ticks, steps: Steps) -> Script | None:
    """The same where a timer ran during an input: the packet came at once after a tick, and some ticks too early."""
    end = (done.script.connection.client, done.script.connection.server)[first.side]
    sent, came = sent_times(end), done.segments[first.side]
    if first.last >= 0 or first.packet >= min(len(came), len(sent)):
        return None
    at = came[first.packet].at
    edge = ticks.edge(ticks.number(at))
    if at - edge > OWN or sent[first.packet] - done.script.origin[first.side] - at < ticks.length // 2:
        return None
    place = sum(applied.at <= at for applied in done.applied[first.side]) - 1
    if place < 0 or steps[first.side][place].at < edge:
        return None
    return replace(done.script, steps=steps) if move(steps, first.side, place, edge - AHEAD) else None


def _was_of_input(done: Attempt, side: int, packet: int) -> bool:
    """Whether an input sent a packet when it was recorded."""
    end = (done.script.connection.client, done.script.connection.server)[side]
    sent = sent_times(end)
    if packet >= len(sent):
        return False
    left = sent[packet] - done.script.origin[side] + WIRE
    cause = max((step.at for step in done.steps[side] if step.at <= left), default=-MAX_LATE)
    return left - cause < MAX_LATE


def _sending(steps: Sequence[Step], place: int, packet: int) -> int:
    """The step, from ``place`` on, that sent a packet of its end."""
    last = place
    for n in range(place, len(steps)):
        if steps[n].sent != ANY_COUNT and steps[n].sent > packet:
            break
        if steps[n].kind != GATE:
            last = n
        if steps[n].kind in (SEND, PACKET):
            break
    return last


def move(steps: Steps, side: int, place: int, at: int) -> bool:
    """Make an input not later than ``at``, with those before it, and with what sent its packets.

    False, and nothing is moved: a timer sent them.
    """
    moved: list[tuple[int, int, int]] = []
    if not _collect(steps, side, place, at, moved):
        return False
    for which, n, when in moved:
        steps[which][n] = steps[which][n]._replace(at=min(when, steps[which][n].at))
    return True


def _collect(steps: Steps, side: int, place: int, at: int, moved: list[tuple[int, int, int]]) -> bool:
    """Add (end, step, time) of all that must move; False: it cannot."""
    for n in range(place, -1, -1):
        step = steps[side][n]
        if step.at <= at:
            break
        moved.append((side, n, at))
        if step.kind == PACKET and step.result > at - WIRE and not _collect_sender(steps, side, step, at, moved):
            return False
    return True


def _collect_sender(steps: Steps, side: int, packet: Step, at: int, moved: list[tuple[int, int, int]]) -> bool:
    """The input of the other end that sent a packet."""
    other = steps[1 - side]
    cause = -1
    for n, step in enumerate(other):
        if step.at > packet.result or (step.sent != ANY_COUNT and step.sent > packet.packet):
            break
        cause = n
    if cause < 0 or packet.result - other[cause].at > OWN:
        return False
    return _collect(steps, 1 - side, cause, at - WIRE, moved)
