"""Sealed segments are Arrow files: other programs read the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest

from arrow_values import arrow_schema, same, values
from confluo_tools import multilog
from confluo_tools.schema import builtin
from log_rows import ALL_TYPES, block_of, random_columns

Columns = list[np.ndarray[Any, Any]]


@pytest.fixture(scope="module", params=[1, 100, 40_000, 65_536, 65_537, 200_001])
def sealed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Columns]:
    """Segments (two blocks each) of a closed log, and the columns that were written."""
    log = multilog.create(tmp_path_factory.mktemp("log") / "t.ml", ALL_TYPES, segment_blocks=2)
    columns = random_columns(ALL_TYPES, request.param, 11)
    with log.writer() as writer:
        for start in range(0, request.param, 50_000):
            writer.append(block_of(ALL_TYPES, [c[start : start + 50_000] for c in columns]))
    parts = log.segments()
    assert all(p.sealed for p in parts)
    assert sum(p.rows for p in parts) == request.param
    return [p.path for p in parts], columns


def test_pyarrow_maps_them(sealed: tuple[list[str], Columns]) -> None:
    paths, columns = sealed
    tables = []
    for path in paths:
        before = pa.total_allocated_bytes()
        file = pa.ipc.open_file(pa.memory_map(path))
        table = file.read_all()
        assert pa.total_allocated_bytes() - before < 4096  # no copies
        table.validate(full=True)
        assert file.schema.equals(arrow_schema(ALL_TYPES))
        assert file.num_record_batches == -(-table.num_rows // 65536)
        assert file.schema.metadata[b"confluo:format"] == b"1"
        tables.append(table)
    whole = pa.concat_tables(tables)
    for i, column in enumerate(columns):
        assert values(whole.column(i)) == column.tobytes(), whole.schema.names[i]


def test_without_its_first_8_bytes_a_segment_is_a_stream(sealed: tuple[list[str], Columns]) -> None:
    for path in sealed[0]:
        data = Path(path).read_bytes()
        stream = pa.ipc.open_stream(data[8:]).read_all()
        stream.validate(full=True)
        assert same(stream, pa.ipc.open_file(data).read_all())


def test_duckdb_reads_them(sealed: tuple[list[str], Columns]) -> None:
    duckdb = pytest.importorskip("duckdb")
    paths, columns = sealed
    data = pyarrow.dataset.dataset(paths, format="ipc")
    names = ALL_TYPES.layout.names
    c, g = (names.index(n) for n in ("c", "g"))
    answer = duckdb.sql("select count(*), sum(c), min(g), max(g), count(distinct d) from data").fetchall()[0]
    expected = (
        len(columns[0]),
        int(columns[c].astype(object).sum()),
        columns[g].min(),
        columns[g].max(),
        len(set(columns[names.index("d")].tolist())),
    )
    assert answer == expected
    assert data.count_rows() == len(columns[0])


def test_polars_reads_them(sealed: tuple[list[str], Columns]) -> None:
    polars = pytest.importorskip("polars")
    paths, columns = sealed
    frame = polars.concat([polars.read_ipc(p) for p in paths])
    assert tuple(frame.columns) == ALL_TYPES.layout.names
    assert frame.height == len(columns[0])
    for name in ("a", "b", "c", "d", "e", "f", "g", "h", "x", "y"):
        expected = columns[ALL_TYPES.layout.index(name)]
        assert frame[name].to_numpy().tobytes() == expected.tobytes(), name
    assert b"".join(frame["name"].to_list()) == columns[ALL_TYPES.layout.index("name")].tobytes()
    assert frame["path"].to_numpy().tobytes() == columns[ALL_TYPES.layout.index("path")].tobytes()


def test_packets_too(tmp_path: Path) -> None:
    schema = builtin("packet")
    log = multilog.create(tmp_path / "t.ml", schema)
    with log.writer() as writer:
        writer.append(block_of(schema, random_columns(schema, 1000, 2)))
    table = pa.ipc.open_file(pa.memory_map(log.segments()[0].path)).read_all()
    table.validate(full=True)
    assert table.schema.equals(arrow_schema(schema))
