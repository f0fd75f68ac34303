"""A chart as one self-contained HTML page: no server, no network, no script, no other file."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from confluo_tools.chart.model import Chart, label
from confluo_tools.chart.svg import svg
from confluo_tools.units import format_time

MAX_ROWS = 5000  # of the table
_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>%s</title>
<style>
:root { --back: #f6f7f9; --panel: #fff; --fore: #1b1f24; --soft: #5c6670; --line: #c9ced6; }
@media (prefers-color-scheme: dark) {
  :root { --back: #0f1216; --panel: #171b21; --fore: #e8ebef; --soft: #98a2ad; --line: #39414b; }
}
body { margin: 0; padding: 20px; background: var(--back); color: var(--fore);
  font: 14px/1.45 system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 1200px; margin: auto; }
svg { width: 100%%; height: auto; border: 1px solid var(--line); border-radius: 10px; }
code { overflow-wrap: anywhere; }
p, summary { color: var(--soft); }
table { border-collapse: collapse; background: var(--panel); }
th, td { text-align: right; padding: 3px 12px; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
details { overflow-x: auto; }
</style>
</head>
<body>
<main>
"""


def page(chart: Chart, command: str, local: bool = False) -> Iterator[str]:
    """The text of the page.  ``command``: the command line that made it."""
    yield _HEAD % escape(chart.title)
    yield from svg(chart, local)
    yield f"<p>Made by <code>{escape(command)}</code></p>\n"
    rows = list(_rows(chart, local))
    more = f", the first {MAX_ROWS:,} of {len(rows):,}" if len(rows) > MAX_ROWS else ""
    yield f"<details>\n<summary>Values{more}</summary>\n<table>\n<thead><tr>"
    names = [*(["time"] if chart.times else []), *([" ".join(chart.keys)] if chart.keys else [])]
    yield "".join([f"<th>{escape(text)}</th>" for text in [*names, *(m.name for m in chart.measures)]])
    yield "</tr></thead>\n<tbody>\n"
    for row in rows[:MAX_ROWS]:
        yield f"<tr>{''.join([f'<td>{escape(cell)}</td>' for cell in row])}</tr>\n"
    yield "</tbody>\n</table>\n</details>\n</main>\n</body>\n</html>\n"


def _rows(chart: Chart, local: bool) -> Iterator[list[str]]:
    for i, t in enumerate(chart.times or (0,)):
        for line in chart.lines:
            cells = [format_time(t, 9 if chart.step % 10**9 else 0, local)] if chart.times else []
            cells += [label(line)] if chart.keys else []
            values = [values[i] for values in line.values]
            if any(value is not None for value in values):
                yield cells + ["" if value is None else f"{value:.15g}" for value in values]
