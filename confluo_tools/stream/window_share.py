"""Windows of a flow: decided in its lanes, folded by its workers, each a share.  See core/stream/shared_windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from confluo_tools.core.stream.event_windows import WindowStage
from confluo_tools.core.stream.flow_worker import FlowEnd
from confluo_tools.core.stream.shared_windows import WindowClock, WindowPart
from confluo_tools.stream.function_stage import FunctionStage
from confluo_tools.stream.functions import words
from confluo_tools.stream.stage_counts import StageCount

if TYPE_CHECKING:
    from confluo_tools.schema import Schema
    from confluo_tools.stream.flows_file import StreamFlow
    from confluo_tools.stream.functions import WindowFunction


class FlowWindows:
    """The windows of ``flow``; its lanes have records of ``schema``.  The same function keeps those of ``old``."""

    def __init__(self, flow: StreamFlow, function: WindowFunction, schema: Schema, old: FlowWindows | None) -> None:
        self.flow, self.function = flow, function
        self.clock: WindowClock
        if old is not None and old.function == function:
            self.clock = old.clock
        else:
            time, every, late = function.windows
            self.clock = WindowClock(schema.layout, schema.index(time), every, late)

    def counts(self) -> Iterable[StageCount]:
        """Records that came in time."""
        taken, dropped = self.clock.taken, self.clock.dropped
        yield StageCount("function", f"{self.flow.name}/windows", 0, taken, taken - dropped, dropped=dropped)

    def remarks(self) -> list[str]:
        return words.remarks(self.clock, self.function.windows)


class WindowShare:
    """The function over ``windows`` in one worker.  ``last``: the rest of the chain is in this worker, too.

    The stage of ``old`` goes on if its windows do.
    """

    def __init__(self, windows: FlowWindows, worker: int, old: WindowShare | None, *, last: bool) -> None:
        flow, function = windows.flow, windows.function
        self.worker, self.clock = worker, windows.clock
        name = flow.named[flow.in_lane][0]
        self.stage: WindowStage
        if old is not None and old.clock is self.clock:
            self.stage = old.stage
        else:
            self.stage = function.part(flow.batch)
        self.function = FunctionStage(name, function, flow.batch, self.stage)
        self.part = WindowPart(self.clock, self.stage, last)
        self.end = FlowEnd(flow.batch.layout, self.part)


def share_of(shares: Sequence[WindowShare], worker: int) -> WindowShare | None:
    """The share of a worker, if it has one."""
    return next((share for share in shares if share.worker == worker), None)
