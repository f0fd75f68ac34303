"""confluo-info: the report matches the log; --verify finds damage."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from confluo_tools.schema import builtin
from running import CAMPUS, DATA, environment, lines, run, shell


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("info") / "campus.ml"
    assert run("confluo-capture", "-r", CAMPUS, "-w", path, "--index", "dst_port", "-q").returncode == 0
    return path


def test_what_a_multilog_holds(log: Path) -> None:
    facts = json.loads(run("confluo-info", "-J", log).stdout)
    rows = [json.loads(line) for line in lines(run("confluo-query", log, "-J", "-f", "ts"))]
    assert facts["rows"] == len(rows) == 5735
    assert (facts["first"], facts["last"]) == (min(r["ts"] for r in rows), max(r["ts"] for r in rows))
    assert (facts["format"], facts["schema"]) == ("multilog", "packet")
    assert facts["lanes"] == [{"lane": 0, "rows": 5735, "removed": 0, "sealed": 5735, "segments": 1, "writer": 0}]
    assert [(i["index"], i["covered"], i["rows"]) for i in facts["indexes"]] == [("dst_port", 5735, 5735)]
    used = int(shell('du -s -B 1 --exclude=lost+found "$1" | cut -f1', log).stdout)
    assert 0.5 * used < facts["disk_bytes"] <= used
    assert 0 < facts["view_bytes"] < facts["disk_bytes"]
    assert "confluo-capture -r" in facts["history"][0]["command"]
    text = run("confluo-info", log).stdout.decode()
    for part in ("rows     5,735", "dst_port", "history\n", "confluo-capture -r", "LANE   ROWS"):
        assert part in text
    tsv = dict(line.split("\t") for line in lines(run("confluo-info", "-T", log)))
    assert (tsv["rows"], tsv["lanes.0.rows"], tsv["indexes.0.index"]) == ("5735", "5735", "dst_port")


def test_what_other_inputs_hold(log: Path) -> None:
    whole = json.loads(run("confluo-info", "-J", log).stdout)
    stream = run("confluo-query", log).stdout
    both = [("pcap", run("confluo-info", "-J", CAMPUS)), ("stream", run("confluo-info", "-J", stdin=stream))]
    for form, done in both:
        facts = json.loads(done.stdout)
        assert facts["format"] == form
        assert {k: facts[k] for k in ("rows", "first", "last", "span", "schema")} == {
            k: whole[k] for k in ("rows", "first", "last", "span", "schema")
        }
    assert facts["history"][-1]["command"].startswith("confluo-query ")
    assert facts["host"]
    several = run("confluo-info", CAMPUS, DATA / "vlan.pcap.gz").stdout.decode()
    assert several.count("\nrows ") == 2


def test_fields_are_listed_with_units_and_meaning(log: Path) -> None:
    for words in (["confluo-info", "--fields"], ["confluo-info", "--fields", log]):
        text = run(*words).stdout.decode()
        names = [line.split()[0] for line in text.splitlines()[1:]]
        expected = [f.name for f in builtin("packet").fields]
        assert names == expected if len(words) == 2 else set(names) <= set(expected)
        assert "  B  " in text
    shown = [json.loads(line) for line in lines(run("confluo-info", "--fields", "-J"))]
    assert [f["name"] for f in shown] == [f.name for f in builtin("packet").fields]
    tsv = lines(run("confluo-info", "--fields", "-T"))
    assert tsv[0] == "#fields\tfield\ttype\tunit\tdescription"
    assert {len(line.split("\t")) for line in tsv[1:]} == {4}


def test_verify_says_whole_or_names_the_damage(log: Path, tmp_path: Path) -> None:
    done = run("confluo-info", "--verify", log)
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, f"{log}: 5,735 rows, whole\n", b"")
    assert run("confluo-info", "--verify", "-q", log).stdout == b""
    copy = tmp_path / "hurt.ml"
    shutil.copytree(log, copy)
    segment = next((copy / "lane-000").glob("seg-*.arrow"))
    for at in (5000, segment.stat().st_size // 2):
        data = bytearray(segment.read_bytes())
        data[at] ^= 4
        segment.write_bytes(data)
        done = run("confluo-info", "--verify", copy)
        assert done.returncode == 2
        assert str(segment) in done.stdout.decode()
        assert re.fullmatch(rf"confluo-info: {copy}: \d places? (is|are) damaged\n", done.stderr.decode())
        data[at] ^= 4
        segment.write_bytes(data)
    assert run("confluo-info", "--verify", copy).returncode == 0
    assert run("confluo-info", "--verify", copy, log).stdout.count(b"rows, whole") == 2


def test_verify_reads_other_inputs_to_their_end(log: Path) -> None:
    stream = run("confluo-query", log).stdout
    done = run("confluo-info", "--verify", stdin=stream)
    assert (done.returncode, done.stdout) == (0, b"standard input: 5,735 rows, whole\n")
    done = run("confluo-info", "--verify", stdin=stream[:-20])
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"its writer was interrupted" in done.stderr
    done = run("confluo-info", "--verify", stdin=CAMPUS.read_bytes()[:50_000])
    assert (done.returncode, done.stdout) == (2, b"")


def test_what_is_no_multilog(tmp_path: Path) -> None:
    (tmp_path / "x.ml").mkdir()
    for words in (["confluo-info"], ["confluo-info", "--verify"]):
        done = run(*words, tmp_path / "x.ml")
        assert (done.returncode, done.stdout) == (2, b"")
        path = tmp_path / "x.ml"
        assert done.stderr.decode() == f"confluo-info: {path}: is not a MultiLog (it has no control page)\n"


def test_local_times(log: Path) -> None:
    env = environment(TZ="Etc/GMT-2")
    text = run("confluo-info", "--local", log, env=env).stdout.decode()
    assert "+02:00" in text
    assert "+02:00" not in run("confluo-info", log, env=env).stdout.decode()
