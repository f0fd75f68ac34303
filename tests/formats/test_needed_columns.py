"""Of Parquet and converted Arrow data only the columns that a question needs are read; the answer is the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.expr import compile
from confluo_tools.inputs.open import open_one
from running import CAMPUS, lines, run

ROWS = 5000
FIELDS = ("ts", "src_ip", "len", "host", "kind", "load", "path", "took")
CONDITIONS = ("", "len > 700", "src_ip == 10.0.0.0/30", "host == 'b2'", "kind == one and len < 800", "took > 3ms")


def table() -> pa.Table:
    """Columns of others: every one of them has to be converted."""
    rng = random.Random(7)
    names = [f"{letter}{n}" for letter in "abc" for n in range(3)]
    return pa.table(
        {
            "ts": pa.array([10**9 * n for n in range(ROWS)], pa.timestamp("us", "UTC")),
            "src_ip": [f"10.0.0.{rng.randrange(8)}" for _ in range(ROWS)],
            "len": pa.array([rng.choice([None, rng.randrange(1500)]) for _ in range(ROWS)], pa.int16()),
            "host": [rng.choice(names) for _ in range(ROWS)],
            "kind": pa.array([rng.choice(["one", "two", None]) for _ in range(ROWS)]).dictionary_encode(),
            "load": pa.array([rng.random() for _ in range(ROWS)], pa.float32()),
            "path": pa.array([[n, n + 1][: rng.randrange(3)] for n in range(1, ROWS + 1)], pa.list_(pa.uint32())),
            "took": pa.array([rng.randrange(6) for _ in range(ROWS)], pa.duration("ms")),
        }
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("columns")
    pq.write_table(table(), folder / "a.parquet", row_group_size=1300)
    with (
        pa.ipc.new_file(folder / "a.arrow", table().schema) as file,
        pa.ipc.new_stream(folder / "a.arrows", table().schema) as stream,
    ):
        for batch in table().to_batches(1300):
            file.write_batch(batch)
            stream.write_batch(batch)
    return [folder / f"a.{suffix}" for suffix in ("parquet", "arrow", "arrows")]


def rows(found: Iterator[Any], columns: list[int]) -> list[list[bytes]]:
    """The chosen rows of blocks: the bytes of these columns."""
    out = []
    for block, picks in found:
        widths = [(memoryview(block.buffer(i)), block.layout.describe(i)) for i in columns]
        for n in range(block.rows) if picks is None else picks.tolist():
            out.append([bytes(data[n * size * count : (n + 1) * size * count]) for data, (_, _, size, count) in widths])
    return out


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(FIELDS)), st.sampled_from(CONDITIONS), st.integers(0, 2))
def test_the_rows_are_those_of_a_whole_read(files: list[Path], names: set[str], text: str, which: int) -> None:
    with open_one(str(files[which]), None) as whole, open_one(str(files[which]), None) as part:
        expr = compile(text, whole.schema)
        columns = [i for i, c in enumerate(whole.schema.columns) if c.field.name in names]
        truth = rows(whole.select(expr), columns)
        assert rows(part.select(compile(text, part.schema), columns), columns) == truth
        assert part.rows == whole.rows == ROWS
        assert truth or text
    with open_one(str(files[which]), None) as counted:
        assert counted.count(compile(text, counted.schema)) == len(truth)


def test_only_these_columns_are_read(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    read = pq.ParquetFile.iter_batches

    def iter_batches(self: pq.ParquetFile, **more: Any) -> Iterator[Any]:
        asked.append(more.get("columns"))
        return read(self, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    for text, names, columns in (
        ("len > 700", [], ["len"]),
        ("len > 700", ["ts", "load"], ["ts", "len", "load"]),
        ("", [], ["ts"]),
        ("", ["host"], ["host"]),
    ):
        with open_one(str(files[0]), None) as reader:
            numbers = [i for i, c in enumerate(reader.schema.columns) if c.field.name in names]
            for _ in reader.select(compile(text, reader.schema), numbers):
                pass
        assert asked[-1] == columns


@pytest.mark.parametrize("names", [["a", "a", "len"], ["a.b", "len", "c"]])
def test_names_that_are_not_clear_read_all(tmp_path: Path, names: list[str]) -> None:
    """Twice the same name, or a dot, which also is a part of a nested column."""
    numbers = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    pq.write_table(pa.Table.from_arrays([pa.array(column) for column in numbers], names), tmp_path / "x.parquet")
    place = names.index("len")
    done = run("confluo-query", tmp_path / "x.parquet", f"len > {numbers[place][0]}", "-f", "len", "-T", "--no-header")
    assert lines(done) == [str(n) for n in numbers[place][1:]]


def test_the_answers_are_those_of_duckdb(tmp_path: Path) -> None:
    """Our own file, with texts for addresses and names."""
    import duckdb

    path = tmp_path / "a.parquet"
    assert run("confluo-convert", CAMPUS, "-w", path).returncode == 0
    done = run("confluo-query", path, "dst_port in {53, 443}", "--agg", "count, sum(len)", "--by", "dst_ip", "-T")
    sql = f"select dst_ip, count(*), sum(len) from '{path}' where dst_port in (53, 443) group by 1"
    assert sorted(tuple(line.split("\t")) for line in lines(done)[2:]) == sorted(
        (ip, str(n), str(size)) for ip, n, size in duckdb.sql(sql).fetchall()
    )
    assert len(lines(done)) == 5
