"""Where the time went: sums by cause, as in the paper's tables 2 and 3."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.core.replay.explainer import Explainer
    from confluo_tools.schema import Schema

LIMITS = (10_000, 100_000, 1_000_000, 10_000_000)
NAMES = ("handshake", "to 10 kB", "to 100 kB", "to 1 MB", "to 10 MB", "above 10 MB")  # of the classes 0, 1, ...


def causes(explainer: Explainer, schema: Schema, *, by_size: bool) -> Iterator[Block]:
    """Records of ``schema``: sums by cause, or by size class and cause, largest time first.

    Delayed acknowledgements count as events; their time is that of the messages that they delayed.
    """
    from confluo_tools.formats.block_builder import blocks_of_rows
    from confluo_tools.schema import builtin

    sums = explainer.causes(LIMITS if by_size else ())
    total: dict[int, int] = defaultdict(int)
    for size, _, _, _, time, _ in sums:
        total[size] += time
    longest = [row for *_, row in sums if row >= 0]
    waits = explainer.rows(builtin("explanation").layout, only=longest)
    places = iter([(block, i) for block in waits.blocks() for i in range(block.rows)])
    copied = [c.name for c in schema.columns if c.name.startswith(("ts", "src_", "dst_", "ip_", "packet"))]
    rows = []
    for size, cause, messages, events, time, row in sums:
        name = NAMES[size].encode() if by_size else b""
        one: dict[str, Any] = {"size": name, "cause": cause, "messages": messages, "events": events, "time": time}
        one["share"] = time / total[size] if total[size] else 0.0
        if row >= 0:
            block, i = next(places)
            one |= {name: block.get(block.layout.index(name), i) for name in copied}
            one["longest"] = block.get(block.layout.index("duration"), i)
        rows.append((size, -time, one))
    yield from blocks_of_rows(schema, [one for _, _, one in sorted(rows, key=lambda row: row[:2])])
