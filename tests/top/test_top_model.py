"""The windows of confluo-top against sums of plain Python; its screens at any size."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from confluo_tools import cli, multilog
from confluo_tools.formats.block_builder import blocks_of_rows
from confluo_tools.multilog.add_columns import add_columns
from confluo_tools.schema import builtin
from confluo_tools.top import choices
from confluo_tools.top.model import TopLook, TopModel
from confluo_tools.top.slices import SlicedQuestion, SliceStore
from confluo_tools.top.sources import PolledLogs
from confluo_tools.top.view import TopView

SECOND = 10**9
START = 1_795_132_800 * SECOND
PACKET = builtin("packet").project(["ts", "len", "src_port", "dst_port"])
RECORDS = st.tuples(st.integers(0, 20 * SECOND), st.integers(0, 3), st.integers(1, 1500))


class ScriptedSource:
    """Records that come when a test says so."""

    ended = False

    def __init__(self) -> None:
        self.schema = PACKET
        self.waiting: list[tuple[int, int, int]] = []
        self.newest: int | None = None

    def begin(self, question: SlicedQuestion) -> None:
        self.question = question

    def update(self, store: SliceStore, now: int, window: int) -> int | None:
        chunk = self.question.fine.rollup()
        for block in blocks_of_rows(PACKET, rows_of(self.waiting)):
            chunk.update(block, None)
        times = [(START + t) // SECOND * SECOND for t, _, _ in self.waiting]
        self.newest = max([*times, self.newest or 0]) or None
        store.known = START
        store.put(chunk, now // SECOND * SECOND - window)
        self.waiting = []
        return self.newest

    def close(self) -> None: ...


def rows_of(records: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    return [{"ts": START + t, "src_port": port, "len": size} for t, port, size in records]


def shown(look: TopLook) -> dict[int, tuple[int, int]]:
    """{port: (records, bytes)} of a look."""
    schema = look.question.coarse.result
    columns = [schema.index(name) for name in ("src_port", "count", "sum_len")]
    cells = [tuple(block.get(c, i) for c in columns) for block in look.window.rows for i in range(block.rows)]
    return {port: (count, size) for port, count, size in cells}


def model_of(source: Any, **more: Any) -> TopModel:
    return TopModel(source, ["src_port"], ["sum(len), count"], every=SECOND, window=5 * SECOND, **more)


@given(st.lists(st.lists(RECORDS, max_size=30), min_size=1, max_size=4))
def test_a_window_is_the_sum_of_its_records(updates: list[list[tuple[int, int, int]]]) -> None:
    """Records come in any order, in any update; those that are older than the window when they come do not count."""
    source = ScriptedSource()
    model, kept, now = model_of(source), [], START + 14 * SECOND
    for records in updates:
        now += 2 * SECOND
        source.waiting = list(records)
        look = model.look(now, 10)
        kept += [r for r in records if START + r[0] >= now - 5 * SECOND]
        assert look is not None
        count, size = Counter(), Counter()
        for t, port, length in kept:
            if look.window.since <= START + t < look.window.until:
                count[port] += 1
                size[port] += length
        if look.window.until == now:
            assert shown(look) == {port: (count[port], size[port]) for port in count}
            assert look.window.totals == {"sum_len": size.total(), "count": count.total()}


def test_the_clock_of_old_and_of_new_records() -> None:
    """Records of yesterday: the window ends with the newest one.  Records of now: it goes on while nothing comes."""
    source = ScriptedSource()
    model = model_of(source)
    source.waiting = [(t * SECOND, 1, 10) for t in range(8)]
    look = model.look(START + 8 * SECOND, 10)
    assert look is not None
    assert (look.window.until - START, look.behind, shown(look)) == (8 * SECOND, 0, {1: (5, 50)})
    look = model.look(START + 11 * SECOND, 10)
    assert look is not None
    assert shown(look) == {1: (2, 20)}
    source = ScriptedSource()
    model = model_of(source)
    source.waiting = [(t * SECOND + 1, 1, 10) for t in range(8)]
    source.update(SliceStore(model.question), START, 0)  # lost: only the time is known
    look = model.look(START + 1000 * SECOND, 10)
    assert look is not None
    assert (look.window.until - START, look.behind) == (8 * SECOND, 992 * SECOND)


def test_a_log_that_grows_and_rests(tmp_path: Path) -> None:
    """The slices of a log are queried when they are new, and again while records may come late."""
    path, ins = str(tmp_path / "live.ml"), cli.InputOptions({"at": None, "input_format": None, "partial": False})
    log = multilog.create(path, PACKET)
    with log.writer() as lane:

        def append(*records: tuple[int, int, int]) -> None:
            for block in blocks_of_rows(PACKET, rows_of(list(records))):
                lane.append(block)

        append((0, 1, 10), (SECOND, 1, 10), (2 * SECOND, 2, 7))
        model = model_of(PolledLogs(ins, [path], "src_port < 3", False))
        look = model.look(START + 100 * SECOND, 10)
        assert look is not None
        assert (shown(look), look.behind) == ({1: (2, 20), 2: (1, 7)}, 97 * SECOND)
        append((101 * SECOND, 1, 1), (101 * SECOND, 3, 1))
        look = model.look(START + 102 * SECOND, 10)
        assert look is not None
        assert (shown(look), look.behind) == ({1: (1, 1)}, 0)
        append((101 * SECOND + 1, 2, 5), (102 * SECOND, 2, 5))  # the first one is late
        look = model.look(START + 103 * SECOND, 10)
        assert look is not None
        assert shown(look) == {1: (1, 1), 2: (2, 10)}
        model.next_order()
        again = model.look(START + 104 * SECOND, 1, still=True)
        assert again is not None
        assert (shown(again), again.window.until) == ({2: (2, 10)}, look.window.until)
    log.close()


def test_a_log_that_gains_fields(tmp_path: Path) -> None:
    """Records before and after: the view goes on with the fields that it has."""
    path, ins = str(tmp_path / "live.ml"), cli.InputOptions({"at": None, "input_format": None, "partial": False})
    with multilog.create(path, PACKET).writer() as lane:
        for block in blocks_of_rows(PACKET, rows_of([(0, 1, 10)])):
            lane.append(block)
    model = model_of(PolledLogs(ins, [path], "len > 0", False))
    assert model.look(START + SECOND, 10) is not None
    wider = PACKET.plus([builtin("packet")["ttl"]])
    add_columns(path, wider.fields[-1:], {})
    with multilog.open(path).writer() as lane:
        for block in blocks_of_rows(wider, [{**row, "ttl": 9} for row in rows_of([(SECOND, 1, 5), (SECOND, 2, 7)])]):
            lane.append(block)
    look = model.look(START + 2 * SECOND, 10)
    assert look is not None
    assert shown(look) == {1: (2, 15), 2: (1, 7)}


@given(st.integers(1, 130), st.integers(1, 40), st.integers(0, 3), st.booleans())
def test_a_screen_of_any_size(width: int, height: int, metric: int, colour: bool) -> None:
    source = ScriptedSource()
    schema = source.schema
    model = TopModel(
        source, choices.groups(schema, "src_port"), choices.aggregates(schema, None), every=SECOND, window=5 * SECOND
    )
    for _ in range(metric):
        model.next_aggregates()
    source.waiting = [(7 * SECOND, port, size) for port in range(4) for size in (1, 1500)]
    view = TopView("live.ml", SECOND, colour=colour, local=False)
    look = model.look(START + 8 * SECOND, view.room(height), width)
    for help in (False, True):
        text = view.lines(look, width, height, paused=False, ended=False, help=help)
        lines = re.sub(r"\x1b\[[0-9]*m", "", text).split("\n")
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert colour or "\x1b" not in text
