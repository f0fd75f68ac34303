"""Triggers from YAML files, and the named aggregates of a log, which triggers may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluo_tools.errors import UsageError
from confluo_tools.monitor.language import NamedAggregate, join_trigger

if TYPE_CHECKING:
    from confluo_tools.multilog.log import Log


def read_trigger_file(path: str) -> list[tuple[str, str]]:
    """The triggers of a YAML file, as (where, text): texts, or mappings of name, when and the clauses.

    Raises UsageError with the path and the number of the trigger at fault.
    """
    from confluo_tools import guarded_yaml

    try:
        data: Any = guarded_yaml.load(guarded_yaml.read(path))
    except (OSError, guarded_yaml.YamlError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise UsageError(f"cannot be read: {reason}", where=path) from None
    found = data.get("triggers") if isinstance(data, dict) else data
    if not isinstance(found, list) or (isinstance(data, dict) and data.keys() - {"triggers"}):
        raise UsageError("is not a file of triggers", where=path, hint="it needs a list 'triggers:'")
    out = []
    for i, entry in enumerate(found, 1):
        where = f"{path}: trigger {i}"
        if isinstance(entry, dict) and len(entry) == 1 and isinstance(next(iter(entry.values())), str):
            ((name, rest),) = entry.items()  # - heavy: count > 1 over 1s   is a mapping to YAML
            out.append((where, f"{name}: {rest}"))
        elif isinstance(entry, dict):
            out.append((where, join_trigger(entry, where)))
        elif isinstance(entry, str):
            out.append((where, entry))
        else:
            raise UsageError("is neither a text nor a mapping", where=where)
    return out


def named_views(log: Log) -> dict[str, NamedAggregate]:
    """The aggregates of a log by name, with their filters as text."""
    from confluo_tools.multilog import views

    out = {}
    for a in views.aggregates(log):
        parts = [p for p in (a.filter_text, a.where) if p.strip()]
        where = parts[0] if len(parts) == 1 else " and ".join(f"({p})" for p in parts)
        out[a.name] = NamedAggregate(a.name, a.agg, where, a.by)
    return out
