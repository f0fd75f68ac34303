"""Triggers from YAML files, and the named aggregates of a log, which triggers may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import UsageError
from confluo_tools.monitor.language import NamedAggregate, join_trigger
from confluo_tools.monitor.notes import KEYS, TriggerNotes, read_notes

if TYPE_CHECKING:
    from confluo_tools.multilog.log import Log


class TriggerEntry(NamedTuple):
    """A trigger as ``text``, ``where`` it was read, and its notes."""

    where: str
    text: str
    notes: TriggerNotes | None = None


class TriggerFile(NamedTuple):
    """The triggers of a file, and the webhook that it names, or ""."""

    entries: list[TriggerEntry]
    webhook: str


def read_trigger_file(path: str) -> TriggerFile:
    """The triggers of a YAML file: texts, or mappings of name, when, the clauses and notes.

    Raises UsageError with the path and the number of the trigger at fault.
    """
    from confluo_tools import guarded_yaml

    try:
        data: Any = guarded_yaml.load(guarded_yaml.read(path))
    except (OSError, guarded_yaml.YamlError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise UsageError(f"cannot be read: {reason}", where=path) from None
    whole = data if isinstance(data, dict) else {"triggers": data}
    found, webhook = whole.get("triggers"), whole.get("webhook", "")
    if not isinstance(found, list) or whole.keys() - {"triggers", "webhook"}:
        raise UsageError("is not a file of triggers", where=path, hint="it needs a list 'triggers:'")
    if not isinstance(webhook, str):
        raise UsageError("webhook is an address", where=path, hint="webhook: https://HOST/PATH")
    entries = [_entry(entry, f"{path}: trigger {i}") for i, entry in enumerate(found, 1)]
    return TriggerFile(entries, webhook)


def _entry(entry: Any, where: str) -> TriggerEntry:
    if isinstance(entry, dict) and len(entry) == 1 and isinstance(next(iter(entry.values())), str):
        ((name, rest),) = entry.items()  # - heavy: count > 1 over 1s   is a mapping to YAML
        return TriggerEntry(where, f"{name}: {rest}")
    if isinstance(entry, dict):
        parts = {key: value for key, value in entry.items() if key not in KEYS}
        text = join_trigger(parts, where)
        if len(parts) == len(entry):
            return TriggerEntry(where, text)
        from confluo_tools.schema import builtin

        known = (f.name for f in builtin("alert").fields if f.name not in KEYS)
        return TriggerEntry(where, text, read_notes(entry, known, where))
    if isinstance(entry, str):
        return TriggerEntry(where, entry)
    raise UsageError("is neither a text nor a mapping", where=where)


def named_views(log: Log) -> dict[str, NamedAggregate]:
    """The aggregates of a log by name, with their filters as text."""
    from confluo_tools.multilog import views

    out = {}
    for a in views.aggregates(log):
        parts = [p for p in (a.filter_text, a.where) if p.strip()]
        where = parts[0] if len(parts) == 1 else " and ".join(f"({p})" for p in parts)
        out[a.name] = NamedAggregate(a.name, a.agg, where, a.by)
    return out
