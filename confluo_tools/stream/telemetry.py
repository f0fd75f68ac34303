"""The fields that records of a stream have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.schema import Schema

# What an observer of traffic needs of a packet; a topic has these unless --fields says more.
TELEMETRY = frozenset(
    [
        "ts",
        "len",
        "ip_version",
        "proto",
        "src_ip",
        "dst_ip",
        "src_port",
        "dst_port",
        "ttl",
        "ip_id",
        "payload_len",
        "tcp_seq",
        "tcp_ack",
        "tcp_flags",
        "tcp_window",
        "tcp_tsval",
        "tcp_tsecr",
        "flow_hash",
        "run_packets",
        "run_step",
    ]
)


def chosen(fields: str | None, schema: Schema) -> list[str]:
    """The fields of the records: those of --fields; of packets, otherwise those of telemetry; of others all."""
    from confluo_tools.schema.choose import choose_fields

    found = choose_fields(fields, schema) if fields != "help" else None
    if found is not None:
        return found
    names = [f.name for f in schema.fields]
    return [n for n in names if n in TELEMETRY] if schema.kind == "packet" else names
