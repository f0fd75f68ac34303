"""YAML in one line, written without a YAML library: commands that write a log or a snapshot start faster."""

from __future__ import annotations

from typing import Any


def yaml_flow(value: Any) -> str:
    """A tree of mappings, lists, numbers, truth values and texts; keys and texts in double quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{yaml_flow(k)}: {yaml_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(yaml_flow, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return yaml_string(str(value))


def yaml_string(text: str) -> str:
    """A text in double quotes.  Escapes below U+10000 are also those of JSON."""
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(c: str) -> str:
    if c in '"\\':
        return "\\" + c
    if c.isprintable():
        return c
    return f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"
