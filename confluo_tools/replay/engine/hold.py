"""A try that waits until its user has entered its networks: tcpdump, ss and others then see the replay."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from confluo_tools import cli
from confluo_tools.errors import UsageError
from confluo_tools.replay.engine.network import ReplayEnd


def check_standard_input(inputs: Sequence[str] | None) -> None:
    """Raise UsageError if the recording comes from standard input, which is to have the answer."""
    if not inputs or "-" in inputs:
        raise UsageError("standard input has the recording", where="--hold", hint="give the recording as a file")


def holding(name: str) -> Callable[[Sequence[ReplayEnd]], None]:
    """Prints how to enter the networks of a try of the connection ``name``, and waits for a line of input."""

    def hold(ends: Sequence[ReplayEnd]) -> None:
        process = os.getpid()
        places = "; ".join(
            f"{end.role}: nsenter --net=/proc/{process}/fd/{end.namespace}, device {end.name}" for end in ends
        )
        cli.note(f"waits for Enter; {places}", where=name)
        sys.stdin.readline()

    return hold
