"""Our decoder of Parquet, compared with pyarrow: on files that pyarrow wrote, and on damaged ones."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from confluo_tools.core.parquet.column_chunk import crc32, use_wide
from confluo_tools.formats.parquet_columns import ParquetColumns

TYPES = {
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float": 4,
    "double": 8,
    "duration[ns]": 8,
    "timestamp[ns, tz=UTC]": 8,
    "fixed_size_binary[5]": 5,
    "fixed_size_binary[16]": 16,
}
ARROW = {"duration[ns]": pa.duration("ns"), "timestamp[ns, tz=UTC]": pa.timestamp("ns", "UTC")}
ENCODINGS = ("dictionary", "PLAIN", "DELTA_BINARY_PACKED")
WAYS = st.sampled_from(("random", "few", "runs", "steps"))


@pytest.fixture(scope="module", params=[True, False], ids=["wide", "narrow"])
def instructions(request: pytest.FixtureRequest) -> Any:
    use_wide(request.param)
    yield
    use_wide(True)


def arrow_type(name: str) -> Any:
    if name.startswith("fixed"):
        return pa.binary(TYPES[name])
    return ARROW.get(name) or pa.type_for_alias(name)


def values(name: str, rows: int, way: str, seed: int) -> Any:
    """An array of a type: its bytes, as a log would have them."""
    chance = np.random.default_rng(seed)
    size = TYPES[name]
    data = chance.integers(0, 256, (rows, size), "u1")
    if way == "few":
        data = data[chance.integers(0, min(rows, 1 + seed % 300), rows)]
    elif way == "runs":
        data = np.repeat(data, chance.integers(1, 60, rows), axis=0)[:rows]
    elif way == "steps" and size <= 8:
        steps = chance.integers(-3, 1 << seed % 40, rows).cumsum().astype("<i8")
        data = steps.view("u1").reshape(rows, 8)[:, :size]
    return pa.Array.from_buffers(arrow_type(name), rows, [None, pa.py_buffer(data.tobytes())])


def written(array: Any, encoding: str, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table([array], schema=pa.schema([pa.field("x", array.type, nullable=False)]))
    if encoding == "dictionary":
        options["use_dictionary"] = ["x"]
    else:
        options |= {"use_dictionary": False, "column_encoding": {"x": encoding}}
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


def ours(data: bytes, group: int, name: str, wanted: bytearray | None = None) -> bytes | None:
    file = pq.ParquetFile(pa.BufferReader(data))
    columns = ParquetColumns(file, lambda start, end: data[start:end])
    found = columns.read(group, "x", file.schema_arrow.types[0], TYPES[name], wanted)
    return None if found is None else bytes(found)


def theirs(data: bytes, group: int, name: str) -> bytes:
    column = pq.ParquetFile(pa.BufferReader(data)).read_row_group(group, use_threads=False).column(0).combine_chunks()
    return bytes(column.buffers()[1])[column.offset * TYPES[name] :][: len(column) * TYPES[name]]


def can_be(name: str, encoding: str) -> bool:
    return encoding != "DELTA_BINARY_PACKED" or not name.startswith(("fixed", "float", "double"))


@given(
    st.sampled_from(sorted(TYPES)),
    st.sampled_from(ENCODINGS),
    WAYS,
    st.sampled_from(("zstd", "lz4", "snappy", "none")),
    st.sampled_from(("1.0", "2.0")),
    st.sampled_from((1, 7, 1000, 5000)),
    st.sampled_from((1, 33, 1024, 20_000)),
    st.integers(0, 1 << 30),
)
@example("uint16", "dictionary", "few", "zstd", "1.0", 5000, 1024, 1)
@example("int64", "DELTA_BINARY_PACKED", "random", "none", "2.0", 5000, 20_000, 2)
@example("uint8", "dictionary", "few", "none", "1.0", 5000, 20_000, 1)  # 2 values: 1 bit
@example("uint8", "dictionary", "few", "none", "1.0", 5000, 1000, 5)  # 6 values: 3 bits
@example("uint8", "dictionary", "few", "zstd", "1.0", 5000, 20_000, 14)
def test_every_value_is_that_of_pyarrow(
    instructions: None, name: str, encoding: str, way: str, codec: str, version: str, rows: int, page: int, seed: int
) -> None:
    encoding = encoding if can_be(name, encoding) else "PLAIN"
    options = {"compression": codec, "data_page_version": version, "write_page_checksum": bool(seed % 2)}
    array = values(name, rows, way, seed)
    small = {"dictionary_pagesize_limit": 500} if seed % 3 == 0 else {}  # then the rest of the values are plain
    data = written(array, encoding, row_group_size=3000, max_rows_per_page=page, **options, **small)
    for group in range(pq.ParquetFile(pa.BufferReader(data)).num_row_groups):
        assert ours(data, group, name) == theirs(data, group, name)


def test_pages_without_a_wanted_row_are_zeros() -> None:
    data = written(values("uint32", 50_000, "random", 1), "PLAIN", max_rows_per_page=5000)
    wanted = bytearray(49)
    wanted[12] = 1  # rows 12,288 to 13,311
    found, whole = ours(data, 0, "uint32", wanted), theirs(data, 0, "uint32")
    assert found is not None
    numbers, right = np.frombuffer(found, "<u4"), np.frombuffer(whole, "<u4")
    assert (numbers[10_000:15_000] == right[10_000:15_000]).all()
    assert not numbers[:10_000].any()
    assert not numbers[15_000:].any()


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None, 3], pa.uint32()),
        pa.array([[1, 2], [3, 4]], pa.list_(pa.uint16(), 2)),
        pa.array(["a", "b"]),
        pa.array([True, False]),
        pa.array([1, 2], pa.timestamp("us")),
    ],
    ids=["nulls", "lists", "texts", "booleans", "microseconds"],
)
def test_other_columns_are_left_to_pyarrow(array: Any) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": array}), sink)
    data = bytes(sink.getvalue())
    file = pq.ParquetFile(pa.BufferReader(data))
    names = {file.schema_arrow.names[0], file.schema.column(0).path}
    columns = ParquetColumns(file, lambda start, end: data[start:end])
    assert [columns.read(0, name, array.type, 4) for name in names] == [None] * len(names)


@given(
    st.sampled_from(("uint16", "int64", "fixed_size_binary[16]")),
    st.sampled_from(ENCODINGS),
    st.sampled_from(("zstd", "none")),
    st.booleans(),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_damage_is_refused_or_read_as_pyarrow_reads_it(
    name: str, encoding: str, codec: str, checked: bool, damage: list[tuple[float, int]]
) -> None:
    encoding = encoding if can_be(name, encoding) else "PLAIN"
    whole = written(
        values(name, 3000, "few", 7), encoding, compression=codec, max_rows_per_page=900, write_page_checksum=checked
    )
    chunk = pq.ParquetFile(pa.BufferReader(whole)).metadata.row_group(0).column(0)
    data = bytearray(whole)
    for place, flip in damage:
        data[4 + int(place * chunk.total_compressed_size)] ^= flip
    found = ours(bytes(data), 0, name)
    if found is not None and found != theirs(whole, 0, name):
        try:
            assert found == theirs(bytes(data), 0, name)
        except (OSError, pa.ArrowInvalid):
            assert not checked, "pyarrow sees the damage"


@given(st.binary(max_size=400), st.integers(0, 5000))
def test_checksum_is_that_of_zlib(instructions: None, start: bytes, more: int) -> None:
    data = start + bytes(i * i & 255 for i in range(more))
    assert crc32(data) == zlib.crc32(data)
