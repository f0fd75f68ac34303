"""Query plans as text, for --explain."""

from __future__ import annotations

from typing import Any

from confluo_tools.errors import FormatError

COLUMNS = ("ZONE-NO", "ZONE-ALL", "INDEX", "LIST", "SCAN", "ROWS", "SELECTED", "MS")


def plan_lines(done: dict[str, Any] | None, name: str) -> list[str]:
    """The plan of the input ``name`` (see `Reader.explain`) as lines.  Raises FormatError for an invalid plan."""
    if done is None:
        return ["plan     every record is tested: only a MultiLog has zone maps and indexes"]
    try:
        if "parts" in done:  # several logs
            out = []
            for part, plan in done["parts"]:
                out += [f"log      {part}", *plan_lines(plan, part)]
            return out
        return _lines(done)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise FormatError("sent an invalid query plan", where=name) from None


def _lines(done: dict[str, Any]) -> list[str]:
    out = []
    if "archive" in done:
        far = done["archive"]
        tried = f"{far['groups']:,} row groups, {far['passed_over']:,} passed over"
        out.append(f"archive  {far['files']:,} files opened, {tried}")
    if "blocks" not in done:
        return out
    used = [f"{i['field']} ({i['blocks']:,} blocks)" for i in done["indexes"]]
    out.append(f"blocks   {done['blocks']:,}" + (f", {done['damaged']:,} damaged" if done["damaged"] else ""))
    out.append(f"indexes  {', '.join(used) or 'none that helps'}")
    for what in ("filters", "aggregates"):
        views = [f"{v['name']} ({v['blocks']:,} blocks)" for v in done.get(what, ())]
        if views:
            out.append(f"{what:8} {', '.join(views)}")
    out.append(f"tests    {1000 * done['ns'] / 1e9:.1f} ms")
    rows: list[tuple[str, ...]] = [("STEP", *COLUMNS)]
    for step in done["steps"]:
        text = "  " * min(step["depth"], 100) + step["text"]
        if step["op"] != "test":
            rows.append((text, *[""] * len(COLUMNS)))
            continue
        share = "" if step["selectivity"] is None else f"{100 * step['selectivity']:.3g}%"
        rows.append(
            (
                text,
                *[f"{step[k]:,}" for k in ("zone_none", "zone_all", "by_index", "by_list", "by_scan", "rows_in")],
                share,
                f"{step['ns'] / 1e6:.1f}",
            )
        )
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *[c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]]
        out.append("  ".join(cells).rstrip())
    return out
