"""The timer tick of this kernel, and scheduling that keeps a replay on time.

Delayed acknowledgements, retransmission time-outs and the clock of CUBIC count ticks (jiffies): a replay begins at the
place within a tick at which the recording did.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

COARSE = 6  # CLOCK_MONOTONIC_COARSE: the time of the last tick
PRIORITY = 10  # SCHED_FIFO
AHEAD = 3_000_000  # ns between setting up and the start


def tick_length() -> int:
    """Length of a tick, ns."""
    return round(time.clock_getres(COARSE) * 1e9)


def tick_edge() -> int:
    """CLOCK_MONOTONIC of a tick, modulo its length, ns."""
    return time.clock_gettime_ns(COARSE) % tick_length()


def start_time(phase: int) -> int:
    """A CLOCK_MONOTONIC time soon from now that is ``phase`` after a tick; both in ns."""
    tick, edge, soon = tick_length(), tick_edge(), time.monotonic_ns() + AHEAD
    return soon + (edge + phase - soon) % tick


@contextmanager
def on_time() -> Iterator[bool]:
    """Run on one CPU with real-time priority if that is permitted; whether it is."""
    cpus, policy, parameter = os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0)
    fixed = True
    try:
        os.sched_setaffinity(0, {sorted(cpus)[os.getpid() % len(cpus)]})  # replays side by side on others
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError:
        fixed = False
    try:
        yield fixed
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, policy, parameter)
            os.sched_setaffinity(0, cpus)
