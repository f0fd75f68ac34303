"""Exported records as dictionaries."""

from __future__ import annotations

from typing import Any

from confluo_tools.core.capture.flow_exports import FlowExports
from confluo_tools.schema import builtin
from flow_exporters import mapped
from oracle_packets import address

SCHEMA = builtin("netflow")
WORDS = [f.name for f in SCHEMA.fields if f.type.kind == "enum"]
ADDRESSES = [f.name for f in SCHEMA.fields if f.type.kind == "ip"]
RECEIVED = 1_700_000_001_000_000_007
Row = dict[str, Any]


def decoder(*, scale: bool = False) -> FlowExports:
    return FlowExports(SCHEMA.layout, scale=scale)


def add(d: FlowExports, datagram: bytes, *, source: str = "192.0.2.9", port: int = 4000, sflow: bool = False) -> None:
    d.add(datagram, mapped(source), port, RECEIVED, sflow=sflow)


def rows(d: FlowExports) -> list[Row]:
    """The rows so far: addresses as text, values that are not zero."""
    found = []
    while d.waiting:
        block = d.take()
        for i in range(block.rows):
            row: Row = {name: block.get(k, i) for k, name in enumerate(block.layout.names)}
            for name in ADDRESSES:
                six = row.pop(name + "6")
                row[name] = address(row[name], six, 6 if any(six) else 4) if row[name] else None
            for name in ("in_name", "out_name"):
                row[name] = row[name].rstrip(b"\0").decode()
            found.append({name: value for name, value in row.items() if value})
    return found


def decoded(*datagrams: bytes, scale: bool = False, sflow: bool = False) -> list[Row]:
    d = decoder(scale=scale)
    for one in datagrams:
        add(d, one, sflow=sflow)
    return rows(d)
