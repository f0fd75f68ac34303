"""Which records are probes: by their kind, and in text by their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.errors import SchemaError

if TYPE_CHECKING:
    from confluo_tools.schema import Schema
    from confluo_tools.schema.likely_schema import LikelySchema

NEEDS = ("ts", "kind", "outcome")  # without them no probe can be counted


def probe_schema() -> LikelySchema:
    """The schema of text that holds probes."""
    from confluo_tools.schema import builtin
    from confluo_tools.schema.likely_schema import LikelySchema

    return LikelySchema(builtin("probe"), NEEDS)


def check_kind(schema: Schema, name: str) -> None:
    """Raises SchemaError for other records than probes.  ``name``: of the input."""
    if schema.kind != "probe":
        what = f"holds records of kind '{schema.kind}', not probes"
        raise SchemaError(what, where=name, hint="confluo-pingmesh probe, agent and simulate make probes")
    for field in NEEDS:
        if field not in schema:
            raise SchemaError(f"has no field '{field}'", where=name, hint="schema probe has; do not leave it out")
