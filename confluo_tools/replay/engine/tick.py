"""When a replay begins, and scheduling that keeps it on time.

Delayed acknowledgements, retransmission time-outs and the clock of CUBIC count ticks (jiffies): a replay begins at the
place of the ticks at which the recording did.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from confluo_tools.core.replay.busy_processor import BusyProcessor, counts_ticks
from confluo_tools.kernel.tick import WHEEL, tick_length, tick_phase

PRIORITY = 10  # SCHED_FIFO
CPUS = "/sys/devices/system/cpu"
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
    """Run on one CPU with real-time priority if that is permitted; whether it is.

    It is the one that counts the ticks, if no other replay has it, and it is not idle: timers are on time there.
    """
    cpus, policy, parameter = os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0)
    fixed = True
    with ExitStack() as stack:
        try:
            os.sched_setaffinity(0, {sorted(cpus)[os.getpid() % len(cpus)]})  # replays side by side on others
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
        except OSError:
            fixed = False
        stack.callback(_restore, cpus, policy, parameter)
        if fixed and len(cpus) > 1 and stack.enter_context(_alone()):
            _go_to_ticks(sorted(cpus))
        if fixed:
            stack.callback(BusyProcessor().close)
        yield fixed


def _restore(cpus: set[int], policy: int, parameter: os.sched_param) -> None:
    with suppress(OSError):
        os.sched_setscheduler(0, policy, parameter)
        os.sched_setaffinity(0, cpus)


@contextmanager
def _alone() -> Iterator[bool]:
    """Whether no other replay is where the ticks are counted."""
    place = os.open(CPUS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    alone = True
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        alone = False
    try:
        yield alone
    finally:
        os.close(place)


def _go_to_ticks(cpus: Sequence[int]) -> None:
    """Move this thread to the CPU that counts the ticks; it stays where it is if none is found."""
    here = min(os.sched_getaffinity(0))
    for cpu in sorted(cpus, key=lambda cpu: cpu != _found[-1]):
        with suppress(OSError):
            os.sched_setaffinity(0, {cpu})
            if counts_ticks():
                _found[:] = [cpu]
                return
    os.sched_setaffinity(0, {here})


_found = [-1]  # where it was the last time
