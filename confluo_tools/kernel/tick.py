"""The timer tick of this kernel: where its edges are on the monotonic clock, and which of them are counted how.

Time-outs of TCP count ticks (jiffies), and long ones expire only at every 8th or 64th of them (the timer wheel).
The time that CLOCK_MONOTONIC_COARSE shows is not that of a tick: it drifts.  The moment at which it changes is.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache

COARSE = 6  # CLOCK_MONOTONIC_COARSE
WHEEL = 64  # ticks after which the places of the timer wheel are the same, for time-outs below 4096 ticks
TIMERS = "/proc/timer_list"
_TICK = re.compile(rb"tick_(?:nohz_handler|sched_timer)\b.*\n # expires at (\d+)")
_JIFFIES = re.compile(rb"^jiffies: (\d+)$", re.MULTILINE)
_NEAR = 100_000  # ns: an interrupt comes less than this after its tick
_READS, _SEEN = 20, 3


@lru_cache
def tick_length() -> int:
    """Length of a tick, ns."""
    return round(time.clock_getres(COARSE) * 1e9)


@lru_cache
def tick_edge() -> int:
    """CLOCK_MONOTONIC of a tick with a number that is a multiple of `WHEEL`, modulo `WHEEL` ticks, ns.

    Without the right to read the timers of the kernel the number is counted from the start of the clock: right until
    this host reboots.
    """
    for _ in range(_READS):
        try:
            edge = _listed_edge()
        except OSError:
            break
        if edge >= 0:
            return edge
    return _seen_edge()


def tick_phase(at: int) -> int:
    """ns from the last tick with a number that is a multiple of `WHEEL` to ``at``, a time of CLOCK_MONOTONIC."""
    return (at - tick_edge()) % (WHEEL * tick_length())


def _listed_edge() -> int:
    """The edge from the kernel's list of timers; -1: a tick came while it was read.  Raises OSError."""
    tick, before = tick_length(), time.monotonic_ns()
    with open(TIMERS, "rb") as f:
        text = f.read()
    after = time.monotonic_ns()
    expires, count = _TICK.search(text), _JIFFIES.search(text)
    if expires is None or count is None:
        raise OSError("it has no tick")
    last = after - (after - int(expires[1])) % tick
    if before - last < _NEAR:
        return -1
    return (last - int(count[1]) % WHEEL * tick) % (WHEEL * tick)


def _seen_edge() -> int:
    """The edge from the moments at which the coarse clock changes."""
    tick, shown, before = tick_length(), time.clock_gettime_ns(COARSE), time.monotonic_ns()
    late: list[int] = []  # moments of changes that were seen at once
    while len(late) < _SEEN:
        now, then = time.clock_gettime_ns(COARSE), time.monotonic_ns()
        if now != shown and then - before < _NEAR:
            late.append(then % tick)
        shown, before = now, then
    edge = min(late) if max(late) - min(late) < tick // 2 else min(at for at in late if at > tick // 2)
    return 0 if edge < 2 * _NEAR else edge  # ticks are at multiples of their length since Linux 6.4
