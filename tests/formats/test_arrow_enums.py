"""Texts with a dictionary that pandas, pyarrow, polars and DuckDB wrote become enums, with their names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.errors import FormatError
from confluo_tools.formats.arrow import StreamReader
from confluo_tools.formats.arrow_enums import MAX_BYTES, MAX_NAMES, enum_field, enum_numbers
from confluo_tools.formats.bytestream import ByteStream
from confluo_tools.formats.parquet import ArrowFileReader
from running import run

NAMES = ["not used", "ok", "slow", "lost"]
WORDS: list[str | None] = ["slow", None, "ok", "lost", "slow", "ok"] * 40


def with_pandas(path: Path) -> None:
    frame = pandas.DataFrame({"state": pandas.Categorical(WORDS, categories=NAMES)})
    frame.to_feather(path) if path.suffix == ".arrow" else frame.to_parquet(path, row_group_size=50)


def with_polars(path: Path, kind: Any = None) -> None:
    frame = polars.DataFrame({"state": polars.Series(WORDS, dtype=kind or polars.Enum(NAMES))})
    if path.suffix == ".parquet":
        frame.write_parquet(path, row_group_size=50)
    elif path.suffix == ".arrow":
        frame.write_ipc(path)
    else:
        frame.write_ipc_stream(path)


def with_polars_categorical(path: Path) -> None:
    with_polars(path, polars.Categorical)


def with_duckdb(path: Path) -> None:
    connection = duckdb.connect()
    connection.execute(f"create type state as enum ({', '.join(repr(n) for n in NAMES)})")
    connection.execute("create table t (state state)")
    connection.executemany("insert into t values (?)", [[word] for word in WORDS])
    table = connection.sql("from t").to_arrow_table()
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)


def with_pyarrow(path: Path) -> None:
    # A dictionary for each part, in the order in which its words come.
    parts = [pa.array(WORDS[at : at + 50]).dictionary_encode() for at in range(1, len(WORDS), 50)]
    parts.insert(0, pa.array(["slow"]).dictionary_encode())
    with pa.parquet.ParquetWriter(path, pa.schema({"state": parts[0].type})) as writer:
        for part in parts:
            writer.write_table(pa.table({"state": part}))


@pytest.mark.parametrize(
    ("write", "suffix"),
    [
        *[(with_pandas, s) for s in ("parquet", "arrow")],
        *[(with_polars, s) for s in ("parquet", "arrow", "arrows")],
        *[(with_polars_categorical, s) for s in ("parquet", "arrow", "arrows")],
        (with_duckdb, "arrows"),
        (with_pyarrow, "parquet"),
    ],
)
def test_dictionaries_become_enums(write: Callable[[Path], None], suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"in.{suffix}"
    write(path)
    stream = ByteStream(os.open(path, os.O_RDONLY), "in")
    reader = StreamReader(stream) if suffix == "arrows" else ArrowFileReader(stream, suffix)
    field = reader.schema["state"]
    assert field.type.text == "enum"
    assert set(field.names.values()) <= set(NAMES)
    assert set(field.names.values()) >= {"ok", "slow", "lost"}
    values = [block.get(0, row) for block in reader for row in range(block.rows)]
    reader.close()
    assert [field.names.get(v) for v in values] == WORDS
    assert {v for v, word in zip(values, WORDS, strict=True) if word is None} == {0}
    log = str(tmp_path / "in.ml")
    run("confluo-convert", str(path), "-w", log)
    found = run("confluo-query", log, "state == slow", "--agg", "count", "--by", "state", "-o", "csv").stdout
    assert found.splitlines()[1:] == [b"slow,80"]


def test_what_duckdb_writes_into_parquet_is_text(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    duckdb.sql(f"copy (select 'ok'::enum('ok', 'slow') as state) to '{path}' (format parquet)")
    with ArrowFileReaderOf(path) as reader:
        assert reader.schema["state"].type.text == "text(16)"


class ArrowFileReaderOf:
    def __init__(self, path: Path) -> None:
        self.reader = ArrowFileReader(ByteStream(os.open(path, os.O_RDONLY), "in"), "parquet")

    def __enter__(self) -> ArrowFileReader:
        return self.reader

    def __exit__(self, *_: object) -> None:
        self.reader.close()


def test_addresses_with_a_dictionary_are_addresses(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pandas.DataFrame({"a": pandas.Categorical(["10.0.0.1", "2001:db8::1", "10.0.0.1"])}).to_parquet(path)
    with ArrowFileReaderOf(path) as reader:
        assert reader.schema["a"].type.text == "ip"
        assert [b.get(0, row) for b in reader for row in (0, 2)] == [0x0A000001] * 2


@given(st.lists(st.text(max_size=8) | st.none(), max_size=40))
def test_names_or_text(words: list[str | None]) -> None:
    try:
        array = pa.array(words, pa.utf8()).dictionary_encode()
    except UnicodeEncodeError:
        return
    field = enum_field("x", [array.dictionary])
    if field is None:
        return
    numbers = enum_numbers(array, field)
    assert numbers is not None
    read = [field.names.get(n) if n else None for n in numbers.fill_null(0).to_pylist()]
    assert read == [None if word in ("", "-") else word for word in words]


@pytest.mark.parametrize(
    "words",
    [
        [],
        [""],
        ["ok", "10"],
        ["ok", "0x1F"],
        ["ok", "1e3"],
        ["ok", "nan"],
        ["two\nlines"],
        ["a,b"],
        ['say "x"'],
        [f"w{i}" for i in range(MAX_NAMES + 1)],
        ["x" * MAX_BYTES + "y"],
    ],
)
def test_no_names(words: list[str]) -> None:
    assert enum_field("x", [pa.array(words, pa.utf8())]) is None


def test_the_largest_enum() -> None:
    field = enum_field("x", [pa.array([f"w{i}" for i in range(MAX_NAMES)])])
    assert field is not None
    assert max(field.names) == MAX_NAMES


def stream_with_new_words(path: Path) -> None:
    parts = [pa.array(words).dictionary_encode() for words in (["ok"], ["ok", "lost"])]
    with pa.ipc.new_stream(path, pa.schema({"state": parts[0].type})) as writer:
        for part in parts:
            writer.write_batch(pa.record_batch({"state": part}))


def test_a_word_that_comes_later_in_a_stream_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in.arrows"
    stream_with_new_words(path)
    reader = StreamReader(ByteStream(os.open(path, os.O_RDONLY), "in"))
    with pytest.raises(FormatError, match="field 'state' cannot be read as enum: 'lost' is none of its names"):
        list(reader)
    reader.close()
    types = tmp_path / "types.yaml"
    types.write_text("kind: record\nfields:\n  - {name: state, type: text(8)}\n")
    found = run("confluo-query", str(path), "--schema", str(types), "-o", "csv").stdout
    assert found.splitlines() == [b"state", b'"ok"', b'"ok"', b'"lost"']


def test_text_with_few_values_is_an_enum_only_if_the_schema_says_so(tmp_path: Path) -> None:
    types = tmp_path / "types.yaml"
    types.write_text(
        "kind: record\nfields:\n  - {name: n, type: u32}\n  - {name: state, type: enum, names: {1: ok, 2: slow}}\n"
    )
    for name, data in (
        ("in.csv", "n,state\n1,ok\n2,slow\n3,ok\n"),
        ("in.ndjson", '{"n":1,"state":"ok"}\n{"n":2,"state":"slow"}\n'),
    ):
        path = tmp_path / name
        path.write_text(data)
        log = str(tmp_path / f"{name}.ml")
        run("confluo-convert", str(path), "-w", log)
        assert b"text(" in run("confluo-query", log, "--fields", "help").stdout
        log = str(tmp_path / f"{name}.typed.ml")
        run("confluo-convert", str(path), "--schema", str(types), "-w", log)
        assert b"enum" in run("confluo-query", log, "--fields", "help").stdout
        assert run("confluo-query", log, "state == 2", "--count").stdout == b"1\n"
