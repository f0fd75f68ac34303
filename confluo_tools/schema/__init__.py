"""Schemas of records: the model, and the loader of the YAML files in this folder."""

from __future__ import annotations

import os
from functools import cache

from confluo_tools.errors import SchemaError
from confluo_tools.schema.model import Column, Field, Schema
from confluo_tools.schema.types import Type, fold6

__all__ = ["Column", "Field", "Schema", "Type", "builtin", "builtin_names", "fold6", "load", "named"]

_HERE = os.path.dirname(__file__)


def builtin_names() -> list[str]:
    """Names of the schemas that come with the tools."""
    return sorted(name.removesuffix(".yaml") for name in os.listdir(_HERE) if name.endswith(".yaml"))


@cache
def builtin(name: str) -> Schema:
    """A schema that comes with the tools, all its optional fields included."""
    if name not in builtin_names():
        raise SchemaError(f"no built-in schema '{name}'", hint=f"there are {', '.join(builtin_names())}")
    return load(os.path.join(_HERE, f"{name}.yaml"))


def load(path: str | os.PathLike[str]) -> Schema:
    """A schema from a YAML file.  Raises SchemaError with the path and the field at fault."""
    from confluo_tools import guarded_yaml

    try:
        data = guarded_yaml.load(guarded_yaml.read(path))
    except (OSError, guarded_yaml.YamlError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise SchemaError(f"cannot be read as a schema: {reason}", where=str(path)) from None
    return Schema.from_dict(data, where=str(path))


def named(name: str) -> Schema:
    """A schema file, or a built-in schema by name.  Raises SchemaError."""
    return builtin(name) if name in builtin_names() and not os.path.exists(name) else load(name)
