"""docs/format-views.md agrees with the code and with real view files about every byte."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import numpy as np

import index_lab as lab
from confluo_tools.core.multilog.control import crc
from confluo_tools.core.multilog.view_file import offsets
from confluo_tools.core.query.rollup_codec import load
from confluo_tools.multilog import views

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "format-views.md").read_text()
FIELD = re.compile(r"^\| (\d+) \| (\d+) \| (\w+) \| .+ \|$", re.MULTILINE)
DOC = {
    section.split("\n", 1)[0]: {name: (int(at), int(size)) for at, size, name in FIELD.findall(section)}
    for section in re.split(r"^###? ", TEXT, flags=re.MULTILINE)
    if FIELD.search(section)
}


def number(data: bytes, table: str, name: str, start: int = 0) -> int:
    at, size = DOC[table][name]
    return int.from_bytes(data[start + at : start + at + size], "little")


def chunks(data: bytes, digest: bytes, uuid: bytes, lane: int = 0) -> list[tuple[int, bytes]]:
    """(rows, chunk) of each block, by the page; verifies every checksum."""
    head = "view file"
    assert data[:8] == b"CFLVIEW\0"
    assert (number(data, head, "version"), number(data, head, "endian")) == (1, 0x01020304)
    assert (data[16:32], data[48:80]) == (uuid, digest)
    assert [number(data, head, n) for n in ("base", "lane", "blocks")] == [0, lane, 2]
    assert number(data, head, "crc") == crc(data[:80])
    table, out, end = DOC[head]["table"][0], [], 4096
    for k in range(number(data, head, "published")):
        entry = table + 32 * k
        at, size, rows, summed = (number(data, "view entry", n, entry) for n in ("offset", "bytes", "rows", "crc"))
        chunk = data[at : at + size]
        extra = b"".join(v.to_bytes(n, "little") for v, n in ((at, 8), (rows, 4), (size, 4), (k * 65536, 8)))
        assert (at % 64, summed) == (0, crc(chunk) ^ crc(extra))
        assert (at >= end, data[entry + 20 : entry + 32]) == (True, bytes(12))
        end = at + size
        out.append((rows, chunk))
    assert end == len(data)
    return out


def digest(*texts: str) -> bytes:
    return sha256("\0".join(("2", *texts)).encode()).digest()


def test_the_page_lists_what_the_code_has():
    code = offsets()
    assert set(DOC) == set(code)
    for table, fields in code.items():
        assert {name: at for name, (at, _) in DOC[table].items()} == fields, table


def test_a_reader_of_filters_written_from_the_page(tmp_path):
    log, lanes = lab.make(tmp_path / "f.ml", (100_000,))
    port, length = lanes[0]["port"], lanes[0]["len"]
    for name, text, want in [("few", "port == 53", port == 53), ("half", "len == 64", length == 64)]:
        view = views.build(log, views.add_filter(log, name, text))
        found = chunks(Path(view.file(log.segments()[0])).read_bytes(), digest("filter", text), log.uuid)
        assert [rows for rows, _ in found] == [65536, 34464]
        rows = []
        for k, (n, chunk) in enumerate(found):
            kind, count = number(chunk, "filter chunk", "kind"), number(chunk, "filter chunk", "n")
            assert kind == (count * 2 > -(-n // 64) * 8)
            body = np.frombuffer(chunk[8:], "u1" if kind else "u2")
            bits = np.flatnonzero(np.unpackbits(body, bitorder="little")) if kind else body
            assert len(bits) == count
            rows += (bits.astype(int) + k * 65536).tolist()
        assert rows == np.flatnonzero(want).tolist()


def test_a_reader_of_aggregates_written_from_the_page(tmp_path):
    log, lanes = lab.make(tmp_path / "f.ml", (100_000,))
    views.add_filter(log, "few", "port == 53")
    view = views.build(log, views.add_aggregate(log, "sums", "count", filter="few", where="len > 99", by="kind"))
    layout = log.schema.layout
    columns = repr([layout.describe(i) for i in range(layout.n)])
    name = digest("aggregate", "2", "count", "port == 53", "len > 99", "kind", "1000000", columns)
    found = chunks(Path(view.file(log.segments()[0])).read_bytes(), name, log.uuid)
    total = 0
    for _, chunk in found:
        state = view.state()
        load(state, chunk)
        total += state.rows
    assert total == int(((lanes[0]["port"] == 53) & (lanes[0]["len"] > 99)).sum())
    about = Path(view.path, "aggregate.yaml").read_text().splitlines()
    assert about[1:] == [
        "kind: aggregate",
        "name: sums",
        'agg: "count"',
        "filter: few",
        'where: "len > 99"',
        'by: "kind"',
        "bucket: 1000000",
        f"log: {log.uuid.hex()}",
    ]
