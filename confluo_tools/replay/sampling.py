"""Packet times as runs at an even rate, with a bound on the error (DETER, section 3.3, Algorithm 1).

Algorithm 1 keeps a range of rates.  Here it is a range of steps, in whole nanoseconds per packet (1 / rate): there are
no infinities, and the bound holds for what is written, not only for a rate before it is rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

UNBOUNDED = 1 << 62  # highest step; thresholds are below it
MAX_SPAN = 1 << 61  # ns from the first packet of a run to its last: 73 years
MAX_COUNT = (1 << 32) - 1  # packets of a run


class TimeRun(NamedTuple):
    """A number of ``packets``: the i-th, from 0, is at ``time`` + i * ``step`` (ns).

    The first time is exact, or the next multiple of the grain of the sampler.
    """

    time: int
    packets: int
    step: int


class RateSampler:
    """Algorithm 1 for one flow: four numbers of state.  Every inferred time is within ``threshold`` (ns) of its own.

    ``low``..``high`` are the steps that fit all packets since the sampled one.  A step is never negative, so inferred
    times go back only between runs.  With a ``grain`` above 1, at most the threshold, times of runs are multiples of it
    and steps are round numbers in base 2: they take fewer bytes of a compressed log.
    """

    def __init__(self, threshold: int, grain: int = 1) -> None:
        if not 0 <= threshold < UNBOUNDED:
            raise ValueError("the threshold")
        self.threshold = threshold
        self._grain = max(min(grain, threshold), 1)
        self.time, self.count, self.low, self.high = 0, 0, 0, UNBOUNDED

    def offer(self, time: int) -> TimeRun | None:
        """Take the time of the next packet; the run before it, if no step fits this packet as well."""
        if self.count:
            low = max(self.low, -(-(time - self.threshold - self.time) // self.count))  # rounded up
            high = min(self.high, (time + self.threshold - self.time) // self.count)  # rounded down
            if low <= high and self.count < MAX_COUNT and time - self.time < MAX_SPAN:
                self.low, self.high, self.count = low, high, self.count + 1
                return None
        done = self.flush()
        self.time, self.count = (time + self._grain // 2) // self._grain * self._grain, 1
        return done

    def flush(self) -> TimeRun | None:
        """The run so far, if there is one: the paper's Algorithm 1 leaves the last run out."""
        if not self.count:
            return None
        low, high = self.low, self.high
        if self.count == 1:
            step = 0
        elif self._grain > 1:
            step = roundest(low + (high - low) // 4, high - (high - low) // 4)
        else:
            step = (low + high) // 2
        done = TimeRun(self.time, self.count, step)
        self.count, self.low, self.high = 0, 0, UNBOUNDED
        return done


def roundest(low: int, high: int) -> int:
    """The number from ``low`` to ``high``, both at least 0, that ends in the most zero bits."""
    if low == 0:
        return 0
    free = (low - 1 ^ high).bit_length() - 1
    return high >> free << free


def rate_runs(times: Iterable[int], threshold: int) -> Iterator[TimeRun]:
    """The runs of Algorithm 1 over the times of a flow's packets, in the order of sending (ns)."""
    sampler = RateSampler(threshold)
    for time in times:
        done = sampler.offer(time)
        if done is not None:
            yield done
    last = sampler.flush()
    if last is not None:
        yield last


def gap_runs(times: Iterable[int], gap: int) -> Iterator[TimeRun]:
    """Gap-based sampling, the paper's strawman: a burst ends where two packets are more than ``gap`` (ns) apart.

    A burst has the mean rate of its packets; the error has no bound, because the rate may change within a burst.
    """
    first = last = count = 0
    for time in times:
        if count and time - last > gap:
            yield _burst(first, last, count)
            count = 0
        if not count:
            first = time
        last, count = time, count + 1
    if count:
        yield _burst(first, last, count)


def _burst(first: int, last: int, count: int) -> TimeRun:
    return TimeRun(first, count, max(last - first, 0) // (count - 1) if count > 1 else 0)


def inferred_times(runs: Iterable[TimeRun]) -> Iterator[int]:
    """The time of each packet of the runs of a flow.

    No time is later than the start of the next run, unless that start lies before that of the run itself.  The bound
    of the threshold still holds when the sampled times do not go back.
    """
    before: TimeRun | None = None
    for run in runs:
        if before is not None:
            yield from _times_of(before, run.time)
        before = run
    if before is not None:
        yield from _times_of(before, before.time)


def _times_of(run: TimeRun, following: int) -> Iterator[int]:
    last = following if following > run.time else run.time + run.packets * run.step
    for i in range(run.packets):
        yield min(run.time + i * run.step, last)
