"""The first functions of a flow in one lane, before its records are shared among workers: there they meet all of them.

A sample of every Xth record must count before that; otherwise each worker would count its own records.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from confluo_tools.core.stream.shared_windows import WindowLane
from confluo_tools.stream.function_stage import FunctionStage

if TYPE_CHECKING:
    from confluo_tools.core.stream.classifier import FlowRoute
    from confluo_tools.core.stream.shared_windows import WindowClock
    from confluo_tools.core.stream.stage import StreamStage
    from confluo_tools.schema import Schema
    from confluo_tools.stream.flows_file import StreamFlow
    from confluo_tools.stream.stage_counts import StageCount


class LaneFunctions:
    """They take records of ``schema``, all that the lane has.  Those that ``old`` has as well keep their state.

    ``clock``: of the windows after them.
    """

    def __init__(
        self, flow: StreamFlow, lane: int, schema: Schema, old: LaneFunctions | None, clock: WindowClock | None = None
    ) -> None:
        self.flow, self.lane = flow, lane
        self.functions: list[FunctionStage] = []
        before = list(old.functions) if old is not None else []
        for name, function in flow.named[: flow.in_lane]:
            same = [i for i, f in enumerate(before) if f.function == function]
            stage = before[same[0]].stage if same else function.stage(schema)
            del before[: same[0] + 1 if same else 0]
            self.functions.append(FunctionStage(name, function, schema, stage))
        self._stages: list[StreamStage] = [f.stage for f in self.functions]
        if clock is not None:
            self._stages.append(WindowLane(clock))

    @property
    def first(self) -> StreamStage | None:
        return self._stages[0] if self._stages else None

    def wire(self, route: FlowRoute) -> None:
        for stage, after in pairwise([*self._stages, route]):
            stage.then(after)

    def counts(self) -> Iterable[StageCount]:
        return (f.counts(self.flow.name, self.lane) for f in self.functions)
