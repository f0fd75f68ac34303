"""State views: exact at every version, with several lanes, killed maintainers and damaged files."""

from __future__ import annotations

import os
import random
import re
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.core.multilog.control import crc
from confluo_tools.errors import UsageError
from confluo_tools.multilog import views
from confluo_tools.multilog.query import state_definitions
from confluo_tools.multilog.views.state import HEAD, HEAD_BYTES
from confluo_tools.schema import Field, Schema
from running import popen
from twin_state_machine import Twin

SCHEMA = Schema("toy", [Field("ts", "time"), Field("key", "u16"), Field("seq", "u32"), Field("len", "u32")])
FORMATS = {"ts": "q", "key": "H", "seq": "I", "len": "I"}
TEXT = """
state: latest
key: key
where: len > 100
fields: [{name: mark, type: serial}, {name: at, type: time}, {name: order, type: i64, zero: 1}, {name: n, type: u32}]
update:
- {when: new or seq > mark, set: {mark: seq, at: ts}}
- {set: {order: order * 31 + seq, n: n + 1}}
"""
NAMES = ("mark", "at", "order", "n")
Row = dict[str, int]


@pytest.fixture
def definition(tmp_path: Path) -> str:
    path = tmp_path / "latest.yaml"
    path.write_text(TEXT)
    return str(path)


def append(writer: Any, rows: list[Row]) -> None:
    columns = [struct.pack(f"<{len(rows)}{FORMATS[c.name]}", *(r[c.name] for r in rows)) for c in SCHEMA.columns]
    writer.append(Block.wrap(SCHEMA.layout, len(rows), columns))


def random_rows(rng: random.Random, n: int, now: int) -> list[Row]:
    return [
        {
            "ts": now + rng.randrange(-20, 2000),
            "key": rng.randrange(5),
            "seq": rng.getrandbits(32),
            "len": rng.randrange(300),
        }
        for _ in range(n)
    ]


def merged(lanes: dict[int, list[Row]]) -> Iterator[Row]:
    """Rows by time, ties by lane, then by number."""
    rows = [(row["ts"], lane, i) for lane, rows in lanes.items() for i, row in enumerate(rows)]
    for _, lane, i in sorted(rows):
        yield lanes[lane][i]


def by_hand(lanes: dict[int, list[Row]]) -> dict[int, dict[str, int]]:
    # Only rows of `where` are merged, as in a query.
    twin = Twin(state_definitions.parse(TEXT), SCHEMA)
    for row in merged({lane: [r for r in rows if r["len"] > 100] for lane, rows in lanes.items()}):
        twin.step(row["key"], row)
    return twin.states


def states(machine: Any) -> dict[int, dict[str, int]]:
    at = machine.states.index
    return {
        block.get(at("key"), i): {n: block.get(at(n), i) for n in NAMES}
        for block in machine.blocks()
        for i in range(block.rows)
    }


@pytest.mark.parametrize("seed", range(6))
def test_stored_states_and_the_rest_are_those_of_all_rows(tmp_path: Path, definition: str, seed: int) -> None:
    """Several writers, a maintainer in between, lanes that start late with rows older than the stored states."""
    rng = random.Random(seed)
    log = multilog.create(tmp_path / "t.ml", SCHEMA, segment_blocks=1)
    lanes: dict[int, list[Row]] = {}
    writers: list[Any] = []
    versions = []
    now = 10**18
    with log:
        view = views.add_state(log, "latest", definition)
        for step in range(40):
            if not writers or (len(writers) < 3 and rng.random() < 0.1):
                writers.append(log.writer())
                lanes[writers[-1].number] = []
            writer = rng.choice(writers)
            rows = random_rows(rng, rng.randrange(1, 60), now - (500 if rng.random() < 0.2 else 0))
            append(writer, rows)
            lanes[writer.number] += rows
            now += rng.randrange(1000)
            if rng.random() < 0.5:
                views.bring_up_to_date(log, view if rng.random() < 0.5 else views.find_state(log, "latest"))  # type: ignore[arg-type]
            version = log.version()
            versions.append((version, {k: list(v) for k, v in lanes.items()}))
            if step % 4 == 0:
                assert states(view.at(version)) == by_hand(lanes)
        for version, then in versions[:: len(versions) // 5]:  # older than the stored states
            assert states(view.at(version)) == by_hand(then)
        covered, rows_, size = views.coverage(log, view, log.version())
        assert 0 <= covered <= rows_ == sum(map(len, lanes.values()))
        assert size > HEAD_BYTES
        for writer in writers:
            writer.close()
        assert states(view.at(log.version())) == by_hand(lanes)


def test_one_lane_is_stored_to_its_end(tmp_path: Path, definition: str) -> None:
    rng = random.Random(1)
    with multilog.create(tmp_path / "t.ml", SCHEMA) as log:
        view = views.add_state(log, "latest", definition)
        with log.writer() as writer:
            append(writer, random_rows(rng, 500, 10**18))
        views.bring_up_to_date(log, view)
        assert views.coverage(log, view, log.version())[:2] == (500, 500)
        stored, _ = view.read()
        assert stored.tails == {0: 500}


@pytest.mark.parametrize("what", ["flip", "cut", "empty", "other definition", "other log", "many keys", "gone"])
def test_a_file_that_cannot_be_believed_changes_no_answer(tmp_path: Path, definition: str, what: str) -> None:
    rng = random.Random(2)
    rows = random_rows(rng, 300, 10**18)
    with multilog.create(tmp_path / "t.ml", SCHEMA) as log:
        view = views.add_state(log, "latest", definition)
        with log.writer() as writer:
            append(writer, rows)
        views.bring_up_to_date(log, view)
        path = Path(view.path_of_states)
        data = bytearray(path.read_bytes())
        if what == "flip":
            data[rng.randrange(HEAD_BYTES, len(data))] ^= 4
        elif what == "cut":
            del data[-9:]
        elif what == "empty":
            data.clear()
        elif what != "gone":
            at = {"other log": 16, "other definition": 32, "many keys": 64 + 5}[what]
            data[at] ^= 255
            data[HEAD.size - 4 : HEAD.size] = struct.pack("<I", crc(bytes(data[: HEAD.size - 4] + data[HEAD_BYTES:])))
        path.unlink()
        if what != "gone":
            path.write_bytes(data)
        assert len(list(views.check(log, view))) == (what != "gone")
        again = views.find_state(log, "latest")
        assert again is not None
        assert states(again.at(log.version())) == by_hand({0: rows})
        views.rebuild(log, again)
        assert not list(views.check(log, again))
        assert views.coverage(log, again, log.version())[0] == 300


def test_a_maintainer_that_is_killed_leaves_states_that_hold(tmp_path: Path, definition: str) -> None:
    rng = random.Random(3)
    lanes: dict[int, list[Row]] = {0: []}
    log = multilog.create(tmp_path / "t.ml", SCHEMA, segment_blocks=1)
    command = [str(ROOT / "bin" / "confluo-index"), log.path, "--follow", "--interval", "1ms", "-q"]
    now = 10**18
    with log, log.writer() as writer:
        view = views.add_state(log, "latest", definition)
        seen = set()
        for _ in range(3):
            process = popen(command, stderr=subprocess.PIPE)
            end = time.monotonic() + 20
            before = views.coverage(log, view, log.version())[0]
            while time.monotonic() < end:
                rows = [r | {"len": 0} if i % 50 else r for i, r in enumerate(random_rows(rng, 2000, now))]
                for _ in range(10):
                    append(writer, rows)
                    lanes[0] += rows
                now += 2000
                covered = views.coverage(log, view, log.version())[0]
                if covered > before and rng.random() < 0.5:
                    break
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stderr is not None
            process.stderr.close()
            seen.add(covered)
            assert not list(views.check(log, view))
        assert states(view.at(log.version())) == by_hand(lanes)
        assert len(seen) > 1


def test_names_and_definitions(tmp_path: Path, definition: str) -> None:
    with multilog.create(tmp_path / "t.ml", SCHEMA) as log:
        view = views.add_state(log, "latest", definition)
        assert views.add_state(log, "latest", definition).id == "state-latest"
        other = tmp_path / "other.yaml"
        other.write_text(TEXT.replace("len > 100", "len > 10"))
        with pytest.raises(UsageError, match="exists with another definition"):
            views.add_state(log, "latest", str(other))
        with pytest.raises(UsageError, match="name 'latest' is used by a view of kind"):
            views.add_filter(log, "latest", "len > 3")
        with pytest.raises(UsageError, match="must not make programs run code"):
            views.add_state(log, "code", "plugin_state:Twice")
        with pytest.raises(UsageError, match="unknown analysis 'latst'"):
            views.add_state(log, "latst")
        assert [v.label for v in views.states(log)] == ["latest"]
        assert view.definition == "latest: mark, at, order, n by key"
        assert views.drop_view(log, "latest", "state")
        assert views.states(log) == []


def test_the_page_of_the_format_is_right(tmp_path: Path, definition: str) -> None:
    page = (ROOT / "docs" / "format-state.md").read_text()
    lines = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", page, re.MULTILINE)
    fields = {n: (int(at), int(size)) for at, size, n in lines}
    rng = random.Random(4)
    rows = random_rows(rng, 100, 10**18)
    with multilog.create(tmp_path / "t.ml", SCHEMA) as log:
        view = views.add_state(log, "latest", definition)
        with log.writer() as writer:
            append(writer, rows)
        views.bring_up_to_date(log, view)
        data = Path(view.path_of_states).read_bytes()
        uuid, digest = log.uuid, view.digest

    def number(name: str) -> int:
        at, size = fields[name]
        return int.from_bytes(data[at : at + size], "little")

    kept = by_hand({0: rows})
    assert data[:8] == b"CFLSTATE"
    assert (number("version"), number("endian"), number("lanes")) == (2, 0x01020304, 1)
    assert (data[16:32], data[32:64]) == (uuid, digest)
    assert (number("keys"), number("rows"), number("bytes")) == (len(kept), 100, len(data) - fields["tails"][0])
    assert number("newest") >= max(r["ts"] for r in rows if r["len"] > 100)
    end = fields["crc"][0]
    assert number("crc") == crc(data[:end] + data[fields["tails"][0] :])
    assert struct.unpack_from("<Q", data, fields["tails"][0]) == (100,)
    keys = struct.unpack_from(f"<{len(kept)}H", data, fields["tails"][0] + 8)
    marks = struct.unpack_from(f"<{len(kept)}I", data, fields["tails"][0] + 8 + 2 * len(kept))
    assert dict(zip(keys, marks, strict=True)) == {k: s["mark"] for k, s in kept.items()}
