"""Of Parquet only the columns and row groups that a question needs are read, and of Arrow data only columns converted.

The answer is the same.
"""

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
from confluo_tools.units import format_time
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
        program = compile(text, whole.schema).program
        columns = [i for i, c in enumerate(whole.schema.columns) if c.field.name in names]
        truth = rows(((block, program.select(block)) for block in whole), columns)
        assert rows(part.select(compile(text, part.schema), columns), columns) == truth
        assert part.rows == whole.rows == ROWS
        assert truth or text
    with open_one(str(files[which]), None) as counted:
        assert counted.count(compile(text, counted.schema)) == len(truth)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of pyarrow's readings."""
    found: list[dict[str, Any]] = []
    read = pq.ParquetFile.iter_batches

    def iter_batches(self: pq.ParquetFile, **more: Any) -> Iterator[Any]:
        found.append(more)
        return read(self, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    return found


def test_only_these_columns_are_read(files: list[Path], asked: list[dict[str, Any]]) -> None:
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
        assert asked[-1]["columns"] == columns


NUMBERS = st.one_of(st.none(), st.integers(-5, 5), st.integers(-(2**15), 2**15 - 1))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=40),
    st.integers(1, 7),
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.sampled_from(["int16", "int32", "int64", "uint16", "uint32", "uint64"]),
    st.sampled_from(["n", "ts", "took", "share"]),
    st.sampled_from(["<", "<=", "==", "!=", ">", ">="]),
    st.integers(-6, 6) | st.integers(-(2**15), 2**15),
)
def test_the_groups_that_may_match_are_read(
    tmp_path_factory: pytest.TempPathFactory,
    pairs: list[tuple[int | None, int | None]],
    size: int,
    unit: str,
    kind: str,
    field: str,
    compared: str,
    limit: int,
) -> None:
    """Against all rows by pyarrow: integers of each type, times and durations of each unit, floats, nulls."""
    unsigned = kind[0] == "u"
    numbers = [None if n is None else abs(n) if unsigned else n for n, _ in pairs]
    steps = [s for _, s in pairs]
    columns = {
        "n": pa.array(numbers, getattr(pa, kind)()),
        "ts": pa.array(steps, pa.timestamp(unit)),
        "took": pa.array(steps, pa.duration(unit)),
        "share": pa.array([None if s is None else s / 8 for s in steps], pa.float64()),
    }
    path = tmp_path_factory.mktemp("groups") / "x.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=size)
    scale = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}[unit]
    value = {
        "n": abs(limit) if unsigned else limit,
        "ts": format_time(limit * scale),
        "took": f"{abs(limit) * scale}ns",
        "share": limit / 8,
    }
    text = f"{field} {compared} {value[field]}"
    with open_one(str(path), None) as reader:
        every = [(block, compile(text, reader.schema).program.select(block)) for block in reader]
        truth = sum(len(picks) for _, picks in every)
    with open_one(str(path), None) as reader:
        assert reader.count(compile(text, reader.schema)) == truth
        assert reader.rows == len(pairs)


def test_groups_that_cannot_match_are_not_read(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    table = pa.table({"ts": pa.array(range(100), pa.timestamp("s")), "n": [*range(100)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    for text, groups in (
        ("n in 25..34", [2, 3]),
        ("ts >= 1970-01-01T00:01:35Z", [9]),
        ("n == 5 or n == 77", [0, 7]),
        ("not n < 90", [9]),
        ("n > 1000", None),
    ):
        with open_one(str(tmp_path / "x.parquet"), None) as reader:
            before = len(asked)
            expr = compile(text, reader.schema)
            counted = reader.count(expr)
            assert reader.rows == 100
        if groups is None:
            assert (counted, len(asked) - before) == (0, 0)
        else:
            assert asked[-1]["row_groups"] == groups


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
