"""Connections that are named while the command runs: each is explained when it is named, and again when named again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from confluo_tools.replay.explain.flows import FlowEnds, check_flows, ends_of, flows_of

SETTLE = 1_000_000_000  # ns: more than a round trip, after which it is known whether a retransmission was needed
LAST = 2.0  # s after a signal in which the commands before this one in the pipe may write what they have

if TYPE_CHECKING:
    from confluo_tools.cli.log_output import LogOutput
    from confluo_tools.cli.output import RecordOutput
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.block.result_table import Rows
    from confluo_tools.formats.reader import Reader
    from confluo_tools.inputs.follow import StopSignal


class _StreamEnded(Exception):
    """A signal arrived, and nothing more came."""


class LiveFlows:
    """Labels of the connections in a stream of records, written whenever the stream pauses.

    ``explain`` returns the labels of some connections so far.  A label is written once: those up to the last packet
    that was explained before are left out.  Labels of the last second wait for packets that may change them.
    """

    def __init__(
        self, explain: Callable[[set[FlowEnds]], Rows], into: LogOutput | RecordOutput, ending: StopSignal
    ) -> None:
        self._explain, self._into, self._ending = explain, into, ending
        self._named: set[FlowEnds] = set()
        self._held: set[FlowEnds] = set()  # with labels that wait
        self._due = 0.0  # monotonic time at which they are looked at again
        self._until: dict[FlowEnds, int] = {}  # ns: packets explained so far
        self.rows = 0

    def read(self, reader: Reader) -> None:
        """Read the records to their end, or until a signal."""
        check_flows(reader.schema, reader.name)
        fd = getattr(getattr(reader, "stream", None), "fd", None)
        reader.on_idle(lambda: self._idle(fd))
        with suppress(_StreamEnded):
            for block in reader:
                self._named |= {min(flow, flow.reversed) for flow in flows_of(block, reader.schema)}
        self._named |= self._held
        self._write(last=True)

    def _idle(self, fd: int | None) -> None:
        """Before a read that would wait: write, and wait for bytes; write again when labels have waited enough."""
        from select import select

        self._write()
        while fd is not None:
            stopped = self._ending.came()
            left = max(self._due - time.monotonic(), 0) if self._held and not stopped else None
            if fd in select([fd] if stopped else [fd, self._ending.wake], [], [], LAST if stopped else left)[0]:
                return
            if stopped:
                raise _StreamEnded
            if self._held and time.monotonic() >= self._due:
                self._named |= self._held
                self._write()

    def _write(self, *, last: bool = False) -> None:
        """Explain the connections that were named since the last time.  ``last``: no label waits."""
        if not self._named:
            return
        named, self._named = self._named, set()
        self._held -= named
        rows = self._explain(named)
        limit = None if last else time.time_ns() - SETTLE
        ends: dict[FlowEnds, int] = {}
        rows.keep(lambda block: self._new(block, ends, limit))
        rows.sort([(rows.layout.index("ts"), False)])
        for block in rows.blocks():
            self._into.write(block, None)
            self.rows += block.rows
        self._into.flush()
        self._until |= ends
        self._due = time.monotonic() + SETTLE / 1e9

    def _new(self, block: Block, ends: dict[FlowEnds, int], limit: int | None) -> Picks:
        from confluo_tools.core.block.block import Picks

        at = {name: i for i, name in enumerate(block.layout.names)}
        chosen = []
        for row in range(block.rows):
            flow = ends_of(block, at, row)
            if flow is None:
                continue
            key, end = min(flow, flow.reversed), block.get(at["ts"], row) + block.get(at["duration"], row)
            if limit is not None and end > limit:
                self._held.add(key)
                continue
            ends[key] = max(ends.get(key, 0), end)
            if end > self._until.get(key, -1):
                chosen.append(row)
        return Picks.of(block.rows, chosen)
