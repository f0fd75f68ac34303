"""Schemas of records: the model, and the loader of the YAML files beside this one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from confluo_tools.errors import SchemaError
from confluo_tools.schema.model import Column, Field, Schema
from confluo_tools.schema.types import Type, fold6

__all__ = ["Column", "Field", "Schema", "Type", "builtin", "builtin_names", "fold6", "load"]

_HERE = Path(__file__).parent


def builtin_names() -> list[str]:
    """Names of the schemas that come with the tools."""
    return sorted(p.stem for p in _HERE.glob("*.yaml"))


@cache
def builtin(name: str) -> Schema:
    """A schema that comes with the tools, all its optional fields included."""
    path = _HERE / f"{name}.yaml"
    if name not in builtin_names():
        raise SchemaError(f"no built-in schema '{name}'", hint=f"there are {', '.join(builtin_names())}")
    return load(path)


def load(path: str | Path) -> Schema:
    """A schema from a YAML file.  Raises SchemaError with the path and the field at fault."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        data = yaml.load(Path(path).read_text(encoding="utf-8"), loader)  # safe loaders only
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        reason = e.strerror if isinstance(e, OSError) else str(e).splitlines()[0]
        raise SchemaError(f"cannot be read as a schema: {reason}", where=str(path)) from None
    return Schema.from_dict(data, where=str(path))
