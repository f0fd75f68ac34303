"""Descriptions of fields that are left out of files, and come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools import schema
from confluo_tools.schema import Field, Schema
from confluo_tools.schema.descriptions import with_known, without_known


@pytest.mark.parametrize("name", schema.builtin_names())
def test_those_of_the_tools_come_back(name: str) -> None:
    whole = schema.builtin(name)
    short = without_known(whole)
    assert not any(f.description for f in short.fields)
    assert with_known(short) == whole


@given(st.lists(st.tuples(st.sampled_from(["ts", "kind", "tx", "own"]), st.sampled_from(["", "mine", "known"]))))
def test_others_stay(wanted: list[tuple[str, str]]) -> None:
    """Those that are not of the tools, and of fields that the tools do not know."""
    known = schema.builtin("recording")
    fields = []
    for name, text in dict(wanted).items():
        description = known[name].description if text == "known" and name in known else text
        fields.append(Field(name, known[name].type.text if name in known else "u8", description=description))
    for kind in ("recording", "of another"):
        mine = Schema(kind, [*fields, Field("more", "u8")])
        short = without_known(mine)
        assert [f.description for f in short.fields[:-1]] == [
            f.description if f.description == "mine" or kind != "recording" or f.name == "own" else "" for f in fields
        ]
        assert with_known(short) == with_known(mine)
