"""Indexes of lists: the rows with each element, against brute force, and how few rows they make a query read."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_postings import DTYPE, SIZE, UUID, integers, order_key

import index_lab as lab
from confluo_tools import expr, multilog
from confluo_tools.core.block.block import Block, Layout
from confluo_tools.core.multilog.control import crc
from confluo_tools.core.multilog.postings import LIST_CODE, Postings, PostingsBuilder, blank, file_key
from confluo_tools.multilog import views
from confluo_tools.multilog.query.plan import QueryPlan
from confluo_tools.multilog.query.unnested import UnnestedReader
from confluo_tools.multilog.reader import LogReader
from confluo_tools.multilog.retain import remove
from remote_lab import env
from running import run


def block_of(lists: list[tuple[Any, ...]], code: int, count: int, base: int = 0) -> Block:
    data = np.array(lists, dtype=DTYPE[code]).tobytes()
    return Block.wrap(Layout([("x", code, SIZE[code], count)]), len(lists), [data], base=base)


def file_of(folder: Path, blocks: list[Block], code: int, bucket: int = 1) -> tuple[str, bytes]:
    path = os.fspath(folder / "a.idx")
    key = file_key(UUID, 0, 0, "x", code + LIST_CODE, SIZE[code], bucket, 16)
    Path(path).write_bytes(blank(key, 16))
    fd, builder = os.open(path, os.O_RDWR), PostingsBuilder()
    for number, block in enumerate(blocks):
        builder.append(fd, number, block, 0, bucket)
    os.close(fd)
    return path, key


def expected(code: int, lists: list[tuple[Any, ...]], bucket: int) -> list[tuple[int, list[int]]]:
    found: dict[int, set[int]] = {}
    for row, values in enumerate(lists):
        for value in values:
            if value:
                found.setdefault(order_key(code, value // bucket if bucket > 1 else value), set()).add(row)
    return [(key, sorted(rows)) for key, rows in sorted(found.items())]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_postings_are_the_rows_of_each_element(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    code, count = data.draw(st.integers(1, 10)), data.draw(st.sampled_from([1, 2, 3, 8, 255]))
    one = st.floats(width=SIZE[code] * 8, allow_nan=False) if code > 8 else integers(code)  # type: ignore[arg-type]
    values = st.lists(st.one_of(st.just(0), one), max_size=min(count, 9))
    rows = data.draw(st.lists(values, min_size=1, max_size=30))
    lists = [tuple(row + [0] * (count - len(row))) for row in rows]
    bucket = data.draw(st.sampled_from([1, 2, 7, 1000, 2**40])) if code <= 8 else 1
    path, key = file_of(tmp_path_factory.mktemp("p"), [block_of(lists, code, count)], code, bucket)
    for mapped in (False, True):
        postings = Postings(path, key, mapped)
        assert postings.keys(0) == expected(code, lists, bucket)
        assert postings.sound(whole=True)


@pytest.mark.parametrize("kind", ["few", "u32", "u64", "empty", "full"])
def test_full_blocks(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(3)
    code, lists = {
        "few": (2, rng.integers(0, 9, (65536, 8))),
        "u32": (3, rng.integers(0, 2**32, (65536, 4))),
        "u64": (4, rng.integers(0, 2**64, (65536, 4), dtype="u8")),
        "empty": (2, np.zeros((65536, 8), "u2")),
        "full": (4, rng.permutation(2**20).reshape(65536, 16) + 1),  # as many as an index takes
    }[kind]
    path, key = file_of(tmp_path, [block_of(lists, code, lists.shape[1])] * 2, code)
    postings = Postings(path, key)
    rows, at = np.nonzero(lists)
    order = np.unique(np.stack([lists[rows, at].astype("u8"), rows.astype("u8")], axis=1), axis=0)
    found = [(value, row) for value, of in postings.keys(0) or [] for row in of]
    assert found == [tuple(pair) for pair in order.tolist()]
    assert postings.sound(1 << 62) is False  # the second block says that it is the first
    assert postings.damaged == set()


def test_a_block_of_too_many_elements_is_left_out(tmp_path: Path) -> None:
    many = [(1,) * 255] * 4112  # 1,048,560 elements
    path, key = file_of(tmp_path, [block_of(many, 1, 255), block_of([*many, *many[:1]], 1, 255, base=65536)], 1)
    postings = Postings(path, key)
    assert postings.keys(0) == [(1, list(range(4112)))]
    assert (postings.keys(1), postings.damaged) == (None, set())  # readers scan it


def test_a_file_of_a_scalar_is_not_that_of_a_list(tmp_path: Path) -> None:
    path, _ = file_of(tmp_path, [block_of([(1, 2)], 3, 2)], 3)
    with pytest.raises(ValueError, match="another segment"):
        Postings(path, file_key(UUID, 0, 0, "x", 3, 4, 1, 16))


def test_a_list_of_more_rows_than_the_block_is_damage(tmp_path: Path) -> None:
    """Sums that are right do not make numbers right: a value with 70,000 rows in a block of 65,536."""
    log, _ = lab.make(tmp_path / "v.ml", (65536,))
    view = views.build(log, views.add_index(log, "path"))
    path = Path(next(Path(view.path).rglob("*.idx")))
    data = bytearray(path.read_bytes())
    posts, keys = 70_000, 1
    body = struct.pack("<I4x", 0) + struct.pack("<I4x", 0) + struct.pack("<H", 5) * posts
    sums = b"".join([crc(body[i : i + 1024]).to_bytes(4, "little") for i in range(0, len(body), 1024)])
    sums = sums.ljust(-(-len(sums) // 64) * 64, b"\0")
    total = -(-(64 + len(sums) + len(body)) // 64) * 64
    head = struct.pack("<8sIIIIQQQI8x", b"CFLPOST", 65536, keys, 4, total, 2, 2, 0, posts)
    head += (crc(head) ^ crc(sums)).to_bytes(4, "little")
    at = int.from_bytes(data[192:200], "little")
    data[200:204] = total.to_bytes(4, "little")
    path.write_bytes(bytes(data[:at]) + (head + sums + body).ljust(total, b"\0"))
    plan = QueryPlan(log, None, expr.compile("path == 2", log.schema))
    rows_found = sum(len(picks) for _, picks in plan)
    assert rows_found == QueryPlan(log, None, expr.compile("path == 2", log.schema), use_indexes=False).count()
    assert any("damaged" in what for _, what in plan.warnings)


QUESTIONS = [
    "path == 101",
    "path has 101, 2",
    "path has 2 before 101",
    "path == 101, 102, 3",
    "path[0] == 101",
    "path[-1] == 101",
    "path starts 101, 2",
    "path in {101, 120..122}",
    "path[1] in {101, 120..122} and port == 53",
    "len(path) > 2 and path == 163",
]


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, np.ndarray]]:
    """A log with sealed segments, and its columns."""
    log, lanes = lab.make(tmp_path_factory.mktemp("i") / "v.ml", (200_000, 70_000))
    views.build(log, views.add_index(log, "path"))
    return log, lab.joined(lanes)


@pytest.mark.parametrize("text", QUESTIONS)
def test_only_candidates_are_read(indexed: tuple[Any, dict[str, np.ndarray]], text: str) -> None:
    log, columns = indexed
    question = expr.compile(text, log.schema)
    plan = QueryPlan(log, None, question)
    found = sum(len(picks) for _, picks in plan)
    assert found == lab.holds(question.tree, columns).sum()
    steps = [s for s in plan.explain()["steps"] if "path" in s["text"] and "len(" not in s["text"]]
    assert sum(s["by_index"] for s in steps) >= 5  # every full block
    read = sum(s["rows_in"] for s in steps)
    assert read <= 0.05 * 270_000
    plain = QueryPlan(log, None, question, use_indexes=False)
    assert sum(len(picks) for _, picks in plain) == found
    assert sum(s["rows_in"] for s in plain.explain()["steps"] if "path" in s["text"]) > 3 * read


def test_counting_one_element_reads_no_rows(indexed: tuple[Any, dict[str, np.ndarray]]) -> None:
    log, columns = indexed
    plan = QueryPlan(log, None, expr.compile("path == 101", log.schema))
    assert plan.count() == (columns["path"] == 101).any(axis=1).sum()
    assert [s["rows_in"] for s in plan.explain()["steps"]] == [0]
    both = QueryPlan(log, None, expr.compile("path in {101, 102}", log.schema))  # some rows have both
    assert both.count() == np.isin(columns["path"], [101, 102]).any(axis=1).sum()


def test_single_elements_use_the_index(indexed: tuple[Any, dict[str, np.ndarray]]) -> None:
    log, columns = indexed
    reader = UnnestedReader(LogReader(log.path), ["path"])
    question = expr.compile("path == 101", reader.schema)
    assert sum(len(picks) for _, picks in reader.select(question)) == (columns["path"] == 101).sum()
    plan = reader.explain()
    assert plan is not None
    assert [s["by_index"] for s in plan["steps"]] == [6]
    assert sum(s["rows_in"] for s in plan["steps"]) == 0


def test_the_growing_tail_and_retention(tmp_path: Path) -> None:
    log = multilog.create(tmp_path / "g.ml", lab.SCHEMA, segment_blocks=1)
    writer = log.writer()
    maintainer = views.Maintainer(log)
    views.add_index(log, "path")
    columns = lab.rows(5, 0, 0, 200_000)
    question = expr.compile("path starts 101 or path has 7-99 before 2 or path has 110", log.schema)
    truth = lab.holds(question.tree, columns)
    for start in range(0, 200_000, 23_000):
        stop = min(start + 23_000, 200_000)
        writer.append(lab.block(columns, start, stop))
        maintainer.step()
        assert QueryPlan(log, None, question).count() == truth[:stop].sum()
    writer.close()
    maintainer.step()
    view = views.find(log, "path")
    files = len(list(Path(view.path).rglob("*.idx")))
    assert remove(log, {0: 65536 * 2})[0] == 2  # retention: the two oldest segments
    assert QueryPlan(multilog.open(log.path), None, question).count() == truth[65536 * 2 :].sum()
    views.Maintainer(log).step()
    assert len(list(Path(view.path).rglob("*.idx"))) == files - 2
    assert list(views.check(log, view)) == []


def test_the_commands(tmp_path: Path) -> None:
    lab.make(tmp_path / "v.ml", (140_000,))
    done = run("confluo-index", "v.ml", "add", "path", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    rows = json.loads(run("confluo-index", "v.ml", "list", "-J", cwd=tmp_path).stdout)
    assert (rows["name"], rows["covered"], rows["rows"]) == ("path", 140_000, 140_000)
    assert run("confluo-index", "v.ml", "check", cwd=tmp_path).returncode == 0
    told = run("confluo-query", "v.ml", "path has 101, 2", "--explain", cwd=tmp_path).stdout.decode()
    assert "indexes  path (3 blocks)" in told
    told = run("confluo-query", "v.ml", "--unnest", "path", "path == 101", "--explain", cwd=tmp_path).stdout.decode()
    assert "indexes  path (3 blocks)" in told
    made = run("confluo-convert", "v.ml", "-w", "w.ml", "--index", "path", cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, b"")
    rows = json.loads(run("confluo-index", "w.ml", "list", "-J", cwd=tmp_path).stdout)
    assert rows["covered"] == 140_000


def test_a_log_of_another_host(tmp_path: Path) -> None:
    lab.make(tmp_path / "v.ml", (70_000,))
    log = f"sw1:{tmp_path}/v.ml"
    done = run("confluo-index", log, "add", "path", "--stat", "-J", env=env(tmp_path))
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["covered"] == 70_000
    for words in (["path starts 101, 2"], ["--unnest", "path", "path == 101"]):
        there = run("confluo-query", log, *words, "--explain", env=env(tmp_path))
        assert b"indexes  path (2 blocks)" in there.stdout, there.stderr
        there = run("confluo-query", log, *words, "--count", env=env(tmp_path))
        here = run("confluo-query", tmp_path / "v.ml", *words, "--count")
        assert (there.returncode, there.stdout) == (here.returncode, here.stdout)
