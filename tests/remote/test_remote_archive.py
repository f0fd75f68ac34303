"""confluo-archive on logs of other hosts: the same archive as there, refusals, and either side killed at any step."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from archive_lab import make, plain, rows_of, run_all
from confluo_tools import multilog
from confluo_tools.commands import archive as command
from confluo_tools.errors import ConfluoError
from confluo_tools.expr import compile
from confluo_tools.inputs import logs as inputs
from confluo_tools.inputs.open import open_records
from confluo_tools.multilog.add_columns import add_columns
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.reader import LogReader
from confluo_tools.remote import frame_codec
from confluo_tools.remote.address import Address
from confluo_tools.remote.archive_client import RemoteSegments
from confluo_tools.remote.connect import RemoteShell
from confluo_tools.schema import Field
from log_rows import ALL_TYPES
from remote_lab import env, tool
from running import BIN, popen, run

ROWS = 11_000
FIELDS = ",".join(field.name for field in ALL_TYPES.fields)
ALL = [(lane, n) for lane in (0, 1) for n in range(ROWS // 2)]


def archive(folder: Path, *words: Any, status: int = 0, **more: str) -> str:
    done = run("confluo-archive", *words, env={**env(folder), **more})
    assert done.returncode == status, done.stderr.decode()
    return str(done.stderr.decode())


def together(folder: Path, *names: Any, question: tuple[str, ...] = ("-f", FIELDS, "-T")) -> bytes:
    """The answer of logs of other hosts and archives of this one, read as one input."""
    done = run("confluo-query", "-e", "", *names, *question, env=env(folder))
    assert (done.returncode, done.stderr) == (0, b"")
    return bytes(done.stdout)


def parts(folder: Path) -> list[str]:
    """The parts below the folder of a host."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet"))


def test_the_archive_is_that_of_the_host_itself(tmp_path: Path) -> None:
    """Two hosts and a log of this one in one archive; the logs are empty afterwards."""
    for n in range(3):
        make(tmp_path / f"{n}.ml")
    shutil.copytree(tmp_path / "1.ml", tmp_path / "there.ml", symlinks=True)
    expected = rows_of(LogReader(str(tmp_path / "1.ml")))
    run_all(multilog.open(tmp_path / "there.ml"), tmp_path / "there")
    names = [f"sw1:{tmp_path}/1.ml", f"sw2:{tmp_path}/2.ml", str(tmp_path / "0.ml")]
    (tmp_path / "tmp").mkdir()
    said = archive(tmp_path, *names, "--to", tmp_path / "archive", "--stats", TMPDIR=f"{tmp_path}/tmp")
    assert "33,000 rows archived" in said
    hosts = sorted(p.name for p in (tmp_path / "archive").glob("host=*"))
    assert hosts == sorted(["host=sw1", "host=sw2", f"host={os.uname().nodename}"])
    assert parts(tmp_path / "archive/host=sw1") == parts(tmp_path / "there/host=here")
    assert rows_of(ArchiveReader(str(tmp_path / "there"))) == expected
    assert rows_of(ArchiveReader(str(tmp_path / "archive/host=sw1"))) == expected
    for n in range(3):
        assert multilog.open(tmp_path / f"{n}.ml").version().kept == 0
    assert archive(tmp_path, *names, "--to", tmp_path / "archive", status=1) == ""
    assert os.listdir(tmp_path / "tmp") == []


def test_options_hold_for_other_hosts(tmp_path: Path) -> None:
    log = make(tmp_path / "t.ml")
    name, to = f"sw1:{log.path}", tmp_path / "archive"
    done = run("confluo-archive", name, "--to", to, "--dry-run", env=env(tmp_path))
    here = run("confluo-archive", log.path, "--to", to, "--dry-run", env=env(tmp_path))
    assert done.stdout.decode().replace(name, log.path) == here.stdout.decode()
    assert not to.exists()
    archive(tmp_path, name, "--to", to, "--keep-log", "--host", "gw1")
    assert log.version().kept == ROWS
    assert plain(to / "host=gw1") == ALL
    archive(tmp_path, name, "--to", to, "--keep-log", status=1)
    archive(tmp_path, name, "--to", to)  # removes what is archived
    assert log.version().kept == 0
    assert plain(to) == ALL
    assert not (Path(log.path) / "archives").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--keep", "1h", "--delete"], "logs of other hosts are only archived; add --to, or run it on that host"),
        (["--compact"], "logs of other hosts are only archived; add --to, or run it on that host"),
        (["--to", "sw2:/x"], "sw2:/x: an archive is a folder of this host, or a URL"),
    ],
)
def test_what_other_hosts_do_not_do(tmp_path: Path, words: list[str], what: str) -> None:
    assert what in archive(tmp_path, "sw1:/none.ml", *words, status=2)


def test_a_read_only_server_keeps_its_rows(tmp_path: Path) -> None:
    """Refused before anything is written; and the frame itself is refused, too."""
    log = make(tmp_path / "t.ml")
    name, to = f"sw1:{log.path}", tmp_path / "archive"
    serve = {"CONFLUO_REMOTE": "confluo serve --stdio --read-only"}
    said = archive(tmp_path, name, "--to", to, status=2, **serve)
    what = "nothing can be removed; you may only read it; --keep-log archives without removing"
    assert said == f"confluo-archive: {name}: {what}\n"
    assert not to.exists()
    archive(tmp_path, name, "--to", to, "--keep-log", **serve)
    assert plain(to) == ALL
    shell = tool(tmp_path)
    shell = shell._replace(command=f"{shell.command} --read-only")
    with (
        RemoteSegments(Address("sw1", log.path, "sw1"), shell, lock=False, change=False) as source,
        pytest.raises(ConfluoError) as e,
    ):
        source.remove(0, 2750, "", 0, 0)
    assert str(e.value) == f"sw1:{log.path}: is served read-only, so its rows cannot be removed"
    assert log.version().kept == ROWS


def test_only_whole_segments_of_this_log_are_removed(tmp_path: Path) -> None:
    log = make(tmp_path / "t.ml")
    with RemoteSegments(Address("sw1", log.path, "sw1"), tool(tmp_path), lock=True, change=True) as source:
        ends = [one.end for one in source.lane(0)]
        with pytest.raises(ConfluoError, match="is not the end of a sealed segment; nothing was removed"):
            source.remove(0, ends[0] + 1, "", 0, 0)
        source.remove(0, ends[0], "", 0, 0)
        source.remove(0, ends[0], "", 0, 0)  # a second time: nothing to do
        assert log.version().kept == ROWS - ends[0]
        shutil.rmtree(log.path)
        make(tmp_path / "t.ml")
        with pytest.raises(ConfluoError, match="another log has taken the name"):
            source.remove(0, ends[1], "", 0, 0)


def test_one_process_archives_a_log(tmp_path: Path) -> None:
    log = make(tmp_path / "t.ml")
    fd = os.open(log.path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    said = archive(tmp_path, f"sw1:{log.path}", "--to", tmp_path / "archive", status=75)
    os.close(fd)
    assert "another process is archiving it; try again later" in said
    assert not (tmp_path / "archive").exists()


def test_hosts_that_fail_do_not_stop_the_others(tmp_path: Path) -> None:
    log = make(tmp_path / "t.ml")
    names = [f"down1:{tmp_path}/x.ml", f"sw1:{tmp_path}/none.ml", f"sw2:{log.path}"]
    said = archive(tmp_path, *names, "--to", tmp_path / "archive", status=2)
    assert said.splitlines() == [
        f"confluo-archive: {names[0]}: cannot be reached: ssh: connect to host down1 port 22: No route to host",
        f"confluo-archive: {names[1]}: there is no such MultiLog",
    ]
    assert plain(tmp_path / "archive") == ALL


META, DATA, END, ERROR = frame_codec.META, frame_codec.DATA, frame_codec.END, frame_codec.ERROR
LISTED = {"uuid": "0" * 32, "size": 0, "writable": True, "lanes": 1}


def data(at: int, body: bytes) -> bytes:
    return frame_codec.head(DATA, 8 + len(body)) + at.to_bytes(8, "little") + body


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        (data(1 << 60, b"x"), "bytes beyond the end of a file"),
        (data((1 << 64) - 1, b"x"), "bytes beyond the end of a file"),
        (frame_codec.head(DATA, 3) + b"abc", "bytes beyond the end of a file"),
        (frame_codec.frame(END, LISTED), "its control page has 0 bytes of 4096"),
        (data(0, b"x" * 9000) + frame_codec.frame(END, LISTED | {"size": 9000}), "it has no control page"),
        (frame_codec.frame(END, LISTED | {"size": -1}), "invalid 'size' in message"),
        (frame_codec.frame(END, LISTED | {"size": 1 << 40}), "invalid 'size' in message"),
        (frame_codec.frame(END, LISTED | {"lanes": 1 << 40}), "invalid 'lanes' in message"),
        (frame_codec.frame(END, {"size": 0}), "message without 'lanes'"),
        (frame_codec.frame(META, {"segments": [[0, 0, 5, None, 0, 7]]}), "invalid 'segments' in message"),
        (frame_codec.frame(META, {"segments": [[7, 0, 5, None, 0]]}), "invalid 'segments' in message"),
        (frame_codec.frame(META, {"segments": [[0, 5, 5, None, 0]]}), "invalid 'segments' in message"),
        (frame_codec.frame(META, {"segments": [[0, 0, 5, "x", 0]]}), "invalid 'segments' in message"),
        (frame_codec.frame(META, {"segments": 7}), "invalid 'segments' in message"),
        (frame_codec.head(frame_codec.PARTIAL, 2) + b"{}", "a frame 'partial' out of turn"),
        (frame_codec.frame(ERROR, {"what": "no\x1b[31m"}), "no"),
        (b"", "the connection was lost"),
    ],
)
def test_a_server_that_lies(tmp_path: Path, frames: bytes, what: str) -> None:
    """One line that names the host; nothing is written."""
    if frames.startswith(frame_codec.head(META, 0)[4:], 4):
        frames += frame_codec.frame(END, LISTED)
    (tmp_path / "said").write_bytes(frame_codec.hello() + frames)
    (tmp_path / "says").write_text(f"#!/bin/sh\ncat {tmp_path}/said\nexec >&-\ncat >/dev/null\n")
    (tmp_path / "says").chmod(0o755)
    with pytest.raises(ConfluoError) as e:
        RemoteSegments(Address("h", "/a.ml", "h"), RemoteShell(str(tmp_path / "says"), "x"), lock=True, change=True)
    assert what in str(e.value)
    assert e.value.where.split(":")[0] == "h"


# -- killed at every step --------------------------------------------------------------------------------------------

CLIENT = ("fetched", "read", "written", "verified", "recorded", "placed", "committed", "removed")
SERVER = ("archive-sent", "archive-removal", "retain-first", "retain-flushed", "retain-unlinked")


def kept(log: Path) -> set[tuple[int, int]]:
    """(lane, row number) of the rows of a log."""
    opened = multilog.open(log)
    version = opened.version()
    assert not opened.damage
    return {(lane, n) for lane, end in enumerate(version.tails) for n in range(opened.first(lane), end)}


@pytest.mark.parametrize("passing", [1, 2])
@pytest.mark.parametrize("point", CLIENT)
def test_the_archiver_is_killed(tmp_path: Path, point: str, passing: int) -> None:
    log = make(tmp_path / "t.ml")
    expected = rows_of(LogReader(log.path))
    to, name = tmp_path / "archive", f"sw1:{log.path}"
    whole = together(tmp_path, name)
    killed = -signal.SIGKILL
    archive(tmp_path, name, "--to", to, status=killed, CONFLUO_FAULT=f"archive-{point}:{passing}", TMPDIR=str(tmp_path))
    there = plain(to)
    assert len(set(there)) == len(there)
    if any(to.rglob("*.parquet")):
        assert together(tmp_path, name, to) == whole
    if point not in ("recorded", "placed"):  # parts of a recorded batch may still wait for their place
        assert kept(Path(log.path)) | set(there) == set(ALL)
    archive(tmp_path, name, "--to", to, status=1 if (point, passing) == ("removed", 2) else 0)
    assert plain(to) == ALL
    assert kept(Path(log.path)) == set()
    assert rows_of(ArchiveReader(str(to))) == expected
    assert os.listdir(to / ".confluo/tmp") == []
    assert together(tmp_path, name, to) == whole


@pytest.mark.parametrize("passing", [1, 2, 4])
@pytest.mark.parametrize("point", SERVER)
def test_the_server_is_killed(tmp_path: Path, point: str, passing: int) -> None:
    """The same run goes on with another server; a file says which server dies."""
    if passing == 4 and point not in ("archive-sent", "retain-unlinked"):
        pytest.skip("it is not passed so often")
    log = make(tmp_path / "t.ml")
    expected = rows_of(LogReader(log.path))
    to, name = tmp_path / "archive", f"sw1:{log.path}"
    (tmp_path / "dies").write_text(f"{point}:{passing}")
    mortal = tmp_path / "mortal"
    mortal.write_text(
        f"#!/bin/sh\nshift\nif [ -e {tmp_path}/dies ]; then\n"
        f'export CONFLUO_FAULT=$(cat {tmp_path}/dies); rm {tmp_path}/dies; fi\nexec "$@"\n'
    )
    mortal.chmod(0o755)
    said = archive(tmp_path, name, "--to", to, CONFLUO_RSH=str(mortal))
    assert not (tmp_path / "dies").exists()
    assert said == "confluo-archive: sw1: the connection was lost; it is tried again\n"
    assert plain(to) == ALL
    assert kept(Path(log.path)) == set()
    assert rows_of(ArchiveReader(str(to))) == expected
    assert list(Path(log.path).rglob("seg-*")) == []


def test_a_host_that_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It is lost in the middle; the other log is archived; one line names the host, and the status is 2."""
    logs = [make(tmp_path / f"{n}.ml") for n in range(2)]
    gone = tmp_path / "gone"
    gone.write_text(
        f'#!/bin/sh\nhost=$1\nshift\n[ $host = sw2 ] && exec "$@"\n'
        f"[ -e {tmp_path}/left ] && {{ echo 'No route to host' >&2; exit 255; }}\n"
        f'touch {tmp_path}/left\nexport CONFLUO_FAULT=archive-sent:2\nexec "$@"\n'
    )
    gone.chmod(0o755)
    for key, value in {**env(tmp_path), "CONFLUO_RSH": str(gone)}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(command, "PAUSES", (0.01, 0.02))
    names = [f"sw1:{logs[0].path}", f"sw2:{logs[1].path}"]
    status = command.main([*names, "--to", str(tmp_path / "archive")])
    assert status == 2
    assert capsys.readouterr().err.splitlines() == [
        "confluo-archive: sw1: the connection was lost; it is tried again",
        f"confluo-archive: {names[0]}: cannot be reached: No route to host",
    ]
    assert logs[0].version().kept == ROWS
    assert plain(tmp_path / "archive") == ALL


def test_a_log_elsewhere_and_its_archive_are_one_input(tmp_path: Path) -> None:
    """Rows move while questions come: each question has each row once, in every way to ask."""
    log = make(tmp_path / "t.ml")
    to, name = tmp_path / "archive", f"sw1:{log.path}"
    questions = [
        ("--count",),
        ("--agg", "count, sum(a), first(b), last(b)", "--by", "kind", "-T"),
        ("-f", "ts,a", "-c", "1000", "-T"),
    ]
    truth = {question: together(tmp_path, name, question=question) for question in questions}
    archive(tmp_path, name, "--to", to, status=-signal.SIGKILL, CONFLUO_FAULT="archive-removed:1")
    words = [BIN / "confluo-archive", name, "--to", to]
    asked = 0
    with popen(words, env=env(tmp_path)) as archiver:
        while archiver.poll() is None or asked < 2:
            for names in ((name, to), (to, name)):
                for question in questions:
                    assert together(tmp_path, *names, question=question) == truth[question]
            asked += 1
    assert archiver.returncode == 0
    assert kept(Path(log.path)) == set()


def test_rows_that_move_between_two_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that lacks a field of another one is queried again; meanwhile the rest of it is archived."""
    logs = [make(tmp_path / f"{n}.ml") for n in range(2)]
    with LogReader(logs[0].path) as whole:
        some = whole.count(compile("a < 3", whole.schema))
    assert 0 < some < ROWS
    add_columns(logs[1].path, [Field("later", "u32")])
    to, names = tmp_path / "archive", [f"sw{n}:{log.path}" for n, log in enumerate(logs)]
    for name in names:
        archive(tmp_path, name, "--to", to, status=-signal.SIGKILL, CONFLUO_FAULT="archive-removed:1")
    assert 0 < len(kept(Path(logs[0].path))) < ROWS
    for variable, value in env(tmp_path).items():
        monkeypatch.setenv(variable, value)
    ask = inputs._ask

    def late(elsewhere: Any, request: Any, host: bool, schema: Any = None) -> Any:
        if schema is not None:
            assert [place.host for place in elsewhere] == ["sw0"]
            archive(tmp_path, names[0], "--to", to)
        return ask(elsewhere, request, host, schema)

    with open_records([names[0], str(to / "host=sw0")]) as reader:  # without a request: rows are selected here
        assert reader.count(compile("a < 3", reader.schema)) == some
    monkeypatch.setattr(inputs, "_ask", late)
    with open_records([*names, str(to)]) as reader:
        assert reader.count(compile("", reader.schema)) == 2 * ROWS
    assert kept(Path(logs[0].path)) == set()
