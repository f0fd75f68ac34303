"""What pingmesh.analysis.probe_tally says of rows, row by row in plain Python; and rows to ask about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from confluo_tools.core.block.block import Block
from confluo_tools.formats.block_builder import block_of
from confluo_tools.formats.reader import Reader
from confluo_tools.schema import builtin

SCHEMA = builtin("probe")
NAMES = {2: "timeout", 3: "refused", 4: "unreachable", 5: "reset", 6: "local", 7: "garbled"}


class Rows(Reader):
    """Records from dicts, a block for each list."""

    schema = SCHEMA

    def __init__(self, *parts: Sequence[dict[str, Any]]) -> None:
        super().__init__("rows")
        self.parts = parts

    def blocks(self) -> Iterator[Block]:
        for rows in self.parts:
            yield block(rows)


def block(rows: Sequence[dict[str, Any]]) -> Block:
    names = {n for row in rows for n in row}
    empty = {c.name: (b"" if c.code == 11 else 0) for c in SCHEMA.columns}
    return block_of(SCHEMA, {n: [r.get(n, empty[n]) for r in rows] for n in names}, len(rows))


def probe(**more: Any) -> dict[str, Any]:
    return {"ts": 5, "kind": 1, "outcome": 1, "rtt": 1000, "elapsed": 3000, "src_pod": "a", "dst_pod": "b"} | more


def quantile(values: Iterable[int], millionths: int) -> float:
    """The value of rank ceil(q n)."""
    ordered = sorted(values)
    return float(ordered[max(-(-len(ordered) * millionths // 1_000_000), 1) - 1])


def twin(
    rows: Iterable[dict[str, Any]],
    by: Sequence[str],
    window: int = 0,
    limits: Sequence[int] = (),
    signature: Sequence[tuple[int, int, int]] = (),
) -> dict[tuple[int, tuple[Any, ...]], dict[str, Any]]:
    """{(window, key): counts by name, and the lists rtt and seen}; overflows only by notes."""
    out: dict[tuple[int, tuple[Any, ...]], dict[str, Any]] = {}
    for row in rows:
        kind, outcome, rtt, elapsed = row["kind"], row["outcome"], row["rtt"], row["elapsed"]
        if kind >= 16 or outcome > 7 or (not signature and (kind == 0 or outcome == 0)):
            continue
        key = tuple(row.get(name, "") for name in by)
        cell = out.setdefault((row["ts"] // window * window if window else 0, key), {"rtt": [], "seen": []})

        def count(name: str, n: int = 1, cell: dict[str, Any] = cell) -> None:
            cell[name] = cell.get(name, 0) + n

        retries = row.get("retries", 0)
        if signature:
            took = elapsed if elapsed > 0 else rtt
            if outcome == 0:
                outcome = 1 if took > 0 else 2
            if outcome == 1 and retries == 0:
                retries, slow = next(((n, n == 0) for low, high, n in signature if low <= took < high), (0, False))
                count("slow", slow)
                rtt = rtt if rtt > 0 else elapsed
        if outcome != 1:
            count(NAMES[outcome])
            continue
        count("ok")
        if retries:
            blamed = row.get("notes", 0) & 4
            count("overflow" if blamed else "dropped")
            count("forward", not blamed and row.get("hint") == 1)
            count("reverse", not blamed and row.get("hint") == 2)
        elif rtt > 0:
            cell["rtt"].append(rtt)
            for i, limit in enumerate(limits):
                count(f"above{i + 1}", rtt > limit)
            if elapsed > 0 and kind in (0, 1, *range(5, 16)):
                cell["seen"].append(elapsed)
                count("network_ns", min(rtt, elapsed))
                count("seen_ns", elapsed)
    return out
