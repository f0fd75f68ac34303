"""Replaying a connection until it is the same as recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from confluo_tools.replay.engine.attempt import Attempt, attempt
from confluo_tools.replay.engine.script import Script
from confluo_tools.replay.engine.settings import connection_settings, phase_of
from confluo_tools.replay.engine.tick import on_time
from confluo_tools.replay.engine.verdict import Verdict, judge


class Outcome(NamedTuple):
    """A try and its verdict."""

    done: Attempt
    verdict: Verdict


def outcomes(script: Script, tries: int, *, naive: bool = False) -> Iterator[Outcome]:
    """Up to ``tries`` replays; the last one is the same as recorded, if one is.  ``naive``: see `attempt`.

    Raises ConfluoError.
    """
    ends = script.connection.client, script.connection.server
    settings = connection_settings(script.connection)
    busier = max((0, 1), key=lambda side: ends[side].packets_sent)
    phase = phase_of(ends[busier], script.origin[busier])
    for _ in range(tries):
        with on_time():
            done = attempt(script, settings, phase, naive=naive)
        outcome = Outcome(done, judge(done))
        yield outcome
        if outcome.verdict.same:
            return
