"""One flow in one worker: its functions as stages, and the place where its records go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from confluo_tools.core.stream.flow_worker import FlowEnd
from confluo_tools.core.stream.row_choice import FieldStage
from confluo_tools.core.stream.stage import SinkStage
from confluo_tools.stream.destination import short_name
from confluo_tools.stream.flows_file import only
from confluo_tools.stream.function_stage import FunctionStage
from confluo_tools.stream.stage_counts import StageCount

if TYPE_CHECKING:
    from confluo_tools.core.kafka.message_sink import RowSink
    from confluo_tools.core.stream.stage import StreamStage
    from confluo_tools.schema import Schema
    from confluo_tools.stream.flows_file import StreamFlow
    from confluo_tools.stream.window_share import WindowShare


class Delivered(Protocol):
    """What became of the rows of a writer."""

    @property
    def delivered(self) -> int: ...
    @property
    def lost(self) -> int: ...


class Outlet(Protocol):
    """A place for the records of one chain.  A worker's thread uses the ``sink``; after it has ended, `close` does."""

    linger: int

    @property
    def sink(self) -> RowSink: ...
    @property
    def counts(self) -> Delivered: ...
    def report(self) -> None: ...
    def stop(self, number: int = 0) -> None: ...
    def close(self) -> None: ...


OpenOutlet = Callable[[str, "Schema", int], Outlet]  # place, records, number of the pipeline


class FlowChain:
    """A flow in worker ``worker``, after the functions in its lanes.  ``share``: of windows that lanes decide.

    `wire` connects the stages: those that ``old`` has as well keep their state.
    """

    def __init__(
        self,
        flow: StreamFlow,
        worker: int,
        open_outlet: Callable[[Schema], Outlet],
        old: FlowChain | None,
        share: WindowShare | None = None,
    ) -> None:
        self.flow, self.worker, self.share = flow, worker, share
        self.functions: list[FunctionStage] = []
        self._stages: list[StreamStage] = []
        before = old.own if old is not None else []
        schema = flow.batch
        if share is not None:
            self.functions, self._stages = [share.function], [share.part, share.stage]
            schema = share.function.function.after(schema)
        for name, function in flow.named[flow.in_lane + len(self.functions) :]:
            if not function.keeps:
                schema = self._only(schema, function.needs)
            same = [i for i, f in enumerate(before) if f.function == function and f.schema == schema]
            stage = before[same[0]].stage if same else function.stage(schema)
            del before[: same[0] + 1 if same else 0]
            self.functions.append(FunctionStage(name, function, schema, stage))
            self._stages.append(stage)
            schema = function.after(schema)
        self.out = self._only(schema, flow.out)
        self.outlet: Outlet
        self.sink: SinkStage
        if old is not None and old.flow.to == flow.to and old.out == self.out:
            self.outlet, self.sink = old.outlet, old.sink
        else:
            self.outlet = open_outlet(self.out)
            self.sink = SinkStage(self.outlet.sink, self.outlet.linger)
        self._stages.append(self.sink)
        self.end = share.end if share is not None else FlowEnd(flow.batch.layout, self._stages[0])

    @property
    def own(self) -> list[FunctionStage]:
        """Its functions, but not those that other workers share."""
        return self.functions[1:] if self.share is not None else list(self.functions)

    def _only(self, schema: Schema, names: Iterable[str]) -> Schema:
        """``schema`` with these fields alone; the stage that leaves the others out."""
        less = only(schema, names)
        if less is not schema:
            self._stages.append(FieldStage(schema.layout, less.layout))
        return less

    def wire(self, others: Iterable[WindowShare] = ()) -> None:
        """``others``: shares of the other workers in its windows."""
        for stage, after in zip(self._stages, self._stages[1:], strict=False):
            stage.then(after)
        for share in others:
            share.stage.then(self._stages[2])

    def finish(self, new: FlowChain | None, *, windows: bool = False) -> None:
        """End the functions that ``new`` does not have: what they give goes to those after them.

        ``windows``: those that lanes decide go on.
        """
        if self.share is not None and not windows:
            self.share.part.end_alone()
        going_on = {id(f.stage) for f in new.functions} if new is not None else set()
        for f in self.own:
            if id(f.stage) not in going_on:
                f.stage.end_alone()
        if new is None or new.outlet is not self.outlet:
            self.sink.end()

    def end_all(self) -> None:
        """The input has ended: give all that is left to the outlet."""
        self._stages[0].end()

    def wait_for_rows(self) -> None:
        """Windows end when rows come that are later, not when no rows come."""
        from confluo_tools.core.stream.event_windows import WindowStage

        for f in self.functions:
            if isinstance(f.stage, WindowStage):
                f.stage.silence = 0

    def remarks(self) -> Iterable[str]:
        for f in self.functions:
            yield from (f"flow '{self.flow.name}': {f.name}: {line}" for line in f.function.remarks(f.stage))

    def counts(self) -> Iterable[StageCount]:
        return (f.counts(self.flow.name, self.worker) for f in self.functions)

    def sent(self) -> StageCount:
        taken, sink = self.sink.taken, self.outlet.sink
        lost = sink.dropped + sink.refused
        queued = max(taken - sink.sent - lost, 0)
        return StageCount("send", self.flow.name, self.worker, taken, sink.sent, dropped=lost, queued=queued)

    def delivered(self) -> StageCount:
        sink, counts = self.outlet.sink, self.outlet.counts
        taken, lost = sink.sent, counts.lost - sink.dropped - sink.refused
        queued = max(taken - counts.delivered - lost, 0)
        return StageCount(
            "deliver", short_name(self.flow.to), self.worker, taken, counts.delivered, dropped=lost, queued=queued
        )
