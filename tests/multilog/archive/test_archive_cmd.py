"""confluo-archive: moved rows stay readable, its output is right, errors are one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from archive_lab import SECOND
from confluo_tools import multilog
from confluo_tools.multilog import lane_claim, retain
from remote_lab import env
from running import BIN, CAMPUS, DATA, ROOT, environment, lines, popen, resize, run, shell
from timed_rows import TIMED, fill


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """5,735 packets in two lanes."""
    path = tmp_path / "c.ml"
    done = shell(
        """
        confluo-capture -q -r "$1" -w "$2" --index dst_port 'tcp'
        confluo-convert -q "$2" -o stream > "$2.tcp"
        confluo-capture -r "$1" 'not tcp' -o stream > "$2.rest"
    """,
        CAMPUS,
        path,
    )
    assert done.returncode == 0, done.stderr
    log = multilog.open(path)
    with log.writer(ahead=-1), log.writer(ahead=-1) as second:
        from confluo_tools.cli import open_one

        for block in open_one(f"{path}.rest"):
            second.append(block)
    return path


DISK = "100k"  # of small_disk
ANSWERS = r"""
    confluo-query "$@" -T -e ''
    confluo-query "$@" -e 'udp or icmp' --count
    confluo-query "$@" -e tcp --agg 'count, sum(len), first(ts), last(src_port), distinct(src_ip)' --by '2s, proto'
"""


def answers(*inputs: object) -> bytes:
    done = shell(ANSWERS, *map(str, inputs))
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def test_questions_do_not_notice(log: Path, tmp_path: Path) -> None:
    before = answers(log)
    assert len(before.splitlines()) > 5740
    (planned_removals,) = [
        line.split("\t")
        for line in lines(run("confluo-archive", log, "--to", tmp_path / "a", "--dry-run"))
        if line.split("\t")[1] == "1"
    ]
    assert planned_removals[2:4] == ["0", "568"]
    assert not (tmp_path / "a").exists()
    done = run("confluo-archive", log, "--to", tmp_path / "a", "--host", "gw", "--stats", "--keep-log")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.startswith(b"confluo-archive: 5,735 rows archived in ")
    assert b"; 0B removed from logs\n" in done.stderr
    for inputs in ([log], [tmp_path / "a", log]):
        assert answers(*inputs) == before
    assert run("confluo-query", "-e", "", log, tmp_path / "a", "--count").stdout == b"5735\n"
    assert run("confluo-archive", log, "--to", tmp_path / "a", "--keep-log").returncode == 1
    done = run("confluo-archive", log, "--to", tmp_path / "a", "-v")
    assert done.stderr.decode().splitlines() == [
        f"confluo-archive: {log}: lane 0: rows 0 to 5,166 in 1 files",
        f"confluo-archive: {log}: lane 1: rows 0 to 567 in 1 files",
    ]
    assert run("confluo-query", log, "--no-archive", "--count").stdout == b"0\n"
    assert lane_claim.list_segments(str(log / "lane-000")) == []
    assert list((log / "views").rglob("*.idx")) == []
    for inputs in ([log], [tmp_path / "a"]):
        assert answers(*inputs) == before
    convert = 'confluo-convert "$@" -o stream | confluo-query - --count'
    assert shell(convert, log, tmp_path / "a").stdout == b"5735\n"
    assert run("confluo-info", "--verify", tmp_path / "a").stdout.decode() == f"{tmp_path}/a: 5,735 rows, whole\n"
    facts = json.loads(run("confluo-info", "-J", log).stdout)
    assert [(a["archive"], a["there"]) for a in facts["archives"]] == [(str(tmp_path / "a"), "yes")]
    assert [lane["removed"] for lane in facts["lanes"]] == [5167, 568]


def test_new_rows_stand_behind_old_ones(log: Path, tmp_path: Path) -> None:
    assert run("confluo-archive", log, "--to", tmp_path / "a").returncode == 0
    assert run("confluo-capture", "-q", "-r", DATA / "vlan.pcap.gz", "-w", log, "--append").returncode == 0
    both = lines(run("confluo-query", log, "-T", "--no-header", "-f", "ts"))
    assert len(both) == 5735 + 541
    assert both == sorted(both)
    plan = run("confluo-query", log, "vlan == 100", "--explain").stdout.decode()
    assert "archive  2 files opened, 2 row groups, 2 passed over" in plan
    assert "found    182 in" in plan
    plan = run("confluo-query", tmp_path / "a", "len > 100", "--explain").stdout.decode()
    assert "archive  2 files opened, 2 row groups, 0 passed over" in plan


def test_one_archive_of_several_logs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", tmp_path / f"{name}.ml").returncode == 0
        argv = ["confluo-archive", tmp_path / f"{name}.ml", "--to", tmp_path / "x", "--host", name]
        assert run(*argv).returncode == 0
    assert run("confluo-query", tmp_path / "x", "--count").stdout == b"11470\n"
    assert run("confluo-query", tmp_path / "a.ml", "--count").stdout == b"5735\n"
    assert run("confluo-query", "-e", "", tmp_path / "a.ml", tmp_path / "x", "--count").stdout == b"11470\n"
    assert run("confluo-archive", tmp_path / "a.ml", tmp_path / "b.ml", "--to", tmp_path / "y").returncode == 1


def test_logs_elsewhere_bring_their_archives(log: Path, tmp_path: Path) -> None:
    before = answers(log)
    assert run("confluo-snapshot", log, "-w", tmp_path / "cut.yaml").returncode == 0
    assert run("confluo-archive", log, "--to", tmp_path / "a").returncode == 0
    assert run("confluo-capture", "-q", "-r", DATA / "vlan.pcap.gz", "-w", log, "--append").returncode == 0
    far = env(tmp_path)
    assert run("confluo-query", f"sw1:{log}", "--count", env=far).stdout == b"6276\n"
    assert run("confluo-query", f"sw1:{log}", "--count", "--no-archive", env=far).stdout == b"541\n"
    rows = run("confluo-query", f"sw1:{log}", "vlan == 0", "-T", env=far).stdout
    assert rows == b"".join(before.splitlines(keepends=True)[: len(rows.splitlines())])
    then = run("confluo-query", "--at", tmp_path / "cut.yaml", "--agg", "count, sum(len)", "--by", "proto")
    now = run("confluo-query", log, "vlan == 0", "--agg", "count, sum(len)", "--by", "proto")
    assert (then.returncode, then.stdout) == (0, now.stdout)
    assert now.stderr == then.stderr == b""

    inner = tmp_path / "served"
    inner.mkdir()
    log.rename(inner / "c.ml")  # the archive is now outside of the served folder
    far["CONFLUO_REMOTE"] = f"confluo serve --stdio --root {inner}"
    done = run("confluo-query", f"sw1:{inner}/c.ml", "--count", env=far)
    assert (done.returncode, done.stdout) == (2, b"541\n")
    assert b"which may not be read" in done.stderr


def test_an_archive_that_is_not_needed_is_not_opened(log: Path, tmp_path: Path) -> None:
    """Queries for later times do not import pyarrow."""
    assert run("confluo-archive", log, "--to", tmp_path / "a").returncode == 0
    code = """
import sys
from confluo_tools.commands.query import main
status = main(sys.argv[1:])
sys.exit(10 * ("pyarrow" in sys.modules) + status)
"""
    for text, status in (("ts > 2100-01-01", 1), ("ts < 2100-01-01", 10)):
        done = subprocess.run(
            [sys.executable, "-c", code, log, text, "--count"],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            check=False,
        )
        assert done.returncode == status, done.stderr


def test_an_archive_that_is_lost(log: Path, tmp_path: Path) -> None:
    assert run("confluo-archive", log, "--to", tmp_path / "a").returncode == 0
    shutil.rmtree(tmp_path / "a")
    done = run("confluo-query", log, "--count")
    assert (done.returncode, done.stdout) == (2, b"0\n")
    assert done.stderr.decode() == (
        f"confluo-query: {log}: older rows were moved to {tmp_path}/a, which does not exist; "
        "use --no-archive to read without them\n"
    )
    done = run("confluo-query", log, "--count", "--no-archive")
    assert (done.returncode, done.stderr) == (1, b"")
    assert run("confluo-query", log, "ts > 2100-01-01", "--count").returncode == 1


def test_a_damaged_archive_is_found(log: Path, tmp_path: Path) -> None:
    assert run("confluo-archive", log, "--to", tmp_path / "a").returncode == 0
    first, second = sorted((tmp_path / "a").rglob("*.parquet"))
    data = bytearray(first.read_bytes())
    data[-9] ^= 1  # in the footer
    first.write_bytes(data)
    second.unlink()
    done = run("confluo-info", "--verify", tmp_path / "a")
    assert done.returncode == 2
    assert f"{first}: differs from the data written\n" in done.stdout.decode()
    assert f"{second}: is missing\n" in done.stdout.decode()
    assert b"2 files are damaged or missing" in done.stderr


def test_damage_stays_and_is_told(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (1000, 1000), (1000, 2000), (1000, 3000))
    with open(lane_claim.list_segments(str(tmp_path / "t.ml/lane-000"))[1][1], "r+b") as f:
        f.seek(9000)
        f.write(b"\xff\xff\xff")
    done = run("confluo-archive", tmp_path / "t.ml", "--to", tmp_path / "a")
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.endswith(
        "is damaged; this segment and those after it stay in the log; confluo-info --verify gives details"
    )
    assert "seg-0000000000001000.arrow: block 0: column ts" in line
    assert log.control.first(0) == 1000
    assert run("confluo-query", tmp_path / "t.ml", "seq < 1000", "--count").stdout == b"1000\n"


def test_deleting(tmp_path: Path) -> None:
    path = tmp_path / "t.ml"
    log = multilog.create(path, TIMED)
    fill(log, (100, 1000), (100, 2000), (100, 4_000_000_000))
    argv = ["confluo-archive", path, "--keep", "1h", "--delete"]
    planned_removals = lines(run(*argv, "--dry-run", "-T", "--no-header"))
    assert [line.split("\t")[1] for line in planned_removals] == ["100", "100"]
    assert log.control.first(0) == 0
    done = run(*argv, "--stats")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode().startswith(f"confluo-archive: {path}: 2 segments removed, ")
    assert run("confluo-query", path, "--count").stdout == b"100\n"
    assert run(*argv).returncode == 1
    assert run("confluo-archive", path, "--keep", "10k", "--delete").returncode == 0
    assert run("confluo-info", "--verify", path).stdout.decode() == f"{path}: 0 rows, whole\n"


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "--to is missing; --to DIR archives, --keep TIME,SIZE --delete deletes"),
        (["--keep", "1h"], "rows of logs are deleted with --keep TIME,SIZE and --delete; --to DIR archives"),
        (["--delete"], "rows of logs are deleted with --keep TIME,SIZE and --delete; --to DIR archives"),
        (["--keep", "1h", "--delete", "--to", "x"], "--delete excludes --to"),
        (["--keep", "soon", "--delete"], "'soon' is neither a time nor a size"),
        (["--older-than", "1", "--to", "x"], "'1' is not a duration"),
        (["--to", "x", "--host", ""], "--host: is not a host name"),
        (["--to", "x", "--host", "a\nb"], "is not a host name"),
        (["--to", "t.ml"], "t.ml: is a MultiLog; name another folder for the archive"),
        (["--to", "t.ml/new/a"], "t.ml/new/a: is in a MultiLog; name another folder for the archive"),
        (["--to", "a/host=gw"], "a/host=gw: is a part of an archive; name the folder above host=NAME"),
        (["--to", "host=gw/date=2026-11-20"], "is a part of an archive; name the folder above host=NAME"),
        (["--to", "s3://bucket/a/host=gw/"], "is a part of an archive; name the folder above host=NAME"),
        (["--to", "file"], "file"),
        (["nothing.ml", "--to", "x"], "nothing.ml: there is no such MultiLog"),
    ],
)
def test_what_cannot_be_asked(tmp_path: Path, argv: list[str], complaint: str) -> None:
    multilog.create(tmp_path / "t.ml", TIMED)
    (tmp_path / "file").write_bytes(b"x")
    done = run("confluo-archive", *argv, *([] if argv[:1] == ["nothing.ml"] else ["t.ml"]), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("confluo-archive: ")
    assert complaint in line
    assert not list(tmp_path.rglob(".confluo"))


def test_one_log_of_several_cannot_be_archived(tmp_path: Path) -> None:
    fill(multilog.create(tmp_path / "t.ml", TIMED), (10, 5))
    done = run("confluo-archive", "none.ml", "t.ml", "--to", "a", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == b"confluo-archive: none.ml: there is no such MultiLog\n"
    assert run("confluo-query", "a", "--count", cwd=tmp_path).stdout == b"10\n"


def test_somebody_else_is_at_it(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "t.ml", TIMED)
    fill(log, (10, 5))
    with retain.removal_lock(log):
        done = run("confluo-archive", tmp_path / "t.ml", "--keep", "1h", "--delete")
    assert done.returncode == 75
    assert b"another process is removing segments; try again later" in done.stderr


@pytest.mark.root
def test_a_full_disk_is_told_and_nothing_is_removed(log: Path, small_disk: Path) -> None:
    before = answers(log)
    done = run("confluo-archive", log, "--to", small_disk / "a")
    assert done.returncode == 2
    assert done.stderr.decode() == (
        f"confluo-archive: {small_disk}/a: the disk is full; nothing was removed from the log; "
        "make room, then run it again\n"
    )
    assert run("confluo-query", log, "--no-archive", "--count").stdout == b"5735\n"
    resize(small_disk, "10m")
    assert run("confluo-archive", log, "--to", small_disk / "a").returncode == 0
    assert answers(log) == before


def test_an_interrupted_run_leaves_nothing_half_done(tmp_path: Path) -> None:
    """SIGTERM in the middle: exit status, no temporary files; the next run continues."""
    log = multilog.create(tmp_path / "t.ml", TIMED)
    for k in range(3):
        with log.writer(ahead=-1) as writer:
            from timed_rows import block

            for j in range(18):
                writer.append(block(0, (k * 18 + j) * 60_000, 60_000, (1000 + k * 4000) * SECOND))
    process = popen(
        [BIN / "confluo-archive", log.path, "--to", tmp_path / "a", "-v"], env=environment(), stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    process.stderr.readline()
    process.terminate()
    process.communicate()
    assert process.returncode in (0, 143)
    assert os.listdir(tmp_path / "a/.confluo/tmp") == []
    assert run("confluo-query", log.path, "--count").stdout == b"3240000\n"
    run("confluo-archive", log.path, "--to", tmp_path / "a")
    assert run("confluo-query", log.path, "--count").stdout == b"3240000\n"
    assert log.version().kept == 0
