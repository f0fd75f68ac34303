"""Index files: late, dropped, rebuilt, foreign, shared by processes, and left by killed processes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

import index_lab as lab
from confluo_tools import expr, multilog
from confluo_tools.errors import BusyError, UsageError
from confluo_tools.multilog import views
from confluo_tools.multilog.query.plan import QueryPlan
from running import environment, script

QUESTION = {"port": "port == 53", "path": "path starts 101, 2"}


def python(code: str, *words: str, **env: str) -> subprocess.Popen:
    """Start a process that runs ``code`` with the words in sys.argv[1:]."""
    return script("import sys\n" + code, *words, env=environment(**env))


def count(log, text="port == 53"):
    return QueryPlan(log, None, expr.compile(text, log.schema)).count()


@pytest.fixture
def log(tmp_path):
    made, lanes = lab.make(tmp_path / "v.ml", (140_000, 500))
    made.truth = int(sum((c["port"] == 53).sum() for c in lanes.values()))
    made.lists = int(sum((c["path"][:, :2] == [101, 2]).all(axis=1).sum() for c in lanes.values()))
    return made


def test_adding_twice_is_adding_once(log):
    first = views.build(log, views.add_index(log, "port"))
    before = {p: p.stat().st_mtime_ns for p in Path(first.path).rglob("*.idx")}
    second = views.build(log, views.add_index(log, "port"))
    assert {p: p.stat().st_mtime_ns for p in Path(second.path).rglob("*.idx")} == before
    assert [v.name for v in views.indexes(log)] == ["index-port"]
    with pytest.raises(UsageError, match="bucket of 1"):
        views.add_index(log, "port", 10)


def test_which_fields_can_be_indexed(log):
    for field in lab.INDEXABLE:
        view = views.build(log, views.add_index(log, field))
        assert views.coverage(log, view, log.version())[:2] == (140_500, 140_500)
    assert views.find(log, "ts").bucket == 1_000_000
    for field, bucket in [("load", 10), ("src", 256), ("name", 2), ("port", 0), ("port", 1 << 63)]:
        with pytest.raises(UsageError):
            views.add_index(multilog.open(log.path), field, bucket)


def test_dropping(log):
    views.build(log, views.add_index(log, "port"))
    plan = QueryPlan(log, None, expr.compile("port == 53", log.schema))
    rows = iter(plan)
    seen = len(next(rows)[1])
    assert views.drop_index(log, "port") is True
    assert seen + sum(len(picks) for _, picks in rows) == log.truth  # a running query continues
    assert views.drop_index(log, "port") is False
    assert views.indexes(log) == []
    assert os.listdir(os.path.join(log.path, "views")) == []
    assert count(log) == log.truth


def test_rebuilding_mends(log):
    view = views.build(log, views.add_index(log, "port"))
    files = sorted(Path(view.path).rglob("*.idx"))
    for path in files:
        path.write_bytes(path.read_bytes()[:-300] + os.urandom(300))
    plan = QueryPlan(log, None, expr.compile("port == 53 || port == 65535", log.schema))
    want = int(plan.count())
    assert any("rebuild port" in what for _, what in plan.warnings)
    assert {p for p, _ in views.check(log, view)} == set(map(str, files))
    views.rebuild(log, view)
    assert list(views.check(log, view)) == []
    plan = QueryPlan(log, None, expr.compile("port == 53 || port == 65535", log.schema))
    assert (plan.count(), plan.warnings) == (want, [])


def test_files_of_another_log_are_not_believed(log, tmp_path):
    other, _ = lab.make(tmp_path / "other.ml", (140_000, 500), seed=2)
    views.build(other, views.add_index(other, "port"))
    views.build(log, views.add_index(log, "port"))
    for path in Path(other.path, "views").rglob("*.idx"):  # the postings of another log
        shutil.copy(path, Path(log.path, path.relative_to(other.path)))
    plan = QueryPlan(log, None, expr.compile("port == 53", log.schema))
    assert plan.count() == log.truth
    assert any("another segment" in what for _, what in plan.warnings)
    views.drop_index(log, "port")
    shutil.copytree(Path(other.path, "views", "index-port"), Path(log.path, "views", "index-port"))
    told = []
    assert views.indexes(log, lambda path, what: told.append(what)) == []
    assert "another MultiLog" in told[0]
    assert count(log) == log.truth
    views.build(log, views.add_index(log, "port"))  # replaces it
    assert views.coverage(log, views.find(log, "port"), log.version())[0] == 140_500


@pytest.mark.parametrize(
    "about",
    [
        "",
        "kind: index\n",
        "field: port\nbucket: 1\n",
        "field: port\nbucket: x\nlog: {log}\n",
        "field: nothing\nbucket: 1\nlog: {log}\n",
        "field: port\nbucket: 0\nlog: {log}\n",
        "\xff\xfe",
    ],
)
def test_definitions_that_make_no_sense(log, about):
    views.build(log, views.add_index(log, "port"))
    path = Path(log.path, "views", "index-port", "index.yaml")
    path.write_bytes(about.replace("{log}", log.uuid.hex()).encode("latin-1"))
    told = []
    assert views.indexes(log, lambda path, what: told.append(what)) == []
    assert len(told) == 1
    assert count(log) == log.truth


def test_a_read_only_folder_of_views(log):
    views.build(log, views.add_index(log, "port"))
    folder = Path(log.path, "views")
    shutil.rmtree(folder)
    folder.write_text("a file")
    assert views.indexes(log) == []
    assert count(log) == log.truth


def test_two_maintainers_take_turns(log):
    view = views.add_index(log, "port")
    with views.maintaining(view):
        with pytest.raises(BusyError) as e, views.maintaining(view, wait=0):
            pass
        assert e.value.exit_status == 75
        assert views.Maintainer(log).step() == 0  # another process maintains it
        child = python(
            "from confluo_tools import multilog\nfrom confluo_tools.multilog import views\n"
            "log = multilog.open(sys.argv[1])\nwith views.maintaining(views.find(log, 'port'), 20):\n"
            "    views.update(log, views.find(log, 'port'))",
            log.path,
        )
        time.sleep(0.2)
    assert child.wait(30) == 0
    assert views.coverage(log, view, log.version())[0] == 140_500


def test_posting_files_of_removed_segments_go(log):
    view = views.build(log, views.add_index(log, "port"))
    first = log.segments()[0]
    stray = Path(view.file(first)).with_name("seg-0000000000999424.idx")
    stray.write_bytes(b"x")
    with views.maintaining(view):
        views.update(log, view)
    assert not stray.exists()
    assert Path(view.file(first)).exists()


def test_maintained_while_others_write_and_ask(tmp_path):
    log, _ = lab.make(tmp_path / "w.ml", (10,))
    views.build(log, views.add_index(log, "port"))
    stop = threading.Event()
    follower = threading.Thread(target=views.maintain, args=(multilog.open(log.path), stop, None, 0.01))
    follower.start()
    code = (
        "import index_lab as lab\nfrom confluo_tools import multilog\nlog = multilog.open(sys.argv[1])\n"
        "with log.writer() as w:\n    for i in range(6):\n"
        "        lab.append(w, lab.rows(3, 0, 1000000 * w.number + i * 50000, 50000), 7001)\n"
    )
    writers = [python(code, log.path) for _ in range(2)]
    try:
        asked = 0
        while any(w.poll() is None for w in writers) or asked < 3:
            reader = multilog.open(log.path, readonly=True)
            version = reader.version()
            plan = QueryPlan(reader, version, expr.compile("port == 53 && len > 60", reader.schema))
            plain = QueryPlan(reader, version, expr.compile("port == 53 && len > 60", reader.schema), use_indexes=False)
            assert plan.count() == plain.count()
            assert plan.warnings == []
            asked += 1
        assert [w.wait(30) for w in writers] == [0, 0]
    finally:
        stop.set()
        follower.join()
    done = multilog.open(log.path)
    views.Maintainer(done).step(wait=5)
    view = views.find(done, "port")
    assert views.coverage(done, view, done.version())[:2] == (600_010, 600_010)
    assert list(views.check(done, view)) == []


INDEX = (
    "from confluo_tools import multilog\nfrom confluo_tools.multilog import views\nlog = multilog.open(sys.argv[1])\n"
    "field = sys.argv[2]\n"
    "views.build(log, views.add_index(log, field))\nviews.rebuild(log, views.find(log, field))\n"
)


@pytest.mark.parametrize("n", [1, 2, 4, 5, 6])
@pytest.mark.parametrize("point", ["index-half", "index-written", "index-entered", "index-published"])
@pytest.mark.parametrize("field", ["port", "path"])
def test_killed_between_the_steps_of_a_block(log, field, point, n):
    truth = log.truth if field == "port" else log.lists
    child = python(INDEX, log.path, field, CONFLUO_FAULT=f"{point}:{n}")
    assert child.wait(30) == -signal.SIGKILL
    for _ in range(2):
        plan = QueryPlan(multilog.open(log.path), None, expr.compile(QUESTION[field], log.schema))
        assert plan.count() == truth
        assert plan.warnings == []
        view = views.build(log, views.add_index(log, field))  # the next maintainer continues
    assert views.coverage(log, view, log.version())[0] == 140_500
    assert list(views.check(log, view)) == []


@pytest.mark.slow
def test_killed_at_any_instant(log):
    dice = random.Random(7)
    again = "views.drop_index(log, field)\n    views.bring_up_to_date(log, views.add_index(log, field))"
    code = INDEX + f"while True:\n    {again}\n"
    killed = 0
    for _ in range(25):
        child = python(code, log.path, "port")
        time.sleep(0.15 + dice.random() * 0.25)
        child.kill()
        killed += child.wait(30) == -signal.SIGKILL
        fresh = multilog.open(log.path)
        assert count(fresh) == log.truth
    assert killed == 25
    view = views.build(log, views.add_index(log, "port"))
    assert views.coverage(log, view, log.version())[0] == 140_500
    assert list(views.check(log, view)) == []


def test_a_dropped_view_does_not_come_back(log):
    view = views.add_index(log, "port")
    with views.maintaining(view):
        views.drop_index(log, "port")
        with pytest.raises(FileNotFoundError):
            views.update(log, view)
    assert views.Maintainer(log).step() == 0
    assert views.indexes(log) == []


def test_indexes_survive_columns_added_later(log):
    from confluo_tools.multilog.add_columns import add_columns
    from confluo_tools.schema import Field

    views.build(log, views.add_index(log, "port"))
    log.close()
    add_columns(log.path, [Field("later", "u16")])
    fresh = multilog.open(log.path)
    plan = QueryPlan(fresh, None, expr.compile("port == 53 && later == 0", fresh.schema))
    assert plan.count() == log.truth
    assert plan.warnings == []
    views.build(fresh, views.add_index(fresh, "later"))
    plan = QueryPlan(fresh, None, expr.compile("later == 0 && port == 53", fresh.schema))
    assert plan.count() == log.truth
    assert QueryPlan(fresh, None, expr.compile("later == 1", fresh.schema)).count() == 0
