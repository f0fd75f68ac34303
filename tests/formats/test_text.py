"""TSV, CSV and NDJSON against Python's own ipaddress, datetime, json and csv."""

from __future__ import annotations

import csv
import io
import ipaddress
import json
import math
import os
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from confluo_tools.core.block.block import Block, Picks
from confluo_tools.core.text.text_writer import Printer
from confluo_tools.errors import FormatError
from confluo_tools.formats.bytestream import ByteStream
from confluo_tools.formats.text import STYLES, TextReader, TextWriter, printing_plan
from confluo_tools.formats.text_types import guess_type
from confluo_tools.schema import Field, Schema, fold6

KINDS = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "f32": "f",
    "f64": "d",
}


def block_of(schema: Schema, rows: Sequence[dict[str, Any]]) -> Block:
    """Rows of physical values, by column name; what is missing is zero."""
    buffers = []
    for column in schema.columns:
        out = []
        for row in rows:
            value = row.get(column.name, 0)
            if column.code == 11:
                out.append((value or b"").ljust(column.size, b"\0"))
            else:
                values = list(value) if isinstance(value, tuple | list) else [value]
                values += [0] * (column.count - len(values))
                out.append(struct.pack(f"<{column.count}{KINDS[column.field.type.base]}", *values))
        buffers.append(b"".join(out))
    return Block.wrap(schema.layout, len(rows), buffers)


def text(schema: Schema, rows: Sequence[dict[str, Any]], style: str = "tsv", **options: Any) -> str:
    out = io.BytesIO()
    writer = TextWriter(style, schema, out, **options)
    writer.write(block_of(schema, rows))
    writer.close()
    return out.getvalue().decode()


def read(
    data: bytes, style: str, tmp_path: Path, schema: Schema | None = None
) -> tuple[TextReader, list[Block], list[str]]:
    path = tmp_path / "in"
    path.write_bytes(data)
    told: list[str] = []
    reader = TextReader(ByteStream(os.open(path, os.O_RDONLY), "in"), style, schema=schema, warn=told.append)
    blocks = list(reader)
    reader.close()
    return reader, blocks, told


def one(type_: str, value: Any, style: str = "tsv", **field: Any) -> str:
    schema = Schema("t", [Field("pad", "u8"), Field("x", type_, **field)])
    line = text(schema, [{"x": value} if not isinstance(value, dict) else value], style, header=False, fields=["x"])
    assert line.endswith("\n")
    return line[:-1]


# -- each type, against others ---------------------------------------------------------------------------------


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_times_are_those_of_datetime(ns: int) -> None:
    shown = one("time", ns or 1)
    seconds, fraction = divmod(ns or 1, 10**9)
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    assert shown == when.strftime(f"{when.year:04d}-%m-%dT%H:%M:%S") + f".{fraction:09d}Z"


@given(st.integers(1, (1 << 32) - 1))
def test_ipv4_is_that_of_ipaddress(value: int) -> None:
    assert one("ipv4", value) == str(ipaddress.IPv4Address(value))


@given(
    st.one_of(
        st.binary(min_size=16, max_size=16),
        st.lists(st.sampled_from([0, 0, 1, 0xFFFF, 0x10]), min_size=8, max_size=8).map(
            lambda w: b"".join(x.to_bytes(2, "big") for x in w)
        ),
    )
)
def test_ipv6_is_short_and_the_same_address(data: bytes) -> None:
    address = ipaddress.IPv6Address(data)
    shown = one("ip", {"x": fold6(data), "x6": data})
    if data == bytes(16):
        assert shown == "::"
        return
    assert ipaddress.IPv6Address(shown) == address
    if "." not in shown:  # ipaddress never writes the last 32 bits dotted
        assert shown == address.compressed
    else:
        assert data[:10] == bytes(10)


def test_dual_stack() -> None:
    schema = Schema("t", [Field("v", "u8"), Field("a", "ip", version="v")])
    rows = [{"v": 4, "a": 0}, {"v": 6, "a": 1}, {"v": 0, "a": 0}, {"v": 0, "a": 0x0A000001}, {"v": 4, "a": 1}]
    assert text(schema, rows, fields=["a"], header=False).split() == ["0.0.0.0", "::", "-", "10.0.0.1", "0.0.0.1"]
    bare = Schema("t", [Field("a", "ip")])
    assert text(bare, [{"a": 1}, {"a": 0}, {"a": 2}], header=False).split() == ["::", "-", "0.0.0.2"]


@given(st.integers(1, (1 << 48) - 1))
def test_macs(value: int) -> None:
    assert one("mac", value) == ":".join(f"{b:02x}" for b in value.to_bytes(6, "big"))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_read_back_and_are_not_longer_than_repr(value: float) -> None:
    shown = one("f64", value)
    assert math.copysign(1, float(shown)) == math.copysign(1, value)
    assert float(shown) == value
    assert any(c in shown for c in ".e")
    assert len(shown) <= max(len(repr(value)) + 2, 17)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_singles_read_back(value: float) -> None:
    assert struct.pack("<f", float(one("f32", value))) == struct.pack("<f", value)


def test_floats_that_are_no_numbers() -> None:
    assert [one("f64", v) for v in (math.nan, math.inf, -math.inf)] == ["nan", "inf", "-inf"]
    rows = [json.loads(one("f64", v, "ndjson")) for v in (math.nan, math.inf, -math.inf)]
    assert rows == [{"x": None}, {"x": math.inf}, {"x": -math.inf}]


@pytest.mark.parametrize("base", list(KINDS)[:8])
def test_integers_at_their_limits(base: str) -> None:
    bits = int(base[1:])
    edges = (
        [0, 1, 9, 10, 99, 100, 127, (1 << bits) - 1]
        if base[0] == "u"
        else [0, -1, 10, -(1 << bits - 1), (1 << bits - 1) - 1]
    )
    for value in edges:
        assert one(base, value) == str(value)
        assert json.loads(one(base, value, "ndjson")) == {"x": value}


def test_names() -> None:
    assert one("enum", 6, names={6: "tcp"}) == "tcp"
    assert one("enum", 7, names={6: "tcp"}) == "7"
    assert one("enum", 0, names={6: "tcp"}) == "-"
    assert one("enum", 0, names={0: "none"}) == "none"
    flags = {1: "fin", 2: "syn", 16: "ack"}
    assert one("flags", 18, names=flags) == "syn|ack"
    assert one("flags", 0x112, names=flags) == "syn|ack|0x100"
    assert one("flags", 0x100, names=flags) == "0x100"
    assert one("flags", 0, names=flags) == "-"
    assert json.loads(one("enum", 7, "ndjson", names={6: "tcp"})) == {"x": "7"}  # a name's column is always text
    schema = Schema("t", [Field("x", "flags", names=flags)])
    assert text(schema, [{"x": 18}], header=False, numeric=True) == "18\n"


def test_names_cannot_break_a_line() -> None:
    evil = {1: 'a\tb\n",c'}
    assert one("enum", 1, names=evil) == "a_b___c"
    assert json.loads(one("enum", 1, "ndjson", names=evil)) == {"x": evil[1]}
    assert next(csv.reader([one("enum", 1, "csv", names=evil)])) == ["a_b___c"]


def test_lists_leave_out_zeros_at_the_end() -> None:
    assert one("list(u16, 4)", (3, 0, 7)) == "3,0,7"
    assert one("list(u16, 4)", ()) == "-"
    assert one("list(u16, 4)", (3, 0, 7), "csv") == '"3,0,7"'
    assert json.loads(one("list(u16, 4)", (3, 0, 7), "ndjson")) == {"x": [3, 0, 7]}
    assert json.loads(one("list(u16, 4)", (), "ndjson")) == {"x": []}
    assert json.loads(one("list(ipv4, 2)", (0x01020304,), "ndjson")) == {"x": ["1.2.3.4"]}
    assert one("list(f32, 2)", (1.5, 2.0)) == "1.5,2.0"


def test_bytes() -> None:
    assert one("bytes(8)", b"eth0") == "eth0"
    assert one("bytes(8)", b"a\\b\tc\xff") == "a\\x5cb\\x09c\\xff"
    assert one("bytes(8)", b"") == "-"
    assert one("bytes(8)", b"-") == "\\x2d"  # not mistaken for absent
    assert one("bytes(8)", b"#x") == "\\x23x"  # nor for a comment
    assert json.loads(one("bytes(8)", b'"\\\x00x', "ndjson")) == {"x": '"\\x5c\\x00x'}
    assert next(csv.reader([one("bytes(8)", b'a,"b', "csv")])) == ['a,"b']


def test_text_is_printed_as_it_is() -> None:
    for name in ("ToR-3", "Zürich", "東京", "a😀b"):
        assert one("text(16)", name.encode()) == name
        assert json.loads(one("text(16)", name.encode(), "ndjson")) == {"x": name}
    assert one("text(8)", b"C:\\Temp\\") == "C:\\Temp\\"
    assert one("text(8)", b"a\tb\n") == "a\\x09b\\x0a"  # cannot break a line
    assert one("text(8)", b"\\x41") == "\\x5cx41"  # nor is it read as an escape
    assert one("text(8)", "é\u202e".encode()) == "é\u202e"
    assert one("text(8)", b"") == "-"


def test_text_on_a_terminal_cannot_control_it() -> None:
    schema = Schema("t", [Field("x", "text(16)")])
    rows = [{"x": "\x1b[2J é\u202e\x7f".encode()}]
    assert text(schema, rows, "tsv", header=False, terminal=True) == "\\x1b[2J é\\xe2\\x80\\xae\\x7f\n"
    assert text(schema, rows, "csv", header=False, terminal=True) == '"\\x1b[2J é\\xe2\\x80\\xae\\x7f"\n'
    shown = text(schema, rows, "ndjson", terminal=True)
    assert shown == '{"x":"\\u001b[2J é\\u202e\\u007f"}\n'
    assert json.loads(shown) == {"x": "\x1b[2J é\u202e\x7f"}  # still the same text


TRICKY = st.one_of(
    st.text(max_size=8), st.text(alphabet='\\x41"-#,\t\r\n\x1b é\u202e😀', max_size=8), st.binary(max_size=12)
)


def bytes_of(text: str) -> bytes:
    """What a JSON text means: half a character stays one, the others of its kind are bytes."""
    return b"".join([c.encode("utf-8", "surrogatepass" if c < "\udc80" else "surrogateescape") for c in text])


@given(st.lists(st.tuples(TRICKY, TRICKY), min_size=1, max_size=4))
@example([(b"\xed\xa0\x80", b"\xed\xb0\x80")])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_texts_stay_as_they_are(tmp_path: Path, rows: list[tuple[str | bytes, str | bytes]]) -> None:
    schema = Schema("t", [Field("a", "text(32)"), Field("b", "text(32)")])
    wanted = [tuple((v.encode() if isinstance(v, str) else v).rstrip(b"\0") for v in row) for row in rows]
    block = block_of(schema, [dict(zip("ab", row, strict=True)) for row in wanted])
    for style in STYLES:
        out = io.BytesIO()
        writer = TextWriter(style, schema, out)
        writer.write(block)
        writer.close()
        if style == "ndjson":  # Python's reader sees the same texts
            lines = [json.loads(line) for line in out.getvalue().decode().split("\n")[:-1]]
            assert [tuple(bytes_of(v or "") for v in row.values()) for row in lines] == wanted
        if style == "csv":
            table = io.StringIO(out.getvalue().decode("utf-8", "surrogateescape"), newline="")
            words = [tuple(v.encode("utf-8", "surrogateescape") for v in row) for row in csv.reader(table)]
            assert words[1:] == wanted
        reader, blocks, told = read(out.getvalue(), style, tmp_path, schema)
        assert told == []
        columns = [[bytes(v).rstrip(b"\0") for v in values(blocks, reader, name)] for name in "ab"]
        assert list(zip(*columns, strict=True)) == wanted


def test_json_texts_are_read_once(tmp_path: Path) -> None:
    line = rb'{"msg":"C:\\x41\\Temp","half":"\ud800 \udc80"}' + b"\n"
    reader, blocks, told = read(line, "ndjson", tmp_path)
    assert told == []
    assert values(blocks, reader, "msg")[0].rstrip(b"\0") == b"C:\\x41\\Temp"
    out = io.BytesIO()
    TextWriter("ndjson", reader.schema, out).write(blocks[0])
    assert json.loads(out.getvalue()) == json.loads(line)


def test_a_json_key_that_is_no_text(tmp_path: Path) -> None:
    reader, blocks, told = read(rb'{"\ud800":1,"\udc80":2,"a":3}' + b"\n", "ndjson", tmp_path)
    assert told == []
    assert [values(blocks, reader, f.name)[0] for f in reader.schema.fields] == [1, 3]  # both names are _
    for style, data in (("csv", b"\xff,b\n1,2\n"), ("tsv", b"#fields\t\xff\tb\n1\t2\n")):
        reader, blocks, told = read(data, style, tmp_path)
        assert told == []
        assert values(blocks, reader, "b") == [2]


def test_absent_in_each_style() -> None:
    schema = Schema(
        "t", [Field("t", "time"), Field("end", "time"), Field("ip", "ip"), Field("n", "u8"), Field("d", "duration")]
    )
    assert text(schema, [{}], "tsv").splitlines()[2] == "1970-01-01T00:00:00.000000000Z\t-\t-\t0\t0"
    assert text(schema, [{}], "csv").splitlines()[1] == "1970-01-01T00:00:00.000000000Z,,,0,0"
    assert json.loads(text(schema, [{}], "ndjson")) == {
        "t": "1970-01-01T00:00:00.000000000Z",
        "end": None,
        "ip": None,
        "n": 0,
        "d": 0,
    }


def test_headers_and_picks() -> None:
    schema = Schema("t", [Field("a", "u8"), Field("b", "list(u16, 2)")])
    assert text(schema, []) == "#fields\ta\tb\n#types\tu8\tlist(u16, 2)\n"
    assert text(schema, [], "csv") == "a,b\n"
    assert text(schema, [], "ndjson") == ""
    out = io.BytesIO()
    writer = TextWriter("csv", schema, out, fields=["a"], header=False)
    block = block_of(schema, [{"a": i} for i in range(100)])
    writer.write(block, Picks.of(100, [3, 99]))
    assert out.getvalue() == b"3\n99\n"


def test_a_plan_that_does_not_fit_is_refused() -> None:
    schema = Schema("t", [Field("a", "u8"), Field("b", "bytes(4)")])
    for item in [
        (b"a", "time", 0, -1, -1, False, ()),
        (b"b", "number", 1, -1, -1, False, ()),
        (b"a", "ip", 0, 1, -1, False, ()),
        (b"a", "bytes", 0, -1, -1, False, ()),
    ]:
        with pytest.raises(ValueError, match="plan"):
            Printer(schema.layout, [item], "tsv")
    for item in [(b"a", "number", 2, -1, -1, False, ()), (b"a", "number", -1, -1, -1, False, ())]:
        with pytest.raises(IndexError):
            Printer(schema.layout, [item], "tsv")
    other = Schema("t", [Field("a", "u16")])
    with pytest.raises(ValueError, match="other columns"):
        Printer(schema.layout, printing_plan(schema, ["a"], "tsv"), "tsv").lines(block_of(other, [{}]))


# -- there and back --------------------------------------------------------------------------------------------

ALL = Schema(
    "all",
    [
        Field("ts", "time"),
        Field("u8", "u8"),
        Field("u64", "u64"),
        Field("i8", "i8"),
        Field("i64", "i64"),
        Field("f32", "f32"),
        Field("f64", "f64"),
        Field("v", "u8"),
        Field("ip", "ip", version="v"),
        Field("ip4", "ipv4"),
        Field("mac", "mac"),
        Field("took", "duration"),
        Field("proto", "enum", names={6: "tcp", 17: "udp"}),
        Field("flags", "flags", names={1: "fin", 2: "syn", 16: "ack"}),
        Field("name", "bytes(12)"),
        Field("host", "text(9)"),
        Field("path", "list(u16, 4)"),
        Field("hops", "list(ipv4, 3)"),
        Field("later", "time"),
    ],
)


def _short(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:9]


_ints = {
    c: st.integers(*ALL[c].type.bounds)
    for c in ("ts", "u8", "u64", "i8", "i64", "ip4", "took", "proto", "flags", "later")
}
ROW = st.fixed_dictionaries(
    {
        **_ints,
        "mac": st.integers(0, (1 << 48) - 1),
        "f32": st.floats(width=32, allow_nan=False),
        "f64": st.floats(allow_nan=False),
        "name": st.binary(max_size=12),
        "host": st.one_of(st.binary(max_size=9), st.text(max_size=3).map(_short)),
        "path": st.lists(st.integers(0, 65535), max_size=4),
        "hops": st.lists(st.integers(0, (1 << 32) - 1), max_size=3),
        "address": st.one_of(st.none(), st.integers(0, (1 << 32) - 1), st.binary(min_size=16, max_size=16)),
    }
)


def physical(row: dict[str, Any]) -> dict[str, Any]:
    row = dict(row)
    address = row.pop("address")
    if isinstance(address, bytes):
        row |= {"v": 6, "ip": fold6(address), "ip6": address}
    elif address is not None:
        row |= {"v": 4, "ip": address}
    return row


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROW, min_size=1, max_size=20))
def test_rows_come_back_as_they_were(style: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    block = block_of(ALL, [physical(r) for r in rows])
    out = io.BytesIO()
    writer = TextWriter(style, ALL, out)
    writer.write(block)
    data = out.getvalue()
    if style == "ndjson":
        assert [json.loads(line)["u64"] for line in data.splitlines()] == [r["u64"] for r in rows]
    if style == "csv":
        assert [len(r) for r in csv.reader(io.StringIO(data.decode("utf-8", "replace"), newline=""))] == [
            len(ALL.fields)
        ] * (len(rows) + 1)
    _, blocks, told = read(data, style, tmp_path, ALL)
    assert told == []
    assert sum(b.rows for b in blocks) == len(rows)
    for i in range(len(ALL.columns)):
        assert b"".join(bytes(b.buffer(i)) for b in blocks) == bytes(block.buffer(i)), ALL.columns[i].name


@pytest.mark.parametrize("style", ["tsv", "csv"])
def test_many_rows_in_small_pieces(style: str, tmp_path: Path) -> None:
    schema = Schema("t", [Field("n", "u32"), Field("s", "bytes(9)")])
    rows = [{"n": i, "s": str(i).encode()} for i in range(65_536)]
    _, blocks, told = read(text(schema, rows, style).encode() * 2, style, tmp_path, schema)
    assert told == []
    assert [b.get(0, i) for b in blocks for i in range(b.rows)] == list(range(65_536)) * 2


# -- what others write -----------------------------------------------------------------------------------------


def values(blocks: list[Block], reader: TextReader, name: str) -> list[Any]:
    i = reader.schema.index(name)
    return [b.get(i, row) for b in blocks for row in range(b.rows)]


def test_types_come_from_the_packet_schema_or_are_guessed(tmp_path: Path) -> None:
    first = b'{"ts":1700000000.25,"src_ip":"10.0.0.1","dst_port":443,"rtt":1.5,"host":"a","ok":true,"n":-3}\n'
    lines = first + b'{"src_ip":"::1"}\n'
    reader, blocks, told = read(lines, "ndjson", tmp_path)
    assert told == []
    types = {f.name: f.type.text for f in reader.schema.fields}
    assert types == {
        "ts": "time",
        "src_ip": "ip",
        "dst_port": "u16",
        "rtt": "f64",
        "host": "text(16)",
        "ok": "i64",
        "n": "i64",
    }
    assert values(blocks, reader, "ts") == [1700000000_250000000, 0]
    assert values(blocks, reader, "src_ip") == [0x0A000001, fold6(ipaddress.IPv6Address("::1").packed)]
    assert values(blocks, reader, "ok") == [1, 0]


def test_guesses() -> None:
    assert guess_type(["1", "-2"]) == "i64"
    assert guess_type(["1", str(1 << 63)]) == "u64"
    assert guess_type(["1", str(1 << 64)]) == "f64"
    assert guess_type(["1", "2.5", ""]) == "f64"
    assert guess_type(["10.0.0.1", "::1"]) == "ip"
    assert guess_type(["02:00:00:00:00:01"]) == "mac"
    assert guess_type(["2026-11-20T10:00:00Z"]) == "time"
    assert guess_type(["x" * 9]) == "text(32)"
    assert guess_type([]) == "text(32)"


def test_a_zeek_log(tmp_path: Path) -> None:
    log = (
        b"#separator \\x09\n#set_separator\t,\n#empty_field\t(empty)\n#unset_field\t-\n#path\tconn\n"
        b"#fields\tts\tuid\tid.orig_h\tid.orig_p\tduration\n#types\ttime\tstring\taddr\tport\tinterval\n"
        b"1700000000.123456\tCx1\t10.0.0.1\t40000\t1.5\n1700000001.000000\tCx2\tfe80::1\t53\t-\n#close\t2023-11-14\n"
    )
    reader, blocks, told = read(log, "tsv", tmp_path)
    assert told == []
    assert values(blocks, reader, "ts") == [1700000000_123456000, 1700000001_000000000]
    assert values(blocks, reader, "id_orig_p") == [40000, 53]
    assert values(blocks, reader, "duration") == [1.5, 0.0]
    assert values(blocks, reader, "uid") == [b"Cx1".ljust(16, b"\0"), b"Cx2".ljust(16, b"\0")]


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("2026-11-20T10:00:00Z", 1795168800 * 10**9),
        ("2026-11-20 10:00:00", 1795168800 * 10**9),
        ("2026-11-20T12:30:00.5+02:30", 1795168800 * 10**9 + 5 * 10**8),
        ("2026-11-20", 1795132800 * 10**9),
        ("1795168800", 1795168800 * 10**9),
        ("1795168800.000000001", 1795168800 * 10**9 + 1),
        ("-1.5", -1_500_000_000),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2016-12-31T23:59:60Z", 1483228800 * 10**9),
    ],
)
def test_times_that_are_read(written: str, ns: int, tmp_path: Path) -> None:
    reader, blocks, told = read(f"#fields\tts\n{written}\n".encode(), "tsv", tmp_path)
    assert told == []
    assert values(blocks, reader, "ts") == [ns]


@pytest.mark.parametrize(
    ("type_", "bad"),
    [
        ("u8", "256"),
        ("u8", "-1"),
        ("u8", "1.0"),
        ("u8", "x"),
        ("i8", "128"),
        ("i8", "-129"),
        ("u64", str(1 << 64)),
        ("i64", str(1 << 63)),
        ("f64", "1.5x"),
        ("f64", "0x10"),
        ("f64", "1 2"),
        ("ip", "10.0.0"),
        ("ip", "10.0.0.256"),
        ("ip", "010.0.0.1"),
        ("ip", "1::2::3"),
        ("ip", "1:2:3:4:5:6:7"),
        ("ip", "12345::"),
        ("ipv4", "::1"),
        ("mac", "02:00"),
        ("mac", "0g:00:00:00:00:00"),
        ("time", "2026-13-01"),
        ("time", "2026-11-20T25:00:00Z"),
        ("time", "2026-11-20T10:00:00.Z"),
        ("time", "soon"),
        ("time", "9999999999"),
        ("duration", "5 parsecs"),
        ("duration", "1e300s"),
        ("enum", "nope"),
        ("enum", "256"),
        ("flags", "syn|nope"),
        ("bytes(2)", "abc"),
        ("list(u8, 2)", "1,2,3"),
        ("list(u8, 2)", "1,x"),
    ],
)
@pytest.mark.parametrize("style", STYLES)
def test_a_bad_value_is_named_and_its_line_left_out(type_: str, bad: str, style: str, tmp_path: Path) -> None:
    names = {2: "syn"} if type_ in ("enum", "flags") else {}
    schema = Schema("t", [Field("a", "u8"), Field("x", type_, names=names), Field("z", "u8")])
    if style == "ndjson":
        data = (
            json.dumps({"a": 1, "x": None, "z": 2})
            + "\n"
            + json.dumps({"a": 3, "x": bad, "z": 4})
            + "\n"
            + '{"a": 5}\n'
        )
    elif style == "tsv":
        data = f"#fields\ta\tx\tz\n1\t-\t2\n3\t{bad}\t4\n5\t-\t6\n"
    else:
        data = f'a,x,z\n1,,2\n3,"{bad}",4\n5,,6\n'
    reader, blocks, told = read(data.encode(), style, tmp_path, schema)
    assert values(blocks, reader, "a") == [1, 5]
    column = reader.schema.index("x")
    for block in blocks:
        for row in range(block.rows):  # nothing of the bad value stays behind
            assert not any(bytes(block.buffer(column))[row : row + 1])
    assert len(told) == 1
    number = 2 if style == "ndjson" else 3
    assert told[0].startswith(f"in: line {number}: '")
    assert "field x" in told[0]


@pytest.mark.parametrize(
    ("style", "line", "says"),
    [
        ("tsv", "1", "too few"),
        ("tsv", "1\t2\t3", "too many"),
        ("csv", "1", "too few"),
        ("csv", "1,2,3", "too many"),
        ("csv", '1,"2', "quote"),
        ("ndjson", "[1]", "not a JSON object"),
        ("ndjson", '{"a":1,}', "not a JSON object"),
        ("ndjson", '{"a" 1}', "not a JSON object"),
        ("ndjson", '{"a":1}x', "not a JSON object"),
        ("ndjson", '{"a":1', "not a JSON object"),
        ("ndjson", '{"a":tru}', "not a JSON object"),
        ("ndjson", '{"c":[[1}', "not a JSON object"),
        ("ndjson", '{"a":"\\u12"}', "not a JSON object"),
    ],
)
def test_a_bad_line_is_left_out(style: str, line: str, says: str, tmp_path: Path) -> None:
    head = {"tsv": "#fields\ta\tb\n1\t2\n", "csv": "a,b\n1,2\n", "ndjson": '{"a":1,"b":2}\n'}[style]
    after = {"tsv": "8\t9\n", "csv": "8,9\n", "ndjson": '{"a":8,"b":9}\n'}[style]
    if '"2' in line:
        after = ""  # an open quote swallows what follows
    schema = Schema("t", [Field("a", "u8"), Field("b", "u8")])
    reader, blocks, told = read((head + line + "\n" + after).encode(), style, tmp_path, schema)
    assert values(blocks, reader, "a") == ([1, 8] if after else [1])
    assert len(told) == 1
    assert says in told[0]


def test_complaints_are_counted(tmp_path: Path) -> None:
    schema = Schema("t", [Field("a", "u8")])
    data = "#fields\ta\n" + "x\n" * 1000 + "7\n"
    reader, blocks, told = read(data.encode(), "tsv", tmp_path, schema)
    assert values(blocks, reader, "a") == [7]
    assert len(told) == 6
    assert "1000 lines" in told[-1]


def test_json_in_any_dress(tmp_path: Path) -> None:
    schema = Schema("t", [Field("a", "u32"), Field("s", "bytes(16)"), Field("f", "flags", names={1: "x", 2: "y"})])
    odd = [
        '  { "a" : 1 , "s" : "\\u0041\\n\\ud83d\\ude00" , "f" : ["x","y"] }  ',
        '{"unknown":{"a":[1,{"b":"}"}]},"a":2,"s":"\\\\x00z","f":"y"}',
        '{"s":null,"a":3}\r',
        "",
        "{}",
        '{"f":3,"a":4}',
    ]
    reader, blocks, told = read("\n".join(odd).encode(), "ndjson", tmp_path, schema)
    assert told == ["in: field 'unknown.a' is not in the schema and left out"]
    assert values(blocks, reader, "a") == [1, 2, 3, 0, 4]
    assert values(blocks, reader, "f") == [3, 2, 0, 0, 3]
    strings = [v.rstrip(b"\0") for v in values(blocks, reader, "s")]
    assert strings == ["A\n😀".encode(), b"\0z", b"", b"", b""]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(
        st.binary(max_size=200), st.text(alphabet='{}[]":,\\u0123 atrue"\n\t-#', max_size=200).map(str.encode)
    )
)
@pytest.mark.parametrize("style", STYLES)
def test_rubbish_neither_crashes_nor_invents_rows(style: str, data: bytes, tmp_path: Path) -> None:
    schema = Schema("t", [Field("a", "u8"), Field("s", "bytes(4)"), Field("l", "list(u16, 2)"), Field("i", "ip")])
    head = {"tsv": b"#fields\ta\ts\tl\ti\n", "csv": b"a,s,l,i\n", "ndjson": b'{"a":1}\n'}[style]
    try:
        reader, blocks, _ = read(head + data, style, tmp_path, schema)
    except FormatError:  # another header, the only thing that ends it
        assert b"#fields" in data
        return
    assert reader.rows <= data.count(b"\n") + 2
    assert sum(b.rows for b in blocks) == reader.rows


def test_concatenated_text_repeats_its_header(tmp_path: Path) -> None:
    part = b"#fields\ta\n#types\tu8\n1\n"
    reader, blocks, told = read(part + part, "tsv", tmp_path)
    assert (values(blocks, reader, "a"), told) == ([1, 1], [])
    reader, blocks, told = read(b"a,b\n1,2\n" * 2, "csv", tmp_path)
    assert (values(blocks, reader, "a"), told) == ([1, 1], [])
    with pytest.raises(FormatError, match="other fields"):
        read(part + b"#fields\tb\n1\n", "tsv", tmp_path)


def test_csv_quotes_newlines_and_last_line(tmp_path: Path) -> None:
    schema = Schema("t", [Field("a", "u8"), Field("s", "bytes(16)")])
    reader, blocks, told = read(b'\xef\xbb\xbfa,s\r\n1,"x,""y""\nz"\r\n2,end', "csv", tmp_path, schema)
    assert told == []
    assert values(blocks, reader, "a") == [1, 2]
    assert [v.rstrip(b"\0") for v in values(blocks, reader, "s")] == [b'x,"y"\nz', b"end"]


@pytest.mark.parametrize(("style", "data"), [("tsv", b"1\t2\n"), ("ndjson", b"[]\n"), ("ndjson", b"{}\n")])
def test_no_header_no_rows(style: str, data: bytes, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"in: has no|in: its objects"):
        read(data, style, tmp_path)
