"""The only reader of YAML: bounded in size, depth and number of nodes; no anchors, aliases, tags or merge keys.

A YAML library builds objects by recursion, expands aliases and reads numbers of any length: a file of a few KB can end
the process or fill the memory.  Here the events of the parser become dicts, lists and scalars in one loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

MAX_BYTES = 16 << 20
MAX_DEPTH = 32
MAX_NODES = 1 << 20
MAX_NUMBER = 64  # characters of a number
MAX_PROBLEM = 160  # characters of an error


class YamlError(ValueError):
    """The text is not YAML, or not YAML that is read here.  ``line`` begins at 1; 0 if it is unknown."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {problem}" if line else problem)
        self.problem = problem
        self.line = line


def read(
    path: str | os.PathLike[str], max_bytes: int = MAX_BYTES, opener: Callable[[str, int], int] | None = None
) -> bytes:
    """The content of a file.  ``opener``: as of `open`.  Raises OSError; YamlError if it is too large."""
    with open(path, "rb", opener=opener) as f:
        data = f.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise YamlError(_too_large(max_bytes))
    return data


def load(
    text: str | bytes,
    *,
    as_text: bool = False,
    max_bytes: int = MAX_BYTES,
    max_depth: int = MAX_DEPTH,
    max_nodes: int = MAX_NODES,
) -> Any:
    """The tree of a YAML text: dicts, lists, and scalars as in YAML 1.1; None if it is empty.

    ``as_text``: every scalar is a string, as it is written.  A key that occurs twice is an error: one of the values
    would be lost silently.  Raises YamlError.
    """
    import yaml

    if len(text) > max_bytes:
        raise YamlError(_too_large(max_bytes))
    try:
        decoded = text if isinstance(text, str) else text.decode()
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        events = yaml.parse(decoded, loader)
        return _build(yaml, events, str if as_text else _Scalars(yaml), max_depth, max_nodes)
    except UnicodeError:
        raise YamlError("it is not UTF-8 text") from None
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        raise YamlError(_shown(e.problem or e.context), mark.line + 1 if mark is not None else 0) from None
    except yaml.YAMLError as e:
        raise YamlError(_shown(e)) from None


def _build(yaml: Any, events: Any, scalar: Any, max_depth: int, max_nodes: int) -> Any:
    root: Any = None
    documents = nodes = 0
    open_: list[Any] = []  # the containers around the current node
    keys: list[Any] = []  # of each: the key that waits for its value, or _NONE
    plain = scalar is str
    for event in events:
        kind = type(event)
        if kind is yaml.ScalarEvent:
            value = event.value
            if event.anchor is not None or event.tag is not None:
                _refuse(event)
            if not plain and event.implicit[0]:
                value = scalar(value, event)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            if event.anchor is not None or event.tag is not None:
                _refuse(event)
            if len(open_) == max_depth:
                raise YamlError(f"it is nested too deep: more than {max_depth} levels", _line(event))
            value = {} if kind is yaml.MappingStartEvent else []
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            open_.pop()
            keys.pop()
            continue
        elif kind is yaml.AliasEvent:
            _refuse(event)
        elif kind is yaml.DocumentStartEvent:
            documents += 1
            if documents > 1:
                raise YamlError("it has more than one document", _line(event))
            continue
        else:
            continue
        nodes += 1
        if nodes > max_nodes:
            raise YamlError(f"it has more than {max_nodes} values", _line(event))
        container = kind is not yaml.ScalarEvent
        if not open_:
            root = value
        elif type(open_[-1]) is list:
            open_[-1].append(value)
        elif keys[-1] is _NONE:
            if container:
                raise YamlError("a list or a mapping is a key", _line(event))
            if value in open_[-1]:
                raise YamlError(f"'{str(value)[:60]}' occurs twice", _line(event))
            if value == "<<" and event.implicit[0]:
                raise YamlError("it contains a merge key", _line(event))
            keys[-1] = value
        else:
            open_[-1][keys[-1]] = value
            keys[-1] = _NONE
        if container:
            open_.append(value)
            keys.append(_NONE)
    return root


class _Scalars:
    """Plain scalars as YAML 1.1 reads them: null, true, numbers, dates, text."""

    def __init__(self, yaml: Any) -> None:
        self._yaml = yaml
        self._loader = yaml.SafeLoader("")
        self._text = "tag:yaml.org,2002:str"

    def __call__(self, value: str, event: Any) -> Any:
        if value.isascii() and value.isdigit() and len(value) < 19 and (value[0] != "0" or value == "0"):
            return int(value)
        tag = self._loader.resolve(self._yaml.ScalarNode, value, (True, False))
        if tag == self._text or value == "<<" or value == "=":
            return value
        if len(value) > MAX_NUMBER:
            raise YamlError(f"a number has {len(value)} characters", _line(event))
        try:
            return self._loader.construct_object(self._yaml.ScalarNode(tag, value))
        except (ValueError, OverflowError):
            raise YamlError(f"'{value}' is not a valid number or date", _line(event)) from None


class _None:
    pass


_NONE = _None()


def _refuse(event: Any) -> None:
    what = "a tag" if getattr(event, "tag", None) is not None else "an anchor or alias"
    raise YamlError(f"it contains {what}", _line(event))


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _too_large(max_bytes: int) -> str:
    size = f"{max_bytes >> 20} MiB" if max_bytes >= 1 << 20 else f"{max_bytes} bytes"
    return f"it has more than {size}"


def _shown(problem: Any) -> str:
    return " ".join(str(problem).split())[:MAX_PROBLEM]
