"""confluo-index: exit statuses, messages, idempotence, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import index_lab as lab
from confluo_tools import cli, multilog
from confluo_tools.commands import index
from confluo_tools.multilog import views
from running import BIN, environment, on_terminal, popen, run


@pytest.fixture
def log(tmp_path):
    made, lanes = lab.make(tmp_path / "a log.ml", (140_000,))
    made.truth = int((lanes[0]["port"] == 53).sum())
    return made


def rows(done: subprocess.CompletedProcess[bytes]) -> list[list[str]]:
    head, types, *lines = done.stdout.decode().splitlines()
    assert head == "#fields\tkind\tname\tbucket\tcovered\trows\tbytes\tdefinition"
    assert types == "#types\ttext(16)\ttext(255)\tu64\tu64\tu64\tu64\ttext(65535)"
    assert all(line.split("\t")[0] == "index" for line in lines)
    return [line.split("\t")[1:6] for line in lines]


def queried(path, text="port == 53") -> int:
    done = run("confluo-query", path, text, "--count")
    assert done.stderr == b""
    return int(done.stdout)


def test_add_list_drop(log):
    done = run("confluo-index", log.path, "add", "port", "ts:1s", "len:100")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    listed = rows(run("confluo-index", log.path))
    assert [r[:4] for r in listed] == [
        ["len", "100", "140000", "140000"],
        ["port", "1", "140000", "140000"],
        ["ts", "1000000000", "140000", "140000"],
    ]
    assert rows(run("confluo-index", log.path, "list", "port")) == [listed[1]]
    assert queried(log.path) == log.truth
    again = run("confluo-index", log.path, "add", "port")
    assert (again.returncode, again.stdout, again.stderr) == (0, b"", b"")
    assert rows(run("confluo-index", log.path)) == listed
    assert run("confluo-index", log.path, "drop", "port", "ts").returncode == 0
    gone = run("confluo-index", log.path, "drop", "port")
    assert gone.returncode == 0
    assert b"no index of 'port'" in gone.stderr
    assert run("confluo-index", "-q", log.path, "drop", "port").stderr == b""
    assert [r[0] for r in rows(run("confluo-index", log.path))] == ["len"]
    assert queried(log.path) == log.truth


def test_an_empty_list_is_nothing_found(log):
    done = run("confluo-index", log.path)
    assert (done.returncode, rows(done), done.stderr) == (1, [], b"")
    assert run("confluo-index", log.path, "update").returncode == 0


def test_formats_and_stat(log):
    done = run("confluo-index", log.path, "add", "port", "--stat", "--stats", "-J")
    assert json.loads(done.stdout) == {
        "kind": "index",
        "name": "port",
        "bucket": 1,
        "covered": 140_000,
        "rows": 140_000,
        "bytes": int(rows(run("confluo-index", log.path))[0][4]),
        "definition": "port",
    }
    assert b"index of port: 3 blocks, 140,000 rows in" in done.stderr
    status, text = on_terminal("confluo-index", log.path, env=environment(TERM="xterm", NO_COLOR="1"))
    assert status == 0
    first, _, second = text.replace("\r", "").splitlines()
    assert first.split()[:3] == ["kind", "name", "bucket"]
    assert second.split()[:4] == ["index", "port", "1", "140000"]
    assert max(map(len, (first, second))) < 80


def test_the_list_is_records_in_every_format(log, tmp_path):
    run("confluo-index", log.path, "add", "port", "len:100")
    chosen = run("confluo-index", log.path, log.path, "-f", "log,name,bucket", env=environment(CONFLUO_FORMAT="csv"))
    assert chosen.stdout.decode().splitlines() == [
        "log,name,bucket",
        *[f'"{log.path}","{name}",{bucket}' for name, bucket in [("len", 100), ("port", 1)] * 2],
    ]
    assert run("confluo-index", log.path, "-w", tmp_path / "views.parquet").returncode == 0
    table = pq.read_table(tmp_path / "views.parquet")
    assert table.select(["kind", "name", "covered"]).to_pylist() == [
        {"kind": "index", "name": name, "covered": 140_000} for name in ("len", "port")
    ]
    for words in (["update", "-J"], ["add", "ts", "-w", tmp_path / "no.csv"], ["check", "-o", "csv"]):
        done = run("confluo-index", log.path, *words)
        message = b": is for list and --stat; leave it out\n"
        assert (done.returncode, done.stdout, done.stderr.endswith(message)) == (2, b"", True)
    assert [r[0] for r in rows(run("confluo-index", log.path))] == ["len", "port"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add"], "add needs a field; for example: confluo-index LOG add src_ip"),
        (["add", "prot"], "no field 'prot'; did you mean 'port'?"),
        (["add", "nothing"], "no field 'nothing'; confluo-info --fields LOG lists the names"),
        (["add", "load:10"], "'load' cannot have a bucket of 10; only numbers and times can have buckets"),
        (["add", "port:x"], "'x'"),
        (["ad", "port"], "unknown verb 'ad'; did you mean 'add'?"),
        (["frobnicate"], "use add, drop, list, update, rebuild, check"),
        (["update", "port"], "no index of 'port'; confluo-index LOG add port creates it"),
        (["drop", "port:10"], "a bucket is given when an index is added; drop the index, then add it again"),
        (["check", "--follow"], "--follow and check exclude each other"),
        (["add", "port", "--interval", "soon"], "'soon'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(log, words, message):
    done = run("confluo-index", log.path, *words)
    assert (done.returncode, done.stdout) == (2, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("confluo-index: ")
    assert message in line
    assert views.indexes(log) == []


def test_not_a_log(tmp_path):
    done = run("confluo-index", tmp_path / "none.ml", "add", "port")
    assert done.returncode == 2
    assert b"there is no such MultiLog" in done.stderr
    bare = run("confluo-index")
    assert bare.returncode == 2
    assert b"Usage: confluo-index" in bare.stderr


def test_somebody_else_maintains_it(log):
    view = views.add_index(log, "port")
    with views.maintaining(view):
        done = run("confluo-index", log.path, "update", "--wait", "100ms")
    assert done.returncode == 75
    assert b"another process is maintaining this index" in done.stderr
    assert run("confluo-index", log.path, "update").returncode == 0


def test_check_and_rebuild(log):
    view = views.build(log, views.add_index(log, "port"))
    assert run("confluo-index", log.path, "check").returncode == 0
    path = next(iter(sorted(Path(view.path).rglob("*.idx"))))
    data = bytearray(path.read_bytes())
    data[-5000] ^= 1
    path.write_bytes(data)
    done = run("confluo-index", log.path, "check")
    assert done.returncode == 2
    assert done.stderr.decode() == (
        f"confluo-index: {path}: its postings are damaged; confluo-index LOG rebuild port repairs it\n"
    )
    assert run("confluo-index", log.path, "rebuild", "port").returncode == 0
    assert run("confluo-index", log.path, "check").returncode == 0


def test_history_tells_what_was_made(log):
    run("confluo-index", log.path, "add", "port")
    run("confluo-index", log.path, "add", "port")
    run("confluo-index", log.path, "update")
    text = Path(log.path, "multilog.yaml").read_text()
    assert text.count('"confluo-index"') == 1
    assert '"add", "port"]' in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_log_that_may_not_be_written(log):
    os.chmod(log.path, 0o555)
    try:
        done = run("confluo-index", log.path, "add", "port")
        assert done.returncode == 2
        assert b"cannot be written" in done.stderr
    finally:
        os.chmod(log.path, 0o755)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_until_interrupted(log, number):
    follower = popen(
        [BIN / "confluo-index", log.path, "add", "port", "--follow", "--interval", "10ms"],
        stderr=subprocess.PIPE,
        env=environment(),
    )
    with log.writer() as writer:
        for i in range(4):
            lab.append(writer, lab.rows(5, 0, 140_000 + i * 65536, 65536))
            time.sleep(0.05)
    want = 140_000 + 4 * 65536
    end = time.monotonic() + 120
    while time.monotonic() < end:
        fresh = multilog.open(log.path)
        there = [views.coverage(fresh, v, fresh.version())[0] for v in views.indexes(fresh)]
        if there == [want]:
            break
        time.sleep(0.02)
    follower.send_signal(number)
    _, said = follower.communicate(timeout=60)
    assert there == [want]
    assert follower.returncode == 128 + number
    (line,) = said.decode().splitlines()  # also when it was still in its first update
    assert "blocks indexed" in line
    assert queried(log.path, "port == 53 && len >= 0") > log.truth


@pytest.mark.parametrize("error", [KeyboardInterrupt, cli.runner.Stopped(15)])
def test_interrupted_in_the_first_update(log, error, monkeypatch, capsys):
    def update(*words, **more):
        raise error

    monkeypatch.setattr(views, "update", update)
    number = 2 if error is KeyboardInterrupt else 15
    assert index.main([log.path, "add", "port", "--follow"]) == 128 + number
    assert capsys.readouterr().err == f"confluo-index: {log.path}: 0 blocks indexed in 0 s\n"


def test_an_answer_is_the_same_while_an_index_is_made_and_dropped(log):
    loop = 'while :; do "$0" -q "$1" add port len; "$0" -q "$1" drop port len; done'
    busy = subprocess.Popen(
        ["sh", "-c", loop, BIN / "confluo-index", log.path], env=environment(), start_new_session=True
    )
    try:
        for _ in range(5):
            assert queried(log.path) == log.truth
    finally:
        os.killpg(busy.pid, signal.SIGKILL)
        busy.wait()
    assert queried(log.path) == log.truth


def test_full_disk_leaves_queries_alone(log):
    if os.geteuid() != 0:
        pytest.skip("needs root to limit a file system")
    view = views.build(log, views.add_index(log, "port"))
    for path in Path(view.path).rglob("*.idx"):
        path.unlink()
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 200; trap "" XFSZ; exec "$0" "$1" update', BIN / "confluo-index", log.path],
        capture_output=True,
        env=environment(),
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == f"confluo-index: {log.path}: cannot be written: File too large\n".encode()
    assert queried(log.path) == log.truth
    assert run("confluo-index", log.path, "update").returncode == 0
    assert rows(run("confluo-index", log.path))[0][2] == "140000"
    assert np.isclose(float(rows(run("confluo-index", log.path))[0][4]) / 140_000, 2.1, atol=0.15)


# --- filters and aggregates


def test_full_disk_leaves_filters_and_aggregates_alone(log):
    if os.geteuid() != 0:
        pytest.skip("needs root to limit a file system")
    views.add_filter(log, "small", "len == 64")
    views.add_aggregate(log, "sums", "sum(len)", filter="small", by="id")
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 12; trap "" XFSZ; exec "$0" "$1" update', BIN / "confluo-index", log.path],
        capture_output=True,
        env=environment(),
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == f"confluo-index: {log.path}: cannot be written: File too large\n".encode()
    want = queried(log.path, "len == 64")
    assert queried(log.path, "filter small") == want
    assert run("confluo-index", log.path, "update").returncode == 0
    assert all(views.coverage(log, v, log.version())[0] == 140_000 for v in views.views(log))
    assert queried(log.path, "filter small") == want
    assert run("confluo-index", log.path, "check").returncode == 0


def test_filters_and_aggregates(log):
    done = run("confluo-index", log.path, "add", "filter", "dns", "port == 53")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    done = run(
        "confluo-index",
        log.path,
        "add",
        "aggregate",
        "bytes",
        "sum(len),",
        "count",
        "--filter",
        "dns",
        "--by",
        "src/24",
        "--bucket",
        "10ms",
        "--stats",
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"aggregate bytes: 3 blocks, 140,000 rows in" in done.stderr
    run("confluo-index", log.path, "add", "port")
    done = run("confluo-index", log.path, "-J")
    listed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(v["kind"], v["name"], v["bucket"], v["covered"], v["definition"]) for v in listed] == [
        ("index", "port", 1, 140_000, "port"),
        ("filter", "dns", 0, 140_000, "port == 53"),
        ("aggregate", "bytes", 10_000_000, 140_000, "sum(len), count of filter dns by src/24"),
    ]
    only = run("confluo-index", log.path, "list", "filter", "-J")
    assert json.loads(only.stdout) == listed[1]
    assert queried(log.path, "filter dns") == queried(log.path) == log.truth
    report = json.loads(run("confluo-info", log.path, "-J").stdout)
    assert [i["index"] for i in report["indexes"]] == ["port"]
    assert [(v["view"], v["kind"], v["covered"]) for v in report["views"]] == [
        ("dns", "filter", 140_000),
        ("bytes", "aggregate", 140_000),
    ]
    done = run("confluo-index", log.path, "drop", "filter", "dns")
    report = f"confluo-index: {log.path}: aggregate 'bytes' uses filter 'dns'"
    assert done.returncode == 2
    assert done.stderr.decode() == f"{report}; confluo-index LOG drop aggregate bytes first\n"
    assert run("confluo-index", log.path, "rebuild", "aggregate", "bytes").returncode == 0
    assert run("confluo-index", log.path, "check").returncode == 0
    assert run("confluo-index", log.path, "drop", "aggregate", "bytes").returncode == 0
    assert run("confluo-index", log.path, "drop", "filter", "dns").returncode == 0
    gone = run("confluo-index", log.path, "drop", "filter", "dns")
    assert (gone.returncode, gone.stderr.strip().endswith(b"no filter 'dns'")) == (0, True)
    history = Path(log.path, "multilog.yaml").read_text()
    assert all(word in history for word in ("dns", "sum(len),", "drop"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "filter"], "add needs a name; for example: confluo-index LOG add filter web 'dst_port in {80, 443}'"),
        (["add", "filter", "web"], "filter 'web' needs an expression; for example"),
        (["add", "filter", "web", "prot == 1"], "expression, column 1: no field 'prot' in schema 'lab'"),
        (["add", "filter", "web", "filter x"], "there is no filter 'x'; write its expression instead"),
        (["add", "filter", "a/b", "port == 1"], "invalid view name 'a/b'"),
        (["add", "filter", "new", "ts > 5m ago"], "invalid filter 'new': it is relative to the current time"),
        (["add", "aggregate", "x"], "aggregate 'x' needs aggregate functions; for example"),
        (["add", "aggregate", "x", "sum(name)"], "sum needs numbers; name is bytes(12)"),
        (["add", "aggregate", "x", "count", "--filter", "y"], "there is no filter 'y'"),
        (["add", "aggregate", "x", "count", "--by", "1s"], "the time step cannot be a key; write e.g. --bucket 10ms"),
        (["add", "aggregate", "count", "count"], "'count' is the name of a function"),
        (["add", "port", "--by", "src"], "--by is for add aggregate"),
        (["rebuild", "filter", "y"], "no filter 'y'; confluo-index LOG lists them"),
    ],
)
def test_bad_definitions(log, words, message):
    done = run("confluo-index", log.path, *words)
    assert done.returncode == 2
    assert message in done.stderr.decode()
    assert done.stderr.startswith(b"confluo-index: ")
    assert views.views(log) == []


def test_following_keeps_all_kinds(log):
    run("confluo-index", log.path, "add", "filter", "dns", "port == 53")
    run("confluo-index", log.path, "add", "aggregate", "bytes", "sum(len)", "--filter", "dns")
    follower = popen(
        [BIN / "confluo-index", log.path, "--follow", "--interval", "10ms"], stderr=subprocess.PIPE, env=environment()
    )
    try:
        with log.writer() as writer:
            lab.append(writer, lab.rows(4, writer.number, 140_000, 140_000))
        end = time.monotonic() + 120
        late = False
        while time.monotonic() < end:
            covered = [views.coverage(log, v, log.version())[0] for v in views.views(log)]
            if covered == [280_000] * len(covered) and late:
                break
            if not late and covered == [280_000] * 2:  # one more while it runs
                views.add_index(log, "port")
                late = True
            time.sleep(0.02)
        assert covered == [280_000] * 3
    finally:
        follower.send_signal(signal.SIGINT)
        assert follower.wait(10) == 130
    assert b"blocks added to views" in follower.stderr.read()
    follower.stderr.close()


def answered(*words) -> list[str]:
    done = run("confluo-query", *words)
    assert done.stderr == b""
    return [line for line in done.stdout.decode().splitlines() if not line.startswith("#")]


def test_questions_to_an_aggregate(log):
    plain = {
        by: answered(log.path, "port == 53 and len > 99", "--agg", "sum(len), count", "--by", by)
        for by in ("src/24", "100ms", "src/16,50ms")
    }
    total = answered(log.path, "port == 53 and len > 99", "--agg", "sum(len), count")
    since = ["--since", "2023-11-14T22:13:20.03Z", "--until", "2023-11-14T22:13:20.1Z"]
    part = answered(log.path, "port == 53 and len > 99", "--agg", "sum(len), count", "--by", "src/24", *since)
    run("confluo-index", log.path, "add", "filter", "dns", "port == 53")
    run(
        "confluo-index",
        log.path,
        "add",
        "aggregate",
        "dns-bytes",
        "sum(len), count",
        "--filter",
        "dns",
        "--where",
        "len > 99",
        "--by",
        "src/24",
    )
    assert answered(log.path, "--agg", "dns-bytes") == plain["src/24"]
    for by, rows_ in plain.items():
        assert answered(log.path, "--agg", "dns-bytes", "--by", by) == rows_
    assert answered(log.path, "--agg", "dns-bytes", "--by", "") == total
    assert answered(log.path, "--agg", "dns-bytes", *since) == part
    done = run("confluo-query", log.path, "filter dns and len > 99", "--agg", "sum(len), count", "--explain")
    assert b"aggregates dns-bytes (3 blocks)" in done.stdout
    assert answered(log.path, "len > 1000", "--agg", "dns-bytes", "--by", "100ms") == answered(
        log.path, "port == 53 and len > 1000", "--agg", "sum(len), count", "--by", "100ms"
    )
    finer = run("confluo-query", log.path, "--agg", "dns-bytes", "--by", "src")  # not from stored roll-ups, but exact
    assert (
        finer.stdout
        == run("confluo-query", log.path, "port == 53 and len > 99", "--agg", "sum(len), count", "--by", "src").stdout
    )
    stream = Path(log.path).with_name("some.arrow")
    assert run("confluo-query", log.path, "--limit", "9", "-w", stream).returncode == 0
    done = run("confluo-query", stream, "filter dns")
    assert done.returncode == 2
    assert (
        b"only a MultiLog has named filters, and this is not one; write the filter's expression instead" in done.stderr
    )
