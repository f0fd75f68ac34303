"""Connections that are named while the command runs: each is explained when it is named, and again when named again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from confluo_tools.replay.explain.flows import FlowEnds, check_flows, ends_of, flows_of

if TYPE_CHECKING:
    from confluo_tools.cli.log_output import LogOutput
    from confluo_tools.cli.output import RecordOutput
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.block.result_table import Rows
    from confluo_tools.formats.reader import Reader


class LiveFlows:
    """Labels of the connections in a stream of records, written whenever the stream pauses.

    ``explain`` returns the labels of some connections so far.  A label is written once: those up to the last packet
    that was explained before are left out.
    """

    def __init__(self, explain: Callable[[set[FlowEnds]], Rows], into: LogOutput | RecordOutput) -> None:
        self._explain, self._into = explain, into
        self._named: set[FlowEnds] = set()
        self._until: dict[FlowEnds, int] = {}  # ns: packets explained so far
        self.rows = 0

    def read(self, reader: Reader) -> None:
        """Read the records to their end."""
        check_flows(reader.schema, reader.name)
        reader.on_idle(self.write)
        for block in reader:
            self._named |= {min(flow, flow.reversed) for flow in flows_of(block, reader.schema)}
        self.write()

    def write(self) -> None:
        """Explain the connections that were named since the last time."""
        if not self._named:
            return
        named, self._named = self._named, set()
        rows = self._explain(named)
        ends: dict[FlowEnds, int] = {}
        rows.keep(lambda block: self._new(block, ends))
        rows.sort([(rows.layout.index("ts"), False)])
        for block in rows.blocks():
            self._into.write(block, None)
            self.rows += block.rows
        self._into.flush()
        self._until |= ends

    def _new(self, block: Block, ends: dict[FlowEnds, int]) -> Picks:
        from confluo_tools.core.block.block import Picks

        at = {name: i for i, name in enumerate(block.layout.names)}
        chosen = []
        for row in range(block.rows):
            flow = ends_of(block, at, row)
            if flow is None:
                continue
            key, end = min(flow, flow.reversed), block.get(at["ts"], row) + block.get(at["duration"], row)
            ends[key] = max(ends.get(key, 0), end)
            if end > self._until.get(key, -1):
                chosen.append(row)
        return Picks.of(block.rows, chosen)
