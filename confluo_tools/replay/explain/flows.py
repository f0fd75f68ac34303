"""Connections to explain: written as text, or read from records of any kind that have five-tuples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from confluo_tools.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.replay.explainer import Explainer
    from confluo_tools.schema import Schema

TCP = 6
FIELDS = ("ip_version", "src_ip", "dst_ip", "src_port", "dst_port")


class FlowEnds(NamedTuple):
    """Both ends of a connection: addresses of 4 or 16 bytes, and ports."""

    source: bytes
    source_port: int
    target: bytes
    target_port: int

    @property
    def reversed(self) -> FlowEnds:
        return FlowEnds(self.target, self.target_port, self.source, self.source_port)

    def __str__(self) -> str:
        from ipaddress import ip_address

        texts = [str(ip_address(address)) for address in (self.source, self.target)]
        source, target = (f"[{text}]" if ":" in text else text for text in texts)
        return f"{source}:{self.source_port}-{target}:{self.target_port}"


def parse_flow(text: str) -> FlowEnds:
    """A connection from SRC:PORT-DST:PORT, with or without /tcp; IPv6 addresses in brackets.  Raises UsageError."""
    from ipaddress import ip_address

    words = text.removesuffix("/tcp").split("-")
    try:
        ends = []
        for word in words:
            host, _, port = word.rpartition(":")
            ends.append((ip_address(host.strip("[]")).packed, int(port)))
        (source, source_port), (target, target_port) = ends
        if len(source) != len(target) or not all(0 < port < 65536 for port in (source_port, target_port)):
            raise ValueError
    except ValueError:
        hint = "write 10.0.0.1:4711-10.0.0.2:80 or [fd00::1]:4711-[fd00::2]:80"
        raise UsageError(f"'{text[:80]}' is not a connection", where="--flow", hint=hint) from None
    return FlowEnds(source, source_port, target, target_port)


def check_flows(schema: Schema, name: str) -> None:
    """Raise SchemaError unless records of this schema name connections."""
    missing = [field for field in FIELDS if field not in schema]
    if missing:
        raise SchemaError(
            f"has no field '{missing[0]}'", where=name, hint="confluo-retx records have all that is needed"
        )


def flows_of(block: Block, schema: Schema) -> set[FlowEnds]:
    """The connections in a block of records; those of other protocols than TCP are left out."""
    at = {column.name: i for i, column in enumerate(schema.columns)}
    rows = [row for row in range(block.rows) if "proto" not in at or block.get(at["proto"], row) == TCP]
    return {flow for flow in (ends_of(block, at, row) for row in rows) if flow is not None}


def read_flows(path: str) -> set[FlowEnds]:
    """The connections in the records of ``path``, '-' is standard input.  Raises SchemaError."""
    from confluo_tools import cli

    with cli.open_records([path]) as reader:
        check_flows(reader.schema, reader.name)
        found: set[FlowEnds] = set()
        for block in reader:
            found |= flows_of(block, reader.schema)
    return found


def ends_of(block: Block, at: Mapping[str, int], row: int) -> FlowEnds | None:
    """The ends in a row; ``at``: numbers of its columns.  None: the addresses are not known."""
    ends = []
    for side in ("src", "dst"):
        if "ip_version" in at and block.get(at["ip_version"], row) == 6:
            address: bytes = block.get(at[f"{side}_ip6"], row) if f"{side}_ip6" in at else b""
        else:
            address = int(block.get(at[f"{side}_ip"], row)).to_bytes(4, "big")
        ends.append((address, int(block.get(at[f"{side}_port"], row))))
    return FlowEnds(*ends[0], *ends[1]) if len(ends[0][0]) in (4, 16) else None


def choose_flows(explainer: Explainer, flows: set[FlowEnds] | None) -> None:
    """Have only ``flows`` explained; None: all."""
    explainer.chosen = flows is not None
    for flow in flows or ():
        explainer.choose(flow.source, flow.source_port, flow.target, flow.target_port)
