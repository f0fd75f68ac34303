"""Partitions of archives as inputs, and host and date as fields, compared with DuckDB's reading of the same folders."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import numpy as np
import pytest

import confluo_tools.api as ct
from archive_lab import HOUR, SECOND
from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.expr import compile
from confluo_tools.multilog.archive.folders import ArchiveFolder
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.archive.writer import ArchiveWriter
from confluo_tools.schema import Field, Schema
from running import lines, run

VALUES = Schema("value", [Field("ts", "time"), Field("n", "u32")])
OWN = Schema("value", [Field("ts", "time"), Field("n", "u32"), Field("host", "text(8)"), Field("date", "u16")])
ROWS = 600
HOSTS = {"alpha": 0, "b&ta ü": 1, "gamma": 2}


def values(path: Path, k: int, shuffled: bool, schema: Schema = VALUES) -> multilog.Log:
    """A log of ``ROWS`` rows of three days, in segments of both lanes."""
    log = multilog.create(path, schema, segment_blocks=1)
    ts = (np.linspace(0, 50 * HOUR, ROWS) + k).astype("<i8") * SECOND
    if shuffled:
        np.random.default_rng(k).shuffle(ts)
    for part in (slice(0, 250), slice(250, ROWS)):
        columns = [ts[part].tobytes(), (np.arange(ROWS, dtype="<u4")[part] + 1000 * k).tobytes()]
        rows = len(ts[part])
        if schema is OWN:
            columns += [b"own\0\0\0\0\0" * rows, np.full(rows, 7, "<u2").tobytes()]
        with log.writer(ahead=-1) as writer:
            writer.append(Block.wrap(schema.layout, rows, columns))
    return log


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hosts, 600 rows each, over three days."""
    folder = tmp_path_factory.mktemp("partitions")
    for host, k in HOSTS.items():
        with values(folder / f"{k}.ml", k, k == 1) as log, ArchiveWriter(log, folder / "a", host) as writer:
            for batch, record in writer.plan(None):
                writer.run(batch, record)
    return folder / "a"


def theirs(archive: Path, sql: str) -> list[tuple[object, ...]]:
    """What DuckDB finds in the parts."""
    table = f"read_parquet('{archive}/*/*/*/*.parquet', hive_partitioning=true, hive_types_autocast=false)"
    return duckdb.sql(sql.replace("TABLE", table)).fetchall()


@pytest.mark.parametrize(
    ("condition", "sql"),
    [
        ("", "true"),
        ("host == alpha", "host = 'alpha'"),
        ("host != alpha and n < 1300", "host != 'alpha' and n < 1300"),
        ("date == 1970-01-02", "date = '1970-01-02'"),
        ("date >= 1970-01-02 and host like 'b*'", "date >= '1970-01-02' and host like 'b%'"),
        ("date < 1970-01-02 or host == gamma and n > 2500", "date < '1970-01-02' or host = 'gamma' and n > 2500"),
        ("not (host == alpha or date == 1970-01-01)", "not (host = 'alpha' or date = '1970-01-01')"),
        ("host == nobody", "false"),
    ],
)
@pytest.mark.parametrize("engine", [[], ["--engine", "local:2"]])
def test_host_and_date_are_fields(archive: Path, condition: str, sql: str, engine: list[str]) -> None:
    aggregates = ["--agg", "count, sum(n), count(host == alpha) as a", "--by", "host, date"]
    done = run("confluo-query", archive, condition, *aggregates, *engine, "-T", "--no-header")
    found = sorted(tuple(line.split("\t")) for line in lines(done))
    counts = "count(*), sum(n), count(*) filter (host = 'alpha')"
    expected = theirs(archive, f"select host, date, {counts} from TABLE where {sql} group by all order by all")
    assert found == [tuple(map(str, row)) for row in expected]


def test_fields_are_there_if_a_question_names_them(archive: Path) -> None:
    plain = lines(run("confluo-query", archive, "-T", "--limit", "1"))
    assert plain[0] == "#fields\tts\tn"
    done = run("confluo-query", archive, "host == gamma", "-f", "date,n", "-T", "--no-header")
    assert sorted(tuple(line.split("\t")) for line in lines(done)) == [
        (date, str(n)) for date, n in theirs(archive, "select date, n from TABLE where host = 'gamma' order by all")
    ]
    source = ct.open(archive)
    assert [f.name for f in source.schema.fields] == ["ts", "n"]
    assert (
        source.count("host == 'alpha' and date == '1970-01-01'")
        == theirs(archive, "select count(*) from TABLE where host = 'alpha' and date = '1970-01-01'")[0][0]
    )
    statement = f"select date, host, count(*) from '{archive}' where host <> 'alpha' group by all order by all"
    done = run("confluo-sql", statement, "-T", "--no-header")
    expected = theirs(archive, "select date, host, count(*) from TABLE where host <> 'alpha' group by all order by all")
    assert [tuple(line.split("\t")) for line in lines(done)] == [tuple(map(str, row)) for row in expected]


def test_conditions_on_them_open_no_other_files(archive: Path) -> None:
    def opened(text: str) -> int:
        with ArchiveReader(str(archive), path_fields=("host", "date")) as reader:
            expr = compile(text, reader.schema)
            assert reader.count(expr) > 0
            plan = reader.explain()
            assert plan is not None
            return int(plan["archive"]["files"])

    files = [path.relative_to(archive) for path in archive.glob("host=*/date=*/hour=*/*.parquet")]
    assert opened("host == alpha") == sum(path.parts[0] == "host=alpha" for path in files)
    assert opened("date == 1970-01-03") == sum(path.parts[1] == "date=1970-01-03" for path in files)
    assert opened("date == 1970-01-03 and host != alpha") == sum(
        path.parts[1] == "date=1970-01-03" and path.parts[0] != "host=alpha" for path in files
    )


def test_partitions_are_inputs(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(*inputs: object, cwd: Path | None = None) -> int:
        done = run("confluo-query", "-e", "", *inputs, "--count", cwd=cwd)
        assert (done.returncode, done.stderr) == (0, b"")
        return int(done.stdout)

    assert count(archive / "host=alpha") == count(f"{archive}/host=alpha/") == ROWS
    every = sorted(archive.glob("host=*"))
    assert count(*every) == 3 * ROWS
    days = sorted(archive.glob("host=*/date=1970-01-02"))
    by_date = dict(theirs(archive, "select date, count(*) from TABLE group by all"))
    assert count(*days) == by_date["1970-01-02"]
    hours = sorted(archive.glob("host=alpha/date=*/hour=*"))
    assert count(*hours) == ROWS
    assert count("host=alpha", cwd=archive) == ROWS
    assert count(".", cwd=archive / "host=alpha") == ROWS
    assert count("date=1970-01-01", "date=1970-01-02", "date=1970-01-03", cwd=archive / "host=alpha") == ROWS
    # rows of the log itself, which reads its archive, come once
    log = archive.parent / "0.ml"
    assert count(log, archive / "host=alpha") == ROWS
    assert count(log, archive / "host=alpha", "--no-archive") == ROWS
    assert count(log, *sorted(archive.glob("host=*/date=1970-01-02"))) == ROWS + sum(
        count(day) for day in days if "alpha" not in str(day)
    )
    done = run("confluo-info", "--verify", archive / "host=gamma")
    assert done.stdout.decode() == f"{archive}/host=gamma: 600 rows, whole\n"


def test_fields_of_the_records_come_first(tmp_path: Path) -> None:
    with values(tmp_path / "o.ml", 0, True, OWN) as log, ArchiveWriter(log, tmp_path / "a", "alpha") as writer:
        for batch, record in writer.plan(None):
            writer.run(batch, record)
    for order in ([], ["--agg", "count", "--by", "host,date"]):
        done = run("confluo-query", tmp_path / "a", "host == own and date == 7", *order, "-T", "--no-header")
        assert all("alpha" not in line for line in lines(done))
        assert len(lines(done)) == (1 if order else ROWS)
    with ArchiveReader(str(tmp_path / "a")) as reader:  # lane by lane: rows are sorted by number
        expr = compile("", reader.schema)
        found = [b.take(p) for b, p in reader.select(expr, by_time=False) if p is not None]
    assert b"".join(bytes(b.buffer(1)) for b in found) == np.arange(ROWS, dtype="<u4").tobytes()
    assert b"".join(bytes(b.buffer(2)) for b in found) == b"own\0\0\0\0\0" * ROWS


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/x/a", ("/x/a",)),
        ("/x/a/host=b", ("/x/a", "host=b")),
        ("/x/a/host=b/date=2026-11-20/", ("/x/a", "host=b", "date=2026-11-20")),
        ("/x/a/host=b/date=2026-11-20/hour=07", ("/x/a", "host=b", "date=2026-11-20", "hour=07")),
        ("/x/a/host=b/date=yesterday", ("/x/a/host=b/date=yesterday",)),
        ("/host=b", ("/", "host=b")),
        ("s3://c/a/host=b.example/", ("s3://c/a", "host=b.example")),
        ("s3://c/host=b/date=2026-11-20", ("s3://c", "host=b", "date=2026-11-20")),
        ("s3://c/a/", ("s3://c/a/",)),
    ],
)
def test_paths_of_partitions(path: str, expected: tuple[str, ...]) -> None:
    assert ArchiveFolder.of(path) == (expected[0], expected[1:])


def test_a_relative_path_may_begin_within_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "host=b" / "date=2026-11-20").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert ArchiveFolder.of("host=b") == (".", ("host=b",))
    monkeypatch.chdir("host=b")
    assert ArchiveFolder.of("date=2026-11-20") == (os.fspath(tmp_path), ("host=b", "date=2026-11-20"))
