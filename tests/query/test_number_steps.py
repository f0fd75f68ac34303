"""Steps and powers of numbers as group keys: the same from every input, window by window, and in pictures."""

from __future__ import annotations

import json
import re
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.schema import Field, Schema
from follow_lab import ended, following
from remote_lab import env
from running import CAMPUS, lines, next_line, run

SECOND = 10**9
WAYS = {
    "log": ["t.ml"],
    "archive": ["archive"],
    "another host": ["alpha:FOLDER/t.ml"],
    "two hosts": ["-r", "alpha:FOLDER/t.ml", "-r", "beta:FOLDER/t.ml"],
    "engine": ["--engine", "local:3", "t.ml"],
    "engine, archive": ["--engine", "local:3", "archive"],
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A capture as a log and as an archive, and its groups: (step of len, power of src_port) -> packets."""
    folder = tmp_path_factory.mktemp("steps")
    for words in (
        ["confluo-capture", "-q", "-r", CAMPUS, "-w", "t.ml"],
        ["confluo-archive", "-q", "t.ml", "--to", "archive", "--keep-log"],
        ["confluo-index", "-q", "t.ml", "add", "aggregate", "sizes", "count", "--by", "len/100"],
    ):
        assert run(*words, cwd=folder).returncode == 0
    groups: Counter[tuple[int, int]] = Counter()
    for line in lines(run("confluo-query", CAMPUS, "-J", "-f", "len,src_port")):
        row = json.loads(line)
        port = row.get("src_port") or 0
        groups[row["len"] - row["len"] % 100, 2 ** (port.bit_length() - 1) if port else 0] += 1
    return {"folder": folder, "groups": groups}


@pytest.mark.parametrize("way", WAYS)
def test_every_input_gives_the_same_groups(way: str, inputs: dict[str, Any], tmp_path: Path) -> None:
    folder, times = inputs["folder"], 2 if way == "two hosts" else 1
    words = [word.replace("FOLDER", str(folder)) for word in WAYS[way]]
    asked = ["--agg", "count", "--by", "len/100, log2(src_port) as port", "-J"]
    done = run("confluo-query", *words, *asked, cwd=folder, env=env(tmp_path))
    assert (done.returncode, done.stderr) == (0, b"")
    rows = [tuple(json.loads(line).values()) for line in lines(done)]
    assert rows == [(*key, n * times) for key, n in sorted(inputs["groups"].items())]


def test_a_stored_aggregate_has_steps(inputs: dict[str, Any]) -> None:
    sizes: Counter[int] = Counter()
    for (size, _), n in inputs["groups"].items():
        sizes[size] += n
    for words in (["sizes"], ["sizes", "--by", "len/100"], ["sizes", "--by", "len/1000"]):
        wanted: Counter[int] = Counter()
        for size, n in sizes.items():
            wanted[size // 1000 * 1000 if words[-1] == "len/1000" else size] += n
        done = run("confluo-query", "t.ml", "--agg", *words, "-J", cwd=inputs["folder"])
        assert [tuple(json.loads(line).values()) for line in lines(done)] == sorted(wanted.items())


def test_bars_are_in_the_order_of_the_steps() -> None:
    done = run("confluo-query", CAMPUS, "--agg", "count", "--by", "len/250", "-o", "svg")
    texts = re.findall(r">(\d+)</text>", done.stdout.decode())
    starts = [text for text in texts if int(text) % 250 == 0 and text != "0"]
    assert starts == ["250", "500", "750", "1000", "1250", "1500"]


def test_windows_have_steps_also_of_negative_numbers(tmp_path: Path) -> None:
    schema = Schema("calls", [Field("ts", "time"), Field("took", "duration", "ns"), Field("d", "i8")])
    start = (time.time_ns() // SECOND - 100) * SECOND
    took = [0, 999, 1_500_000, 2_000_000, -5, -1]
    d = [-128, -101, -100, 0, 99, 127]
    columns = [struct.pack("<6q", *(start + i for i in range(6))), struct.pack("<6q", *took), struct.pack("<6b", *d)]
    with multilog.create(tmp_path / "a.ml", schema) as log, log.writer(ahead=-1) as writer:
        writer.append(Block.wrap(schema.layout, 6, columns))
    words = ["--agg", "count", "--by", "1s, log10(took), d/100", "-f", "took,d,count", "-T", "--no-header"]
    done = run("confluo-query", tmp_path / "a.ml", *words)
    groups = [(-1, 0), (-1, 100), (0, -200), (100, -200), (10**6, -100), (10**6, 0)]
    wanted = [f"{took}\t{d}\t1" for took, d in groups]
    assert lines(done) == wanted
    with following(tmp_path / "a.ml", *words, "--follow") as process:
        assert [next_line(process.stdout).decode().rstrip("\n") for _ in wanted] == wanted
        assert ended(process) == ""
