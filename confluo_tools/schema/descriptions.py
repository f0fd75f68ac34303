"""Descriptions of fields that come with the tools need not be in each small file."""

from __future__ import annotations

from confluo_tools.schema import Schema, builtin, builtin_names


def without_known(schema: Schema) -> Schema:
    """The schema without the descriptions that `with_known` gives back."""
    known = _known(schema.kind)
    data = schema.as_dict()
    if known and data["description"] == known[""]:
        data["description"] = ""
    for field in data["fields"]:
        if field.get("description", "") == known.get(field["name"]):
            del field["description"]
    return Schema.from_dict(data)


def with_known(schema: Schema) -> Schema:
    """The schema with the descriptions of the one of its kind that comes with the tools, where it has none."""
    known = _known(schema.kind)
    data = schema.as_dict()
    data["description"] = data["description"] or known.get("", "")
    for field in data["fields"]:
        if not field.get("description") and known.get(field["name"]):
            field["description"] = known[field["name"]]
    return Schema.from_dict(data)


def _known(kind: str) -> dict[str, str]:
    """Descriptions by field; that of the schema itself under ''."""
    if kind not in builtin_names():
        return {}
    schema = builtin(kind)
    return {"": schema.description} | {f.name: f.description for f in schema.fields if f.description}
