"""Filters and aggregates as views: every result equals that of a plain scan, in any state of the views."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import index_lab as lab
from confluo_tools import expr, multilog
from confluo_tools.errors import BusyError, StoreError, UsageError
from confluo_tools.expr import parse_by
from confluo_tools.multilog import views
from confluo_tools.multilog.query.plan import QueryPlan
from confluo_tools.multilog.version import Version
from confluo_tools.multilog.views.aggregate_lookup import AggregateLookup
from running import environment, script

FILTERS = {
    "dns": "port == 53",
    "web": "port == 80 or port == 443",
    "big": "len > 600",
    "west": "src in 10.0.0.0/27",
    "eth": "name like eth* and kind == 1",
    "none": "len == 70000",
    "all": "",
    "hops": "path == 3",
}
QUESTIONS = [
    "filter dns",
    "filter web and len > 100",
    "filter big or filter dns",
    "not filter web",
    "filter none or port == 22",
    "filter all and filter hops",
    "port == 53",
    "port == 53 and len > 600",
    "len > 600 and (port == 53 or temp < 0)",
    "filter web and port == 80",
    "filter west and filter eth",
    "filter dns and filter web",
    "name like eth* and kind == 1",
    "not (len > 600)",
    "filter hops and not filter big",
    "",
]


def compiled(log, text):
    return expr.compile(text, log.schema, filters=views.FilterNames(log))


def chosen(log, version, text, since=None, until=None, **more):
    """(lane, row) of what a plan finds, and what it counts."""
    plan = QueryPlan(log, version, compiled(log, text), since, until, columns=[1], **more)
    rows = [(b.lane, b.base + r) for b, picks in plan for r in picks.tolist()]
    again = QueryPlan(log, version, compiled(log, text), since, until, **more)
    assert again.count() == len(rows)
    return rows, [*plan.warnings, *again.warnings]


def scanned(log, version, text, since=None, until=None):
    return chosen(log, version, text, since, until, use_indexes=False)[0]


def answer(question, rollup, since=None, until=None):
    rows = []
    for block in question.answer(rollup, since=since, until=until):
        rows += [tuple(block.get(i, r) for i in range(block.layout.n)) for r in range(len(block))]
    return rows


def by_scan(log, version, view, question, since=None, until=None):
    rollup = question.rollup()
    for block, picks in QueryPlan(log, version, view.expr, since, until, use_indexes=False):
        rollup.update(block, picks)
    return answer(question, rollup, since, until)


def close(ours, theirs):
    """Rounded: floats are added in another order."""
    return len(ours) == len(theirs) and all(
        a == pytest.approx(b, rel=1e-9, nan_ok=True) if isinstance(b, float) else a == b
        for x, y in zip(ours, theirs, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def grouped(log, view, by):
    return views.aggregate.regrouped(view, parse_by(by, log.schema) if by else [])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return lab.make(tmp_path_factory.mktemp("filters") / "f.ml", (150_000, 70_000, 300))


@pytest.fixture
def log(made, tmp_path):
    shutil.copytree(made[0].path, tmp_path / "c.ml")
    return multilog.open(tmp_path / "c.ml")


def add_all(log, update_now=True):
    for name, text in FILTERS.items():
        view = views.add_filter(log, name, text)
        if update_now:
            views.bring_up_to_date(log, view)


# --- filters


def test_stored_rows_answer_at_every_version(log, made):
    add_all(log)
    truth = lab.joined(made[1])
    full = log.version()
    old = [Version((100_000, 65_536, 299)), Version((0, 70_000)), Version((65_537, 1, 0)), full]
    for text in QUESTIONS:
        for version in old:
            rows, told = chosen(log, version, text)
            assert (rows, told) == (scanned(log, version, text), []), text
        ids = truth["id"][lab.holds(compiled(log, text).tree, truth)]
        assert [(lane << 40) | row for lane, row in chosen(log, full, text)[0]] == ids.tolist()
    ts = lab.START + 40_000_000
    for text in QUESTIONS[:6]:
        assert chosen(log, full, text, ts, ts + 7_000_001)[0] == scanned(log, full, text, ts, ts + 7_000_001)


def test_a_count_touches_no_row(log):
    add_all(log)
    plan = QueryPlan(log, None, compiled(log, "filter web"))
    want = len(scanned(log, None, "filter web"))
    assert plan.count() == want
    told = plan.explain()
    assert told["filters"] == [{"name": "web", "blocks": 6}]
    assert sum(s.get("rows_in", 0) for s in told["steps"]) == 0
    plan = QueryPlan(log, None, expr.compile("port == 80 or port == 443", log.schema))  # without the name
    assert plan.count() == want
    assert plan.explain()["filters"] == [{"name": "web", "blocks": 6}]


def test_views_late_dropped_and_made_anew(log):
    assert chosen(log, None, "port == 53")[1] == []
    view = views.add_filter(log, "dns", "port == 53")  # defined, but nothing stored
    assert chosen(log, None, "filter dns")[0] == scanned(log, None, "filter dns")
    assert views.coverage(log, view, log.version())[0] == 0
    assert views.Maintainer(log).step() == 6
    assert views.coverage(log, view, log.version())[:2] == (220_300, 220_300)
    plan = iter(QueryPlan(log, None, compiled(log, "filter dns")))
    first = len(next(plan)[1])
    assert views.drop_view(log, "dns")
    want = len(scanned(log, None, "port == 53"))
    assert first + sum(len(picks) for _, picks in plan) == want  # a running query continues
    assert not views.drop_view(log, "dns")
    with pytest.raises(expr.ExprError, match="no filter 'dns'"):
        compiled(log, "filter dns")
    again = views.build(log, views.add_filter(log, "dns", "port == 22"))
    assert again.text == "port == 22"
    assert chosen(log, None, "filter dns")[0] == scanned(log, None, "port == 22")


def test_a_redefined_filter_does_not_answer_for_the_old_one(log):
    views.build(log, views.add_filter(log, "dns", "port == 53"))
    old = compiled(log, "filter dns and len > 0")
    files = {p: p.read_bytes() for p in Path(log.path, "views").rglob("*.view")}
    views.drop_view(log, "dns")
    views.build(log, views.add_filter(log, "dns", "port == 22"))
    assert QueryPlan(log, None, old).count() == len(scanned(log, None, "port == 53 and len > 0"))
    for path, data in files.items():  # old rows under the new definition
        path.write_bytes(data)
    rows, told = chosen(log, None, "filter dns")
    assert rows == scanned(log, None, "port == 22")
    assert "made for something else" in told[0][1]
    views.Maintainer(log).step()
    assert chosen(log, None, "filter dns") == (rows, [])


def test_names_and_texts(log):
    views.add_filter(log, "web", 'name == "a \\\\ \\" b: #"')
    assert views.find_filter(log, "web").text == 'name == "a \\\\ \\" b: #"'
    views.add_filter(log, "lines", "port == 53\n  and\tlen > 5")
    assert views.find_filter(log, "lines").text == "port == 53\n  and\tlen > 5"
    assert [f.name for f in views.filters(log)] == ["lines", "web"]
    with pytest.raises(UsageError, match="filter 'web' exists"):
        views.add_filter(log, "web", "port == 53")
    for name in ("", "../x", "a b", "1a", "x" * 64, ".hidden"):
        with pytest.raises(UsageError, match="invalid view name"):
            views.add_filter(log, name, "port == 53")
    with pytest.raises(UsageError, match="relative to the current time"):
        views.add_filter(log, "fresh", "ts > 15m ago")
    with pytest.raises(expr.ExprError, match="must not depend on a filter name"):
        views.add_filter(log, "nested", "filter web and len > 5")
    with pytest.raises(expr.ExprError, match="did you mean 'web'"):
        compiled(log, "filter wbe")
    with pytest.raises(expr.ExprError, match="only a MultiLog has named filters"):
        expr.compile("filter web", log.schema)
    with pytest.raises(StoreError, match="did you mean 'web'"):
        views.find_filter(log, "wep")


@pytest.mark.parametrize("seed", range(6))
def test_damaged_bytes_are_noticed_and_scanned_around(log, seed):
    views.build(log, views.add_filter(log, "web", FILTERS["web"]))
    view = views.build(log, views.add_aggregate(log, "bytes", "count, sum(len)", filter="web", by="port"))
    dice = np.random.default_rng(seed)
    files = sorted(Path(log.path, "views").rglob("*.view"))
    for path in files:
        data = bytearray(path.read_bytes())
        if seed == 0:
            data = data[: len(data) // 2]
        elif seed == 1:
            data = bytearray(100)
        else:
            for _ in range(1 + 40 * (seed > 3)):
                data[int(dice.integers(len(data)))] ^= 1 << int(dice.integers(8))
        path.write_bytes(data)
    rows, told = chosen(log, None, "filter web")
    assert rows == scanned(log, None, "filter web")
    question = grouped(log, view, "port")
    how = AggregateLookup(log, view)
    rollup = how.fold(log.version(), question.rollup)
    assert answer(question, rollup) == by_scan(log, None, view, question)
    if seed in (0, 1):
        assert told
        assert all("rebuild filter web" in what for _, what in told)
        assert all("rebuild aggregate bytes" in what for _, what in how.unused)
        assert {p for v in views.views(log) for p, _ in views.check(log, v)} == set(map(str, files))
    for v in views.views(log):
        views.rebuild(log, v)
        assert list(views.check(log, v)) == []
    assert chosen(log, None, "filter web") == (rows, [])


# --- aggregates

AGGS = {
    "bytes": ("sum(len), count", "web", "", "port"),
    "load": ("avg(load), max(temp), min(len)", None, "kind == 1", "src/28"),
    "plain": ("count, avg(len), stddev(temp), min(ts), max(ts)", "big", "temp > 0", ""),
    "wide": ("count, first(len), last(len), p90(len), distinct(port), rate", None, "", "name, src"),
    "terms": ("count(port == 53) / count as dns, sum(len * 8) / 1s, max(len - temp)", None, "", "port"),
}
BYS = {
    "bytes": ["port", "", "10ms", "1ms, port", "port, 1s"],
    "load": ["src/28", "src/24", "5ms, src/26", ""],
    "plain": ["", "1ms", "3ms"],
    "wide": ["name, src", "name", "src/24, 20ms", "1ms"],
    "terms": ["port", "", "10ms", "1ms, port"],
}


def test_states_answer_at_every_version(log, monkeypatch):
    monkeypatch.setattr(
        views.aggregate_lookup, "MAX_STATE_BYTES", 1 << 20
    )  # also where reading the rows would be faster
    for name in ("web", "big"):
        views.add_filter(log, name, FILTERS[name])
    for name, (agg, filter_, where, by) in AGGS.items():
        views.add_aggregate(log, name, agg, filter=filter_, where=where, by=by)
    assert views.Maintainer(log).step() == 6 * (len(AGGS) + 2)
    full = log.version()
    start = lab.START + 33_000_000
    for name, bys in BYS.items():
        view = views.find_aggregate(log, name)
        for by in bys:
            question = grouped(log, view, by)
            for version, since, until in [
                (full, None, None),
                (Version((100_000, 65_536, 299)), None, None),
                (full, start, start + 50_000_001),
                (full, None, lab.START + 200_000_000),
                (full, lab.START + 65_000_000, None),
            ]:
                how = AggregateLookup(log, view, since, until)
                rollup = how.fold(version, question.rollup)
                ours = answer(question, rollup, since, until)
                assert close(ours, by_scan(log, version, view, question, since, until)), (name, by)
                assert how.unused == []
        assert how.blocks > 0
    assert views.find_aggregate(log, "nothing") is None


def test_rows_are_read_where_there_are_as_many_groups(log):
    few = views.build(log, views.add_aggregate(log, "few", "count", by="kind"))
    many = views.build(log, views.add_aggregate(log, "many", "count", by="id"))
    for view, blocks in ((few, 6), (many, 1)):  # the last block of a lane has only 300 rows
        question = grouped(log, view, view.by)
        how = AggregateLookup(log, view)
        assert answer(question, how.fold(log.version(), question.rollup)) == by_scan(log, None, view, question)
        assert (how.blocks, how.found + how.scanned) == (blocks, 220_300)
    views.add_aggregate(log, "plain", "count")
    plain = grouped(log, few, "")
    used = views.find_lookup(log, compiled(log, "").tree, plain.rollup)  # the one with the fewest groups
    assert used is not None
    assert used.view.name == "plain"
    assert views.find_lookup(log, compiled(log, "port == 53").tree, plain.rollup) is None


def test_what_an_aggregate_may_be(log):
    views.add_filter(log, "web", FILTERS["web"])
    view = views.add_aggregate(log, "bytes", "sum(len)", filter="web", by="port")
    assert (view.filter, view.where, view.by, view.bucket, view.agg) == ("web", "", "port", 1_000_000, "sum(len)")
    assert views.add_aggregate(log, "bytes", "sum(len)", filter="web", by="port").inode == view.inode
    with pytest.raises(UsageError, match="a different aggregate"):
        views.add_aggregate(log, "bytes", "sum(len)", filter="web", by="port", bucket=5)
    with pytest.raises(UsageError, match="uses filter 'web'"):
        views.drop_view(log, "web")
    with pytest.raises(UsageError, match="by a view of kind"):
        views.add_filter(log, "bytes", "port == 1")
    with pytest.raises(StoreError, match="no filter 'wob'"):
        views.add_aggregate(log, "x", "count", filter="wob")
    with pytest.raises(UsageError, match="time step cannot"):
        views.add_aggregate(log, "x", "count", by="1s")
    with pytest.raises(UsageError, match="name of a function"):
        views.add_aggregate(log, "p99", "count")
    with pytest.raises(UsageError, match="invalid time step of"):
        views.add_aggregate(log, "x", "count", bucket=0)
    shutil.rmtree(Path(log.path, "views", "filter-web"))  # removed by hand
    told = []
    assert views.aggregates(log, lambda *a: told.append(a)) == []
    assert "its filter 'web' is gone; confluo-index drop aggregate bytes" in told[0][1]


# --- random operations in random order


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_history_of_views_and_rows(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("history")
    log, _ = lab.make(folder / "h.ml", (data.draw(st.sampled_from([0, 10, 65_536, 70_000])),), segment_blocks=1)
    writer = log.writer()
    maintainer = views.Maintainer(log)
    at = 0
    for _ in range(data.draw(st.integers(3, 8))):
        what = data.draw(st.sampled_from(["rows", "rows", "add", "add", "drop", "step", "step", "tear", "close"]))
        there = views.views(log)
        if what == "rows":
            n = data.draw(st.sampled_from([1, 5000, 65_536, 90_000]))
            lab.append(writer, lab.rows(9, writer.number, at, n))
            at += n
        elif what == "close":
            writer.close()
            writer = log.writer()
        elif what == "add":
            name = data.draw(st.sampled_from(sorted(FILTERS)))
            views.add_filter(log, name, FILTERS[name])
            if data.draw(st.booleans()):
                views.add_aggregate(log, f"of_{name}", "count, sum(len), max(temp)", filter=name, by="port")
        elif what == "drop" and there:
            view = data.draw(st.sampled_from(there))
            if not (view.kind == "filter" and views.aggregate.aggregates_of_filter(log, view.label)):
                assert views.drop_view(log, view.label)
        elif what == "step":
            maintainer.step()
        elif what == "tear" and there:
            files = sorted(Path(log.path, "views").rglob("*.view"))
            if files:
                path = data.draw(st.sampled_from(files))
                path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, 9000))])
        version = log.version()
        for view in views.filters(log):
            assert chosen(log, version, f"filter {view.name} and len > 99")[0] == scanned(
                log, version, f"({view.text}) and len > 99" if view.text else "len > 99"
            )
        for view in views.aggregates(log):
            question = grouped(log, view, "port, 100ms")
            rollup = AggregateLookup(log, view).fold(version, question.rollup)
            assert answer(question, rollup) == by_scan(log, version, view, question)
    writer.close()
    views.Maintainer(log).step()  # a new maintainer checks every file; the old one uses its cache
    for view in views.views(log):
        assert views.coverage(log, view, log.version())[:2] == (log.version().rows,) * 2
        assert list(views.check(log, view)) == []


# --- killed, and concurrent

CHILD = (
    "from confluo_tools import multilog\nfrom confluo_tools.multilog import views\nlog = multilog.open(sys.argv[1])\n"
    "views.add_filter(log, 'web', 'port == 80 or port == 443')\n"
    "views.add_aggregate(log, 'bytes', 'sum(len)', filter='web', by='port')\nviews.Maintainer(log).step()\n"
)


def python(code, *words, **env):
    return script("import sys\n" + code, *words, env=environment(**env))


@pytest.mark.parametrize("point", ["view-half", "view-written", "view-entered", "view-published"])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_killed_between_the_steps_of_a_block(log, point, n):
    child = python(CHILD, log.path, CONFLUO_FAULT=f"{point}:{n}")
    assert child.wait(30) == -signal.SIGKILL
    for _ in range(2):
        assert chosen(log, None, "filter web") == (scanned(log, None, "filter web"), [])
        view = views.find_aggregate(log, "bytes")
        question = grouped(log, view, "port")
        how = AggregateLookup(log, view)
        rollup = how.fold(log.version(), question.rollup)
        assert answer(question, rollup) == by_scan(log, None, view, question)
        assert how.unused == []
        views.Maintainer(log).step()  # the next one continues
    assert how.blocks == 6
    assert all(list(views.check(log, v)) == [] for v in views.views(log))


def test_kept_up_while_others_write(log):
    add_all(log, update_now=False)
    views.add_aggregate(log, "bytes", "sum(len)", filter="web", by="port")
    code = (
        "import index_lab as lab\nfrom confluo_tools import multilog\nlog = multilog.open(sys.argv[1])\n"
        "with log.writer() as w:\n    for i in range(4):\n"
        "        lab.append(w, lab.rows(3, 0, 1000000 * w.number + i * 50000, 50000), 7001)\n"
    )
    follow = (
        "import threading\nfrom confluo_tools import multilog\nfrom confluo_tools.multilog import views\n"
        "views.maintain(multilog.open(sys.argv[1]), threading.Event(), None, 0.01)"
    )
    writers = [python(code, log.path) for _ in range(2)]
    follower = python(follow, log.path)
    try:
        asked = 0
        while any(w.poll() is None for w in writers) or asked < 2:
            fresh = multilog.open(log.path, readonly=True)
            version = fresh.version()
            assert chosen(fresh, version, "filter web and len > 60") == (
                scanned(fresh, version, "filter web and len > 60"),
                [],
            )
            view = views.find_aggregate(fresh, "bytes")
            question = grouped(fresh, view, "port")
            rollup = AggregateLookup(fresh, view).fold(version, question.rollup)
            assert answer(question, rollup) == by_scan(fresh, version, view, question)
            asked += 1
    finally:
        follower.kill()
        follower.wait()
    assert [w.wait(30) for w in writers] == [0, 0]
    views.Maintainer(log).step(wait=5)
    for view in views.views(log):
        assert views.coverage(log, view, log.version())[:2] == (620_300, 620_300)


def test_one_maintainer_at_a_time(log):
    view = views.add_filter(log, "web", FILTERS["web"])
    with views.maintaining(view):
        assert views.Maintainer(log).step() == 0
        with pytest.raises(BusyError, match="maintaining this filter"):
            views.bring_up_to_date(log, view, wait=0)
    assert views.Maintainer(log, ["other"]).step() == 0
    assert views.Maintainer(log, ["web"]).step() == 6


@pytest.mark.parametrize("kept", [4096, 4097, -1])
def test_a_file_without_its_last_chunks_is_built_again(tmp_path, kept):
    """Its head is whole, and its length says that chunks are missing."""
    log, _ = lab.make(tmp_path / "h.ml", (10_000,))
    views.add_aggregate(log, "all", "count, sum(len)", by="port")
    views.Maintainer(log).step()
    (view,) = views.views(log)
    (path,) = Path(log.path, "views").rglob("*.view")
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    assert [what for _, what in views.check(log, view)] == ["is cut off"]
    views.Maintainer(log).step()
    assert list(views.check(log, view)) == []
    assert path.read_bytes() == whole
