"""Replaying a connection until it is the same as recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from confluo_tools.replay.engine.attempt import Attempt, Observer, attempt
from confluo_tools.replay.engine.before_ticks import after_difference, before_ticks
from confluo_tools.replay.engine.decoupled import decoupled_script
from confluo_tools.replay.engine.script import Script, script_of
from confluo_tools.replay.engine.settings import connection_settings, phase_of
from confluo_tools.replay.engine.tick import on_time
from confluo_tools.replay.engine.tracing import ReplayTrace, Row, TracePoint
from confluo_tools.replay.engine.verdict import Verdict, judge
from confluo_tools.replay.recording import RecordedConnection

ENGINES = ("serial", "decoupled", "naive")


class Outcome(NamedTuple):
    """A try, its verdict, and what was traced at each end."""

    done: Attempt
    verdict: Verdict
    traced: tuple[list[Row], list[Row]] = ([], [])


def engine_script(connection: RecordedConnection, engine: str) -> Script:
    """The inputs of a connection for one of `ENGINES`.  Raises ConfluoError."""
    return decoupled_script(connection) if engine == "decoupled" else script_of(connection)


def outcomes(
    script: Script, tries: int, *, naive: bool = False, trace: tuple[TracePoint, ...] = (), observe: Observer = None
) -> Iterator[Outcome]:
    """Up to ``tries`` replays; the last one is the same as recorded, if one is.  ``naive``,
    ``observe``: see `attempt`; ``trace``: trace points of the kernel.

    A try after one in which a timer came too early has the input that was next before the tick of the timer.  Else
    every second one has inputs at their times after what caused them: what no try of one kind does, one of the other
    may do.  Raises ConfluoError.
    """
    ends = script.connection.client, script.connection.server
    settings = connection_settings(script.connection)
    busier = max((0, 1), key=lambda side: ends[side].packets_sent)
    phase = phase_of(ends[busier], script.origin[busier])
    relative = False
    if not naive:
        script = before_ticks(script, phase)
    for _ in range(tries):
        with ExitStack() as stack:
            ports = ends[0].flow.src_port, ends[0].flow.dst_port
            tracing = stack.enter_context(ReplayTrace(trace, *ports)) if trace else None
            with on_time():
                done = attempt(script, settings, phase, naive=naive, relative=relative, observe=observe)
            traced = tracing.rows(done) if tracing is not None else ([], [])
        outcome = Outcome(done, judge(done), traced)
        yield outcome
        if outcome.verdict.same:
            return
        better = None if naive else after_difference(done, outcome.verdict, phase)
        script, relative = (script, not relative) if better is None else (better, relative)
