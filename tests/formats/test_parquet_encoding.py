"""How columns of Parquet are encoded is decided for any numbers, and they come back."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import confluo_tools as ct
from confluo_tools.formats.parquet_encoding import column_encodings
from running import run

DAY = 86400 * 10**9


@pytest.mark.parametrize(
    ("kind", "least"), [(pa.int64(), -(1 << 63)), (pa.uint64(), 0), (pa.timestamp("ns"), -(1 << 63))]
)
@given(st.data())
def test_every_column_has_an_encoding(kind: pa.DataType, least: int, data: st.DataObject) -> None:
    some = data.draw(st.lists(st.integers(least, least + (1 << 64) - 1), max_size=20))
    whole = pa.array(some, pa.uint64() if least == 0 else pa.int64())
    repeated, encodings = column_encodings(pa.table({"n": whole.cast(kind)}))
    assert [*repeated, *encodings] == ["n"]


def test_numbers_far_from_each_other_are_written(tmp_path: Path) -> None:
    """Times of years, and hashes: more than 2^53 apart, beyond which a float is not exact."""
    schema = ct.Schema("sample", [ct.Field("ts", "time"), ct.Field("hash", "u64")])
    rows = [{"ts": n * 60 * DAY, "hash": n * 0x9E3779B97F4A7C15 % 2**64} for n in range(100)]
    with ct.Writer(tmp_path / "a.ml", schema) as writer:
        writer.append(rows)
    for command in ("confluo-query", "confluo-convert"):
        target = tmp_path / f"{command}.parquet"
        done = run(command, str(tmp_path / "a.ml"), "-w", str(target))
        assert (done.returncode, done.stderr) == (0, b"")
        found = pq.read_table(target).to_pydict()
        assert found["hash"] == [row["hash"] for row in rows]
        assert [moment.value for moment in found["ts"]] == [row["ts"] for row in rows]
