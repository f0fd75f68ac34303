"""Triggers as records of the schema ``trigger``, for --list."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from confluo_tools.schema import load
from confluo_tools.units import format_duration

if TYPE_CHECKING:
    from confluo_tools.monitor.language import Trigger
    from confluo_tools.monitor.notes import TriggerNotes
    from confluo_tools.schema import Schema


def trigger_schema() -> Schema:
    """The schema of a trigger.  It has no time: triggers cannot be written to a log."""
    return load(os.path.join(os.path.dirname(__file__), "trigger.yaml"))


def records_of(found: Sequence[Trigger], notes: Mapping[str, TriggerNotes]) -> list[dict[str, str]]:
    """The parts that each trigger has, by field.  ``notes``: of trigger files, by the name of the trigger."""
    rows = []
    for t in found:
        row = {
            "trigger": t.name,
            "condition": t.condition_text,
            "window": format_duration(t.window),
            "period": format_duration(t.period),
            "by": t.by,
            "where": " | ".join(sorted({m.where for m in t.measures if m.where})),
            "for": format_duration(t.hold) if t.hold else "",
            "rearm": format_duration(t.rearm) if t.rearm else "",
            "clear": t.clear_text,
            "repeat": format_duration(t.repeat) if t.repeat else "",
        }
        if t.name in notes:
            about = notes[t.name]
            labels = " ".join(f"{name}={value}" for name, value in about.labels.items())
            row |= {"severity": about.severity, "labels": labels, "text": about.text}
        rows.append({name: value for name, value in row.items() if value})
    return rows
