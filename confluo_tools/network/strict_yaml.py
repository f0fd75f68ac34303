"""Strict YAML: every scalar is text as it is written, and a key that occurs twice is an error with its line."""

from __future__ import annotations

from typing import Any

from confluo_tools.errors import FormatError
from confluo_tools.network.node_numbers import MAX_BYTES, MAX_YAML_NODES


def load(text: str, path: str) -> Any:
    """The tree of a YAML text.  Raises FormatError, with the line where it is known."""
    from confluo_tools import guarded_yaml

    try:
        return guarded_yaml.load(text, as_text=True, max_bytes=MAX_BYTES, max_nodes=MAX_YAML_NODES)
    except guarded_yaml.YamlError as e:
        at = f"{path}:{e.line}" if e.line else path
        what = e.problem if e.problem.endswith("occurs twice") else f"is not YAML: {e.problem}"
        raise FormatError(what, where=at) from None


def word(path: str, value: Any) -> str:
    """A scalar, at most 256 characters of it."""
    if not isinstance(value, str):
        raise FormatError("has a list or a mapping where a name or an address is expected", where=path)
    return value[:256]


def words(path: str, value: Any) -> list[str]:
    """A list of scalars, or one scalar."""
    return [word(path, one) for one in (value if isinstance(value, list) else [value])]


def mapping(path: str, what: str, data: Any, max_items: int, hint: str = "") -> list[tuple[str, Any]]:
    """The items of a mapping; none of an empty value."""
    if data is None or data == "":
        return []
    if not isinstance(data, dict) or len(data) > max_items:
        raise FormatError(f"{what} is not a mapping", where=path, hint=hint)
    return [(word(path, name), value) for name, value in data.items()]


def number(path: str, what: str, value: Any, max_value: int) -> int:
    """A decimal number from 1 to ``max_value``."""
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10):
        found = 0
    else:
        found = int(value)
    if not 1 <= found <= max_value:
        raise FormatError(f"{what} is not a number from 1 to {max_value}", where=path)
    return found
