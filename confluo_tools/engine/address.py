"""The engine that the argument of --engine names."""

from __future__ import annotations

from confluo_tools import units
from confluo_tools.engine.runner import Runner
from confluo_tools.errors import UsageError

MAX_PROCESSES = 1024


def runner(name: str) -> Runner:
    """The runner of ``local``, or ``local:N`` for N processes.  Raises UsageError."""
    word, _, number = name.partition(":")
    if word == "local" and (not number or (number.isdecimal() and 0 < int(number) <= MAX_PROCESSES)):
        from confluo_tools.engine.forks import Forks

        return Forks(units.integer(number) if number else None)
    raise UsageError(f"no engine '{name}'", where="--engine", hint="use local, or local:N for N processes")
