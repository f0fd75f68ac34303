"""A compressed log to SQL, the Python API, other programs, a live writer and other hosts."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.dataset
import pytest

import confluo_tools as ct
from confluo_tools import multilog
from confluo_tools.multilog import retain
from confluo_tools.multilog.verify import verify
from remote_lab import env, shell
from running import BIN, CAMPUS, environment, run
from timed_rows import TIMED, fill

CODECS = ("lz4", "zstd")
STATEMENTS = (
    "select src_ip, count(*) as n, sum(len) as total from 'LOG' where dst_port = 443 group by 1 order by 2 desc, 1",
    "select count(*) as n from 'LOG' where dst_port in (53, 443) or (proto = 'tcp' and ttl < 64)",
    "select * exclude (file_offset) from 'LOG' where proto = 'icmp' order by ts, ip_id limit 3",
)
QUESTIONS = (
    ("tcp", "--count"),
    ("dst_port == 443", "--agg", "count,sum(len)", "--by", "src_ip", "-o", "tsv"),
    ("arp or icmp", "-o", "ndjson"),
    ("len > 1000", "--fields", "ts,src_ip,len", "--limit", "20", "-o", "tsv"),
)


@pytest.fixture(scope="module")
def campus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The packets of our capture: plain, and compressed with each codec."""
    found = {}
    for kind in ("plain", *CODECS):
        found[kind] = str(tmp_path_factory.mktemp(kind) / "campus.ml")
        run("confluo-convert", str(CAMPUS), "-w", found[kind], check=True, env=environment(SOURCE_DATE_EPOCH="0"))
        if kind != "plain":
            run("confluo-archive", "--compress", found[kind], "--codec", kind, check=True)
            assert {part.segment.codec for part in multilog.open(found[kind]).segments()} == {kind}
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_sql(campus: dict[str, str], codec: str) -> None:
    for statement in STATEMENTS:
        plain, packed = (
            run("confluo-sql", statement.replace("LOG", campus[kind]), "-o", "ndjson", check=True).stdout
            for kind in ("plain", codec)
        )
        assert plain == packed != b""


@pytest.mark.parametrize("codec", CODECS)
def test_duckdb_on_the_files(campus: dict[str, str], codec: str) -> None:
    """Segments as Arrow files, as pyarrow gives them to DuckDB."""

    def rows(path: str) -> list[object]:
        files = sorted(map(str, Path(path).glob("lane-*/seg-*.arrow")))
        data = pa.dataset.dataset(files, format="ipc")  # noqa: F841 - DuckDB finds it by its name
        groups = "select dst_port, count(*), sum(len), min(ttl), max(ip_id) from data group by all order by all"
        return duckdb.sql(groups).fetchall()

    assert rows(campus["plain"]) == rows(campus[codec]) != []


@pytest.mark.parametrize("codec", CODECS)
def test_python_api(campus: dict[str, str], codec: str) -> None:
    plain, packed = ct.open(campus["plain"]), ct.open(campus[codec])
    for condition in ("", "tcp", "dst_port == 443 and len > 100"):
        assert packed.query(condition).to_arrow().equals(plain.query(condition).to_arrow())
        assert (
            packed.query(condition, fields=["ts", "len"])
            .to_polars()
            .equals(plain.query(condition, fields=["ts", "len"]).to_polars())
        )
        assert packed.count(condition) == plain.count(condition) > 0
    groups = [log.aggregate("count, sum(len)", by="src_ip", where="tcp").to_dicts() for log in (plain, packed)]
    assert groups[0] == groups[1] != []


@pytest.mark.parametrize("codec", CODECS)
def test_memory_is_valid_after_compression_and_retention(tmp_path: Path, codec: str) -> None:
    """Tables from before and after the compression; then the rows are removed, and nothing else holds the log."""
    path = str(tmp_path / "t.ml")
    expected = np.arange(2 * 65536 + 100, dtype="<u8")
    with multilog.create(path, TIMED, segment_blocks=1) as log:
        fill(log, (65536, 1), (65536, 2), (100, 3))
    before = ct.open(path).query().to_arrow()
    run("confluo-archive", "--compress", path, "--codec", codec, check=True)
    source = ct.open(path)
    after, batches = source.query().to_arrow(), list(source.query())
    columns = [batch["seq"] for batch in batches]
    frame = polars.DataFrame(source.query(fields="seq"))
    pinned = source.version()
    retain.remove(multilog.open(path), {0: 65536 * 2})
    del source, batches
    gc.collect()
    assert ct.open(path).count() == 100
    for table in (before, after):
        assert (table["seq"].to_numpy() == expected).all()
    assert b"".join(map(bytes, columns)) == frame["seq"].to_numpy().tobytes() == expected.tobytes()
    assert ct.open(path).count(version=pinned) == len(expected)  # the version keeps the compressed files


# Appends rows 0, 1, 2 ... one block at a time and prints each number of rows that it has appended; ends with its input.
WRITER = """
import select, sys, time
from confluo_tools import multilog
from timed_rows import SECOND, block
at = 0
with multilog.open(sys.argv[1]).writer() as writer:
    while not select.select([0], [], [], 0)[0]:
        writer.append(block(0, at, 10_000, SECOND))
        at += 10_000
        print(at, flush=True)
        time.sleep(0.005)  # so that a slow machine does not fill its disk
"""


def test_a_live_writer(tmp_path: Path) -> None:
    """Another process appends while the log is compressed twice."""
    path = str(tmp_path / "t.ml")
    multilog.create(path, TIMED, segment_blocks=1)
    paths = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, path],
        env=environment(PYTHONPATH=paths),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        at, packed = 0, 0
        for rows in (400_000, 800_000):
            while at < rows:
                at = int(writer.stdout.readline())
            run("confluo-archive", "--compress", path, check=True)
            segments = [part.segment.codec for part in multilog.open(path).segments()]
            assert segments.count("zstd") > packed  # those that were sealed in between, too
            packed = segments.count("zstd")
            assert writer.poll() is None
        rest = writer.communicate(b"\n", timeout=60)[0]
        at = int(rest.split()[-1]) if rest.split() else at
        assert writer.returncode == 0
    log = multilog.open(path)
    assert list(verify(log)) == []
    found = [np.frombuffer(block.buffer(2), "<u8") for block in log.blocks() if block.check([2])]
    assert (np.concatenate(found) == np.arange(at, dtype="<u8")).all()


@pytest.mark.parametrize("codec", CODECS)
def test_other_hosts(campus: dict[str, str], tmp_path: Path, codec: str) -> None:
    for question in QUESTIONS:
        plain = run("confluo-query", campus["plain"], *question, check=True)
        there = run("confluo-query", f"sw1:{campus[codec]}", *question, env=env(tmp_path), check=True)
        assert there.stdout == plain.stdout != b""


def test_the_python_api_on_other_hosts(campus: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFLUO_RSH", shell(tmp_path))
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    here, there = ct.open(campus["plain"]), ct.open(f"sw1:{campus['zstd']}")
    assert there.query("tcp").to_arrow().equals(here.query("tcp").to_arrow())
    both = ct.open([f"sw1:{campus['plain']}", f"sw2:{campus['lz4']}"])
    counts = {row["host"]: row["count"] for row in both.aggregate("count", by="host", where="tcp").to_dicts()}
    assert counts == dict.fromkeys(("sw1", "sw2"), here.count("tcp"))
