"""A function of a flow that runs, and its counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluo_tools.stream.stage_counts import StageCount

if TYPE_CHECKING:
    from confluo_tools.core.stream.stage import StreamStage
    from confluo_tools.schema import Schema
    from confluo_tools.stream.functions import FlowFunction


@dataclass
class FunctionStage:
    """A function that runs: its name, and the fields that it takes."""

    name: str
    function: FlowFunction
    schema: Schema
    stage: StreamStage

    def counts(self, flow: str, pipeline: int) -> StageCount:
        taken, given, dropped = self.stage.taken, self.stage.given, self.stage.dropped
        filtered = max(taken - given - dropped, 0) if self.function.keeps else 0
        return StageCount("function", f"{flow}/{self.name}", pipeline, taken, given, filtered, dropped)
