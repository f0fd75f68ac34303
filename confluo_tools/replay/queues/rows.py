"""Rows of the engine as records of the schema `queue`."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from confluo_tools.core.replay.queue_engine import gather

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.replay.queue_engine import QueueRows
    from confluo_tools.replay.queues.open_loop import OpenLoop
    from confluo_tools.schema import Schema

PASSED, DROPPED = 1, 2
SHARE, BUFFER = 1, 2
NAME = 32  # bytes of a node's name in a record
EVENT_OF = array("B", [DROPPED if flags & 1 else PASSED for flags in range(8)])
WHY_OF = array("B", [(BUFFER if flags & 4 else SHARE) if flags & 1 else 0 for flags in range(8)])
LOST_OF = array("B", [flags >> 1 & 1 for flags in range(8)])


class QueueRecords:
    """Makes blocks of a replay's rows."""

    def __init__(self, schema: Schema, replay: OpenLoop) -> None:
        self._schema, self._replay = schema, replay
        name_of = replay.ports.topology.name
        names = [(name_of(a), name_of(b)) for a, b in replay.ports.ends]
        self._switch, self._to = ([_padded(pair[i]) for pair in names] for i in (0, 1))
        self._next = array("I", range(1, len(replay.packets.flows) + 1))
        flows = replay.packets.flows
        self._flow = {
            name: array(code, [getattr(flow, name) for flow in flows])
            for name, code in (("proto", "B"), ("src_ip", "I"), ("dst_ip", "I"), ("src_port", "H"), ("dst_port", "H"))
        } | {"ip_version": array("B", [flow.version for flow in flows])}
        self._six = any(flow.version == 6 for flow in flows)

    def block(self, rows: QueueRows) -> Block:
        """The rows as one block."""
        from confluo_tools.core.block.block import Block

        n, packets, flows = rows.count, self._replay.packets, self._replay.packets.flows
        flow = gather(packets.flow_of, rows.packet, n)
        columns: dict[str, Any] = {
            "ts": rows.arrived(self._replay.base),
            "delay": rows.delays(),
            "event": gather(EVENT_OF, rows.flags, n),
            "why": gather(WHY_OF, rows.flags, n),
            "notes": gather(LOST_OF, rows.flags, n),
            "flow": gather(self._next, flow, n),
            "packet": rows.packet[:n],
            "len": gather(packets.sizes, rows.packet, n),
            "hop": rows.hop[:n],
            "switch": b"".join([self._switch[port] for port in rows.port[:n]]),
            "to": b"".join([self._to[port] for port in rows.port[:n]]),
            "queue": rows.queue[:n],
            "used": rows.used[:n],
            "shared_by": rows.sharer[: 4 * n],
            "share": rows.share[: 4 * n],
        }
        columns |= {name: gather(table, flow, n) for name, table in self._flow.items()}
        if self._six:
            for name in ("src_ip6", "dst_ip6"):
                columns[name] = b"".join([getattr(flows[f], name) or bytes(16) for f in flow])
        return Block.wrap(self._schema.layout, n, [columns.get(c.name) for c in self._schema.columns])


def _padded(name: str) -> bytes:
    return name.encode()[:NAME].ljust(NAME, b"\0")
