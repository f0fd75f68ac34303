"""Messages that lie, with a right checksum: each is one clear error, costs little memory, and harms no other."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block
from confluo_tools.core.kafka.message import MessagePacker
from confluo_tools.errors import FormatError
from confluo_tools.formats import arrow_meta as meta
from confluo_tools.formats.text import STYLES, TextWriter
from confluo_tools.kafka.message import MAX_ROWS, MessageReader, shape_of, slim, split
from confluo_tools.schema import Schema
from confluo_tools.stream.unpack_command import envelopes
from hostile_messages import FIELDS, ROWS, honest, numbers, parts, sealed, with_envelope, with_schema
from running import environment, lines, run

U64 = 2**64
BUFFERS = [(at, size) for at, size in meta.parse_message(parts(honest()[2])[1]).buffers if size]


def places(number: int, at: int, size: int) -> list[tuple[int, int]]:
    """The buffers of the honest message, one of them elsewhere."""
    return [*BUFFERS[:number], (at, size), *BUFFERS[number + 1 :]]


def schema_text(**changed: Any) -> str:
    return json.dumps({**slim(honest()[0]).as_dict(), **changed})


def many_fields(n: int) -> str:
    fields = ",".join(f'{{"name":"f{i}","type":"u8"}}' for i in range(n))
    return schema_text(fields=[]).replace("[]", f"[{fields}]")


LIES: dict[str, tuple[bytes, str]] = {
    "pipeline is infinite": (with_envelope(numbers(pipeline="Infinity")), "wrong host, pipeline or run"),
    "pipeline is NaN": (with_envelope(numbers(pipeline="NaN")), "wrong host, pipeline or run"),
    "pipeline is huge": (with_envelope(numbers(pipeline="1" + "0" * 400)), "wrong host, pipeline or run"),
    "run has 40,000 digits": (with_envelope(numbers(run="1" + "0" * 40_000)), "not JSON"),
    "run is deep": (with_envelope(numbers(run="[" * 50_000 + "]" * 50_000)), "not JSON"),
    "host is no text": (with_envelope(numbers(host="[1]")), "wrong host, pipeline or run"),
    "host is long": (with_envelope(numbers(host=json.dumps("a" * 10_000))), "wrong host, pipeline or run"),
    "host has escapes": (with_envelope(numbers(host=json.dumps("\x1b[2J"))), "wrong host, pipeline or run"),
    "version is huge": (with_envelope(numbers(version="1" * 4000)), "has version 1111"),
    "envelope is a list": (with_envelope("[1]"), "not JSON"),
    "numbers twice": (with_envelope(numbers()[:-1] + ', "seq":                    9}'), "without fixed places"),
    "seq beyond 64 bits": (with_envelope(numbers(seq=str(U64))), "numbers do not fit"),
    "partition beyond 31 bits": (with_envelope(numbers(partition=2**31)), "numbers do not fit"),
    "records are not the rows": (with_envelope(numbers(records=ROWS - 1)), "numbers do not fit"),
    "rows beyond a block": (with_envelope(numbers(records=MAX_ROWS + 1), rows=MAX_ROWS + 1), "numbers do not fit"),
    "rows are 2^58": (with_envelope(numbers(records=2**58), rows=2**58), "numbers do not fit"),
    "a column outside": (with_envelope(numbers(), buffers=places(0, 1 << 40, 80)), "a buffer at"),
    "a column over the end": (with_envelope(numbers(), buffers=places(7, 600, 80), body_length=640), "a buffer at"),
    "a negative place": (with_envelope(numbers(), buffers=places(0, -8, 80)), "a buffer at"),
    "a column too short": (with_envelope(numbers(), buffers=places(0, 0, 72)), "numbers do not fit"),
    "two columns overlap": (with_envelope(numbers(), buffers=places(1, 40, 40)), "numbers do not fit"),
    "all columns are one": (with_envelope(numbers(), buffers=[(0, s) for _, s in BUFFERS]), "numbers do not fit"),
    "a column between words": (with_envelope(numbers(), buffers=places(1, 84, 40)), "numbers do not fit"),
    "body of 2 GB": (with_envelope(numbers(), body_length=2**31), "numbers do not fit"),
    "250 fields too many": (with_schema(many_fields(500)), "at most 250"),
    "schema is deep": (with_schema("[" * 100_000), "not a schema in JSON"),
    "schema is null": (with_schema("null"), "is not a schema"),
    "kind has escapes": (with_schema(schema_text(schema="\x1b[2J")), "wrong name"),
    "kind is long": (with_schema(schema_text(schema="k" * 9000)), "wrong name"),
    "half a character": (with_schema(schema_text(fields=[{"name": "a", "type": "u8", "unit": "\ud800"}])), "surrogate"),
    "a name for 2^64": (
        with_schema(schema_text(fields=[{"name": "a", "type": "enum", "names": {U64: "a"}}])),
        "not a number of 64 bits",
    ),
    "other columns than its schema": (
        with_schema(json.dumps(slim(honest()[0].project(FIELDS[::-1])).as_dict())),
        "not one of these tools",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_each_lie_is_told(name: str) -> None:
    told(*LIES[name])


def test_a_million_fields_are_told() -> None:
    """Not one of LIES: all workers would make its 33 MB."""
    told(with_schema(many_fields(10**6)), "bytes of metadata")


def told(value: bytes, what: str) -> None:
    with pytest.raises(FormatError, match=what) as error:
        MessageReader().read(value)
    assert len(str(error.value)) < 400


def test_the_message_itself_is_read() -> None:
    """What the lies are made of is right."""
    schema, _, value = honest()
    assert sealed(value) == value
    assert with_envelope(numbers()) == value
    assert MessageReader().read(with_schema(json.dumps(slim(schema).as_dict())))[0] == slim(schema)


def test_nulls_are_refused() -> None:
    head, batch, rest = parts(honest()[2])
    at = meta.batch_places(batch).nodes + 8  # the nulls of the first column
    with pytest.raises(FormatError, match="numbers do not fit"):
        MessageReader().read(sealed(head + batch[:at] + (1).to_bytes(8, "little") + batch[at + 8 :] + rest))


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_batch_is_refused(codec: str) -> None:
    """Whatever it would be after decompression."""
    import pyarrow as pa

    value = honest()[2]
    with pa.ipc.open_stream(value) as stream:
        batch, metadata = stream.read_next_batch_with_custom_metadata()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as out:
        out.write_batch(batch, custom_metadata=metadata)
    made = sink.getvalue().to_pybytes()
    with pytest.raises(FormatError, match="compressed batch"):
        MessageReader().read(sealed(made))


JSON: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 300),
    st.sampled_from([2**63, U64 - 1, U64, 10**40, float("inf"), float("nan"), 1e308]),
    st.text(max_size=20),
    st.sampled_from(["", "u8", "time", "ip", "list(u8, 255)", "text(65535)", "\x1b[2J", "\ud800", "1" * 30]),
    st.just([]),
    st.just({}),
)


@st.composite
def lies(draw: st.DrawFn) -> bytes:
    """The honest message with a part that is changed, and its checksum right again."""
    head, batch, rest = parts(honest()[2])
    part = draw(st.sampled_from(["schema", "envelope", "numbers", "bytes"]))
    if part == "schema":
        data = copy.deepcopy(slim(honest()[0]).as_dict())
        fields = data["fields"]
        for _ in range(draw(st.integers(1, 3))):
            changed = draw(st.sampled_from(fields)) if draw(st.booleans()) else data
            key = draw(st.sampled_from(sorted({*changed, "names"})))
            names = {draw(st.sampled_from(["0", "-1", str(U64), "255"])): draw(st.text(max_size=8))}
            changed[key] = names if key == "names" and draw(st.booleans()) else draw(JSON)
        return with_schema(json.dumps(data))
    if part == "envelope":
        name = draw(st.sampled_from(["version", "host", "pipeline", "run", "seq", "first", "last", "records"]))
        return with_envelope(numbers(**{name: json.dumps(draw(JSON))}))
    value = bytearray(batch if part == "numbers" else head + batch + rest)
    for _ in range(draw(st.integers(1, 3))):
        if part == "numbers":
            at = 8 * draw(st.integers(1, len(value) // 8 - 1))
            number = draw(st.sampled_from([0, 1, 7, 8, 64, 2**31, 2**32, 2**63, U64 - 1]) | st.integers(0, 1000))
            value[at : at + 8] = number.to_bytes(8, "little")
        else:
            at = draw(st.integers(0, len(value) - 1))
            value[at : at + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return sealed(head + bytes(value) + rest if part == "numbers" else bytes(value))


@given(lies())
def test_no_lie_does_harm(value: bytes) -> None:
    """What is read can be printed; everything else is a FormatError."""
    reader = MessageReader()
    reader.read(honest()[2])
    try:
        schema, block, place = reader.read(value)
        assert list(split(BytesIO(value).read)) == [value]
    except FormatError:
        return
    assert block.rows == place.records
    for shown, rows in ((schema, block), envelopes(schema, place, len(value))):
        for style in STYLES:
            TextWriter(style, shown, BytesIO()).write(rows)


# -- through the command


def test_what_can_be_read_between_damage_is_printed(tmp_path: Path) -> None:
    value = honest()[2]
    wrong = value[:-20] + b"x" + value[-19:]
    (tmp_path / "m").write_bytes(value + wrong * 7 + value)
    done = run("confluo-stream", "unpack", "--stats", "-f", "len", tmp_path / "m")
    assert done.returncode == 2
    assert lines(done) == [f'{{"len":{60 + i}}}' for i in range(ROWS)] * 2
    said = done.stderr.decode().splitlines()
    assert said == [
        *(f"confluo-stream unpack: {tmp_path}/m: message {i} is damaged: its checksum is wrong" for i in range(1, 6)),
        f"confluo-stream unpack: {tmp_path}/m: messages that could not be read: 7",
        f"confluo-stream unpack: {tmp_path}/m: messages that came twice: 1",
        "confluo-stream unpack: 9 messages, 7 that could not be read",
    ]


def test_each_cut_file_is_told(tmp_path: Path) -> None:
    value = honest()[2]
    for size in range(1, len(value)):
        with pytest.raises(FormatError):
            list(split(BytesIO(value[:size]).read))
    (tmp_path / "m").write_bytes(value + value[:-1])
    done = run("confluo-stream", "unpack", tmp_path / "m", "-w", tmp_path / "out.tsv")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"message 1 ends in the middle" in done.stderr
    assert (tmp_path / "out.tsv").read_bytes().count(b"\n") == ROWS + 2  # those of the message before


def message_of(schema: Schema, block: Block) -> bytes:
    return MessagePacker(shape_of(schema, "beta", 0, 8), 100).pack(block.project(schema.layout))


def test_other_columns_are_fitted_and_other_kinds_left_out(tmp_path: Path) -> None:
    schema, block, value = honest()
    fewer = schema.project(["len", "ts"])
    kind = Schema("foreign", schema.project(["len"]).fields)
    wider = Schema("packet", Schema.from_dict({"fields": [{"name": "len", "type": "u64"}]}).fields)
    wide = MessagePacker(shape_of(wider, "beta", 0, 8), 100).pack(Block.wrap(wider.layout, 1, [bytes(8)]))
    (tmp_path / "m").write_bytes(value + message_of(fewer, block) + message_of(kind, block) + wide)
    done = run("confluo-stream", "unpack", tmp_path / "m", "-f", "len,proto")
    assert [json.loads(line)["len"] for line in lines(done)] == [60 + i for i in range(ROWS)] * 2
    said = done.stderr.decode()
    assert "message 2 has records of kind foreign, not packet" in said
    assert "message 3 does not fit the messages before it: column len has another type" in said
    assert done.returncode == 2


def claims() -> Iterator[bytes]:
    """Files that claim much: metadata of 2 GB, a body of 2 GB, of 15 MB that is there."""
    yield b"\xff\xff\xff\xff" + (2**31 - 1).to_bytes(4, "little") + bytes(100)
    yield with_envelope(numbers(), body_length=2**31 - 64)
    yield with_envelope(numbers(), body_length=15 << 20) + bytes(15 << 20)


def test_memory_stays_small_whatever_is_claimed(tmp_path: Path) -> None:
    """Also after many schemas of the largest size."""
    paths = []
    for number, value in enumerate(claims()):
        paths.append(tmp_path / f"claim{number}")
        paths[-1].write_bytes(value)
    names = {str(n): "x" * 200 for n in range(1000)}
    with open(tmp_path / "many", "wb") as f:
        for i in range(200):
            large = Schema.from_dict(
                {"schema": "k", "fields": [{"name": f"f{i}", "type": "enum(u16)", "names": names}]}
            )
            f.write(MessagePacker(shape_of(large, "a", 0, i), 1).pack(Block.wrap(large.layout, 1, [bytes(2)])))
    code = (
        "import sys\n"
        "from confluo_tools.stream.unpack_command import main\n"
        "for path in sys.argv[1:]:\n"
        "    print(main([path, '-w', '/dev/null', '-o', 'tsv']))\n"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *paths, tmp_path / "many"], capture_output=True, env=environment(), check=True
    )
    *status, peak = done.stdout.split()
    assert status == [b"2", b"2", b"2", b"0"], done.stderr
    assert int(peak) < 200_000, peak
