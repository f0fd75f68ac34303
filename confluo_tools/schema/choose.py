"""Fields by name and pattern: what -f means."""

from __future__ import annotations

from confluo_tools.errors import UsageError
from confluo_tools.schema.model import Schema

ADDRESSES = ("src_ip", "dst_ip")
FLOW_FIELDS = ("src_ip", "dst_ip", "src_port", "dst_port", "proto")  # what `flow` names where it is not a field


def choose_fields(text: str | None, schema: Schema) -> list[str] | None:
    """``ts,src_ip,tcp_*`` or ``-payload_len,-raw`` as names, ``flow`` as five; None for all."""
    names = schema.shown
    if text is None:
        return names if len(names) < len(schema.fields) else None
    from fnmatch import fnmatchcase

    def match(word: str) -> list[str]:
        if any(c in word for c in "*?["):
            found = [n for n in names if fnmatchcase(n, word)]
            if not found:
                raise UsageError(f"no field is like '{word}'", where="-f", hint="--fields help lists the names")
            return found
        if word == "flow" and word not in schema and all(name in schema for name in FLOW_FIELDS):
            return list(FLOW_FIELDS)
        return [schema[word].name]

    words = [w.strip() for w in text.split(",") if w.strip()]
    if not words:
        raise UsageError("no fields are named", where="-f", hint="--fields help lists the names")
    dropped = [w for w in words if w.startswith("-")]
    out: list[str] = []
    for word in words:
        if not word.startswith("-"):
            out += [n for n in match(word) if n not in out]
    if not out:
        out = names
    for word in dropped:
        gone = match(word[1:])
        out = [n for n in out if n not in gone]
    if not out:
        raise UsageError("no fields are left", where="-f")
    return out
