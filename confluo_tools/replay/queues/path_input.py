"""Paths of flows from records of the schema `path`: the ways that packets really took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from confluo_tools.errors import SchemaError
from confluo_tools.replay.queues.block_columns import BlockColumns
from confluo_tools.replay.queues.sent_packets import QueueFlow

if TYPE_CHECKING:
    from confluo_tools.formats.reader import Reader
    from confluo_tools.network.topology import Topology

FLOW, PARTIAL = 1, 1  # kind and note


def read_paths(reader: Reader, topology: Topology) -> Mapping[QueueFlow, list[int]]:
    """{flow: switches from its source's ToR on} of the flows with a whole path; the last one of a flow counts.

    Raises SchemaError for records of another kind.
    """
    if reader.schema.kind != "path":
        raise SchemaError(f"holds records of kind '{reader.schema.kind}', not 'path'", where=reader.name)
    found: dict[QueueFlow, list[int]] = {}
    for block in reader:
        columns = BlockColumns(block, reader.name)
        kind, notes, hops, version, proto = (columns[n] for n in ("kind", "notes", "hops", "ip_version", "proto"))
        src, dst, sport, dport = (columns[n] for n in ("src_ip", "dst_ip", "src_port", "dst_port"))
        path = columns["path"]
        for i in range(block.rows):
            count = hops[i]
            switches = [topology.node(n) for n in path[16 * i : 16 * i + count]]
            if kind[i] != FLOW or notes[i] & PARTIAL or not switches or 0 in switches:
                continue
            six = (columns.bytes_of("src_ip6", i), columns.bytes_of("dst_ip6", i)) if version[i] == 6 else ()
            hosts = topology.node(src[i]), topology.node(dst[i])
            flow = QueueFlow(*hosts, version[i] or 4, proto[i], src[i], dst[i], sport[i], dport[i], *six)
            found[flow] = switches
    return found
