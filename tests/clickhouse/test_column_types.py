"""Each type of field in a table: what a server gives back are the bytes that went in; on an old and a current one."""

from __future__ import annotations

import importlib.util
import ipaddress
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from clickhouse_lab import ClickHouse
from confluo_tools.clickhouse.address import parse
from confluo_tools.clickhouse.clickhouse_writer import ClickHouseWriter
from confluo_tools.clickhouse.column_types import Dialect, cast_of
from confluo_tools.clickhouse.settings import ServerSettings
from confluo_tools.clickhouse.statements import add_columns, create_table, insert
from confluo_tools.clickhouse.table import ClickHouseTable, shape_for
from confluo_tools.core.block.block import Block, Picks
from confluo_tools.core.clickhouse.native_batch import NativeBatch
from confluo_tools.errors import ConfluoError
from confluo_tools.schema import Field, Schema
from confluo_tools.schema.types import fold6

OLD = Dialect(times=False, converts=False)
SCHEMA = Schema(
    "all_types",
    [
        Field("n", "u32", description="a 'number' \\ of the row"),
        Field("ts", "time"),
        Field("a", "u8"),
        Field("b", "u16", unit="B"),
        Field("d", "u64"),
        Field("e", "i8"),
        Field("f", "i16"),
        Field("g", "i32"),
        Field("h", "i64"),
        Field("x", "f32"),
        Field("y", "f64"),
        Field("version", "u8"),
        Field("addr", "ip", version="version"),
        Field("loose", "ip"),
        Field("v4", "ipv4"),
        Field("hw", "mac"),
        Field("gap", "duration"),
        Field("kind", "enum", names={0: "none", 1: "one", 200: "it's two"}),
        Field("wide", "enum(u16)", names={0x86DD: "ip6"}),
        Field("bits", "flags", names={1: "low", 6: "both", 0x8000: "high"}),
        Field("raw", "bytes(5)"),
        Field("name", "text(9)"),
        Field("path", "list(u16, 3)"),
        Field("marks", "list(f32, 2)"),
        Field("one", "list(i8, 1)"),
        Field("hops", "list(ipv4, 4)"),
        Field("times", "list(time, 2)"),
    ],
)
ROWS = 500
NAMES = [b"", b"a", b"\xc3\xa9t\xc3\xa9", b"tab\tnl\n\\", b"123456789", b"nul\0mid"]


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray[Any, Any]]:
    """Random values, many of them zero; addresses of both kinds."""
    random = np.random.default_rng(7)
    found: dict[str, np.ndarray[Any, Any]] = {}
    for column in SCHEMA.columns:
        width = column.size * column.count
        data = random.integers(0, 256, (ROWS, width), dtype=np.uint8)
        data[random.random(ROWS) < 0.3] = 0
        found[column.name] = data
    found["n"] = np.arange(ROWS, dtype="<u4").view(np.uint8).reshape(ROWS, 4)
    found["ts"] = random.integers(1 << 60, (1 << 60) + 10**16, ROWS).astype("<i8").view(np.uint8).reshape(ROWS, 8)
    found["version"][:, 0] = random.choice([0, 4, 6], ROWS)
    found["kind"][:, 0] = random.choice([0, 1, 7, 200], ROWS)
    found["wide"] = random.choice([0, 7, 0x86DD], ROWS).astype("<u2").view(np.uint8).reshape(ROWS, 2)
    found["hw"][:, 6:] = 0
    for i in range(ROWS):
        found["name"][i] = np.frombuffer(NAMES[i % len(NAMES)].ljust(9, b"\0"), np.uint8)
        for ip in ("addr", "loose"):  # as our readers make them: a row has one address
            if i % 3 == 0:
                found[f"{ip}6"][i] = 0
            else:
                folded = fold6(found[f"{ip}6"][i].tobytes())
                found[ip][i] = np.frombuffer(struct.pack("<I", folded), np.uint8)
    return found


def block_of(columns: dict[str, np.ndarray[Any, Any]]) -> Block:
    return Block.wrap(SCHEMA.layout, ROWS, [columns[c.name].tobytes() for c in SCHEMA.columns])


def string(value: bytes) -> bytes:
    assert len(value) < 128
    return bytes([len(value)]) + value


def address_of(columns: dict[str, np.ndarray[Any, Any]], name: str, row: int) -> bytes:
    """16 bytes."""
    v6, [v4] = columns[f"{name}6"][row].tobytes(), struct.unpack("<I", columns[name][row].tobytes())
    version = columns["version"][row, 0] if name == "addr" else 0
    if any(v6) or version == 6 or (name == "loose" and v4 == 1):
        return v6
    if v4 or version == 4:
        return ipaddress.IPv6Address(f"::ffff:{ipaddress.IPv4Address(v4)}").packed
    return bytes(16)


def in_row(columns: dict[str, np.ndarray[Any, Any]], field: Field, row: int) -> bytes:
    """The value as the server's format RowBinary has it, in the type of a new table."""
    value = columns[field.name][row].tobytes()
    if field.type.kind == "ip":
        return address_of(columns, field.name, row)
    if field.type.kind == "text":
        return string(value.rstrip(b"\0"))
    if field.type.kind == "enum":
        number = int.from_bytes(value, "little")
        return string(field.names.get(number, str(number) if number else "").encode())
    if field.type.is_list:
        size = field.type.size
        elements = [value[i : i + size] for i in range(0, len(value), size)]
        while elements and not any(elements[-1]):
            elements.pop()
        return bytes([len(elements)]) + b"".join(elements)
    return value


def check(columns: dict[str, np.ndarray[Any, Any]], column: Callable[[str], bytes], rows: list[int]) -> None:
    """``column(NAME)``: the column as RowBinary, in order of n."""
    for field in SCHEMA.fields:
        expected = b"".join(in_row(columns, field, row) for row in rows)
        assert column(field.name) == expected, field.name


def test_each_type_in_a_new_table(clickhouse: ClickHouse, columns: dict[str, np.ndarray[Any, Any]]) -> None:
    import http.client
    from urllib.parse import quote

    address = parse(f"{clickhouse.address}/default.t{uuid4().hex}")
    clickhouse.query(create_table(address, SCHEMA, OLD))
    writer = ClickHouseWriter(address, SCHEMA, ServerSettings(), size=20_000)  # several inserts
    block = block_of(columns)
    writer.write(block.slice(0, 100))
    writer.write(block.slice(100, ROWS - 100), Picks.of(ROWS - 100, range(0, ROWS - 100, 3)))
    writer.close()
    rows = [*range(100), *range(100, ROWS, 3)]
    assert writer.counts.delivered == len(rows)
    assert writer.counts.messages > 2

    def column(name: str) -> bytes:
        link = http.client.HTTPConnection("127.0.0.1", clickhouse.port)
        link.request("GET", "/?query=" + quote(f"SELECT `{name}` FROM {address.quoted} ORDER BY n FORMAT RowBinary"))
        answer = link.getresponse().read()
        link.close()
        return answer

    check(columns, column, rows)


CHDB = """
import sys
from pathlib import Path
from chdb.session import Session
folder, names = Path(sys.argv[1]), sys.argv[2].split(",")
session = Session()
session.query("CREATE DATABASE d")
session.query((folder / "create.sql").read_text())
for _ in range(2):
    session.query((folder / "insert.sql").read_text())
session.query((folder / "add.sql").read_text())
for name in names:
    (folder / name).write_bytes(session.query(f"SELECT `{name}` FROM d.t ORDER BY n", "RowBinary").bytes())
described = session.query("SELECT name, type, comment FROM system.columns WHERE table = 't'", "TSVRaw").bytes()
(folder / "described").write_bytes(described)
"""


@pytest.mark.skipif(importlib.util.find_spec("chdb") is None, reason="the package chdb is not installed")
def test_each_type_in_a_current_clickhouse(columns: dict[str, np.ndarray[Any, Any]], tmp_path: Path) -> None:
    """As chDB is one: it takes the statements and the block, and with the same token only once."""
    address, dialect = parse("clickhouse://h/d.t"), Dialect()
    statement = create_table(address, SCHEMA, dialect)
    types = dict(line.strip().replace("`", "").split(" ", 1) for line in statement.split("\n")[2:] if "`" in line[:5])
    types = {name: type.partition(" COMMENT")[0].rstrip(",") for name, type in types.items()}
    shape = shape_for(SCHEMA, ClickHouseTable(address, types, dialect, frozenset(), True))
    batch = NativeBatch(shape, ROWS)
    assert batch.add_rows(block_of(columns)) == ROWS
    (tmp_path / "rows.native").write_bytes(b"".join(batch.pieces()))
    (tmp_path / "create.sql").write_text(statement)
    words = insert(address, types).replace(
        "FORMAT Native",
        f"FROM INFILE '{tmp_path}/rows.native' SETTINGS async_insert=0, insert_deduplication_token='x' FORMAT Native",
    )
    (tmp_path / "insert.sql").write_text(words)
    (tmp_path / "add.sql").write_text(add_columns(address, [Field("more", "ip"), Field("most", "enum")], dialect))
    names = [f.name for f in SCHEMA.fields]
    subprocess.run([sys.executable, "-c", CHDB, tmp_path, ",".join(names)], check=True, timeout=120)
    check(columns, lambda name: (tmp_path / name).read_bytes(), list(range(ROWS)))
    described = (tmp_path / "described").read_text()
    assert "n\tUInt32\ta 'number' \\ of the row\n" in described
    assert "bits\tUInt16\t1 low, 6 both, 32768 high\n" in described
    assert "most\tLowCardinality(String)\t\n" in described


# field, type of an existing column, an expression that gives what `shown` says
OTHERS = [
    ("a", "Int16"),
    ("b", "UInt64"),
    ("g", "Int64"),
    ("x", "Float64"),
    ("ts", "DateTime"),
    ("ts", "DateTime('Europe/Berlin')"),
    ("v4", "FixedString(16)"),
    ("v4", "String"),
    ("addr", "String"),
    ("hw", "String"),
    ("kind", "String"),
    ("kind", "UInt8"),
    ("kind", r"Enum8('it\'s two' = -3, 'one' = 5, 'none' = 9, 'unknown' = 0)"),
    ("wide", "Nullable(Enum16('ip6' = 3000, '' = -1))"),
    ("bits", "String"),
    ("raw", "String"),
    ("name", "FixedString(9)"),
    ("b", "Nullable(UInt32)"),
    ("wide", "Nullable(String)"),
]


def shown(columns: dict[str, np.ndarray[Any, Any]], field: Field, type: str, row: int) -> str:
    """The value as hex() and toString() of the server have it."""
    value = columns[field.name][row].tobytes()
    number = int.from_bytes(value, "little", signed=field.type.base[0] == "i")
    kind = field.type.kind
    if type == "Float64":
        return str(float(np.frombuffer(value, "<f4")[0]))
    if type.startswith("DateTime"):
        return str(number // 10**9 % 2**32)
    if type == "FixedString(16)":
        return ipaddress.IPv6Address(f"::ffff:{ipaddress.IPv4Address(number)}").packed.hex().upper()
    if "Enum" in type:
        rest = "unknown" if "unknown" in type else ""
        return field.names.get(number, rest).encode().hex().upper()
    if kind in ("raw", "bytes", "text"):
        return value.hex().upper()
    if "String" not in type:
        return str(number)
    if kind == "ipv4":
        text = str(ipaddress.IPv4Address(number)) if number else ""
    elif kind == "ip":
        packed = address_of(columns, field.name, row)
        address = ipaddress.IPv6Address(packed)
        text = str(address.ipv4_mapped or address)
        if not any(packed) and columns["version"][row, 0] != 6:
            text = ""
    elif kind == "mac":
        text = ":".join(f"{byte:02x}" for byte in reversed(value[:6])) if number else ""
    elif kind == "flags":
        words = []
        for bit, name in field.names.items():
            if number & bit == bit:
                words.append(name)
                number &= ~bit
        text = "|".join(words + [hex(number)] * bool(number))
    else:
        text = field.names.get(number, str(number) if number else "")
    return text.encode().hex().upper()


def test_other_types_of_existing_tables(clickhouse: ClickHouse, columns: dict[str, np.ndarray[Any, Any]]) -> None:
    """One column after the other, and a column of the table that no field has keeps its default."""
    block = block_of(columns)
    for name, type in OTHERS:
        table = f"o{uuid4().hex}"
        made = f"n UInt32, `{name}` {type}, more UInt8 DEFAULT 7, twice MATERIALIZED n * 2"
        clickhouse.query(f"CREATE TABLE {table} ({made}) ENGINE = Memory")
        schema = SCHEMA.project(["n", name, *(["version"] if name == "addr" else [])])
        if name == "addr":
            clickhouse.query(f"DROP TABLE {table}")
            clickhouse.query(f"CREATE TABLE {table} ({made}, version UInt8) ENGINE = Memory")
        writer = ClickHouseWriter(parse(f"{clickhouse.address}/{table}"), schema, ServerSettings())
        writer.write(block)
        writer.close()
        form = (
            f"hex(`{name}`)"
            if "String" in type
            else f"hex(toString(`{name}`))"
            if "Enum" in type
            else f"toString(toUInt32(`{name}`))"
        )
        form = (
            form
            if type.startswith(("DateTime", "Enum", "Nullable(Enum")) or "String" in type
            else f"toString(`{name}`)"
        )
        got = clickhouse.rows(f"SELECT {form}, more, twice FROM {table} ORDER BY n")
        expected = [shown(columns, schema[name], type, row) for row in range(ROWS)]
        if type == "Float64":
            same = [np.float64(a) == np.float64(b) or a[-3:] == b for (a, *_), b in zip(got, expected, strict=True)]
            assert all(same), (name, type)
        else:
            assert [row[0] for row in got] == expected, (name, type)
        assert [row[1:] for row in got] == [[7, 2 * row] for row in range(ROWS)]


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        ("DateTime", [0, 0, 0, 1, (1 << 32) - 1, (1 << 32) - 1]),
        ("DateTime64(0)", [-9223372037, -1, 0, 1, 1 << 32, 1 << 33]),
    ],
)
def test_times_that_a_column_has_not(column: str, wanted: list[int]) -> None:
    """The nearest one: a DateTime is of 1970 to 2106."""
    schema = Schema("k", [Field("ts", "time")])
    table = ClickHouseTable(parse("clickhouse://h/t"), {"ts": column}, Dialect(), frozenset(), True)
    batch = NativeBatch(shape_for(schema, table), 6)
    times = [-(1 << 63), -1, 0, 10**9, (1 << 32) * 10**9, (1 << 33) * 10**9]
    batch.add_rows(Block.wrap(schema.layout, 6, [struct.pack("<6q", *times)]))
    assert list(struct.unpack("<6I" if column == "DateTime" else "<6q", batch.pieces()[-1])) == wanted


@pytest.mark.parametrize(
    ("type", "column"),
    [
        ("u32", "Int32"),
        ("u32", "UInt16"),
        ("i8", "UInt64"),
        ("f64", "Float32"),
        ("u8", "Float64"),
        ("time", "Date"),
        ("time", "UInt32"),
        ("ip", "IPv4"),
        ("ip", "UInt64"),
        ("bytes(5)", "FixedString(4)"),
        ("enum", "Enum8('none' = 0)"),
        ("enum(u32)", "Enum8('unknown' = 0)"),
        ("u8", "Enum8('unknown' = 0)"),
        ("list(u16, 3)", "Array(UInt32)"),
        ("list(u16, 3)", "UInt16"),
        ("u16", "Array(UInt16)"),
        ("text(5)", "Array(String)"),
        ("u8", "Nullable(Nothing)"),
        ("u8", ""),
    ],
)
def test_types_that_do_not_fit(type: str, column: str) -> None:
    field = Field("f", type)
    assert cast_of(field, column, Dialect()) is None
    table = ClickHouseTable(parse("clickhouse://h/t"), {"f": column}, Dialect(), frozenset(), True)
    with pytest.raises(ConfluoError, match=r"^clickhouse://h:8123/t: the types of columns do not fit: f is ") as error:
        shape_for(Schema("k", [field]), table)
    assert ("the member 'unknown'" in str(error.value)) == ("Enum" in column)


@pytest.mark.parametrize(
    ("type", "column"),
    [
        ("time", "DateTime64(9)"),
        ("time", "DateTime64(3, 'UTC')"),
        ("time", "Int64"),
        ("ip", "IPv6"),
        ("ipv4", "IPv4"),
        ("ipv4", "IPv6"),
        ("enum", "LowCardinality(String)"),
        ("text(5)", "LowCardinality(Nullable(String))"),
        ("list(time, 2)", "Array(DateTime64(9, 'UTC'))"),
    ],
)
def test_types_of_current_servers(type: str, column: str) -> None:
    assert cast_of(Field("f", type), column, Dialect()) is not None


def test_an_old_server_converts_nothing() -> None:
    assert cast_of(Field("f", "enum"), "LowCardinality(String)", OLD) is None
