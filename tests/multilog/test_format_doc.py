"""docs/format.md agrees with the code and with a real log about every byte."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from confluo_tools import multilog
from confluo_tools.core.multilog.control import crc
from confluo_tools.core.multilog.seal import offsets
from log_rows import ALL_TYPES, block_of, random_columns, zones_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "format.md").read_text()
FIELD = re.compile(r"^\| (\d+) \| (\d+) \| (\w+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"^\| ([A-Z_]+) \| (\d+) \| .+ \|$", re.MULTILINE)


def tables() -> dict[str, dict[str, tuple[int, int]]]:
    """{heading: {field: (offset, size)}} of the page."""
    found = {}
    for section in re.split(r"^###? ", TEXT, flags=re.MULTILINE):
        fields = {name: (int(at), int(size)) for at, size, name, _ in FIELD.findall(section)}
        if fields:
            found[section.split("\n", 1)[0]] = fields
    return found


DOC = tables()
CONSTANT = {name: int(value) for name, value in NAMED.findall(TEXT)}


def value(data: bytes, table: str, name: str, start: int = 0) -> int | bytes:
    """A field by the page: an integer, or bytes for other sizes."""
    at, size = DOC[table][name]
    raw = data[start + at : start + at + size]
    assert len(raw) == size
    return int.from_bytes(raw, "little") if size in (4, 8) and name != "magic" else raw


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> multilog.Log:
    """Two segments: one full of two blocks, one compacted; a block of zeros for some columns."""
    log = multilog.create(tmp_path_factory.mktemp("log") / "t.ml", ALL_TYPES, segment_blocks=2, lanes=5, sync="seal")
    with log.writer() as idle, log.writer() as writer:
        for k in range(3):
            writer.append(block_of(ALL_TYPES, random_columns(ALL_TYPES, 50_000, k, zero=0.5)))
        assert (idle.number, writer.number) == (0, 1)
    return log


def test_the_page_lists_what_the_code_has() -> None:
    code = offsets()
    assert set(DOC) == {*code, "zone"}
    for table, fields in code.items():
        assert {name: at for name, (at, _) in DOC[table].items()} == fields, table


def test_fields_stand_apart_and_inside() -> None:
    ends = {
        "control page": CONSTANT["PAGE"],
        "lane line": CONSTANT["LINE_BYTES"],
        "zone": 16,
        "block head": CONSTANT["HEAD_BYTES"],
        "seal record": CONSTANT["SEAL_BYTES"],
        "head of a compressed block": CONSTANT["HEAD_BYTES"],
        "places": 32,
        "end of the places": 16,
    }
    for table, fields in DOC.items():
        at = 0
        for offset, size in fields.values():
            assert offset >= at, table
            at = offset + size
        assert at <= ends[table]


def test_the_constants_are_those_of_the_code() -> None:
    source = (ROOT / "pyx/multilog/c_layout.pxd").read_text() + (ROOT / "pyx/block/c_block.pxd").read_text()
    for name, number in CONSTANT.items():
        assert re.search(rf"^    {name} = {number}\b", source, re.MULTILINE), name
    assert len(CONSTANT) == 11


def test_a_real_control_file(log: multilog.Log) -> None:
    data = Path(log.path, "control").read_bytes()

    def page(name: str) -> int | bytes:
        return value(data, "control page", name)

    assert page("magic") == b"CFLCTRL\0"
    assert page("version") == CONSTANT["FORMAT_VERSION"]
    assert page("endian") == 0x01020304
    assert page("uuid") == log.uuid
    assert (page("block_rows"), page("segment_blocks"), page("lanes")) == (CONSTANT["BLOCK_ROWS"], 2, 5)
    assert (page("line_bytes"), page("lanes_offset")) == (CONSTANT["LINE_BYTES"], CONSTANT["PAGE"])
    assert (page("sync"), page("claimed")) == (1, 2)
    start, size = page("schema_offset"), page("schema_bytes")
    assert isinstance(start, int)
    assert isinstance(size, int)
    assert start == CONSTANT["PAGE"] + 5 * CONSTANT["LINE_BYTES"]
    assert data[start : start + size] == log.control.schema
    assert start + size == len(data)
    assert page("schema_crc") == crc(data[start:])
    assert page("crc") == crc(data[:2044])
    assert page("message_bytes") == log.control.message_bytes
    named = bytearray(data[: CONSTANT["PAGE"]])
    for at, length in DOC["control page"].values():
        named[at : at + length] = bytes(length)
    assert not any(named)  # all other bytes are zero

    def line(name: str) -> int | bytes:
        return value(data, "lane line", name, CONSTANT["PAGE"] + CONSTANT["LINE_BYTES"])

    assert (line("tail"), line("sealed"), line("first")) == (150_000, 150_000, 0)
    assert (line("epoch"), line("pid"), line("seals")) == (1, 0, 2)
    told = log.control.lane(1)
    assert (line("started"), line("boot"), line("deadline")) == (told["started"], told["boot"], told["deadline"])


def test_real_segments(log: multilog.Log) -> None:
    """Parse the files with only the rules of the page."""
    message = log.control.message_bytes
    columns = [
        np.concatenate([random_columns(ALL_TYPES, 50_000, k, zero=0.5)[i] for k in range(3)])
        for i in range(ALL_TYPES.layout.n)
    ]
    page, widths = CONSTANT["PAGE"], [c.size * c.count for c in ALL_TYPES.columns]
    for base, rows, capacity in ((0, 131_072, 65_536), (131_072, 18_928, 18_944)):
        data = Path(log.path, "lane-001", f"seg-{base:016d}.arrow").read_bytes()
        assert data[:8] == b"ARROW1\0\0"
        header = 16 + struct.unpack_from("<I", data, 12)[0]
        assert header % page == 0
        assert data[8:header] == log.control.schema
        at = header
        for number in range(-(-rows // capacity)):
            start, here = at, min(rows - number * capacity, capacity)
            head = start + message

            def field(name: str, head: int = head, data: bytes = data) -> int | bytes:
                return value(data, "block head", name, head)

            assert field("magic") == b"CFLBLCK\0"
            assert field("uuid") == log.uuid
            assert (field("base"), field("lane"), field("number")) == (base + number * capacity, 1, number)
            assert (field("capacity"), field("columns")) == (capacity, len(widths))
            used = int.from_bytes(field("used"), "little")  # type: ignore[arg-type]
            first = base + number * capacity
            own = [c[first : first + here] for c in columns]
            zones = zones_of(ALL_TYPES, own)
            at = -(-(head + CONSTANT["HEAD_BYTES"] + 16 * len(widths) - start) // 64) * 64 + start
            for i, width in enumerate(widths):
                assert data[at : at + here * width] == own[i].tobytes()
                assert not any(data[at + here * width : at + capacity * width])
                assert used >> i & 1 == any(own[i].tobytes())
                if ALL_TYPES.columns[i].code not in (9, 10):  # floats have NaN here
                    zone = head + CONSTANT["HEAD_BYTES"] + 16 * i
                    assert (
                        (1 << 64) - 1 - value(data, "zone", "not_min", zone),
                        value(data, "zone", "max", zone),
                    ) == zones[i]  # type: ignore[operator]
                size = -(-width * capacity // 64) * 64
                at += size + (64 if size % page == 0 else 0)
            at = start + -(-(at - start) // page) * page
        end, seal = at, at + CONSTANT["SEAL_GAP"]
        assert data[end:seal] == b"\xff\xff\xff\xff".ljust(CONSTANT["SEAL_GAP"], b"\0")

        def record(name: str, seal: int = seal, data: bytes = data) -> int | bytes:
            return value(data, "seal record", name, seal)

        assert record("magic") == b"CFLSEAL\0"
        assert (record("version"), record("lane"), record("uuid")) == (1, 1, log.uuid)
        assert (record("base"), record("rows")) == (base, rows)
        assert (record("blocks"), record("capacity"), record("pages")) == (-(-rows // capacity), capacity, end // page)
        assert record("crc") == crc(data[end : seal + DOC["seal record"]["crc"][0]])
        sums = seal + CONSTANT["SEAL_BYTES"]
        for k in range(end // page):
            assert struct.unpack_from("<I", data, sums + 4 * k)[0] == crc(data[k * page : (k + 1) * page])
        foot = sums + -(-end // page * 4 // 64) * 64
        assert record("pages_crc") == crc(data[sums:foot])
        assert record("footer_bytes") == len(data) - foot
        assert record("footer_crc") == crc(data[foot:])
        assert data[-6:] == b"ARROW1"
        assert struct.unpack_from("<I", data, len(data) - 10)[0] == len(data) - foot - 10


def test_the_folder_is_as_the_page_draws_it(log: multilog.Log) -> None:
    drawn = set(re.findall(r"^ +(multilog\.yaml|control|lock|seg-0{16}\.arrow)", TEXT, re.MULTILINE))
    assert drawn == {"multilog.yaml", "control", "lock", "seg-0000000000000000.arrow"}
    assert sorted(os.listdir(log.path)) == ["control", "lane-000", "lane-001", "multilog.yaml"]
    assert sorted(os.listdir(os.path.join(log.path, "lane-001"))) == [
        "lock",
        "seg-0000000000000000.arrow",
        "seg-0000000000131072.arrow",
    ]
