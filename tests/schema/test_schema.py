"""Schemas: types, columns, YAML, and what is refused."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools import schema
from confluo_tools.errors import SchemaError
from confluo_tools.schema import Field, Schema, Type, fold6

ROOT = Path(__file__).resolve().parents[2]


def test_codes_are_those_of_the_core() -> None:
    text = (ROOT / "pyx/block/c_block.pxd").read_text()
    core = {name.lower(): int(code) for name, code in re.findall(r"^    ([UIF]\d+) = (\d+)$", text, re.M)}
    assert core == {name: code for name, (code, _) in schema.types.PHYSICAL.items()}
    assert f"BYTES = {schema.types.BYTES} " in text


@pytest.mark.parametrize("name", schema.builtin_names())
def test_builtin_schemas_survive_a_round_trip(name: str) -> None:
    s = schema.builtin(name)
    assert Schema.from_dict(s.as_dict()) == s
    assert all(f.description for f in s.fields)
    assert s.time_field is not None


def test_header64_is_64_bytes() -> None:
    assert schema.builtin("header64").layout.row_bytes == 64


def test_an_ip_is_two_columns() -> None:
    s = Schema("x", [Field("a", "ip"), Field("b", "list(u16, 8)"), Field("c", "bytes(5)")])
    assert s.layout.names == ("a", "a6", "b", "c")
    assert [s.layout.describe(i)[1:] for i in range(4)] == [(3, 4, 1), (11, 16, 1), (2, 2, 8), (11, 5, 1)]
    assert s.layout.row_bytes == 4 + 16 + 16 + 5


@pytest.mark.parametrize(
    "text",
    [
        "u7",
        "u128",
        "",
        "bytes",
        "bytes(0)",
        "bytes(65536)",
        "bytes(4, 4)",
        "list(u8)",
        "list(u8, 0)",
        "list(u8, 256)",
        "list(ip, 2)",
        "list(bytes, 2)",
        "enum(i8)",
        "flags(f32)",
        "u8(3)",
        "time(8)",
        "list(list, 2)",
        "int",
        "U8",
    ],
)
def test_bad_types_are_refused_in_words(text: str) -> None:
    with pytest.raises(SchemaError) as e:
        Type(text)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "is not a schema"),
        ({"fields": []}, "has no fields"),
        ({"fields": [{"name": "a"}]}, "field 1 needs a name and a type"),
        ({"fields": [{"name": "a", "type": "u8", "colour": 1}]}, "unknown key 'colour'"),
        ({"fields": [{"name": "A", "type": "u8"}]}, "bad field name"),
        ({"fields": [{"name": "a", "type": "u8"}, {"name": "a", "type": "u8"}]}, "names a twice"),
        ({"fields": [{"name": "a", "type": "ip"}, {"name": "a6", "type": "u8"}]}, "names a6 twice"),
        ({"fields": [{"name": "a", "type": "enum", "names": {"x": "y"}}]}, "field 'a'"),
    ],
)
def test_bad_schemas_name_the_field(data: object, words: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(words)):
        Schema.from_dict(data)


def test_an_unknown_field_gets_a_suggestion() -> None:
    with pytest.raises(SchemaError, match="did you mean 'src_port'"):
        _ = schema.builtin("packet")["src_prt"]


def test_a_schema_file_that_is_not_yaml(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [")
    with pytest.raises(SchemaError) as e:
        schema.load(bad)
    assert str(bad) in str(e.value)
    assert "\n" not in str(e.value)


@given(st.binary(min_size=16, max_size=16))
def test_fold6_is_never_zero_and_only_any_folds_to_one_by_rule(address: bytes) -> None:
    assert 0 < fold6(address) < 1 << 32


@pytest.mark.parametrize(
    ("address", "fold"),
    [("::", 1), ("2001:db8::1", 0x199113A5), ("fe80::1", 0x8A9D0328), ("::1", 0xA3CC4FB1), ("ff02::fb", 0x97169E2A)],
)
def test_fold6_is_stable_for_ever(address: str, fold: int) -> None:
    """The numbers are on disk in every log: they may not change."""
    assert fold6(ipaddress.ip_address(address).packed) == fold
