"""Arrow metadata: pyarrow reads what we write, we read what pyarrow writes, and malformed metadata are refused."""

from __future__ import annotations

import io
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arrow_values import ARROW, arrow_schema, same
from confluo_tools.errors import FormatError, SchemaError
from confluo_tools.formats import arrow_meta
from confluo_tools.schema import Field, Schema
from log_rows import ALL_TYPES, block_of, random_columns


def stream_of(schema: Schema, rows: int, seed: int, metadata: dict[str, str] | None = None, gap: int = 0) -> bytes:
    """A stream with one batch of random rows, ``gap`` bytes between its buffers."""
    block = block_of(schema, random_columns(schema, rows, seed))
    body, places = b"", []
    for i in range(schema.layout.n):
        body += bytes(-len(body) % 64 + gap)
        places.append((len(body), len(block.buffer(i))))
        body += bytes(block.buffer(i))
    body += bytes(-len(body) % 64)
    return (
        arrow_meta.schema_message(schema, metadata)
        + arrow_meta.batch_message(schema, rows, places, len(body))
        + body
        + arrow_meta.EOS
    )


scalars = st.sampled_from(sorted(ARROW))
types = st.one_of(
    scalars,
    st.integers(1, 65535).map(lambda n: f"bytes({n})"),
    st.tuples(st.sampled_from(["u8", "i32", "u64", "f32", "ipv4", "mac", "time", "duration"]), st.integers(1, 255)).map(
        lambda t: f"list({t[0]}, {t[1]})"
    ),
)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    names = draw(
        st.lists(
            st.from_regex(r"[a-z_][a-z0-9_]{0,20}", fullmatch=True),
            min_size=1,
            max_size=12,
            unique_by=lambda n: n.rstrip("6"),
        )
    )
    return Schema(
        draw(st.text(max_size=10)),
        [Field(n, draw(types), unit=draw(st.text(max_size=3)), description=draw(st.text(max_size=30))) for n in names],
    )


@settings(max_examples=60, deadline=None)
@given(schemas())
@example(ALL_TYPES)
def test_pyarrow_reads_our_schemas(schema: Schema) -> None:
    message = arrow_meta.schema_message(schema, {"confluo:format": "1", "é\0": "\n"})
    assert len(message) % 8 == 0
    read = pa.ipc.read_schema(pa.py_buffer(message))
    assert read.equals(arrow_schema(schema))
    assert read.metadata[b"confluo:format"] == b"1"
    assert read.metadata["é\0".encode()] == b"\n"
    parsed = arrow_meta.parse_message(message)
    assert parsed.kind == arrow_meta.SCHEMA
    assert arrow_meta.matches(parsed, schema)
    assert arrow_meta.schema_from_metadata(parsed.metadata) == schema
    batch = arrow_meta.batch_message(schema, 7, [(8, 8)] * len(schema.columns), 64)
    assert len(batch) == arrow_meta.batch_message_bytes(schema)


@pytest.mark.parametrize("rows", [0, 1, 63, 1000])
@pytest.mark.parametrize("gap", [0, 64])
def test_pyarrow_reads_our_streams_and_files(rows: int, gap: int) -> None:
    stream = stream_of(ALL_TYPES, rows, 3, {"a": "b"}, gap)
    table = pa.ipc.open_stream(stream).read_all()
    table.validate(full=True)
    assert table.schema.equals(arrow_schema(ALL_TYPES))
    assert table.num_rows == rows
    first = 8 + struct.unpack_from("<i", stream, 4)[0]
    message = 8 + struct.unpack_from("<i", stream, first + 4)[0]
    body = len(stream) - 8 - first - message
    foot = arrow_meta.footer(ALL_TYPES, {"a": "b"}, [(8 + first, message, body)])
    again = pa.ipc.open_file(pa.py_buffer(arrow_meta.MAGIC + b"\0\0" + stream + foot)).read_all()
    again.validate(full=True)
    assert same(again, table)
    parsed, blocks = arrow_meta.parse_footer(foot[:-10])
    assert arrow_meta.matches(parsed, ALL_TYPES)
    assert blocks == [(8 + first, message, body)]


def test_an_exact_size_can_be_required() -> None:
    plain = arrow_meta.schema_message(ALL_TYPES)
    padded = arrow_meta.schema_message(ALL_TYPES, size=len(plain) + 4096)
    assert len(padded) == len(plain) + 4096
    assert pa.ipc.read_schema(pa.py_buffer(padded)).equals(arrow_schema(ALL_TYPES))
    assert arrow_meta.matches(arrow_meta.parse_message(padded), ALL_TYPES)
    with pytest.raises(ValueError, match="does not fit"):
        arrow_meta.schema_message(ALL_TYPES, size=len(plain) - 8)


def messages(sink: bytes) -> list[tuple[bytes, bytes]]:
    """(metadata with its prefix, body) of each message of a stream, by pyarrow's own reader."""
    reader, out = pa.ipc.MessageReader.open_stream(sink), []
    for message in reader:
        meta = message.metadata.to_pybytes()
        out.append((meta, message.body.to_pybytes() if message.body else b""))
    return out


def written_by_pyarrow(schema: pa.Schema, rows: list[dict[str, Any]], **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    return sink.getvalue()


def test_we_read_what_pyarrow_writes() -> None:
    schema = pa.schema(
        [
            pa.field("t", pa.timestamp("us", "Europe/Berlin")),
            pa.field("d", pa.duration("s"), nullable=False),
            pa.field("s", pa.utf8()),
            pa.field("f", pa.float16()),
            pa.field("b", pa.binary(7), nullable=False),
            pa.field("l", pa.list_(pa.int16(), 3)),
            pa.field("n", pa.struct([("x", pa.int8()), ("y", pa.utf8())])),
            pa.field("c", pa.dictionary(pa.int8(), pa.utf8())),
            pa.field("u", pa.uint64()),
        ],
        metadata={"k": "v"},
    )
    found = messages(written_by_pyarrow(schema, [{"s": "x", "d": 1, "b": b"1234567", "c": "q"}] * 3))
    parsed = arrow_meta.parse_message(found[0][0])
    assert parsed.metadata == {"k": "v"}
    assert parsed.little_endian
    got = [
        (f.name, f.type, f.nullable, f.bits, f.signed, f.unit, f.timezone, f.width, f.dictionary) for f in parsed.fields
    ]
    assert got == [
        ("t", "timestamp", True, 0, False, "us", "Europe/Berlin", 0, False),
        ("d", "duration", False, 0, False, "s", "", 0, False),
        ("s", "utf8", True, 0, False, "", "", 0, False),
        ("f", "float", True, 16, False, "", "", 0, False),
        ("b", "fixed_size_binary", False, 0, False, "", "", 7, False),
        ("l", "fixed_size_list", True, 0, False, "", "", 3, False),
        ("n", "struct", True, 0, False, "", "", 0, False),
        ("c", "utf8", True, 0, False, "", "", 0, True),
        ("u", "int", True, 64, False, "", "", 0, False),
    ]
    assert [(f.name, f.type, f.bits, f.signed) for f in parsed.fields[5].children] == [("item", "int", 16, True)]
    assert [f.name for f in parsed.fields[6].children] == ["x", "y"]
    assert [arrow_meta.parse_message(m).kind for m, _ in found] == [
        arrow_meta.SCHEMA,
        arrow_meta.DICTIONARY,
        arrow_meta.BATCH,
    ]
    assert not arrow_meta.matches(parsed, ALL_TYPES)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("version", [pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5])
def test_batches_of_pyarrow(compression: str | None, version: Any) -> None:
    stream = stream_of(ALL_TYPES, 17, 4)
    table = pa.ipc.open_stream(stream).read_all()
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression, metadata_version=version)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    (schema, _), (batch, body) = messages(sink.getvalue())
    assert arrow_meta.matches(arrow_meta.parse_message(schema), ALL_TYPES)
    parsed = arrow_meta.parse_message(batch)
    assert (parsed.kind, parsed.rows, parsed.body_length) == (arrow_meta.BATCH, 17, len(body))
    assert parsed.compression == compression
    lists = sum(c.field.type.is_list for c in ALL_TYPES.columns)
    assert len(parsed.nodes) == len(ALL_TYPES.columns) + lists
    assert len(parsed.buffers) == 2 * len(ALL_TYPES.columns) + lists
    if compression is None:
        ts = parsed.buffers[1]
        assert body[ts[0] : ts[0] + 17 * 8] == table.column("ts").combine_chunks().buffers()[1].to_pybytes()[: 17 * 8]


SEEDS = [
    arrow_meta.schema_message(ALL_TYPES, {"confluo:uuid": "00" * 16}),
    arrow_meta.batch_message(ALL_TYPES, 9, [(64 * i, 64) for i in range(ALL_TYPES.layout.n)], 64 * 40),
    arrow_meta.footer(ALL_TYPES, {}, [(8, 64, 640), (712, 64, 640)])[:-10],
]


@settings(max_examples=600, deadline=1000)
@given(
    which=st.integers(0, 2),
    changes=st.lists(st.tuples(st.integers(0, 2**31), st.binary(min_size=1, max_size=8)), max_size=6),
    cut=st.none() | st.integers(0, 2**31),
)
def test_nothing_hostile_gets_through(which: int, changes: list[tuple[int, bytes]], cut: int | None) -> None:
    """Changed and cut messages parse, or raise FormatError; never anything else, never for long."""
    data = bytearray(SEEDS[which])
    for at, new in changes:
        at %= len(data)
        data[at : at + len(new)] = new[: len(data) - at]
    if cut is not None:
        del data[cut % len(data) :]
    try:
        if which == 2:
            arrow_meta.parse_footer(data)
        else:
            message = arrow_meta.parse_message(data)
            assert all(a >= 0 and n >= 0 and a + n <= message.body_length for a, n in message.buffers)
            arrow_meta.matches(message, ALL_TYPES)
            arrow_meta.schema_from_metadata(message.metadata)
    except (FormatError, SchemaError):
        pass


@settings(max_examples=300, deadline=1000)
@given(st.binary(max_size=200))
@example(b"\xff\xff\xff\xff\xff\xff\xff\x7f")
@example(b"")
@example(b"\4\0\0\0" * 40)
def test_noise_is_refused_or_harmless(data: bytes) -> None:
    for parse in (arrow_meta.parse_message, arrow_meta.parse_footer):
        try:
            parse(data)
        except FormatError:
            continue


def test_references_that_multiply_are_refused() -> None:
    """A small message with a list that names one part 20,000 times would need unbounded memory if it were followed."""
    n, long = 20_000, 60_000
    out = bytearray(struct.pack("<I", 16))  # the root table is at 16
    out += struct.pack("<HHHHHH", 10, 12, 4, 6, 8, 0)  # its vtable: version, header type, header
    out += struct.pack("<ihBxI", 12, 4, arrow_meta.SCHEMA, 16)  # Message: header at 24 + 16
    out += struct.pack("<HHHHHH", 10, 8, 0, 0, 4, 0)  # vtable of the schema: metadata only
    out += struct.pack("<iI", 12, 4)
    out += struct.pack("<I", n) + b"".join(struct.pack("<I", 4 * (n - i) + 8) for i in range(n))
    out += struct.pack("<HHHH", 8, 12, 4, 8)  # vtable of the one pair
    out += struct.pack("<iII", 8, 8, 4) + struct.pack("<I", long) + b"x" * long + b"\0"
    with pytest.raises(FormatError, match="its parts overlap"):
        arrow_meta.parse_message(out)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"fields": 3}',
        '{"fields": [{"name": "a"}]}',
        "[" * 100_000,
        '{"fields": [{"name": 1, "type": "u8"}]}',
        '{"fields": []}',
    ],
)
def test_a_malformed_schema_in_json(text: str) -> None:
    with pytest.raises((FormatError, SchemaError)):
        arrow_meta.schema_from_metadata({"confluo:schema": text})
    assert arrow_meta.schema_from_metadata({"other": text}) is None
