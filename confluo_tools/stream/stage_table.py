"""The counters of a run as a table on stderr, for --stats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluo_tools.console import printable

if TYPE_CHECKING:
    from confluo_tools.stream.stage_counts import StageCount

HEAD = ("stage", "name", "pipeline", "in", "filtered", "dropped", "queued", "out")


def stage_table(counts: Sequence[StageCount]) -> list[str]:
    """A line for each stage, and one with the names of the columns."""
    cells = [
        (c.stage, printable(c.name) or "-", *map(str, (c.pipeline, c.taken, c.filtered, c.dropped, c.queued, c.given)))
        for c in counts
    ]
    widths = [max(len(row[i]) for row in [HEAD, *cells]) for i in range(len(HEAD))]
    lines = []
    for row in [HEAD, *cells]:
        aligned = [t.ljust(w) if i < 2 else t.rjust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(aligned).rstrip())
    return lines
