"""When a replay begins, and scheduling that keeps it on time.

Delayed acknowledgements, retransmission time-outs and the clock of CUBIC count ticks (jiffies): a replay begins at the
place of the ticks at which the recording did.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from confluo_tools.kernel.tick import WHEEL, tick_length, tick_phase

PRIORITY = 10  # SCHED_FIFO
AHEAD = 3_000_000  # ns between setting up and the start


def start_time(phase: int, length: int) -> int:
    """A CLOCK_MONOTONIC time soon from now at the place ``phase`` of the ticks (see `tick_phase`).

    ``length``: how long the replay takes; all in ns.  The longer it is, the longer are the time-outs that may expire
    in it, and these expire at every 8th or 64th tick only.
    """
    tick, soon = tick_length(), time.monotonic_ns() + AHEAD
    ticks = next((n for n, least in _EVERY if length < least * tick), WHEEL)
    return soon + (phase - tick_phase(soon)) % (ticks * tick)


_EVERY = ((1, 63), (8, 504))  # time-outs of fewer ticks than the second number expire at each tick, or each 8th


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
