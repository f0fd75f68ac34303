"""The Python API against the commands, numpy, pyarrow, Polars, pandas and DuckDB."""

from __future__ import annotations

import ast
import copy
import gc
import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pytest

import confluo_tools as ct
from confluo_tools import console, multilog
from confluo_tools.api.answer import gathered
from confluo_tools.core.block.block import Block
from confluo_tools.multilog import retain
from confluo_tools.multilog.archive.writer import DamagedSegmentError
from log_rows import ALL_TYPES, block_of, random_columns
from remote_lab import shell
from running import BIN, CAMPUS, environment, run
from timed_rows import SECOND, TIMED, fill


@pytest.fixture(autouse=True)
def no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have run a command: its messages are no warnings."""
    monkeypatch.setattr(console.state, "argv", ())
    monkeypatch.setattr(console.state, "listener", None)


@pytest.fixture(scope="module")
def campus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The packets of our capture in a MultiLog with an index."""
    path = str(tmp_path_factory.mktemp("campus") / "campus.ml")
    run("confluo-convert", str(CAMPUS), "-w", path, check=True)
    run("confluo-index", path, "add", "dst_port", check=True)
    return path


def objects(*words: str) -> list[dict[str, Any]]:
    """What a command prints with -o ndjson."""
    return [json.loads(line) for line in run("confluo-query", *words, "-o", "ndjson", check=True).stdout.splitlines()]


def values(column: pa.ChunkedArray) -> bytes:
    """The bytes of a column of fixed width."""
    out = b""
    for chunk in column.chunks:
        flat, width = chunk, 1
        if pa.types.is_fixed_size_list(chunk.type):
            flat, width = chunk.flatten(), chunk.type.list_size
        size = flat.type.byte_width * width
        out += bytes(memoryview(flat.buffers()[1])[chunk.offset * size : (chunk.offset + len(chunk)) * size])
    return out


# --- Arrow


def test_the_names_of_the_package_are_those_of_the_api() -> None:
    from confluo_tools import api

    tree = ast.parse(Path(str(ct.__file__)).read_text())
    typed = [name.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names]
    assert list(ct.API) == api.__all__ == [name for name in typed if name in ct.API]
    assert {name for name in typed if name is not None} == set(ct.API)


@pytest.mark.parametrize("rows", [0, 1, 8191, 70_000])
def test_every_type_goes_out_as_it_is(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "all.ml"
    columns = random_columns(ALL_TYPES, rows, seed=rows)
    columns[0] = np.sort(columns[0])
    with multilog.create(path, ALL_TYPES) as log, log.writer() as writer:
        for start in range(0, rows, 65536):
            writer.append(block_of(ALL_TYPES, [c[start : start + 65536] for c in columns]))
    table = ct.open(path).query().to_arrow()
    table.validate(full=True)
    assert table.column_names == [c.name for c in ALL_TYPES.columns]
    for name, expected in zip(table.column_names, columns, strict=True):
        assert values(table[name]) == expected.tobytes(), name
    assert table.schema.field("ts").type == pa.timestamp("ns", "UTC")
    assert table.schema.field("gap").type == pa.duration("ns")
    assert table.schema.field("path").type == pa.list_(pa.field("item", pa.uint16(), nullable=False), 3)
    chosen = ct.open(path).query("a > 100", fields=["h", "marks", "a"]).to_arrow()
    keep = columns[1] > 100
    assert values(chosen["h"]) == columns[ALL_TYPES.index("h")][keep].tobytes()
    assert values(chosen["marks"]) == columns[ALL_TYPES.index("marks")][keep].tobytes()
    assert all(chunk.null_count == 0 for column in table.columns for chunk in column.chunks)


def test_readable_columns_are_what_the_command_prints(campus: str) -> None:
    table = ct.open(campus).query("tcp or arp", readable=True).to_arrow()
    table.validate(full=True)
    expected = objects(campus, "tcp or arp")
    kinds = {f.name: f.type.kind for f in ct.open(campus).schema.fields}
    assert table.column_names == list(kinds)
    for name in (n for n, kind in kinds.items() if kind in ("ip", "ipv4", "mac", "enum", "flags", "text")):
        found = table[name].to_pylist()
        # A number without a name is a number in JSON, and a text in a column of texts.
        assert found == [None if row[name] is None else str(row[name]) for row in expected], name
    assert table["len"].to_pylist() == [row["len"] for row in expected]


def test_texts_that_are_not_utf8(tmp_path: Path) -> None:
    schema = ct.Schema("names", [ct.Field("name", "text(8)"), ct.Field("n", "u32")])
    raw = [b"plain", b"", "höhe".encode(), b"a\xffb", "日本".encode()[:5], b"12345678", b"-"]
    block = Block.wrap(
        schema.layout, 7, [b"".join(r.ljust(8, b"\0") for r in raw), np.arange(7, dtype="<u4").tobytes()]
    )
    with multilog.create(tmp_path / "n.ml", schema) as log, log.writer() as writer:
        writer.append(block)
    table = ct.open(tmp_path / "n.ml").query(readable=True).to_arrow()
    assert table["name"].to_pylist() == ["plain", None, "höhe", "a\\xffb", "日\\xe6\\x9c", "12345678", "-"]


def test_nothing_is_copied(campus: str) -> None:
    """The numbers of a table are in the mapped segments themselves."""
    table = ct.open(campus).query(fields=["ts", "len"]).to_arrow()
    mapped = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if campus in line:
            start, end = (int(x, 16) for x in line.split()[0].split("-"))
            mapped.append(range(start, end))
    for column in table.columns:
        for chunk in column.chunks:
            assert any(chunk.buffers()[1].address in part for part in mapped)


def test_memory_is_valid_as_long_as_somebody_holds_it(tmp_path: Path) -> None:
    path = str(tmp_path / "t.ml")
    with multilog.create(path, TIMED, segment_blocks=1) as log:
        fill(log, (65536, 1), (65536, 2), (100, 3))
        expected = np.arange(2 * 65536 + 100, dtype="<u8").tobytes()
        source = ct.open(path)
        table, batches = source.query(by_hand := "").to_arrow(), list(source.query(by_hand))
        columns = [batch["seq"] for batch in batches]
        frame = polars.DataFrame(source.query(fields="seq"))
        pinned = source.version()
        retain.remove(log, {0: 65536 * 2})
    del source, batches, log
    gc.collect()
    assert not list(Path(path).glob("lane-000/seg-0000000000000000.arrow"))
    assert values(table["seq"]) == expected == b"".join(map(bytes, columns))
    assert frame["seq"].to_numpy().tobytes() == expected
    assert ct.open(path).count() == 100
    assert ct.open(path).count(version=pinned) == 2 * 65536 + 100


def test_arrays_are_released(campus: str) -> None:
    batch = next(iter(ct.open(campus).query(fields=["ts", "len"])))
    before = sys.getrefcount(batch._block)
    for _ in range(3):
        batch.__arrow_c_array__()  # capsules that are not taken
        taken = pa.record_batch(batch)
        part = taken.column(0)
        del taken
        assert len(part) == len(batch)
        del part
    gc.collect()
    after = sys.getrefcount(batch._block)
    assert after == before


def test_lists_are_released_with_and_without_their_parent() -> None:
    schema = ct.Schema("lists", [ct.Field("path", "list(u16, 3)")])
    block = Block.wrap(schema.layout, 2, [np.arange(6, dtype="<u2").tobytes()])
    from confluo_tools.api.arrow import ArrowForm

    batch = ct.Batch(schema, block, ArrowForm(schema, {}))
    before = sys.getrefcount(block)
    array = pa.record_batch(batch).column(0)
    items = array.flatten()
    del array
    gc.collect()
    assert items.to_pylist() == [0, 1, 2, 3, 4, 5]
    del items
    gc.collect()
    after = sys.getrefcount(block)
    assert after == before
    assert batch["path"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [row["path"] for row in batch.to_dicts()] == [[0, 1, 2], [3, 4, 5]]  # zeros at the end only are left out


def test_the_libraries_agree(campus: str) -> None:
    answer = ct.open(campus).query("tcp", fields=["ts", "len", "src_port"])
    table = answer.to_arrow()
    assert polars.DataFrame(answer).sum()["len"][0] == answer.to_polars()["len"].sum() == sum(table["len"].to_pylist())
    frame = answer.to_pandas()
    assert frame["src_port"].tolist() == table["src_port"].to_pylist()
    assert str(frame["ts"].dtype) == "datetime64[ns, UTC]"
    assert duckdb.sql("select count(*), sum(len) from answer").fetchall() == [(len(frame), int(frame["len"].sum()))]
    assert pa.table(answer) == table
    assert sum(len(batch) for batch in answer) == table.num_rows
    assert np.concatenate([np.asarray(batch["len"]) for batch in answer]).tolist() == table["len"].to_pylist()


def test_small_pieces_are_put_together() -> None:
    schema = ct.Schema("numbers", [ct.Field("n", "u32")])
    sizes = [1, 5000, 4000, 20000, 0, 3, 8191, 8192, 65536, 2]
    starts = np.cumsum([0, *sizes])
    blocks = [
        Block.wrap(schema.layout, n, [np.arange(a, a + n, dtype="<u4").tobytes()])
        for a, n in zip(starts[:-1].tolist(), sizes, strict=True)
    ]
    out = list(gathered(schema, iter(blocks)))
    assert b"".join(bytes(b.buffer(0)) for b in out) == np.arange(sum(sizes), dtype="<u4").tobytes()
    assert [b.rows for b in out] == [9001, 20000, 8194, 8192, 65536, 2]


# --- questions


def test_questions_are_those_of_the_command(campus: str) -> None:
    source = ct.open(campus)
    assert source.count("udp") == int(run("confluo-query", campus, "udp", "--count", check=True).stdout)
    rows = source.query("dst_port == 443", fields="ts,src_ip,tcp_flags", limit=20).to_dicts()
    assert rows == objects(campus, "dst_port == 443", "-f", "ts,src_ip,tcp_flags", "--limit", "20")
    found = source.aggregate("count, sum(len), p99(len)", by="src_ip/24, 1s", where="tcp", top=7).to_dicts()
    words = ("--agg", "count, sum(len), p99(len)", "--by", "src_ip/24, 1s", "--top", "7")
    assert found == objects(campus, "tcp", *words)
    assert source.query("retransmission", analyze="tcp", fields=["ts", "tcp_rto"]).to_dicts() == objects(
        campus, "--analyze", "tcp", "retransmission", "-f", "ts,tcp_rto"
    )
    assert source.query(sample="1/4", fields=["ts"]).to_dicts() == objects(campus, "--sample", "1/4", "-f", "ts")


def test_times_of_other_libraries(tmp_path: Path) -> None:
    """Each ns counts in those of pandas; numpy has whole numbers of its own; what is no time is said."""
    import pandas

    start = 1_700_000_000_123_456_000
    with ct.Writer(tmp_path / "t.ml", ct.Schema("t", [ct.Field("ts", "time")])) as writer:
        writer.append([{"ts": start + i} for i in range(10)])
    source = ct.open(tmp_path / "t.ml")
    moments: list[Any] = [pandas.Timestamp(start + 7, tz="Europe/Berlin"), np.int64(start + 7), np.uint64(start + 7)]
    for moment in moments:
        assert (source.count(since=moment), source.count(until=moment)) == (3, 7)
        assert len(source.query(since=moment).to_arrow()) == 3
    others: list[Any] = [1.5, True, np.float64(start), np.datetime64("2023-11-14"), datetime(2023, 11, 14).date()]
    for other in others:
        with pytest.raises(ct.ConfluoError, match="is not a time; give ns since 1970, a datetime or a text"):
            source.count(since=other)


def test_times(campus: str) -> None:
    source = ct.open(campus)
    times = source.query(fields=["ts"]).to_arrow()["ts"].cast(pa.int64()).to_pylist()
    middle = (min(times) + max(times)) // 2 // 1000 * 1000
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=middle // 1000)
    expected = sum(t >= middle for t in times)
    assert 0 < expected < len(times)
    text = moment.isoformat()
    assert [source.count(since=t) for t in (middle, moment, text)] == [expected] * 3
    assert source.count(until=middle) == len(times) - expected
    with pytest.raises(ct.ConfluoError, match="no time zone"):
        source.count(since=moment.replace(tzinfo=None))
    with pytest.raises(ct.ConfluoError, match="is not after"):
        source.count(since=middle, until=middle)


def test_an_answer_reads_its_version_again(tmp_path: Path) -> None:
    path = str(tmp_path / "t.ml")
    with multilog.create(path, TIMED) as log:
        fill(log, (10, 1))
        source = ct.open(path)
        answer, version = source.query(), source.version()
        fill(log, (5, 2))
        assert [answer.to_arrow().num_rows for _ in range(3)] == [10, 10, 10]
        assert source.count() == 15
        assert source.count(version=version) == source.query(version=version).to_arrow().num_rows == 10
        total = source.aggregate("max(seq)", version=version)
        assert total.to_dicts() == total.to_dicts() == [{"max_seq": 9}]
    with pytest.raises(ct.ConfluoError, match="open one MultiLog"):
        ct.open(CAMPUS).version()


def test_every_input(campus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ct.open(CAMPUS).count("tcp")
    assert ct.open(campus).count("tcp") == expected
    assert ct.open([campus, campus]).count("tcp") == 2 * expected
    assert ct.open([CAMPUS, CAMPUS]).query("tcp").to_arrow().num_rows == 2 * expected
    for name in ("c.arrows", "c.parquet", "c.csv"):
        run("confluo-query", campus, "-f", "ts,proto,len", "-w", str(tmp_path / name), check=True)
        assert ct.open(tmp_path / name).count("proto == tcp") == expected, name
    snapshot = str(tmp_path / "s.yaml")
    run("confluo-snapshot", campus, "-w", snapshot, check=True)
    assert ct.open(at=snapshot).count("tcp") == expected
    monkeypatch.setenv("CONFLUO_RSH", shell(tmp_path))
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    there = ct.open(f"sw1:{campus}")
    assert there.count("tcp") == expected
    chosen = there.query("tcp", fields=["ts", "len"]).to_arrow()
    assert chosen.equals(ct.open(campus).query("tcp", fields=["ts", "len"]).to_arrow())
    count = ct.open([f"sw1:{campus}", f"sw2:{campus}"]).aggregate("count", by="host", where="tcp").to_dicts()
    assert count == [{"host": "sw1", "count": expected}, {"host": "sw2", "count": expected}]


def test_the_first_question_uses_the_connection_of_open(
    campus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = tmp_path / "counting"
    counting.write_text(f'#!/bin/sh\necho $$ >> {tmp_path}/calls\nexec {shell(tmp_path)} "$@"\n')
    counting.chmod(0o755)
    monkeypatch.setenv("CONFLUO_RSH", str(counting))
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")

    def connections() -> list[int]:
        return [int(line) for line in (tmp_path / "calls").read_text().split()]

    for ask in (
        lambda source: source.count("tcp"),
        lambda source: source.query("tcp", fields=["ts", "len"]).to_arrow(),
        lambda source: source.aggregate("count, sum(len)", by="src_ip", where="tcp").to_arrow(),
    ):
        (tmp_path / "calls").write_text("")
        assert ask(ct.open(f"sw1:{campus}")) == ask(ct.open(campus))
        assert len(connections()) == 1
    there = ct.open(f"sw1:{campus}")
    with pytest.raises(ct.ConfluoError, match="no field 'lenn'"):
        there.count("lenn > 3")
    assert there.count("tcp") == there.count("tcp") == ct.open(campus).count("tcp")
    lost = ct.open(f"sw1:{campus}")
    os.kill(connections()[-1], signal.SIGKILL)
    assert lost.count("tcp") == there.count("tcp")


def test_parts_of_a_frame_of_pandas(tmp_path: Path) -> None:
    """Their rows keep the numbers that they had: an index without a name, which is no field."""
    import pandas

    frame = pandas.DataFrame({"n": range(10), "k": [1, 1, 1, 2, 2, 3, 3, 3, 1, 1]})
    schema = ct.Schema("n", [ct.Field("ts", "time"), ct.Field("n", "u64"), ct.Field("k", "u8")])
    with ct.Writer(tmp_path / "n.ml", schema) as writer:
        assert writer.append(frame[frame.n.isin([1, 4, 5, 9])]) == 4
        assert writer.append(frame.sort_values("k", ascending=False, kind="stable").head(2)) == 2
        assert writer.append(frame.groupby("k").sum()) == 3  # an index with a name
        with pytest.raises(ct.ConfluoError, match="the log has no field 'z'"):
            writer.append(frame[frame.n.isin([1, 4, 9])].rename_axis("z"))
    found = ct.open(tmp_path / "n.ml").query(fields="n,k").to_polars().rows()
    assert found == [(1, 1), (4, 2), (5, 3), (9, 1), (5, 3), (6, 3), (20, 1), (7, 2), (18, 3)]


def test_append_says_what_is_wrong(tmp_path: Path) -> None:
    """With data that have no rows, and with an answer that fails while it is read."""
    schema = ct.Schema("n", [ct.Field("ts", "time"), ct.Field("n", "u64")])
    with ct.Writer(tmp_path / "n.ml", schema) as writer:
        writer.append([{"n": 2**64 - 1}] * 2)
        for given in (polars.Series("n", [1]), pa.array([1]), pa.chunked_array([[1]]), pa.array([{"n": 1}, None])):
            with pytest.raises(ct.ConfluoError, match=r"append\(\): \w+ cannot be read as rows: .*; give Arrow data"):
                writer.append(given)
        with pytest.raises(ct.ConfluoError, match=r"^sum\(n\) does not fit u64; use avg\(n\)"):
            writer.append(ct.open(tmp_path / "n.ml").aggregate("sum(n) as n"))
        assert writer.rows == 2


def test_errors_go_from_process_to_process(campus: str) -> None:
    """A pool of processes hung, or broke, where the error of a worker could not be read."""
    with pytest.raises(ct.ConfluoError) as caught:
        ct.open(campus).count("dst_prt == 443")
    damaged = DamagedSegmentError(3, "is damaged", where="a.ml")
    for error in (caught.value, damaged, ct.ConfluoError("is no log", where="x", hint="give one")):
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))
            assert other.args == error.args
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(ct.ConfluoError, match="no field 'dst_prt'"):
            pool.submit(counted, campus, "dst_prt == 443").result(60)
        assert pool.submit(counted, campus, "dst_port == 443").result(60) == ct.open(campus).count("dst_port == 443")


def counted(path: str, expression: str) -> int:
    return ct.open(path).count(expression)


def test_errors_are_one_clear_line(campus: str, tmp_path: Path) -> None:
    for path, message in [
        (tmp_path / "none.ml", "No such file or directory"),
        (str(tmp_path), "is not a MultiLog"),
        ("kafka://", "kafka://"),
    ]:
        with pytest.raises(ct.ConfluoError, match=message):
            ct.open(path)
    for number in (-1, 1.5, "5"):
        with pytest.raises(ct.ConfluoError, match=f"^limit={number!r} is not a number of rows$"):
            ct.open(campus).query(limit=number)  # type: ignore[arg-type]
        with pytest.raises(ct.ConfluoError, match=f"^top={number!r} is not a number of rows$"):
            ct.open(campus).aggregate("count", top=number)  # type: ignore[arg-type]
    assert len(ct.open(campus).query(limit=np.int64(3)).to_arrow()) == 3  # type: ignore[arg-type]
    with pytest.raises(ct.ConfluoError, match="either a source or at"):
        ct.open()
    source = ct.open(campus)
    for ask in (
        lambda: source.query("dst_prt == 80"),
        lambda: source.query(fields=["lenn"]),
        lambda: source.count("len > 'x'"),
        lambda: source.aggregate("sum(dst_ip)"),
        lambda: source.aggregate("count", by="nothing"),
    ):
        with pytest.raises(ct.ConfluoError) as error:
            ask()
        assert "\n" not in str(error.value)


def test_what_breaks_while_it_is_read(campus: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.arrows"
    data = run("confluo-query", campus, "-f", "ts,len", "-o", "stream", check=True, text=False).stdout
    bad.write_bytes(data[:-8] + data)  # a second schema without an end mark
    answer = ct.open(bad).query()
    for use in (answer.to_arrow, answer.to_polars, lambda: list(answer), answer.to_dicts):
        with pytest.raises(ct.ConfluoError, match="second schema"):
            use()
    with pytest.raises(duckdb.Error, match="second schema"):
        duckdb.sql("select count(*) from answer").fetchall()
    cut = tmp_path / "cut.arrows"
    cut.write_bytes(data[:-20])
    with pytest.warns(ct.ConfluoWarning, match="ends in the middle of a message") as seen:
        ct.open(cut).count()
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ct.ConfluoWarning):
            ct.open(cut).count()


def test_what_is_not_installed(campus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ct.open(campus).query(fields=["len"], limit=1)
    for name in ("pyarrow", "polars", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    for use, name in ((answer.to_arrow, "pyarrow"), (answer.to_pandas, "pandas"), (answer.to_polars, "polars")):
        with pytest.raises(ct.ConfluoError, match=f"needs {name}; pip install {name}"):
            use()
    assert len(duckdb.sql("select len from answer").fetchall()) == 1  # needs none of them


def test_the_package_loads_nothing_before_it_is_used() -> None:
    code = "import sys, confluo_tools; print([m for m in sys.modules if m.startswith('confluo_tools.')])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment(PYTHONPATH=sys.path[0]),
    )
    assert done.stdout == "[]\n"
    assert all(getattr(ct, name) is not None for name in ct.api.__all__)
    with pytest.raises(AttributeError):
        _ = ct.nothing_of_this_name


# --- writing and following


def test_a_writer_takes_rows_of_any_library(campus: str, tmp_path: Path) -> None:
    source = ct.open(campus).query("udp", fields=["ts", "src_ip", "ip_version", "dst_port", "proto", "len"], limit=100)
    readable = ct.open(campus).query(
        "udp", fields=["ts", "src_ip", "ip_version", "dst_port", "proto", "len"], limit=100, readable=True
    )
    raw = source.to_arrow()
    path = tmp_path / "w.ml"
    gifts: list[Any] = [
        source,
        next(iter(source)),
        raw,
        readable.to_arrow(),
        readable.to_polars(),
        raw.to_batches()[0],
        duckdb.sql("from raw"),
        source.to_dicts(),
        iter(source.to_dicts()),
        readable.to_pandas(),
    ]
    with ct.Writer(path, source.schema) as writer:
        for gift in gifts:
            assert writer.append(gift) == 100, type(gift)
        assert writer.rows == 100 * len(gifts)
    with ct.Writer(path) as writer:
        assert writer.append([]) == 0
    rows = sorted(objects(str(path)), key=lambda row: row["ts"])
    expected = [row for row in source.to_dicts() for _ in gifts]
    assert rows == sorted(expected, key=lambda row: row["ts"])
    assert run("confluo-info", str(path), "--verify").returncode == 0


def test_a_writer_takes_values_of_python_and_numpy(tmp_path: Path) -> None:
    """And what `to_dicts` gave."""
    fields = [("ts", "time"), ("raw", "bytes(4)"), ("f", "f64"), ("pair", "list(f64, 2)"), ("n", "u64")]
    schema = ct.Schema("sample", [ct.Field(*field) for field in fields])
    rows: list[dict[str, Any]] = [
        {"ts": 5, "raw": b"\xff\x01A\\", "f": float("inf"), "pair": [1, float("-inf")], "n": 1 << 63},
        {
            "ts": np.int64(6),
            "raw": bytearray(b"a"),
            "f": np.float32(0.5),
            "pair": np.array([2.0, 1e300]),
            "n": np.uint8(3),
        },
        {"ts": np.datetime64(7, "ns"), "raw": "\\x00b", "f": float("nan"), "n": None},
    ]
    with ct.Writer(tmp_path / "a.ml", schema) as writer:
        assert writer.append(rows) == 3
    found = ct.open(tmp_path / "a.ml").query().to_dicts()
    times = [f"1970-01-01T00:00:00.00000000{n}Z" for n in (5, 6, 7)]
    assert [row["ts"] for row in found] == times
    assert [row["raw"] for row in found] == ["\\xff\\x01A\\x5c", "a", "\\x00b"]
    assert [row["f"] for row in found] == [float("inf"), 0.5, None]
    assert [row["pair"] for row in found] == [[1.0, float("-inf")], [2.0, 1e300], []]
    assert [row["n"] for row in found] == [1 << 63, 3, 0]
    (batch,) = ct.open(tmp_path / "a.ml").query()
    assert bytes(batch["raw"]) == b"\xff\x01A\\a\0\0\0\0b\0\0"
    with ct.Writer(tmp_path / "b.ml", schema) as writer:
        writer.append(found)
    found[2]["f"] = 0.0  # as other absent numbers
    assert ct.open(tmp_path / "b.ml").query().to_dicts() == found


def test_a_writer_refuses_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "w.ml"
    schema = ct.Schema("sample", [ct.Field("ts", "time"), ct.Field("port", "u16"), ct.Field("name", "text(4)")])
    with pytest.raises(ct.ConfluoError, match="no such MultiLog; give a schema"):
        ct.Writer(path)
    with ct.Writer(path, schema) as writer:
        for rows, message in [
            ([{"port": 1}, {"prt": 2}], "no field 'prt'"),
            ([{"port": 1}, {"port": 65536}], "row 2: '65536' is not of type u16"),
            ([{"name": "longer"}], "'longer' is too long for text"),
            (pa.table({"port": [70000]}), "port"),
            (pa.table({"prt": [1]}), "no field 'prt'"),
            ({"port": 1}, "takes several rows"),
            ([{"port": 1}] * 9000 + [{"port": 65536}], "row 9001: '65536' is not of type u16"),
            (iter([1, 2]), "row 1: int is not a dictionary"),
            ([{"name": b"abc"}], "row 1: field 'name' (text(4)) takes no bytes"),
            ([{"ts": True}], "row 1: field 'ts' (time) takes no truth value"),
            ([{"port": float("nan")}], "row 1: 'nan' is not of type u16"),
            (7, "int has no rows"),
        ]:
            with pytest.raises(ct.ConfluoError, match=re.escape(message)):
                writer.append(rows)
        assert writer.rows == 8192  # the first part of those that did not fit in the second one
        moment = datetime(2026, 11, 20, 10, tzinfo=UTC)
        assert writer.append([{"ts": moment, "port": 443}, {"ts": moment.isoformat(), "name": "ä"}]) == 2
    assert [row["ts"] for row in ct.open(path).query("ts > @1").to_dicts()] == ["2026-11-20T10:00:00.000000000Z"] * 2
    with pytest.raises(ct.ConfluoError, match="holds records of kind 'sample', not 'packet'"):
        ct.Writer(path, "packet")


def test_a_follower_gets_every_row(tmp_path: Path) -> None:
    path = tmp_path / "f.ml"
    rows = [{"ts": n * SECOND, "writer": n % 3, "seq": n} for n in range(300)]
    with ct.Writer(path, TIMED) as writer:
        writer.append(rows[:100])
        follower = ct.open(path).follow("writer != 1", fields=["seq"])

        def later() -> None:
            for start in range(100, 300, 20):
                writer.append(rows[start : start + 20])

        thread = threading.Thread(target=later)
        found: list[int] = []
        for batch in follower:
            if not found:
                thread.start()
            found += batch["seq"].tolist()
            if found[-1] >= 298:
                follower.stop()
        thread.join()
    assert found == [n for n in range(300) if n % 3 != 1]
    with pytest.raises(ct.ConfluoError, match="once"):
        list(follower)
