"""What the keys of the live view change to: group keys and aggregates that suit a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from confluo_tools.schema import Schema

# In the order of the keys `k` and `m`.  Those with fields that a schema lacks are left out.
GROUPS = (
    "src_ip, dst_ip",
    "src_ip",
    "dst_ip",
    "flow",
    "proto, dst_port",
    "src_ip/24, dst_ip/24",
    "src, dst",
    "src",
    "dst",
    "outcome",
    "trigger, key",
    "eth_src, eth_dst",
)
AGGREGATES = (
    "rate(len), rate",
    "sum(len), count",
    "distinct(dst_ip), distinct(dst_port), rate",
    "p50(len), p99(len), rate",
    "sum(src_bytes), sum(dst_bytes), count",
    "p50(rtt), p99(rtt), rate",
    "sum(lost), rate",
    "rate, count",
)
FIRST = {  # of these kinds of records
    "conn": ("src_ip, dst_ip", "sum(src_bytes), sum(dst_bytes), count"),
    "probe": ("src, dst", "p50(rtt), p99(rtt), rate"),
    "alert": ("trigger, key", "rate, count"),
}
NAMES = (
    "enum",
    "text",
    "ip",
    "ipv4",
    "mac",
    "bytes",
)  # types of fields that can be a group where none of `GROUPS` fits


def groups(schema: Schema, given: str | None) -> list[str]:
    """The group keys to choose from, the first of them at the start: that of --by, if it was given."""
    from confluo_tools.expr import parse_by

    names = [f.name for f in schema.fields if f.type.kind in NAMES and f is not schema.time_field]
    known = (*FIRST.get(schema.kind, ())[:1], *GROUPS, *names[:4])
    return list(_usable(given, known, lambda text: parse_by(text, schema)))


def aggregates(schema: Schema, given: str | None) -> list[str]:
    """The aggregates to choose from, the first of them at the start: those of --agg, if they were given."""
    from confluo_tools.expr import parse_aggregates

    known = (*FIRST.get(schema.kind, ())[1:], *AGGREGATES)
    return list(_usable(given, known, lambda text: parse_aggregates(text, schema)))


def _usable(given: str | None, known: Sequence[str], parse: Callable[[str], object]) -> Iterator[str]:
    if given is not None:
        yield given
    for text in dict.fromkeys(known):
        try:
            parse(text)
        except ConfluoError:
            continue
        if text != given:
            yield text
