"""Events of one end as runs: equal events at even distances become one row.

Times follow Algorithm 1 of DETER (NSDI 2019, section 3.3) in integers: a run goes on as long as one step exists with
which all its inferred times are within the threshold.  Counts of packets and numbers are exact.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

from confluo_tools.replay.sampling import RateSampler, TimeRun

THRESHOLD = 5_000  # ns: largest error of an inferred time
GRAIN = 1024  # ns: times of runs are multiples of it
OPEN_RUNS = 32  # of one end
Event = Mapping[str, int]
_STEPPED = ("ts", "tx", "rx", "number")


class _Run:
    __slots__ = ("first", "last", "steps", "times", "time")

    def __init__(self, event: Event, threshold: int) -> None:
        self.first = self.last = event
        self.steps: tuple[int, int, int] | None = None
        self.times = RateSampler(threshold, GRAIN)
        self.times.offer(event["ts"])
        self.time: TimeRun | None = None  # when it has ended

    def add(self, event: Event) -> bool:
        last = self.last
        steps = (event["tx"] - last["tx"], event["rx"] - last["rx"], event["number"] - last["number"])
        if min(steps) < 0 or (self.steps is not None and steps != self.steps):
            return False
        self.time = self.times.offer(event["ts"])
        if self.time is not None:
            return False
        self.steps, self.last = steps, event
        return True

    def row(self) -> dict[str, int]:
        tx, rx, number = self.steps or (0, 0, 0)
        time = self.time or self.times.flush()
        assert time is not None
        steps = {"ts": time.time, "step": time.step, "tx_step": tx, "rx_step": rx, "number_step": number}
        return {**self.first, **steps, "count": time.packets}


class RunWriter:
    """Calls ``emit`` with rows (physical columns of the schema, zeros may be missing) for the events of one end.

    An event has at least kind, ts (ns), number, tx and rx.  A run that gets no event for a while is emitted when
    there are more than `OPEN_RUNS`; `flush` emits all.
    """

    def __init__(self, emit: Callable[[dict[str, int]], object], threshold: int = THRESHOLD) -> None:
        self._emit, self._threshold = emit, threshold
        self._open: OrderedDict[tuple[tuple[str, int], ...], _Run] = OrderedDict()

    def add(self, event: Event) -> None:
        key = tuple(sorted(item for item in event.items() if item[0] not in _STEPPED and item[1]))
        run = self._open.get(key)
        if run is not None and run.add(event):
            self._open.move_to_end(key)
            return
        if run is not None:
            self._emit(run.row())
        elif len(self._open) >= OPEN_RUNS:
            self._emit(self._open.popitem(last=False)[1].row())
        self._open[key] = _Run(event, self._threshold)
        self._open.move_to_end(key)

    def flush(self) -> None:
        for run in self._open.values():
            self._emit(run.row())
        self._open.clear()
