"""confluo-query --flows: what is about packets, what is about flows, and what a full table says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from running import DATA, run


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flows") / "campus.ml"
    done = run("confluo-capture", "-q", "-r", DATA / "campus.pcap.gz", "-w", path)
    assert done.returncode == 0, done.stderr
    return path


def lines(*args: object) -> list[str]:
    done = run("confluo-query", *args)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().splitlines()


def test_a_log_and_its_capture_have_the_same_flows(log: Path) -> None:
    assert lines(log, "--flows", "-T") == lines(DATA / "campus.pcap.gz", "--flows", "-T")


def test_the_expression_is_about_flows_and_packets_about_packets(log: Path) -> None:
    rows = [json.loads(line) for line in lines(log, "--flows", "-J")]
    refused = [r for r in rows if r["conn_state"] == "REJ"]
    assert lines(log, "--flows", "conn_state == REJ", "--count") == [str(len(refused))]
    assert lines(log, "--flows", "conn_state in {rej, RSTO}", "--agg", "count", "-T", "--no-header") == [
        str(sum(r["conn_state"] in ("REJ", "RSTO") for r in rows))
    ]
    syns = [
        json.loads(line)
        for line in lines(log, "--flows", "--packets", "tcp_flags has syn && ! tcp_flags has ack", "-J")
    ]
    assert {r["history"] for r in syns} == {"S"}
    assert sum(r["src_packets"] for r in syns) == int(
        lines(log, "tcp_flags has syn && ! tcp_flags has ack", "--count")[0]
    )
    done = run("confluo-query", log, "--flows", "tcp_flags has syn")
    assert done.returncode == 2
    assert b"no field 'tcp_flags' in schema 'conn'" in done.stderr


def test_the_time_range_is_of_packets(log: Path) -> None:
    end = "2026-11-21T01:18:42Z"
    rows = [json.loads(line) for line in lines(log, "--flows", "--until", "2026-11-21T01:18:41.999999999Z", "-J")]
    packets = int(lines(log, f"ts < {end} && (ip || ip6)", "--count")[0])
    assert sum(r["src_packets"] + r["dst_packets"] for r in rows) == packets
    assert max(r["last_ts"] for r in rows) < end


def test_flows_become_a_log(log: Path, tmp_path: Path) -> None:
    flows = tmp_path / "flows.ml"
    assert lines(log, "--flows", "-w", flows) == []
    assert sorted(lines(flows, "-J")) == sorted(lines(log, "--flows", "-J"))
    done = run("confluo-query", flows, "--flows")
    assert done.returncode == 2
    assert b"it holds flows: leave --flows out" in done.stderr


def test_a_full_table_is_an_inexact_answer(log: Path) -> None:
    done = run("confluo-query", log, "--flows", "--analyze-flows", "50", "--agg", "count", "--by", "reason", "-T")
    groups = dict(line.split("\t") for line in done.stdout.decode().splitlines()[2:])
    assert done.returncode == 2
    assert f"{groups['evicted']} flows were cut short because the table was full".encode() in done.stderr
    assert done.stderr.count(b"\n") == 1
    enough = run("confluo-query", log, "--flows", "--analyze-flows", "2000", "--count")
    assert (enough.returncode, enough.stderr) == (0, b"")
    analysed = run("confluo-query", log, "--analyze", "tcp", "--analyze-flows", "5", "--count")
    assert analysed.returncode == 2
    assert b"so --analyze tcp is not exact" in analysed.stderr


def test_times_that_go_back_are_reported(tmp_path: Path) -> None:
    capture = gzip.decompress((DATA / "raw.pcap.gz").read_bytes())
    twice = tmp_path / "twice.pcap"
    twice.write_bytes(capture + capture[24:])
    done = run("confluo-query", twice, "--flows", "--count")
    assert done.returncode == 2
    assert b"so --flows may be wrong; sort the input with --sort-input" in done.stderr
    done = run("confluo-query", twice, "--flows", "--sort-input", "--count")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--flows", "--analyze", "tcp"), "--analyze: does not go with --flows; it is about packets"),
        (("--flows", "--state", "maxseq"), "--state: does not go with --flows; it is about packets"),
        (("--flows", "--engine", "local"), "--engine: does not go with --flows; it is about packets"),
        (("--flows", "--follow"), "--follow: does not go with --flows; confluo-flows follows"),
        (("--packets", "tcp"), "--packets: requires --flows"),
        (("--idle-timeout", "15s"), "--idle-timeout: requires --flows"),
        (("--flows", "--active-timeout", "soon"), "--active-timeout: "),
        (("--flows", "-o", "pcap"), "only records of packets"),
    ],
)
def test_options_that_do_not_fit(log: Path, options: tuple[str, ...], problem: str) -> None:
    done = run("confluo-query", log, *options)
    assert done.returncode == 2
    assert problem in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_timeouts(log: Path) -> None:
    """A flow that pauses for longer gives several records; all its packets are in them."""
    whole = int(lines(log, "--flows", "--count")[0])
    cut = [json.loads(line) for line in lines(log, "--flows", "--idle-timeout", "100ms", "-J")]
    assert len(cut) > whole
    assert {r["reason"] for r in cut} >= {"idle", "fin", "end"}
    old = [json.loads(line) for line in lines(log, "--flows", "--active-timeout", "50ms", "-J")]
    assert max(r["duration"] for r in old) < 50_000_000
    assert {r["reason"] for r in old} >= {"active", "fin", "end"}
    total = int(lines(log, "ip || ip6", "--count")[0])
    for rows in (cut, old):
        assert sum(r["src_packets"] + r["dst_packets"] for r in rows) == total
