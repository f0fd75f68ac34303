"""Archives in an object store: the same answers as from a disk, few requests, no half batches, one line per problem."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
from pyarrow import fs
from pyarrow import parquet as pq
from test_archive_faults import ARCHIVE

from archive_lab import ALL_TYPES, HOUR, QUESTIONS, columns, make, rows_of, run_all, times
from confluo_tools import multilog
from confluo_tools.engine.partial import partial_class
from confluo_tools.expr import compile
from confluo_tools.formats import parquet_ranges
from confluo_tools.multilog.archive.reader import ArchiveReader
from confluo_tools.multilog.open_log import open_log
from confluo_tools.objects import access, remote_file
from log_rows import block_of
from running import BIN, environment, popen, run, script
from s3_lab import S3Server

PARTS, BATCHES = 12, 2
FLOATS = ["x", "y", "marks"]


class Stored(NamedTuple):
    """The same rows in a log, in an archive on disk and in one in a bucket."""

    log: Path
    disk: Path
    bucket: str
    url: str


@pytest.fixture(scope="module")
def stored(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    folder = tmp_path_factory.mktemp("stored")
    make(folder / "t.ml")
    bucket = s3.bucket()
    url = f"s3://{bucket}/logs/of host 1/"
    for to in (str(folder / "archive"), url):
        done = command(s3, "confluo-archive", folder / "t.ml", "--to", to, "--host", "gw/ü 1%", "--keep-log")
        assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"")
    return Stored(folder / "t.ml", folder / "archive", bucket, url)


@pytest.fixture(autouse=True)
def here(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process uses the server, too; no test leaves a fault or a wait behind."""
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    s3.relay.log.clear()
    remote_file._tails.clear()  # as in a new process
    yield
    s3.relay.fault = None


def command(s3: S3Server, *words: Any, **more: str) -> subprocess.CompletedProcess[bytes]:
    return run(*map(str, words), env=environment(**(s3.env | more)))


def test_the_objects_are_the_files(s3: S3Server, stored: Stored) -> None:
    files = sorted(path.relative_to(stored.disk).as_posix() for path in stored.disk.rglob("*") if path.is_file())
    files = [name for name in files if not name.endswith("/lock")]
    assert sorted(key.removeprefix("logs/of host 1/") for key in s3.keys(stored.bucket)) == files
    parts = [name for name in files if name.endswith(".parquet")]
    assert len(parts) == PARTS
    store = fs.S3FileSystem(endpoint_override=s3.env["AWS_ENDPOINT_URL"], region="us-east-1")
    for name in parts:  # as another program reads them
        table = pq.read_table(f"{stored.bucket}/logs/of host 1/{name}", filesystem=store, partitioning=None)
        here = pq.read_table(stored.disk / name, partitioning=None)
        assert table.drop(FLOATS).equals(here.drop(FLOATS))  # NaN is not equal to itself


def test_the_answers_are_those_of_the_disk(stored: Stored) -> None:
    told: list[str] = []
    for text in QUESTIONS[::3]:
        for options in ({}, {"by_time": False}, {"columns": [0, 3]}):
            disk, objects = ArchiveReader(str(stored.disk)), ArchiveReader(stored.url, warn=told.append)
            assert rows_of(objects, text, **options) == rows_of(disk, text, **options), (text, options)
            assert objects.rows == disk.rows
            assert objects.explain() == disk.explain()
        expr = compile(text, objects.schema)
        assert ArchiveReader(stored.url).count(expr) == disk.count(expr)
    assert told == []


def test_every_part_takes_two_requests_at_most(s3: S3Server, stored: Stored) -> None:
    reader = ArchiveReader(stored.url)
    at_start = len(s3.relay.log)
    assert at_start == 1 + 1  # the list, and the end of a part for the schema
    rows_of(reader)
    assert len(s3.relay.log) - at_start <= 2 * PARTS + BATCHES
    s3.relay.log.clear()
    reader = ArchiveReader(stored.url)
    assert reader.count(compile("ts < @1000", reader.schema)) > 0  # the first hour, which both lanes have
    asked = s3.relay.log[2:]
    assert len(asked) <= 2 * 2 + BATCHES
    assert {("hour=00" in unquote(path) or ".json" in path) for _, path, *_ in asked} == {True}
    s3.relay.log.clear()
    assert reader.count(compile("ts < @0", reader.schema)) == 0
    assert s3.relay.log == []  # the names of the folders say it


def test_only_the_needed_columns_are_read(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "GAP", 64)
    monkeypatch.setattr(parquet_ranges, "CHEAP", 0)
    log = multilog.create(tmp_path / "t.ml", ALL_TYPES, segment_blocks=1)
    with log.writer(ahead=-1) as w:
        w.append(block_of(ALL_TYPES, columns(20_000, 1, times(20_000, HOUR, "forward", 1))))
    run_all(log, tmp_path / "archive")
    bucket = s3.bucket()
    for path in (tmp_path / "archive").rglob("*.parquet"):  # partitions that were copied without the records
        s3.put(bucket, path.relative_to(tmp_path / "archive").as_posix(), path.read_bytes())
    size = sum(path.stat().st_size for path in (tmp_path / "archive").rglob("*.parquet"))
    for text, share in (("b == 77", 0.04), ("b in 70..80 && c > 9", 0.08)):
        s3.relay.log.clear()
        remote_file._tails.clear()
        reader = ArchiveReader(f"s3://{bucket}/")
        expr = compile(text, reader.schema)
        assert reader.count(expr) == ArchiveReader(str(tmp_path / "archive")).count(expr)
        ends = 3 * remote_file.TAIL
        assert ends < sum(one.sent for one in s3.relay.log) < ends + share * size
    reader = ArchiveReader(f"s3://{bucket}/")
    assert rows_of(reader, "b == 77") == rows_of(ArchiveReader(str(tmp_path / "archive")), "b == 77")


def test_a_long_list_is_read_folder_by_folder(s3: S3Server, stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows_of(ArchiveReader(str(stored.disk)), "ts < @5000")
    monkeypatch.setattr("confluo_tools.objects.listing.PAGE", 3)
    assert rows_of(ArchiveReader(stored.url), "ts < @5000") == expected
    lists = [one.path for one in s3.relay.log if "list-type" in one.path]
    assert len(lists) == 1 + 2 + 1  # a page; hosts and their days; all of the only day


def test_moved_rows_stay_readable(s3: S3Server, tmp_path: Path) -> None:
    log = make(tmp_path / "t.ml")
    before = [rows_of(open_log(log.path), text) for text in QUESTIONS[:3]]
    url = f"s3://{s3.bucket()}"
    done = command(s3, "confluo-archive", log.path, "--to", url, "--stats")
    assert done.returncode == 0, done.stderr
    assert b"11,000 rows archived in 12 files" in done.stderr
    assert multilog.open(log.path).version().kept == 0
    assert [rows_of(open_log(log.path), text) for text in QUESTIONS[:3]] == before
    assert b"testsecret" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    counted = command(s3, "confluo-query", log.path, "--count", "--engine", "local:2")
    assert (counted.stdout, counted.stderr) == (b"11000\n", b"")
    told = command(s3, "confluo-info", "--verify", f"{url}/")
    assert (told.stdout, told.returncode) == (f"{url}/: 11,000 rows, whole\n".encode(), 0)
    s3.relay.log.clear()
    assert command(s3, "confluo-archive", log.path, "--to", url).returncode == 1
    assert len(s3.relay.log) <= 3  # old records are not read again
    gone = command(s3, "confluo-query", log.path, "--count", AWS_ENDPOINT_URL="http://127.0.0.1:9")
    what = f"older rows were moved to {url}/.confluo/{log.uuid.hex()}: http://127.0.0.1:9 cannot be reached"
    assert gone.returncode == 2
    assert gone.stderr.decode() == f"confluo-query: {log.path}: {what}; use --no-archive to read without them\n"


@pytest.mark.parametrize("point", ["archive-written", "archive-copied"])
def test_death_between_two_requests(s3: S3Server, tmp_path: Path, point: str) -> None:
    log = make(tmp_path / "t.ml")
    expected = rows_of(open_log(log.path), QUESTIONS[1])
    bucket = s3.bucket()
    url = f"s3://{bucket}/a"
    env = environment(**s3.env)
    assert script(ARCHIVE, log.path, url, env=env | {"CONFLUO_FAULT": f"{point}:2"}).wait() == -signal.SIGKILL
    placed = [key for key in s3.keys(bucket) if key.endswith(".parquet")]
    recorded = [key for key in s3.keys(bucket) if key.endswith(".json")]
    assert bool(placed) <= bool(recorded)  # nothing is in place before the rows count as archived
    assert rows_of(open_log(log.path), QUESTIONS[1]) == expected
    assert rows_of(open_log(log.path, more=[url]), QUESTIONS[1]) == expected
    assert script(ARCHIVE, log.path, url, env=env).wait() == 0
    assert multilog.open(log.path).version().kept == 0
    assert rows_of(open_log(log.path), QUESTIONS[1]) == expected
    assert not [key for key in s3.keys(bucket) if "/tmp/" in key]
    assert ArchiveReader(url).count(compile("", ALL_TYPES)) == 11_000


def test_another_kind_of_store(tmp_path: Path) -> None:
    log = make(tmp_path / "t.ml")
    expected = [rows_of(open_log(log.path), text) for text in QUESTIONS[:3]]
    run_all(log, "memory://here/a")
    assert [rows_of(open_log(log.path), text) for text in QUESTIONS[:3]] == expected
    assert ArchiveReader("memory://here/a/").count(compile("", ALL_TYPES)) == 11_000


def test_a_log_is_archived_by_one_process(s3: S3Server, tmp_path: Path) -> None:
    log = make(tmp_path / "t.ml")
    url = f"s3://{s3.bucket()}/a/"
    from confluo_tools.multilog.archive.writer import ArchiveWriter

    with ArchiveWriter(log, url, "h"):
        done = command(s3, "confluo-archive", log.path, "--to", url)
    message = f"confluo-archive: {url}: another process is archiving {log.path} here; try again later\n"
    assert (done.returncode, done.stderr.decode()) == (75, message)


# -- what goes wrong -------------------------------------------------------------------------------------------------


def asked(s3: S3Server, url: str, **more: str) -> tuple[int, str, str]:
    done = command(s3, "confluo-query", "--count", url, **more)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_problems_of_the_store_are_one_line(s3: S3Server, stored: Stored) -> None:
    def said(what: str) -> tuple[int, str, str]:
        return 2, "", f"confluo-query: {what}\n"

    endpoint = s3.env["AWS_ENDPOINT_URL"]
    place = stored.url.rstrip("/")
    assert asked(s3, "s3://no-such-bucket/") == said(
        "s3://no-such-bucket/: there is no such bucket; is its name right, and the endpoint?"
    )
    hint = "confluo-archive creates archives; confluo-info describes MultiLogs"
    assert asked(s3, f"s3://{stored.bucket}/other/") == said(
        f"s3://{stored.bucket}/other/: contains no part of an archive; {hint}"
    )
    assert asked(s3, stored.url, AWS_ENDPOINT_URL="http://127.0.0.1:9") == said(
        f"{place}: http://127.0.0.1:9 cannot be reached; is the endpoint right (AWS_ENDPOINT_URL), and the server up?"
    )
    keys = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    for fault, message in (
        ((403, "AccessDenied"), "its objects cannot be listed: access is denied (403 AccessDenied)"),
        ((403, "InvalidAccessKeyId"), f"the credentials are not accepted (403 InvalidAccessKeyId); {keys}"),
        ((301, "PermanentRedirect"), "the bucket is in another region; set AWS_REGION to it"),
        ((404, "NoSuchBucket"), "there is no such bucket; is its name right, and the endpoint?"),
    ):
        s3.relay.fault = lambda method, path, range, fault=fault: fault
        assert asked(s3, stored.url) == said(f"{place}: {message}")
    s3.relay.fault = None
    assert asked(s3, "s3://key:secret@bucket/a/") == said(
        "s3://...: has a user name or password; give credentials by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or by "
        "a profile"
    )
    done = command(s3, "confluo-archive", stored.log, "--to", f"{endpoint}/{stored.bucket}/a/", "--keep-log")
    assert done.returncode == 2
    assert b"can only be read" in done.stderr


def test_a_bad_object_is_left_out_and_counted(s3: S3Server, stored: Stored) -> None:
    whole = ArchiveReader(stored.url).count(compile("", ALL_TYPES))
    key = next(key for key in s3.keys(stored.bucket) if "hour=03" in key and "-000-" in key)
    rows = pq.ParquetFile(stored.disk / key.removeprefix("logs/of host 1/")).metadata.num_rows
    good = s3.get(stored.bucket, key)
    where = f"confluo-query: s3://{stored.bucket}/{key}"

    def only(fault: Any) -> Any:
        return lambda method, path, range: fault if "hour=03" in unquote(path) and "-000-" in path else None

    for fault, what in (
        ((403, "AccessDenied"), "cannot be opened: access is denied (403 AccessDenied)"),
        ((404, "NoSuchKey"), "was removed meanwhile; its rows are left out"),
        ((412, "PreconditionFailed"), "cannot be opened: it changed while it was read"),
    ):
        s3.relay.fault = only(fault)
        assert asked(s3, stored.url) == (2, f"{whole - rows}\n", f"{where}: {what}\n")
    s3.relay.fault = None
    s3.put(stored.bucket, key, good[: len(good) // 2])
    what = f"is not a complete Parquet file: it has {len(good) // 2} of {len(good)} bytes; its rows are left out"
    assert asked(s3, stored.url) == (2, f"{whole - rows}\n", f"{where}: {what}\n")
    s3.put(stored.bucket, key, good)
    assert asked(s3, stored.url) == (0, f"{whole}\n", "")


def test_an_object_that_changes_is_not_mixed(s3: S3Server, stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "TAIL", 1 << 12)
    key = next(key for key in s3.keys(stored.bucket) if "hour=02" in key and "-001-" in key)
    url, good = f"s3://{stored.bucket}/{key}", s3.get(stored.bucket, key)
    file = remote_file.RemoteFile(url)
    s3.put(stored.bucket, key, good[::-1])
    with pytest.raises(OSError, match="it changed while it was read"):
        file.bytes_at(0, 100)
    s3.put(stored.bucket, key, good)
    assert bytes(remote_file.RemoteFile(url).bytes_at(0, 4)) == b"PAR1"


def test_a_busy_server_is_asked_again(s3: S3Server, stored: Stored) -> None:
    seen: dict[str, int] = {}

    def busy(method: str, path: str, range: str) -> Any:
        seen[path] = seen.get(path, 0) + 1
        return (503, "SlowDown") if seen[path] == 1 else None

    s3.relay.fault = busy
    assert asked(s3, stored.url)[:2] == (0, "11000\n")

    def short(method: str, path: str, range: str) -> Any:
        seen[path] = seen.get(path, 0) + 1
        return 10 if seen[path] == 2 and "parquet" in path else None

    seen.clear()
    s3.relay.fault = short
    assert asked(s3, stored.url) == (0, "11000\n", "")


def test_waiting_has_an_end(s3: S3Server, stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    from confluo_tools.objects.faults import ObjectStoreError
    from confluo_tools.objects.store import Bucket, parse

    monkeypatch.setattr(access, "SILENCE", 0.2)
    monkeypatch.setattr(access, "RETRIES", 2)
    monkeypatch.setattr(access, "FIRST_WAIT", 0.01)
    monkeypatch.setattr("confluo_tools.objects.store._process", __import__("os").getpid())
    bucket = Bucket(parse(stored.url))
    s3.relay.fault = lambda method, path, range: "hang"
    with pytest.raises(ObjectStoreError, match=r"no answer in time from http://127\.0\.0\.1:\d+; is the server up\?"):
        bucket.stat("x")
    monkeypatch.setattr(access, "SILENCE", 20.0)
    bucket = Bucket(parse(stored.url))
    s3.relay.fault = lambda method, path, range: (503, "SlowDown")
    with pytest.raises(ObjectStoreError, match=r"is overloaded \(503 SlowDown\), also after some waiting; try again"):
        bucket.first("x", 9)
    monkeypatch.setattr("confluo_tools.objects.store.PAGE", 2)
    page = [[{"path": "a", "size": 1, "e_tag": "x"}]] * 3
    monkeypatch.setattr("obstore.list", lambda *args, **options: page)
    with pytest.raises(ObjectStoreError, match="the list of its objects repeats itself"):
        list(bucket.pages(""))


def test_a_waiting_command_is_interrupted(s3: S3Server, stored: Stored) -> None:
    waits = threading.Event()

    def hang(method: str, path: str, range: str) -> str:
        waits.set()
        return "hang"

    s3.relay.fault = hang
    words = [BIN / "confluo-query", stored.url, "--count"]
    with popen(words, env=environment(**s3.env), stderr=subprocess.PIPE) as process:
        assert waits.wait(60)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)  # all tries take longer
    assert process.returncode == 130


# -- one file by URL, profiles, engines ------------------------------------------------------------------------------


def test_single_files_by_url(s3: S3Server, stored: Stored, tmp_path: Path) -> None:
    for name in ("x.parquet", "x.tsv"):
        words = "confluo-query", stored.log, "--fields", "ts,a,b,name,addr", "-w", tmp_path / name
        assert run(*words).returncode == 0
        s3.put(stored.bucket, f"files/{name}", (tmp_path / name).read_bytes(), **{"x-amz-acl": "public-read"})
        url = f"s3://{stored.bucket}/files/{name}"
        here = run("confluo-query", tmp_path / name, "a < 40", "-o", "csv")
        there = command(s3, "confluo-query", url, "a < 40", "-o", "csv")
        assert (there.returncode, there.stderr, there.stdout) == (0, b"", here.stdout)
    plain = command(s3, "confluo-query", f"{s3.env['AWS_ENDPOINT_URL']}/{stored.bucket}/files/x.parquet", "--count")
    assert plain.stderr == b""
    assert (plain.returncode, plain.stdout) == (0, b"11000\n")  # http, for all to read
    missing = command(s3, "confluo-query", f"s3://{stored.bucket}/files/y.parquet", "--count")
    hint = "the URL of an archive ends with a slash"
    assert missing.stderr.decode().endswith(f"/files/y.parquet: there is no such object; {hint}\n")


def test_keys_of_a_profile(s3: S3Server, stored: Stored, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        f"[profile lab]\nregion = us-east-1\nendpoint_url = {s3.env['AWS_ENDPOINT_URL']}\n"
    )
    (tmp_path / "credentials").write_text("[lab]\naws_access_key_id = labkey\naws_secret_access_key = labsecret\n")
    files = {"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "credentials"}
    env = environment(AWS_PROFILE="lab", **{name: str(tmp_path / file) for name, file in files.items()})
    done = run("confluo-query", "--count", stored.url, env=env)
    assert (done.stdout, done.stderr) == (b"11000\n", b"")
    assert {one.key for one in s3.relay.log} == {"labkey"}
    done = run("confluo-query", "--count", stored.url, env=env | {"AWS_PROFILE": "none"})
    assert done.stderr == b"confluo-query: AWS_PROFILE=none: there is no such profile; see ~/.aws/config\n"
    (tmp_path / "credentials").write_text("[lab\nlabsecret")
    done = run("confluo-query", "--count", stored.url, env=env)
    assert done.stderr.decode() == f"confluo-query: {tmp_path}/credentials: is not a file of profiles\n"


def test_units_of_engines_are_urls(s3: S3Server, stored: Stored) -> None:
    from confluo_tools.engine import result, unit, worker
    from confluo_tools.engine.task import Task
    from confluo_tools.engine.unit_plan import UnitPlan

    reader = ArchiveReader(stored.url)
    expr = compile("a < 40 && ts < @8000", reader.schema)
    units = UnitPlan(reader, expr, 2).units
    assert {one.archive for one in units} == {stored.url.rstrip("/")}  # type: ignore[union-attr]
    task = Task(expr, partial_class("count").of(reader.schema, {}))
    found = result.decode(worker.run(task.encode(), unit.encode(units)))
    assert (found.rows, found.left_out) == (ArchiveReader(str(stored.disk)).count(expr), [])
    agg = ("a < 40", "--agg", "count, sum(b), first(ts), distinct(e)", "--by", "1h", "-o", "csv")
    expected = run("confluo-query", stored.disk, *agg)
    for more in ((), ("--engine", "local:2")):
        done = command(s3, "confluo-query", stored.url, *agg, *more)
        assert (done.returncode, done.stderr, done.stdout) == (0, b"", expected.stdout)
