"""Tasks: a question as a small document that another process can open.

It is JSON: version, what must fit (`pins`), schema, condition, and the partial with its settings.  The condition
travels as the tree of tests that it was compiled to: what `now`, a time without a zone or the name of a filter mean
was settled by the host that asks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from confluo_tools import __version__
from confluo_tools.engine.partial import Partial, partial_class
from confluo_tools.errors import ConfluoError
from confluo_tools.expr import Expr, leaves, parse
from confluo_tools.schema import Schema

VERSION = 2  # of tasks, units and results


def pins() -> dict[str, str]:
    """What must be the same at both ends."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"confluo-tools": __version__, "Python": python, "task format": str(VERSION)}


def unlike(theirs: Mapping[str, str]) -> str:
    """How the ``pins`` of another process differ from ours: 'confluo-tools 1.2, here 1.3'; '' if they do not."""
    ours = pins()
    return ", ".join(f"{name} {theirs.get(name)}, here {ours[name]}" for name in ours if theirs.get(name) != ours[name])


class Task:
    """The rows for which ``expr`` holds, as a ``partial``, which stays empty: `Partial.fresh` makes those to fill."""

    def __init__(self, expr: Expr, partial: Partial) -> None:
        self.expr, self.partial, self.schema = expr, partial, expr.schema

    def encode(self) -> bytes:
        """The task as bytes."""
        message = {
            "pins": pins(),
            "schema": self.schema.as_dict(),
            "condition": tree_list(self.expr.tree),
            "demands": self.expr.demands,
            "partial": self.partial.name,
            "settings": self.partial.settings(),
        }
        return json.dumps(message, separators=(",", ":")).encode("utf-8", "surrogateescape")

    @classmethod
    def decode(cls, data: bytes) -> Task:
        """The task in ``data``.  Raises ConfluoError: of another version, or not valid."""
        try:
            message = json.loads(data.decode("utf-8", "surrogateescape"))
            differs = unlike(message["pins"])
            if differs:
                raise ConfluoError(f"the question comes from {differs}", hint="install the same version on all hosts")
            schema = Schema.from_dict(message["schema"])
            text, demands = "", dict(message["demands"])
            expr = Expr(text, schema, parse(text).tree, tree_of_list(message["condition"]), (), demands)
            return cls(expr, partial_class(message["partial"]).of(schema, message["settings"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            raise ConfluoError(f"not a task: {e}") from None


def tree_list(tree: Any) -> list[Any]:
    """A tree of tests as JSON."""
    return [type(tree).__name__, *[_value(getattr(tree, name)) for name in tree.__slots__]]


def _value(value: Any) -> Any:
    if isinstance(value, leaves.Leaf):
        return tree_list(value)
    if isinstance(value, tuple):
        return [_value(item) for item in value]
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return {"float": value.hex()} if isinstance(value, float) else value


_LEAVES = {
    kind.__name__: kind
    for kind in (
        leaves.And,
        leaves.Or,
        leaves.Not,
        leaves.Const,
        leaves.Range,
        leaves.FRange,
        leaves.InSet,
        leaves.InRanges,
        leaves.InByteRanges,
        leaves.Bytes,
        leaves.Glob,
        leaves.Pair,
        leaves.ListElement,
        leaves.ListLength,
        leaves.ListSequence,
    )
}


def tree_of_list(value: Any) -> Any:
    """The tree of tests in ``value``.  Raises ValueError, TypeError, KeyError."""
    return _LEAVES[value[0]](*[_of_value(item) for item in value[1:]])


def _of_value(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if "hex" in value else float.fromhex(value["float"])
    if isinstance(value, list):
        named = bool(value) and isinstance(value[0], str)
        return tree_of_list(value) if named else tuple([_of_value(item) for item in value])
    return value
