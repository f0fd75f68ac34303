"""Strict YAML: every scalar is text as it is written, and a key that occurs twice is an error with its line."""

from __future__ import annotations

from typing import Any

from confluo_tools.errors import FormatError


def load(text: str, path: str) -> Any:
    """The tree of a YAML text.  Raises FormatError, with the line where it is known."""
    import yaml

    class Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
        # Of two servers with one name, one would be lost silently.
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                word = key.value if isinstance(key.value, str) else ""
                if word in seen:
                    raise FormatError(f"'{word[:60]}' occurs twice", where=f"{path}:{key.start_mark.line + 1}")
                seen.add(word)
            found: dict[Any, Any] = super().construct_mapping(node, deep)
            return found

    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        at = f"{path}:{mark.line + 1}" if mark is not None else path
        raise FormatError(f"is not YAML: {e.problem or e.context}", where=at) from None
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise FormatError(f"is not YAML: {' '.join(str(e).split())[:100]}", where=path) from None


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
