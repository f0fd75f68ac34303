"""confluo-convert and confluo-capture --append: nothing is lost on the way into an existing log."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from running import CAMPUS, lines, run

HEAD = "schema: ev\nfields:\n- {name: ts, type: time}\n- {name: a, type: u32}\n- {name: name, type: text(12)}\n"
OLD = HEAD + "- {name: e, type: enum, names: {1: x, 2: y}}\n"
NEW = HEAD + "- {name: e, type: enum, names: {1: x, 2: y, 3: z}}\n- {name: b, type: u16}\n- {name: t, type: text(8)}\n"
FIRST = {"ts": "2026-01-01T00:00:00Z", "a": 1, "name": "one", "e": "x"}
MORE = {"ts": "2026-01-01T00:00:01Z", "a": 2, "name": "two", "e": "z", "b": 7, "t": "hi"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "old.yaml").write_text(OLD)
    (tmp_path / "new.yaml").write_text(NEW)
    words = ["confluo-convert", "-", "--schema", tmp_path / "old.yaml", "-w", tmp_path / "ev.ml"]
    assert run(*words, stdin=json.dumps(FIRST).encode()).returncode == 0
    return tmp_path / "ev.ml"


def append(log: Path, text: str | bytes, *more: object) -> tuple[int, str]:
    data = text.encode() if isinstance(text, str) else text
    done = run("confluo-convert", "-", "-w", log, "--append", *more, stdin=data)
    return done.returncode, done.stderr.decode()


def rows(log: Path, *words: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines(run("confluo-query", log, *words, "-J"))]


def test_fields_and_names_that_the_log_lacks_are_named(log: Path) -> None:
    status, said = append(log, json.dumps(MORE), "--schema", log.parent / "new.yaml")
    lacks = f"{log}: has no fields b (u16), t (text(8)); has no name 'z' (3) in field e; --add-columns adds them"
    assert (status, said.startswith(f"confluo-convert: {lacks}")) == (2, True), said
    status, said = append(log, json.dumps(MORE))
    assert (status, "has no fields b (i64), t (text(16))" in said) == (2, True), said
    assert len(rows(log)) == 1


def test_a_log_gains_fields_and_names(log: Path) -> None:
    assert append(log, json.dumps(MORE), "--schema", log.parent / "new.yaml", "--add-columns") == (0, "")
    assert [(r["a"], r["e"], r["b"], r["t"]) for r in rows(log)] == [(1, "x", 0, None), (2, "z", 7, "hi")]
    assert append(log, json.dumps(MORE)) == (0, "")  # with the types that the log has now
    assert len(rows(log, "e == z && b == 7")) == 2
    assert run("confluo-info", "--verify", log).returncode == 0


def test_fields_that_are_left_out_by_name(log: Path) -> None:
    assert append(log, json.dumps(MORE | {"e": "y"}), "-f", "-b,-t") == (0, "")
    assert [r["e"] for r in rows(log)] == ["x", "y"]


def test_text_has_the_types_of_the_log(log: Path) -> None:
    assert append(log, "ts,a,name,e\n2026-01-01T00:00:01Z,2,C:\\x41,y\n") == (0, "")
    assert [(r["a"], r["name"], r["e"]) for r in rows(log)][1] == (2, "C:\\x41", "y")
    status, said = append(log, json.dumps(FIRST | {"e": "other"}))
    assert status != 0
    assert "'other' is not of type enum (field e)" in said


@pytest.mark.parametrize("kind", ["parquet", "stream"])
def test_arrow_has_the_types_of_the_log(kind: str, log: Path) -> None:
    table = pa.table(
        {"ts": pa.array([5], pa.timestamp("us")), "a": pa.array([7], pa.int64()), "name": ["n"], "e": ["y"]}
    )
    sink = pa.BufferOutputStream()
    if kind == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    assert append(log, sink.getvalue().to_pybytes()) == (0, "")
    assert [(r["a"], r["name"], r["e"]) for r in rows(log, "a == 7")] == [(7, "n", "y")]


def test_another_type_or_name_is_refused(log: Path) -> None:
    other = log.parent / "other.ml"
    (log.parent / "other.yaml").write_text(OLD.replace("u32", "u64").replace("2: y", "2: w"))
    words = ["confluo-convert", "-", "--schema", log.parent / "other.yaml", "-w", other]
    assert run(*words, stdin=json.dumps(FIRST).encode()).returncode == 0
    done = run("confluo-convert", other, "-w", log, "--append", "--add-columns")
    assert done.returncode == 2
    assert b"has field a as u32, not u64; e 2 is 'y', not 'w'" in done.stderr
    assert len(rows(log)) == 1


def test_packets_do_not_fill_other_logs(tmp_path: Path) -> None:
    text = "ts,src_ip,bytes,note\n2026-01-01T00:00:00Z,10.0.0.1,500,hello\n"
    done = run("confluo-convert", "-", "-w", tmp_path / "own.ml", stdin=text.encode())
    assert done.returncode == 0
    taken = b"fields 'ts', 'src_ip' as in schema 'packet'; other types are guessed: bytes (i64), note (text(16))"
    assert taken in done.stderr
    done = run("confluo-capture", "-r", CAMPUS, "-w", tmp_path / "own.ml", "--append")
    assert (done.returncode, b"packets cannot fill fields 'bytes', 'note'" in done.stderr) == (2, True)
    assert len(rows(tmp_path / "own.ml")) == 1


def test_a_late_key_and_a_later_input_are_reported(tmp_path: Path) -> None:
    text = "".join(json.dumps({"a": n}) + "\n" for n in range(300)) + '{"a":1,"b":2}\n{"a":3,"b":4}\n'
    (tmp_path / "a.ndjson").write_text(text)
    done = run("confluo-query", tmp_path / "a.ndjson", "--count")
    assert (done.returncode, done.stdout) == (2, b"302\n")
    assert done.stderr.count(b"line 301: field 'b' is not in the first lines") == 1
    (tmp_path / "b.ndjson").write_text('{"a":1,"b":2}\n')
    (tmp_path / "c.ndjson").write_text('{"a":1}\n')
    done = run("confluo-query", "-r", tmp_path / "c.ndjson", "-r", tmp_path / "b.ndjson", "--count")
    assert (done.returncode, done.stdout) == (2, b"2\n")
    assert b"left out: b" in done.stderr
