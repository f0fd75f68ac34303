"""Events of one end as runs: equal events at even distances become one row.

Times follow Algorithm 1 of DETER (NSDI 2019, section 3.3) in integers: a run goes on as long as one step exists with
which all its inferred times are within the threshold.  Counts of packets and numbers are exact.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

THRESHOLD = 5_000  # ns: largest error of an inferred time
OPEN_RUNS = 32  # of one end
Event = Mapping[str, int]
_STEPPED = ("ts", "tx", "rx", "number")


class TimeSteps:
    """The steps with which a run can go on; see Algorithm 1.  Times in ns."""

    __slots__ = ("start", "low", "high", "n", "threshold")

    def __init__(self, start: int, threshold: int) -> None:
        self.start, self.threshold = start, threshold
        self.low, self.high, self.n = 0, 1 << 62, 0

    def add(self, time: int) -> bool:
        """Whether the next event, at ``time``, fits; it is then part of the run."""
        n = self.n + 1
        low = max(self.low, -((self.start + self.threshold - time) // n))
        high = min(self.high, (time + self.threshold - self.start) // n)
        if low > high:
            return False
        self.low, self.high, self.n = low, high, n
        return True

    def step(self) -> int:
        return (self.low + self.high) // 2 if self.n else 0


class _Run:
    __slots__ = ("first", "last", "steps", "times", "count")

    def __init__(self, event: Event, threshold: int) -> None:
        self.first = self.last = event
        self.steps: tuple[int, int, int] | None = None
        self.times = TimeSteps(event["ts"], threshold)
        self.count = 1

    def add(self, event: Event) -> bool:
        last = self.last
        steps = (event["tx"] - last["tx"], event["rx"] - last["rx"], event["number"] - last["number"])
        if min(steps) < 0 or (self.steps is not None and steps != self.steps) or not self.times.add(event["ts"]):
            return False
        self.steps, self.last = steps, event
        self.count += 1
        return True

    def row(self) -> dict[str, int]:
        tx, rx, number = self.steps or (0, 0, 0)
        steps = {"step": self.times.step(), "tx_step": tx, "rx_step": rx, "number_step": number}
        return {**self.first, **steps, "count": self.count}


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
