"""Arrow streams against pyarrow, in both directions; damage; concatenation; columns of other programs."""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_text import ALL, ROW, block_of, physical

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.errors import FormatError
from confluo_tools.formats import arrow_meta
from confluo_tools.formats.arrow import StreamReader, StreamWriter, history_of, metadata_of
from confluo_tools.formats.bytestream import ByteStream
from confluo_tools.formats.foreign_names import clean
from confluo_tools.schema import Field, Schema, builtin, fold6


class Sink(io.BytesIO):
    def writev(self, pieces: Sequence[Any]) -> None:
        for piece in pieces:
            self.write(piece)


def stream(schema: Schema, blocks: Sequence[Block], **options: Any) -> bytes:
    out = Sink()
    writer = StreamWriter(schema, out, **options)
    for block in blocks:
        writer.write(block)
    writer.close()
    return out.getvalue()


def read(data: bytes, tmp_path: Path) -> tuple[StreamReader, list[Block], list[str]]:
    path = tmp_path / "in.arrows"
    path.write_bytes(data)
    told: list[str] = []
    reader = StreamReader(ByteStream(os.open(path, os.O_RDONLY), "in"), warn=told.append)
    blocks = list(reader)
    reader.close()
    return reader, blocks, told


def column(blocks: Sequence[Block], reader: StreamReader, name: str) -> list[Any]:
    i = reader.schema.index(name)
    return [b.get(i, row) for b in blocks for row in range(b.rows)]


def packets(n: int) -> Block:
    schema = builtin("packet")
    return block_of(schema, [{"ts": 10**18 + i, "src_ip": i, "dst_port": i % 65536, "ip_version": 4} for i in range(n)])


# -- what we write, pyarrow reads ------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROW, max_size=30))
def test_pyarrow_reads_what_we_write_and_we_too(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    plain = [physical(r) for r in rows]
    block = block_of(ALL, plain)
    data = stream(ALL, [block])
    table = pa.ipc.open_stream(data).read_all()
    table.validate(full=True)
    assert table.num_rows == len(rows)
    assert table.column("u64").to_pylist() == [r["u64"] for r in rows]
    assert table.column("ts").cast(pa.int64()).to_pylist() == [r["ts"] for r in rows]
    assert table.schema.field("ts").type == pa.timestamp("ns", "UTC")
    assert [v.rstrip(b"\0") for v in table.column("name").to_pylist()] == [r["name"].rstrip(b"\0") for r in rows]
    assert [[x for x in v if x] for v in table.column("path").to_pylist()] == [
        [x for x in r["path"] if x] for r in rows
    ]
    assert all(f.nullable is False for f in table.schema)
    reader, blocks, told = read(data, tmp_path)
    assert told == []
    assert reader.schema == ALL
    for i in range(len(ALL.columns)):
        assert b"".join(bytes(b.buffer(i)) for b in blocks) == bytes(block.buffer(i))


def test_blocks_small_and_large_picks_and_projection() -> None:
    block = packets(65536)
    out = Sink()
    writer = StreamWriter(builtin("packet"), out, fields=["dst_port", "src_ip"])
    expected: list[int] = []
    for picks in (
        None,
        Picks.of(65536, [5]),
        Picks.of(65536, range(0, 65536, 3)),
        Picks.of(65536, []),
        Picks.of(65536, [9]),
    ):
        writer.write(block, picks)
        expected += range(65536) if picks is None else picks.tolist()
    writer.close()
    table = pa.ipc.open_stream(out.getvalue()).read_all()
    assert table.column_names == ["dst_port", "src_ip", "src_ip6"]
    assert table.column("dst_port").to_pylist() == expected


def test_flush_shows_the_rows_so_far() -> None:
    out = Sink()
    writer = StreamWriter(builtin("packet"), out)
    writer.write(packets(3))
    before = len(out.getvalue())
    writer.flush()
    assert len(out.getvalue()) > before
    reader = pa.ipc.open_stream(out.getvalue())
    assert reader.read_next_batch().num_rows == 3


def test_an_empty_stream_is_whole(tmp_path: Path) -> None:
    data = stream(builtin("packet"), [])
    assert pa.ipc.open_stream(data).read_all().num_rows == 0
    reader, blocks, told = read(data, tmp_path)
    assert (blocks, told, reader.schema.kind) == ([], [], "packet")


def test_metadata_and_history() -> None:
    first = metadata_of(ALL, {"pandas": "x", "confluo:schema": "old"}, "capture -r a", "host1", "ptp")
    second = metadata_of(ALL, first, "query 'a b'", "host2", "other")
    assert history_of(second) == ["capture -r a", "query 'a b'"]
    assert (second["confluo:host"], second["confluo:clock"], second["confluo:kind"]) == ("host1", "ptp", "all")
    assert "pandas" not in second
    assert history_of({"confluo:history": "not json"}) == history_of({"confluo:history": "3"}) == []
    found = pa.ipc.open_stream(stream(ALL, [], metadata=second)).schema.metadata
    assert json.loads(found[b"confluo:history"]) == ["capture -r a", "query 'a b'"]
    assert Schema.from_dict(json.loads(found[b"confluo:schema"])) == ALL


# -- concatenated, cut, damaged --------------------------------------------------------------------------------


def test_streams_of_one_schema_are_concatenated(tmp_path: Path) -> None:
    parts = [
        stream(builtin("packet"), [packets(n)], metadata={"confluo:history": json.dumps([str(n)])})
        for n in (3, 0, 9000)
    ]
    reader, blocks, told = read(b"".join(parts), tmp_path)
    assert told == []
    assert column(blocks, reader, "src_ip") == [0, 1, 2, *range(9000)]
    with pytest.raises(FormatError, match="different fields"):
        read(parts[0] + stream(ALL, []), tmp_path)
    with pytest.raises(FormatError, match="is not an Arrow stream at byte"):
        read(parts[0] + b"rubbish behind it", tmp_path)


def test_a_stream_cut_anywhere_gives_its_whole_batches_and_says_so(tmp_path: Path) -> None:
    one = stream(builtin("packet"), [packets(8192)])
    data = stream(builtin("packet"), [packets(8192), packets(8192)])
    head = len(arrow_meta.schema_message(builtin("packet"), {}))
    batch = len(data) - len(one)
    edges = [
        head,
        head + 1,
        head + 8,
        head + 100,
        head + batch - 1,
        head + batch,
        len(data) - 9,
        len(data) - 8,
        len(data) - 1,
    ]
    for size in edges:
        _, blocks, told = read(data[:size], tmp_path)
        whole = (size - head) // batch
        assert sum(b.rows for b in blocks) == 8192 * whole
        assert len(told) == 1, size
        assert "its writer was interrupted" in told[0]
    for size in (0, 1, 7, 8, 20, head - 1):
        with pytest.raises(FormatError, match=r"ends"):
            read(data[:size], tmp_path)
    assert read(data, tmp_path)[2] == []


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 3000), bit=st.integers(0, 7))
def test_a_flipped_bit_never_crashes(at: int, bit: int, tmp_path: Path) -> None:
    schema = Schema("t", [Field("a", "u32"), Field("b", "list(u16, 2)"), Field("c", "ip")])
    data = bytearray(stream(schema, [block_of(schema, [{"a": i} for i in range(9)])]))
    data[at % len(data)] ^= 1 << bit
    blocks: list[Block] = []
    with suppress(FormatError):  # the only error there may be
        blocks = read(bytes(data), tmp_path)[1]
    assert sum(b.rows for b in blocks) <= 9 * 65536


def test_sizes_are_not_believed(tmp_path: Path) -> None:
    schema = Schema("t", [Field("a", "u32")])
    head = arrow_meta.schema_message(schema, {})
    huge = arrow_meta.batch_message(schema, 1 << 40, [(0, 1 << 42)], 1 << 42)
    _, blocks, told = read(head + huge + b"x" * 100, tmp_path)  # claims 4 TiB, brings 100 bytes
    assert (blocks, len(told)) == ([], 1)
    lying = arrow_meta.batch_message(schema, 1 << 40, [(0, 64)], 64)
    with pytest.raises(FormatError, match="damaged batch"):
        read(head + lying + bytes(64) + arrow_meta.EOS, tmp_path)
    with pytest.raises(FormatError, match="claims a message"):
        read(struct.pack("<Ii", 0xFFFFFFFF, 1 << 30) + bytes(100), tmp_path)


# -- what pyarrow writes, we read ------------------------------------------------------------------------------


def written(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return out.getvalue()


def test_a_stream_with_our_names(tmp_path: Path) -> None:
    when = [datetime(2026, 11, 20, tzinfo=UTC), None]
    table = pa.table(
        {
            "ts": pa.array(when, pa.timestamp("us", "UTC")),
            "src_ip": pa.array(["10.0.0.1", "2001:db8::1"]),
            "dst_ip": pa.array([1, 2], pa.uint32()),
            "dst_port": pa.array([443, None], pa.int64()),
            "proto": pa.array(["tcp", "99"]),
            "tcp_flags": pa.array(["syn|ack", None]),
            "eth_src": pa.array(["02:00:00:00:00:01", ""]),
        }
    )
    reader, blocks, told = read(written(table), tmp_path)
    assert told == []
    assert reader.schema.kind == "packet"
    assert [f.type.text for f in reader.schema.fields] == ["time", "ip", "ip", "u16", "enum", "flags(u16)", "mac"]
    six = bytes.fromhex("20010db8" + "0" * 23 + "1")
    assert column(blocks, reader, "ts") == [1795132800 * 10**9, 0]
    assert column(blocks, reader, "src_ip") == [0x0A000001, fold6(six)]
    assert column(blocks, reader, "src_ip6") == [bytes(16), six]
    assert column(blocks, reader, "dst_ip") == [1, 2]
    assert column(blocks, reader, "dst_port") == [443, 0]
    assert column(blocks, reader, "proto") == [6, 99]
    assert column(blocks, reader, "tcp_flags") == [18, 0]
    assert column(blocks, reader, "eth_src") == [0x020000000001, 0]


def test_plain_columns_need_no_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table(
        {
            "ts": pa.array([5, None], pa.timestamp("ns", "UTC")),
            "dst_port": pa.array([None, 80], pa.uint16()),
            "score": pa.array([1.5, None], pa.float64()),
            "wait": pa.array([7, 8], pa.duration("ns")),
            "tag": pa.array([b"ab", None], pa.binary(2)),
            "hops": pa.array([[1, None], None], pa.list_(pa.uint16(), 2)),
        }
    )
    data = written(table)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)  # importing it fails now
    reader, blocks, told = read(data, tmp_path)
    assert told == []
    assert [f.type.text for f in reader.schema.fields] == ["time", "u16", "f64", "duration", "bytes(2)", "list(u16, 2)"]
    assert column(blocks, reader, "ts") == [5, 0]
    assert column(blocks, reader, "dst_port") == [0, 80]
    assert column(blocks, reader, "score") == [1.5, 0.0]
    assert column(blocks, reader, "tag") == [b"ab", b"\0\0"]
    assert column(blocks, reader, "hops") == [(1, 0), (0, 0)]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.one_of(st.none(), st.integers(0, 1 << 31)), max_size=200))
def test_nulls_are_zero(values: list[int | None], tmp_path: Path) -> None:
    reader, blocks, _ = read(written(pa.table({"x": pa.array(values, pa.uint32())})), tmp_path)
    assert column(blocks, reader, "x") == [v or 0 for v in values]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_streams(codec: str, tmp_path: Path) -> None:
    table = pa.table({"dst_port": pa.array(range(5000), pa.uint16()), "who": ["x", "yy"] * 2500})
    reader, blocks, told = read(written(table, compression=codec), tmp_path)
    assert told == []
    assert column(blocks, reader, "dst_port") == list(range(5000))
    assert column(blocks, reader, "who")[:2] == [b"x".ljust(16, b"\0"), b"yy".ljust(16, b"\0")]


def test_other_types_and_what_is_left_out(tmp_path: Path) -> None:
    table = pa.table(
        {
            "Id.Orig": pa.array([1, 2], pa.int32()),
            "ok": [True, None],
            "day": [date(2026, 11, 20), None],
            "half": pa.array([1.5, 2.5], pa.float16()),
            "nested": [{"a": 1}, None],
            "deep": [[[1, 2]], [[3]]],
            "word": pa.array(["a", "b"]).dictionary_encode(),
            "2nd": pa.array([9, 9], pa.uint8()),
        }
    )
    reader, blocks, told = read(written(table), tmp_path)
    assert [f.name for f in reader.schema.fields] == ["id_orig", "ok", "day", "half", "word", "_2nd"]
    assert reader.schema.kind == "record"
    assert column(blocks, reader, "ok") == [1, 0]
    assert column(blocks, reader, "day") == [1795132800 * 10**9, 0]
    assert column(blocks, reader, "half") == [1.5, 2.5]
    assert [w.split("'")[1] for w in told] == ["nested", "deep"]
    assert clean("id.orig_h") == "id_orig_h"


@pytest.mark.parametrize("array", [pa.array(["10.0.0.x"]), pa.array([1 << 40], pa.int64()), pa.array([-1], pa.int32())])
def test_what_cannot_be_cast_is_named(array: pa.Array, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="field 'src_ip' cannot be read as ip"):
        read(written(pa.table({"src_ip": array})), tmp_path)


def test_batches_of_any_size(tmp_path: Path) -> None:
    table = pa.table({"dst_port": pa.array([i % 65536 for i in range(200_000)], pa.uint16())})
    reader, blocks, _ = read(written(table), tmp_path)
    assert max(b.rows for b in blocks) == 65536
    assert column(blocks, reader, "dst_port") == [i % 65536 for i in range(200_000)]


def test_big_endian_and_old_metadata_do_not_slip_through(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is not an Arrow stream"):
        read(b"\x10\0\0\0" + bytes(60), tmp_path)
