"""JSON arrays and compressed outputs: against json, jq, gzip and other readers."""

from __future__ import annotations

import gzip
import json
import lzma
import subprocess
from pathlib import Path

import duckdb
import polars
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools.errors import FormatError
from confluo_tools.formats.bytestream import BytesInMemory
from confluo_tools.formats.detect import detect
from confluo_tools.formats.json_array import ObjectLines
from running import CAMPUS, DATA, run

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v, max_size=6) | st.dictionaries(st.text(), v, max_size=6),
    max_leaves=20,  # with more, most of the time goes into documents that are too large to be drawn
)


class Pieces(BytesInMemory):
    """Bytes that come a few at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(b"", "x.json")
        self._parts = [data[i : i + size] for i in range(0, len(data), size)]

    def some(self) -> bytes:
        return self._parts.pop(0) if self._parts else b""


def lines_of(data: bytes, size: int) -> list[bytes]:
    stream = ObjectLines(Pieces(data, size))
    return b"".join(iter(stream.some, b"")).splitlines()


@given(
    st.lists(st.dictionaries(st.text(), VALUES, max_size=6), max_size=12),
    st.sampled_from([None, 1, "\t"]),
    st.integers(1, 40),
    st.booleans(),
)
def test_objects_of_any_layout_are_lines(
    rows: list[dict[str, object]], indent: int | str | None, size: int, ascii: bool
) -> None:
    text = json.dumps(rows, indent=indent, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    assert detect(text) == "json"
    assert [json.loads(line.decode("utf-8", "surrogatepass")) for line in lines_of(text, size)] == rows


@pytest.mark.parametrize("text", [b"[1, 2]", b'[{"a":1}, 2]', b'[{"a":1} "b"]', b'[[{"a":1}]]', b'[{"a":1}, null]'])
def test_an_array_of_other_things_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError, match="something else than objects"):
        lines_of(text, 3)


def test_an_array_that_is_cut_gives_its_objects_and_status_2() -> None:
    done = run("confluo-query", "-", "-J", stdin=b'[{"a":1},\n{"a":2},{"a"')
    assert (done.returncode, done.stdout) == (2, b'{"a":1}\n{"a":2}\n')
    assert b"ends inside of its array" in done.stderr


def test_a_document_that_others_read_and_we_read_back(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert run("confluo-query", CAMPUS, "tcp", "-w", path).returncode == 0
    expected = run("confluo-query", CAMPUS, "tcp", "-J").stdout
    assert json.loads(path.read_bytes()) == [json.loads(line) for line in expected.splitlines()]
    assert run("confluo-query", path, "-J").stdout == expected
    count = len(expected.splitlines())
    assert duckdb.sql(f"select count(*) from '{path}'").fetchall() == [(count,)]
    assert polars.read_json(path).height == count
    assert run("confluo-query", CAMPUS, "port 9999", "-o", "json").stdout == b"[]\n"


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".ndjson", ".json", ".arrows"])
def test_the_last_suffix_compresses(suffix: str, tmp_path: Path) -> None:
    plain = run("confluo-query", CAMPUS, "udp", "-f", "ts,src_ip,len", "-w", tmp_path / f"x{suffix}")
    assert plain.returncode == 0
    expected = run("confluo-query", tmp_path / f"x{suffix}", "-J").stdout
    unpack = {
        ".gz": gzip.decompress,
        ".xz": lzma.decompress,
        ".zst": zstandard.ZstdDecompressor().decompressobj().decompress,
    }
    for last, plain_of in unpack.items():
        path = tmp_path / f"x{suffix}{last}"
        assert run("confluo-query", CAMPUS, "udp", "-f", "ts,src_ip,len", "-w", path).returncode == 0
        if suffix != ".arrows":  # it has the command line in it
            assert plain_of(path.read_bytes()) == (tmp_path / f"x{suffix}").read_bytes()
        assert run("confluo-query", path, "-J").stdout == expected
    done = run("confluo-query", CAMPUS, "-o", "parquet", "-w", tmp_path / "x.parquet.gz")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


def test_pcapng_has_all_link_types(tmp_path: Path) -> None:
    ours = tmp_path / "x.pcapng"
    capture = DATA / "vlan.pcap.gz"
    assert run("confluo-query", capture, "-w", ours).returncode == 0
    assert run("confluo-query", ours, "-J", "-f", "-file_offset").stdout == (
        run("confluo-query", capture, "-J", "-f", "-file_offset").stdout
    )
    described = subprocess.run(["tcpdump", "-qnr", ours, "-tt"], capture_output=True).stdout
    with gzip.open(capture) as source:
        assert (
            described
            == subprocess.run(["tcpdump", "-qnr", "-", "-tt"], input=source.read(), capture_output=True).stdout
        )
