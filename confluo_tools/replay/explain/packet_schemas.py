"""The schemas of the packets that are explained."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.schema import Schema


@cache
def with_sack() -> Schema:
    """The packet schema with SACK blocks."""
    from confluo_tools.core.packets.tcp_columns import USED
    from confluo_tools.schema import builtin

    full = builtin("packet")
    wanted = {name.removesuffix("6") if name in ("src_ip6", "dst_ip6") else name for name in USED}
    return full.project([field.name for field in full.fields if field.name in wanted])


@cache
def with_evidence() -> Schema:
    """The packet schema with SACK blocks, and the columns of `evidence.SentEvidence`."""
    from confluo_tools.schema import Field

    types = {"evidence": "u8", "sent_by": "u8", "queued": "i64", "unsent": "u32", "held": "u8", "cwnd": "u32"}
    return with_sack().plus([Field(name, types[name]) for name in types])
