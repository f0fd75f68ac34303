"""Retention of archives: the oldest parts go, whole, also with kills, readers and archivers at the same time."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from archive_lab import HOUR, SECOND, run_all
from confluo_tools import multilog
from confluo_tools.expr import compile
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.archive.retention import ArchiveKeeper
from confluo_tools.multilog.archive.writer import check
from confluo_tools.multilog.open_log import open_log
from running import environment, lines, run, script
from s3_lab import S3Server
from timed_rows import TIMED, fill

HOURS = 5
ROWS = 100


def archived(folder: Path, to: str | None = None) -> tuple[multilog.Log, str]:
    """A log and its archive: 100 rows in each of five hours from 1970-01-01 01:00 on; the log has the rows, too."""
    log = multilog.create(folder / "t.ml", TIMED)
    for hour in range(1, HOURS + 1):
        fill(log, (ROWS, hour * HOUR + 60))
        run_all(log, to or folder / "a", remove=False)
    return log, to or str(folder / "a")


def hours(archive: str) -> list[int]:
    """The hours of the parts that other programs see."""
    return sorted(int(path.parent.name[5:]) for path in Path(archive).glob("host=*/*/*/*.parquet"))


def at(hour: int) -> int:
    return hour * HOUR * SECOND


def test_the_oldest_hours_go(tmp_path: Path) -> None:
    log, archive = archived(tmp_path)
    hour = at(1)
    assert ArchiveKeeper(archive, hour, now=lambda: at(3) - 1).planned_removals() == []
    gone = ArchiveKeeper(archive, hour, now=lambda: at(4)).run()  # hours 1 and 2 ended an hour ago
    assert [re.findall(r"hour=(\d\d)", part.path) for part in gone] == [["01"], ["02"]]
    assert hours(archive) == [3, 4, 5]
    sizes = [path.stat().st_size for path in sorted(Path(archive).glob("host=*/*/*/*.parquet"))]
    assert ArchiveKeeper(archive, None, sum(sizes)).run() == []
    assert len(ArchiveKeeper(archive, None, sum(sizes) - 1).run()) == 1
    assert hours(archive) == [4, 5]
    assert not (Path(archive) / "host=here/date=1970-01-01/hour=03").exists()
    assert ds.dataset(archive, partitioning="hive").count_rows() == 2 * ROWS
    assert list(check(archive)) == []
    # what was removed is not archived again, and goes from the log when that is archived
    assert run_all(log, archive, remove=False) != []  # every batch has a record
    assert hours(archive) == [4, 5]
    run_all(log, archive)
    assert hours(archive) == [4, 5]
    assert log.version().kept == 0
    fill(log, (ROWS, 9 * HOUR + 60))
    run_all(log, archive)
    assert hours(archive) == [4, 5, 9]
    told: list[str] = []
    assert open_log(log.path, warn=told.append).count(compile("", TIMED)) == 3 * ROWS
    assert told == []


def test_the_command(tmp_path: Path) -> None:
    log, archive = archived(tmp_path)
    planned = lines(run("confluo-archive", "--keep", "90d", "--dry-run", "-T", "--no-header", archive))
    assert [line.split("\t")[1].isdigit() for line in planned] == [True] * HOURS
    assert hours(archive) == [1, 2, 3, 4, 5]
    size = (Path(archive) / planned[-1].split("\t")[0]).stat().st_size
    done = run("confluo-archive", "--keep", f"{size}B", "--stats", archive)
    assert (done.returncode, done.stdout) == (0, b"")
    assert re.fullmatch(rf"confluo-archive: {archive}: 4 parts removed, .*B\n", done.stderr.decode())
    assert run("confluo-archive", "--keep", f"{size}B", archive).returncode == 1
    done = run("confluo-archive", log.path, "--to", archive, "--host", "here", "--keep", "1h")
    assert (done.returncode, done.stderr) == (0, b"")
    assert hours(archive) == []
    assert log.version().kept == 0
    done = run("confluo-archive", log.path, "--keep", "1d")
    assert done.returncode == 2
    assert b"rows of logs are deleted with --keep TIME,SIZE and --delete" in done.stderr


def test_a_partition_is_kept_by_itself(tmp_path: Path) -> None:
    _, archive = archived(tmp_path)
    copy = Path(archive) / "host=copied"  # without a record
    copy.mkdir()
    subprocess.run(["cp", "-r", Path(archive) / "host=here/date=1970-01-01", copy], check=True)
    ArchiveKeeper(str(copy), at(1), now=lambda: at(4)).run()
    assert hours(archive) == [1, 2, 3, 3, 4, 4, 5, 5]
    ArchiveKeeper(archive, at(1), now=lambda: at(6)).run()
    assert hours(archive) == [5, 5]


KEEP = """
import sys
from confluo_tools.multilog.archive.retention import ArchiveKeeper
ArchiveKeeper(sys.argv[1], 3600 * 10**9, now=lambda: 4 * 3600 * 10**9).run()
"""


@pytest.mark.parametrize("point", ["archive-marked", "archive-removed"])
@pytest.mark.parametrize("passing", [1, 2])
def test_death_at_every_step(tmp_path: Path, point: str, passing: int) -> None:
    log, archive = archived(tmp_path)
    assert script(KEEP, archive, env=environment(CONFLUO_FAULT=f"{point}:{passing}")).wait() == -signal.SIGKILL
    left = hours(archive)
    assert left[-3:] == [3, 4, 5]
    assert list(check(archive)) == []
    told: list[str] = []
    with ArchiveReader(archive, warn=told.append) as reader:
        assert reader.count(compile("", TIMED)) == ROWS * len(left)
    assert open_log(log.path, warn=told.append).count(compile("", TIMED)) == ROWS * HOURS
    assert told == []
    ArchiveKeeper(archive, at(1), now=lambda: at(4)).run()
    assert hours(archive) == [3, 4, 5]
    run_all(log, archive)
    assert hours(archive) == [3, 4, 5]


def test_readers_meanwhile(tmp_path: Path) -> None:
    """Parts that are open stay readable; what is gone before it is opened is one line each."""
    _, archive = archived(tmp_path)
    told: list[str] = []
    with ArchiveReader(archive, warn=told.append) as reader:
        rows = 0
        for i, block in enumerate(reader.blocks()):
            if i == 0:
                ArchiveKeeper(archive, at(1), now=lambda: at(4)).run()
            rows += block.rows
    assert rows == ROWS * 4  # the first was open
    assert len(told) == 1
    assert told[0].endswith(
        "-000-0000000000000100-0000000000000200.parquet: was removed meanwhile; its rows are left out"
    )


def test_another_process_has_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from confluo_tools.errors import BusyError
    from confluo_tools.multilog.archive import retention
    from confluo_tools.multilog.archive.writer import ArchiveWriter

    log, archive = archived(tmp_path)
    monkeypatch.setattr(retention, "WAIT", 0.0)
    with ArchiveWriter(log, archive, "here"), pytest.raises(BusyError, match="another process is writing rows of"):
        ArchiveKeeper(archive, at(1), now=lambda: at(4)).run()
    assert hours(archive) == [1, 2, 3, 4, 5]


def test_in_a_store(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    bucket = s3.bucket()
    log, archive = archived(tmp_path, f"s3://{bucket}/kept/")
    assert len(ArchiveKeeper(archive, at(1), now=lambda: at(4)).run()) == 2
    parts = [key for key in s3.keys(bucket) if key.endswith(".parquet")]
    assert sorted(re.findall(r"hour=(\d\d)", " ".join(parts))) == ["03", "04", "05"]
    assert list(check(archive)) == []
    run_all(log, archive)
    assert sorted(key for key in s3.keys(bucket) if key.endswith(".parquet")) == sorted(parts)
    with ArchiveReader(archive) as reader:
        assert reader.count(compile("", TIMED)) == 3 * ROWS
