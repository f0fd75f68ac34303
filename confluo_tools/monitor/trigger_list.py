"""Triggers as a list, for --list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from confluo_tools import cli

if TYPE_CHECKING:
    from confluo_tools.monitor.language import Trigger


def show(found: Sequence[Trigger], tsv: bool, ndjson: bool) -> None:
    """Print the parsed triggers: a table, or TSV or NDJSON for programs."""
    from confluo_tools.units import format_duration

    head = ("trigger", "condition", "window", "period", "by", "where", "for", "rearm")
    rows = [
        (
            t.name,
            t.condition_text,
            format_duration(t.window),
            format_duration(t.period),
            t.by,
            " | ".join(sorted({m.where for m in t.measures if m.where})),
            format_duration(t.hold) if t.hold else "",
            format_duration(t.rearm) if t.rearm else "",
        )
        for t in found
    ]
    if ndjson:
        import json

        for row in rows:
            print(json.dumps(dict(zip(head, row, strict=True))))
    elif tsv or not cli.is_terminal(1):
        print("#fields\t" + "\t".join(head))
        for row in rows:
            print("\t".join(c or "-" for c in row))
    else:
        cells = [tuple(h.upper() for h in head), *rows]
        widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
        for line in cells:
            print("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())
