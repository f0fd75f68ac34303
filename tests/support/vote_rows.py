"""Path records for tests of confluo-vote, from Python values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from confluo_tools.core.block.block import Block
from confluo_tools.core.vote.flow_tally import FlowTally
from confluo_tools.formats.block_builder import blocks_of
from confluo_tools.schema import builtin

PATH = builtin("path")


def flow(src: int, path: Sequence[int], dst: int, lost: int = 0, sent: int = 100, **more: Any) -> dict[str, Any]:
    """A record of kind flow."""
    row = {"kind": 1, "src_ip": src, "dst_ip": dst, "path": list(path), "hops": len(path), "lost": lost, "sent": sent}
    return row | more


def failed(a: int, b: int) -> dict[str, Any]:
    """A record of kind failed."""
    return {"kind": 2, "link_a": a, "link_b": b, "rate": 0.01}


def blocks(rows: Iterable[dict[str, Any]]) -> list[Block]:
    rows = list(rows)
    empty: dict[str, Any] = {"path": []}
    names = [c.name for c in PATH.columns if not (c.name.endswith("6") and c.size > 1)]
    columns = {n: [r.get(n, empty.get(n, 0)) for r in rows] for n in names}
    columns |= {n: [r[n] if n in r else bytes(16) for r in rows] for n in ("src_ip6", "dst_ip6")}
    columns["path6"] = [r.get("path6", bytes(256)) for r in rows]
    return list(blocks_of(PATH, columns, len(rows)))


def tally(rows: Iterable[dict[str, Any]], **options: Any) -> FlowTally:
    out = FlowTally(**options)
    for block in blocks(rows):
        out.add(block, 0, block.rows)
    return out
