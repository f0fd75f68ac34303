"""docs/format-index.md agrees with the code and with a real posting file about every byte."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import index_lab as lab
from confluo_tools.core.multilog.control import crc
from confluo_tools.core.multilog.postings import offsets
from confluo_tools.multilog import views

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "format-index.md").read_text()
FIELD = re.compile(r"^\| (\d+) \| (\d+) \| (\w+) \| .+ \|$", re.MULTILINE)
DOC = {
    section.split("\n", 1)[0]: {name: (int(at), int(size)) for at, size, name in FIELD.findall(section)}
    for section in re.split(r"^###? ", TEXT, flags=re.MULTILINE)
    if FIELD.search(section)
}


def number(data: bytes, table: str, name: str, start: int = 0) -> int:
    at, size = DOC[table][name]
    return int.from_bytes(data[start + at : start + at + size], "little")


def test_the_page_lists_what_the_code_has():
    code = offsets()
    assert set(DOC) == set(code)
    for table, fields in code.items():
        assert {name: at for name, (at, _) in DOC[table].items()} == fields, table


def test_a_reader_written_from_the_page(tmp_path):
    log, lanes = lab.make(tmp_path / "f.ml", (100_000,))
    view = views.build(log, views.add_index(log, "temp", 7))
    part = log.segments()[0]
    data = Path(view.file(part)).read_bytes()
    head = "index file"
    assert data[:8] == b"CFLINDX\0"
    assert (number(data, head, "version"), number(data, head, "endian")) == (1, 0x01020304)
    assert data[16:32] == log.uuid
    assert [number(data, head, n) for n in ("base", "bucket", "lane", "blocks", "code", "size")] == [0, 7, 0, 2, 7, 4]
    assert data[64:128] == b"temp".ljust(64, b"\0")
    assert number(data, head, "crc") == crc(data[:128])
    assert number(data, head, "published") == 2
    table = DOC[head]["table"][0]
    assert number(data, "index entry", "offset", table) == 4096
    values = lanes[0]["temp"].astype(int)
    for k in range(2):
        entry = table + 16 * k
        at = number(data, "index entry", "offset", entry)
        chunk = data[at : at + number(data, "index entry", "bytes", entry)]
        block = values[k * 65536 : (k + 1) * 65536]
        assert at % 64 == 0
        assert chunk[:8] == b"CFLPOST\0"
        rows, keys, key_bytes, size, first, last, base = (
            number(chunk, "index chunk", n) for n in ("rows", "keys", "key_bytes", "bytes", "first", "last", "base")
        )
        assert (rows, size, base) == (len(block), len(chunk), k * 65536)
        assert number(data, "index entry", "rows", entry) == rows
        starts_at = -(-keys * key_bytes // 8) * 8
        rows_at = starts_at + -(-keys * 2 // 8) * 8
        checked = rows_at + rows * 2
        sums = -(-(-(-checked // 1024) * 4) // 64) * 64
        assert number(chunk, "index chunk", "crc") == crc(chunk[:60]) ^ crc(chunk[64 : 64 + sums])
        body = chunk[64 + sums : 64 + sums + checked]
        for g in range(-(-checked // 1024)):
            assert int.from_bytes(chunk[64 + 4 * g : 68 + 4 * g], "little") == crc(body[g * 1024 : (g + 1) * 1024])
        key = np.frombuffer(body[: keys * key_bytes], f"u{key_bytes}").astype(object) + first - 2**63
        start = np.frombuffer(body[starts_at : starts_at + keys * 2], "u2").astype(int)
        row = np.frombuffer(body[rows_at:], "u2")
        assert key[-1] + 2**63 == last
        assert sorted(set((block // 7).tolist())) == key.tolist()
        for i, value in enumerate(key):
            stop = start[i + 1] if i + 1 < keys else rows
            assert row[start[i] : stop].tolist() == np.flatnonzero(block // 7 == value).tolist()


def test_a_reader_of_lists_written_from_the_page(tmp_path):
    log, lanes = lab.make(tmp_path / "f.ml", (100_000,))
    view = views.build(log, views.add_index(log, "path"))
    data = Path(view.file(log.segments()[0])).read_bytes()
    assert [number(data, "index file", n) for n in ("version", "code", "size")] == [1, 2 + 256, 2]
    at = number(data, "index entry", "offset", DOC["index file"]["table"][0])
    chunk = data[at:]
    rows, keys, key_bytes, first, posts = (
        number(chunk, "index chunk", n) for n in ("rows", "keys", "key_bytes", "first", "posts")
    )
    assert rows == 65536
    starts_at = -(-keys * key_bytes // 8) * 8
    rows_at = starts_at + -(-keys * 4 // 8) * 8
    sums = -(-(-(-(rows_at + posts * 2) // 1024) * 4) // 64) * 64
    body = chunk[64 + sums :]
    key = np.frombuffer(body[: keys * key_bytes], f"u{key_bytes}").astype(int) + first
    start = np.frombuffer(body[starts_at : starts_at + keys * 4], "u4").tolist()
    row = np.frombuffer(body[rows_at : rows_at + posts * 2], "u2")
    block = lanes[0]["path"][:65536]
    assert key.tolist() == [v for v in np.unique(block).tolist() if v]
    for i, value in enumerate(key.tolist()):
        stop = start[i + 1] if i + 1 < keys else posts
        assert row[start[i] : stop].tolist() == np.flatnonzero((block == value).any(axis=1)).tolist()
