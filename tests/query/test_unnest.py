"""--unnest: one row for each element, against plain Python and DuckDB, on every kind of input."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import make_capture
import twin_expr
from confluo_tools.core.block.block import Block, Layout, Picks
from confluo_tools.core.query.unnest import Unnest
from confluo_tools.expr import compile
from confluo_tools.formats.reader import Reader
from confluo_tools.multilog.query.unnested import UnnestedReader, unnested_schema
from expr_strategies import NOW, ODD, Row, comparisons, conditions, odd_rows
from make_telemetry import Hop, Trace, carried
from remote_lab import env
from running import run

NAMES = ("path", "drift")
ELEMENTS = unnested_schema(ODD, NAMES)


class Rows(Reader):
    """Rows in memory, with the zones of their columns."""

    schema = ODD

    def __init__(self, rows: list[Row]) -> None:
        super().__init__("rows")
        self.all = rows

    def blocks(self) -> Iterator[Block]:
        from confluo_tools.core.block import zone_map

        for at in range(0, len(self.all), 16):
            yield zone_map.zoned(twin_expr.block_of(ODD, self.all[at : at + 16]))


def elements(rows: list[Row]) -> list[Row]:
    """One row for each place of the longest list, up to its last element that is not zero."""
    out = []
    for row in rows:
        longest = max([k + 1 for name in NAMES for k, e in enumerate(row[name]) if e], default=0)
        for k in range(longest):
            out.append(row | {name: row[name][k] if k < len(row[name]) else 0 for name in NAMES})
    return out


@settings(max_examples=300, deadline=None)
@given(conditions(comparisons(ELEMENTS)), st.integers(0, 9))
def test_any_condition_on_elements(text: str, seed: int) -> None:
    rows = odd_rows(seed)
    reader = UnnestedReader(Rows(rows), NAMES)
    expr = compile(text, reader.schema, now_ns=NOW)
    meaning = twin_expr.Meaning(ELEMENTS, NOW)
    expected = [row for row in elements(rows) if meaning.holds(expr.syntax, row)]
    found: list[Row] = []
    for block, picks in reader.select(expr):
        found += twin_expr.rows_of(ELEMENTS, block.take(picks) if picks is not None else block)
    assert repr(found) == repr(expected)  # NaN is like NaN
    assert reader.count(expr) == len(expected)


def test_long_lists_give_blocks_of_bounded_size() -> None:
    """The longest possible list in each row of a full block: 256 times the rows, one block at a time."""
    rows, count = 2000, 255
    source, target = Layout([("x", 1, 1, count), ("n", 2, 2, 1)]), Layout([("x", 1, 1, 1), ("n", 2, 2, 1)])
    numbers = struct.pack(f"<{rows}H", *range(rows))
    block = Block.wrap(source, rows, [bytes([k % 255 + 1 for k in range(count)]) * rows, numbers], lane=3, base=1 << 20)
    made = Unnest(source, target, [0])
    total, last = 0, -1
    for out in made.rows(block, Picks.of(rows, range(0, rows, 2))):
        assert 0 < out.rows <= 65536
        assert out.lane == 3
        assert out.base > last
        last = out.base + out.rows - 1
        for at in (0, out.rows - 1):
            assert (out.get(0, at), out.get(1, at)) == ((total + at) % count + 1, (total + at) // count * 2)
        total += out.rows
    assert total == rows // 2 * count
    assert list(made.rows(block, Picks.of(rows, []))) == []
    assert [out.get(0, 5) for out in made.rows(block, Picks.of(rows, [7]), [1])] == [0]  # that column is not copied
    for bad in ((source, target, []), (source, target, [1]), (target, target, [0, 5]), (source, source, [0])):
        with pytest.raises(ValueError, match=r"columns|another type"):
            Unnest(*bad)


PATHS = [(3, 7, 1), (3, 8, 1), (4, 7, 2), (3, 7, 8, 1), (5,)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Packets with telemetry in every kind of input, and their hops: (switch, depth)."""
    folder, rng = tmp_path_factory.mktemp("unnest"), random.Random(7)
    paths = [[(k, rng.choice([0, 5, 90, 150, 300])) for k in rng.choice(PATHS)] for _ in range(400)]
    frames = [carried(Trace([Hop(k, depth) for k, depth in path]), 6) for path in paths]
    (folder / "t.pcap").write_bytes(make_capture.pcap([(10**18 + i, f) for i, f in enumerate(frames)]))
    run("confluo-capture", "-q", "-r", "t.pcap", "-w", "t.ml", "--telemetry", cwd=folder)
    run("confluo-index", "-q", "t.ml", "add", "src_port", cwd=folder)
    run("confluo-query", "t.ml", "-w", "t.parquet", cwd=folder)
    run("confluo-query", "t.ml", "-o", "stream", "-w", "t.arrows", cwd=folder)
    run("confluo-archive", "-q", "t.ml", "--to", "archive", "--keep-log", cwd=folder)
    return {"folder": folder, "hops": [hop for path in paths for hop in path]}


WAYS = {
    "log": ["t.ml"],
    "capture": ["t.pcap"],
    "stream": ["t.arrows"],
    "parquet": ["t.parquet"],
    "archive": ["archive"],
    "another host": ["alpha:FOLDER/t.ml"],
    "two hosts": ["-r", "alpha:FOLDER/t.ml", "-r", "beta:FOLDER/t.ml"],
    "engine": ["--engine", "local:3", "t.ml"],
}


@pytest.mark.parametrize("way", WAYS)
def test_every_input_gives_the_same_elements(way: str, inputs: dict[str, Any], tmp_path: Path) -> None:
    folder, times = inputs["folder"], 2 if way == "two hosts" else 1
    where = [word.replace("FOLDER", str(folder)) for word in WAYS[way]]
    environment = env(tmp_path) if "host" in way else None

    def ask(*words: str) -> list[dict[str, Any]]:
        done = run(
            "confluo-query", *where, "--unnest", "switch_path,queue_depth", *words, "-J", cwd=folder, env=environment
        )
        assert done.stderr == b""
        return [json.loads(line) for line in done.stdout.splitlines()]

    busy = Counter(k for k, depth in inputs["hops"] if depth > 100)
    answer = ask("queue_depth > 100", "--agg", "count, sum(queue_depth)", "--by", "switch_path")
    assert {row["switch_path"]: row["count"] for row in answer} == {k: n * times for k, n in busy.items()}
    assert sum(row["sum_queue_depth"] for row in answer) == times * sum(d for _, d in inputs["hops"] if d > 100)
    rows = ask("queue_depth > 100 and switch_path == 7", "-f", "switch_path,queue_depth")
    assert Counter((row["switch_path"], row["queue_depth"]) for row in rows) == Counter(
        {hop: n * times for hop, n in Counter(inputs["hops"]).items() if hop[0] == 7 and hop[1] > 100}
    )
    done = run(
        "confluo-query",
        *where,
        "--unnest",
        "switch_path",
        "switch_path in {3, 4}",
        "--count",
        cwd=folder,
        env=environment,
    )
    assert int(done.stdout) == times * sum(k in (3, 4) for k, _ in inputs["hops"])


@pytest.mark.parametrize("way", ["log", "another host"])
def test_the_newest_elements(way: str, inputs: dict[str, Any], tmp_path: Path) -> None:
    where = [word.replace("FOLDER", str(inputs["folder"])) for word in WAYS[way]]
    words = ["--unnest", "switch_path,queue_depth", "queue_depth > 100", "--last", "3", "-f", "switch_path,queue_depth"]
    done = run("confluo-query", *where, *words, "-J", cwd=inputs["folder"], env=env(tmp_path))
    found = [
        tuple(json.loads(line)[name] for name in ("switch_path", "queue_depth")) for line in done.stdout.splitlines()
    ]
    assert found == [hop for hop in inputs["hops"] if hop[1] > 100][-3:]


def test_duckdb_unnests_the_same(inputs: dict[str, Any]) -> None:
    import duckdb

    lists = "(SELECT unnest(switch_path) AS s, unnest(queue_depth) AS q FROM 't.parquet')"
    expected = duckdb.sql(
        f"SELECT s, count(*), max(q), sum(q) FROM {lists.replace('t.parquet', str(inputs['folder'] / 't.parquet'))} "
        "WHERE s <> 0 GROUP BY s ORDER BY s"
    ).fetchall()
    words = [
        "--unnest",
        "switch_path,queue_depth",
        "--agg",
        "count, max(queue_depth), sum(queue_depth)",
        "--by",
        "switch_path",
    ]
    done = run("confluo-query", "t.ml", *words, "-J", cwd=inputs["folder"])
    assert [tuple(json.loads(line).values()) for line in done.stdout.splitlines()] == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--unnest", "len"], "--unnest: len (u32) is not a list; name fields of the type list"),
        (["--unnest", "switch_pth"], "--unnest: no field 'switch_pth' in 'packet'; did you mean 'switch_path'?"),
        (["--unnest", "a,,b"], "--unnest: 'a,,b' is not a list of fields; write e.g. switch_path,queue_depth"),
        (["--unnest", "switch_path", "--flows"], "--unnest: flows have no lists; leave one of the options out"),
    ],
)
def test_what_cannot_be_unnested(words: list[str], message: str, inputs: dict[str, Any]) -> None:
    done = run("confluo-query", "t.ml", *words, cwd=inputs["folder"])
    assert done.returncode == 2
    assert done.stderr.decode().strip() == f"confluo-query: {message}"
