"""What DuckDB, pandas and Polars read of ours: readable data, texts as they were given; and amounts with units."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from running import CAMPUS, ROOT, lines, run

FIELDS = "ts,src_ip,dst_ip,proto,tcp_flags,src_port,len,eth_src"
TEXTS = [
    "plain",
    "é ü 漢 🙂",
    'a "quoted", b',
    "tab\there",
    "two\nlines",
    "back\\slash \\x41",
    "-",
    "#x",
    " blank ",
    "'",
]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("confluo-query", CAMPUS, "-f", FIELDS, "-J").stdout.splitlines()]


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readable") / "x.parquet"
    assert run("confluo-query", CAMPUS, "-f", FIELDS, "-w", path).returncode == 0
    return path


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as NDJSON has them."""
    times = [int(t.value) for t in table.column("ts")]
    out = table.drop_columns(["ts"]).to_pylist()
    return [{"ts": t, **row} for t, row in zip(times, out, strict=True)]


def nanoseconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from confluo_tools.units import time

    return [{**row, "ts": time(row["ts"])} for row in rows]


def test_parquet_is_readable(parquet: Path, rows: list[dict[str, Any]]) -> None:
    """DuckDB calculates with its times; pandas and Polars have texts; we read the same records."""
    count, span, seconds, first = duckdb.sql(
        f"select count(*), max(ts) - min(ts), count(distinct date_trunc('second', ts)), min(ts) - interval 1 hour "
        f"from '{parquet}' where src_ip like '10.%' and proto = 'tcp'"
    ).fetchall()[0]
    ours = [row for row in nanoseconds(rows) if row["src_ip"] and row["src_ip"][:3] == "10." and row["proto"] == "tcp"]
    times = [row["ts"] for row in ours]
    assert (count, seconds) == (len(ours), len({t // 10**9 for t in times}))
    assert round(span.total_seconds() * 1e6) == (max(times) - min(times)) // 1000
    assert first.hour == (min(times) // (3600 * 10**9) - 1) % 24
    frame = pandas.read_parquet(parquet)
    assert [*frame["src_ip"].fillna("")] == [row["src_ip"] or "" for row in rows]
    assert [*frame["ts"].astype("int64")] == [row["ts"] for row in nanoseconds(rows)]
    assert polars.read_parquet(parquet)["tcp_flags"].to_list() == [row["tcp_flags"] for row in rows]
    again = run("confluo-query", parquet, "-J", "-f", FIELDS)
    assert (again.returncode, again.stderr) == (0, b"")
    assert [json.loads(line) for line in again.stdout.splitlines()] == rows


@pytest.mark.parametrize("kind", ["stream", "arrow"])
def test_streams_and_arrow_files_can_be_readable(kind: str, rows: list[dict[str, Any]]) -> None:
    data = run("confluo-query", CAMPUS, "-f", FIELDS, "-o", kind, "--readable").stdout
    opened = pa.ipc.open_stream(data) if kind == "stream" else pa.ipc.open_file(data)
    assert plain(opened.read_all()) == nanoseconds(rows)
    read = polars.read_ipc_stream if kind == "stream" else polars.read_ipc
    assert read(io.BytesIO(data))["eth_src"].to_list() == [row["eth_src"] for row in rows]
    again = run("confluo-query", "-", "-J", "-f", FIELDS, stdin=data).stdout
    assert [json.loads(line) for line in again.splitlines()] == rows


def test_columns_as_they_are_stored(parquet: Path, tmp_path: Path) -> None:
    stored = tmp_path / "x.parquet"
    assert run("confluo-query", CAMPUS, "-f", FIELDS, "--stored", "-w", stored).returncode == 0
    assert "src_ip6" in polars.read_parquet_schema(stored)
    assert run("confluo-query", stored, "-J").stdout == run("confluo-query", parquet, "-J").stdout
    for words in (("-J", "--readable"), ("-T", "--stored"), ("-J", "--human")):
        done = run("confluo-query", CAMPUS, *words)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)


def test_texts_are_as_they_were_given(tmp_path: Path) -> None:
    """Escapes are for fields of the type bytes only."""
    schema = tmp_path / "note.yaml"
    schema.write_text("kind: note\nfields:\n- {name: n, type: u32}\n- {name: said, type: text(40)}\n")
    given = "".join(json.dumps({"n": n, "said": text}) + "\n" for n, text in enumerate(TEXTS)).encode()
    log = tmp_path / "notes.ml"
    assert run("confluo-convert", "-", "-i", "ndjson", "--schema", schema, "-w", log, stdin=given).returncode == 0
    for suffix in ("csv", "json", "ndjson", "parquet", "arrow"):
        more = ("--readable",) if suffix == "arrow" else ()
        assert run("confluo-query", log, *more, "-w", tmp_path / f"x.{suffix}").returncode == 0
    frames = [
        pandas.read_csv(tmp_path / "x.csv", keep_default_na=False),
        pandas.read_json(tmp_path / "x.json"),
        pandas.read_json(tmp_path / "x.ndjson", lines=True),
        pandas.read_parquet(tmp_path / "x.parquet"),
        pandas.read_feather(tmp_path / "x.arrow"),
        polars.read_csv(tmp_path / "x.csv").to_pandas(),
        polars.read_ndjson(tmp_path / "x.ndjson").to_pandas(),
    ]
    assert [[*frame["said"]] for frame in frames] == [TEXTS] * len(frames)
    for name in ("csv", "json", "parquet"):
        found = duckdb.sql(f"select said from '{tmp_path / name.replace(name, 'x.' + name)}' order by n").fetchall()
        assert [said for (said,) in found] == TEXTS
        back = run("confluo-query", tmp_path / f"x.{name}", "--schema", schema, "-J").stdout
        assert [json.loads(line)["said"] for line in back.splitlines()] == TEXTS


def test_amounts_with_units() -> None:
    words = ("--agg", "count, sum(len), rate(len), max(src_port)", "--by", "dst_port", "--top", "3", "-o", "table")
    exact, human = (lines(run("confluo-query", CAMPUS, *words, *more)) for more in ((), ("--human",)))
    assert exact[0].split() == human[0].split()
    for before, after in zip(exact[2:], human[2:], strict=True):
        port, count, size, _, largest = before.split()
        cells = after.split()
        assert (cells[0], cells[-1]) == (port, largest)
        assert int(count) < 1000 or float(cells[1]) == pytest.approx(int(count) / 1000, rel=0.006)
        number, unit = after.split("B")[0].split()[-2:]
        assert float(number) * {"k": 1e3, "M": 1e6}[unit] == pytest.approx(int(size), rel=0.006)


@pytest.mark.parametrize(
    ("words", "paragraph"),
    [
        (["-o", "arrow"], "In streams and Arrow files,"),
        (["-o", "parquet", "--stored"], "In streams and Arrow files,"),
        (["-o", "parquet"], "In Parquet,"),
        (["-o", "arrow", "--readable"], "In Parquet,"),
    ],
)
def test_the_manual_names_the_types_of_columns(words: list[str], paragraph: str) -> None:
    page = (ROOT / "man" / "man1" / "confluo-convert.1").read_text()
    named = page[page.index(f"\n{paragraph}") :].split("\n.PP\n")[0]
    data = pa.BufferReader(run("confluo-query", CAMPUS, "-f", FIELDS, *words).stdout)
    schema = pq.read_schema(data) if "parquet" in words else pa.ipc.open_file(data).schema
    types = {str(schema.field(name).type).replace(" tz=", " ") for name in ("ts", "src_ip", "eth_src")}
    assert types == set(re.findall(r"\b(?:timestamp\[[^]]*\]|uint\d+|string)", named))
