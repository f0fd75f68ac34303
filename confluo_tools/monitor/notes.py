"""What a trigger file says about an alert besides its condition: labels, a severity, and a text for people.

The text may name fields of the alert, ``{key} sends {value}``; they are filled in as text, and nothing else is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import UsageError
from confluo_tools.units import format_duration

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block
    from confluo_tools.schema import Schema

KEYS = ("labels", "severity", "text")
MAX_LABELS = 64
MAX_LENGTH = 1024  # characters of a label or of the text
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")
_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class TriggerNotes(NamedTuple):
    """``labels``: by name; ``severity``: a word, or ""; ``text``: a template, or ""."""

    labels: Mapping[str, str]
    severity: str = ""
    text: str = ""

    def of(self, alert: Mapping[str, Any]) -> dict[str, Any]:
        """The values that are given, for an alert with these fields."""
        found: dict[str, Any] = {
            "labels": dict(self.labels),
            "severity": self.severity,
            "text": filled(self.text, alert),
        }
        return {name: value for name, value in found.items() if value}


def filled(text: str, alert: Mapping[str, Any]) -> str:
    """``text`` with the fields of ``alert`` in place of their names in braces; {{ and }} are braces."""

    def place(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        value = alert.get(match[1], "")
        return f"{value:g}" if isinstance(value, float) else str(value)

    return _PLACE.sub(place, text)


def read_notes(entry: Mapping[str, Any], fields: Iterator[str], where: str) -> TriggerNotes:
    """The notes of a trigger in a file.  ``fields``: of an alert.  Raises UsageError."""
    labels, severity, text = (entry.get(key) for key in KEYS)
    if labels is not None and not (isinstance(labels, dict) and len(labels) <= MAX_LABELS):
        raise UsageError("labels are names and values", where=where, hint="write e.g. labels: {team: network}")
    for name, value in (labels or {}).items():
        plain = isinstance(value, str | int | float) and len(str(value)) <= MAX_LENGTH
        if not (isinstance(name, str) and _WORD.fullmatch(name) and plain):
            raise UsageError(f"'{str(name)[:60]}' is not a label with a short value", where=where)
    if severity is not None and not (isinstance(severity, str) and _WORD.fullmatch(severity)):
        raise UsageError("severity is one word", where=where, hint="write e.g. severity: warning")
    if text is not None and not (isinstance(text, str) and len(text) <= MAX_LENGTH):
        raise UsageError(f"text has at most {MAX_LENGTH} characters", where=where)
    known = set(fields)
    for match in _PLACE.finditer(text or ""):
        if match[0] not in ("{{", "}}") and match[1] not in known:
            what = f"'{match[0][:60]}' in its text is not a field of an alert"
            raise UsageError(what, where=where, hint=f"there are {', '.join(sorted(known))}; {{{{ is a brace")
    return TriggerNotes({name: str(value) for name, value in (labels or {}).items()}, severity or "", text or "")


class AlertLines:
    """Alerts as NDJSON, with the ``notes`` of their triggers, by name."""

    def __init__(self, schema: Schema, notes: Mapping[str, TriggerNotes]) -> None:
        from confluo_tools.core.text.text_writer import Printer
        from confluo_tools.formats.text import printing_plan

        plan = printing_plan(schema, [f.name for f in schema.fields], "ndjson")
        self._printer, self._notes = Printer(schema.layout, plan, "ndjson"), notes
        self._name = schema.index("trigger")
        self._times = [f.name for f in schema.fields if f.type.kind == "duration"]

    def of(self, block: Block) -> Iterator[tuple[bytes, str]]:
        """(line, name of the trigger) of each alert."""
        for line, name, alert, notes in self._each(block):
            yield (json.dumps({**alert, **notes}, ensure_ascii=False).encode() + b"\n" if alert else line), name

    def notes_of(self, block: Block) -> Iterator[dict[str, Any]]:
        """The notes of each alert, with its fields in the text."""
        for _, _, _, notes in self._each(block):
            yield notes

    def _each(self, block: Block) -> Iterator[tuple[bytes, str, dict[str, Any], dict[str, Any]]]:
        # (line, name of the trigger, its fields and notes if it has notes) of each alert.
        text = self._printer.lines(block)
        for row, line in enumerate(text.splitlines(keepends=True)):
            name = block.get(self._name, row).rstrip(b"\0").decode("utf-8", "replace")
            notes = self._notes.get(name)
            if notes is None:
                yield line, name, {}, {}
                continue
            alert = json.loads(line)
            shown = alert | {name: format_duration(alert[name]) for name in self._times}
            yield line, name, alert, notes.of(shown)
