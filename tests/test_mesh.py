"""store.mesh: what is counted where."""

from __future__ import annotations

from typing import Any

from confluo_tools.formats.build import block_of
from confluo_tools.formats.reader import Reader
from confluo_tools.schema import builtin
from confluo_tools.store import mesh

SCHEMA = builtin("probe")


class Rows(Reader):
    """Records of dicts."""

    schema = SCHEMA

    def __init__(self, *parts: list[dict[str, Any]]) -> None:
        super().__init__("rows")
        self.parts = parts

    def blocks(self) -> Any:
        for rows in self.parts:
            names = {n for row in rows for n in row}
            empty = {c.name: (b"" if c.code == 11 else 0) for c in SCHEMA.columns}
            yield block_of(SCHEMA, {n: [r.get(n, empty[n]) for r in rows] for n in names}, len(rows))


def probe(**more: Any) -> dict[str, Any]:
    return {"ts": 5, "kind": 1, "outcome": 1, "rtt": 1000, "elapsed": 3000, "src_pod": "a", "dst_pod": "b"} | more


def test_what_is_counted_where() -> None:
    rows = [probe() for _ in range(7)]
    rows += [probe(rtt=0, retries=1, hint=1), probe(rtt=0, retries=2, hint=2), probe(rtt=0, retries=1, notes=4)]
    rows += [probe(outcome=o, rtt=0) for o in (2, 2, 3, 4, 5, 6, 7)]
    rows += [probe(kind=16, src_pod="z"), probe(kind=17, outcome=0), probe(kind=18, fault=1)]
    [(start, key, cell)] = mesh.tally(Rows(rows))
    assert (start, key) == (5, ("a", "b"))
    assert (cell.ok, cell.dropped, cell.overflow, cell.forward, cell.reverse) == (10, 2, 1, 1, 1)
    assert (cell.timeout, cell.refused, cell.unreachable, cell.reset, cell.local, cell.garbled) == (2, 1, 1, 1, 1, 1)
    assert (cell.probes, cell.failed, cell.drop_rate, cell.failed_rate) == (16, 6, 0.2, 6 / 16)
    assert (cell.samples, cell.p50, cell.elapsed99) == (7, 1000.0, 3000.0)


def test_windows_begin_at_their_multiples() -> None:
    rows = [probe(ts=t, rtt=t + 1) for t in (0, 9, 10, 19, 35)]
    assert [(w, c.ok, c.p99) for w, _, c in mesh.tally(Rows(rows), window=10)] == [
        (0, 2, 10.0), (10, 2, 20.0), (30, 1, 36.0),
    ]  # fmt: skip
