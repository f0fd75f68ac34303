"""confluo-trace as a command: lookups, storms, epochs out of order, wrong words and wrong records."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from confluo_tools.core.block.block import Block
from confluo_tools.schema import builtin
from netns import Lab
from running import BIN, CAMPUS, completed, environment, run
from trace_lab import TRACE, Net, chain, moment, records, stream, trace

FAST = ("--rate", "100000", "--burst", "10000")


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    """a - r1 - r2 - b."""
    with Lab() as lab:
        made = chain(lab, 2)
        made.route("a", "default", ["r1"])
        yield made


def flow(net: Net, port: int, to: str = "", dport: int = 443) -> tuple[str, str, int, int]:
    return net.host("a"), to or net.host("b"), port, dport


def test_keep_counts_from_the_newest_record(net: Net, tmp_path: Path) -> None:
    """Records of 2023: the paths of a first run are not old, because nothing newer is in the log."""
    log = tmp_path / "paths.ml"
    for port in (1, 2):
        more = ["--append"] if port > 1 else []
        given = records([flow(net, port)])
        done = net.spaces["a"].run(TRACE, "-w", log, "--keep", "1h", *more, *FAST, input=stream(given), stdin=None)
        assert done.returncode == 0
    assert run("confluo-query", log, "-f", "src_port", "-T", "--no-header").stdout.split() == [b"1", b"2"]


# ---------------------------------------------------------------- virtual addresses


def test_a_file_maps(net: Net, tmp_path: Path) -> None:
    """The path is that of the DIP, and the record names it; no probe goes to an unknown address."""
    path = tmp_path / "vips"
    path.write_text(f"10.9.0.1:443 {net.host('b')}:8443\n")
    flows = [flow(net, 1, "10.9.0.1"), flow(net, 2, "10.9.0.1", 80), flow(net, 3)]
    found, said = trace(net.spaces["a"], records(flows), "--map", path, "--vip", "10.9.0.0/16", *FAST, "--stats")
    assert [(r["dst_ip"], r["dst_port"], r["hops"], r["notes"]) for r in found] == [
        (net.host("b"), 8443, 2, None),
        ("10.9.0.1", 80, 0, "unmapped"),
        (net.host("b"), 443, 2, None),
    ]
    assert "2 traced" in said
    assert "1 unmapped" in said


def test_a_command_maps(net: Net, tmp_path: Path) -> None:
    script = tmp_path / "lookup"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\nfor line in sys.stdin:\n"
        f"    print('{net.host('b')} 99' if line.split()[1] != '2' else '?', flush=True)\n"
    )
    script.chmod(0o755)
    flows = [flow(net, port, "10.9.0.1") for port in (1, 2, 3)]
    found, _ = trace(net.spaces["a"], records(flows), "--map-command", script, *FAST)
    assert [(r["dst_ip"], r["dst_port"], r["hops"], r["notes"]) for r in found] == [
        (net.host("b"), 99, 2, None),
        ("10.9.0.1", 443, 0, "unmapped"),
        (net.host("b"), 99, 2, None),
    ]


def test_a_command_that_is_silent_stops_nobody(net: Net) -> None:
    start = time.monotonic()
    flows = [flow(net, 1, "10.9.0.1"), flow(net, 2)]
    found, said = trace(net.spaces["a"], records(flows), "--map-command", "sleep 60", "--vip", "10.9.0.0/16", *FAST)
    assert [(r["hops"], r["notes"]) for r in found] == [(0, "unmapped"), (2, None)]
    assert "did not answer within 1 s" in said
    assert time.monotonic() - start < 30


def test_what_the_lookup_says_must_be_allowed_too(net: Net, tmp_path: Path) -> None:
    path = tmp_path / "vips"
    path.write_text("10.9.0.1 127.0.0.1\n10.9.0.2 224.0.0.1\n10.9.0.3 10.200.0.1\n")
    flows = [flow(net, i, f"10.9.0.{i}") for i in (1, 2, 3)]
    found, said = trace(net.spaces["a"], records(flows), "--map", path, "--only", "10.9.0.0/16", *FAST, "--stats")
    assert [r["hops"] for r in found] == [0, 0, 0]
    assert "0 probes" in said


# ---------------------------------------------------------------- storms and times


def storm(net: Net, n: int, blocks: int, path: Path) -> int:
    """A stream of n * blocks records of n flows that each lose a packet; how many records it has."""
    from confluo_tools.formats.arrow import metadata_of
    from confluo_tools.formats.output_file import open_sink
    from confluo_tools.formats.writers import open_writer

    schema = builtin("retx")
    a, b = (int.from_bytes(socket.inet_aton(net.host(x)), "big") for x in "ab")
    same = {
        "ts": 1_700_000_010_000_000_000,
        "ip_version": 4,
        "proto": 6,
        "src_ip": a,
        "dst_ip": b,
        "dst_port": 443,
        "sent": 2,
        "lost": 1,
        "retrans": 1,
    }
    columns = [
        b"".join((i + 1).to_bytes(2, "little") for i in range(n))
        if c.name == "src_port"
        else same.get(c.name, 0).to_bytes(c.size * c.count, "little") * n
        for c in schema.columns
    ]
    block = Block.wrap(schema.layout, n, columns)
    sink = open_sink(str(path))
    writer = open_writer("stream", schema, sink, metadata=metadata_of(schema, {}, "test", "here", "UTC"))
    writer.start()
    for _ in range(blocks):
        writer.write(block, None)
    writer.close()
    sink.close()
    return n * blocks


def test_a_storm_is_counted_and_the_rate_kept(net: Net, tmp_path: Path) -> None:
    """A million records of 50,000 flows: a few are traced, all are written, and a line says what was not done."""
    total = storm(net, 50_000, 20, tmp_path / "storm.arrows")
    words = ("--from", tmp_path / "storm.arrows", "--rate", "10", "--epoch", "1s", "--flows", "40000", "--stats")
    begun = time.monotonic()
    done = completed(
        net.spaces["a"].argv(TRACE, *words, "-w", tmp_path / "out.ml"),
        capture_output=True,
        env=environment(),
        check=False,
        timeout=60,
    )
    took = time.monotonic() - begun
    assert done.returncode == 0, done.stderr
    said = done.stderr.decode()
    traced = int(re.findall(r"(\d+) traced, \d+ capped", said)[0])
    assert 1 <= traced <= 1 + 10 * took
    assert f"{total} records read" in said
    assert f"{40_000 - traced} flows were not traced, to keep to 10 per second" in said
    assert "and 200000 records of flows beyond 40000 were left out" in said
    asked = run("confluo-query", tmp_path / "out.ml", "--agg", "count, sum(lost)", "--by", "notes", "-T", "--no-header")
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in asked.stdout.decode().splitlines()}
    assert rows["capped"] == [str(40_000 - traced), str((40_000 - traced) * 20)]
    assert sum(int(count) for count, _ in rows.values()) == 40_000


def test_epochs_out_of_order(net: Net) -> None:
    """A record of next year does not keep those of today from being written, nor does one from long ago."""
    a, b = net.host("a"), net.host("b")
    text = b"".join(
        records([(a, b, port, 443)], ts=ts * 10**9)
        for port, ts in ((1, 0), (2, 86400 * 400), (3, 1), (4, -86400), (5, 31), (6, 29), (7, 62))
    )
    found, _ = trace(net.spaces["a"], text, *FAST)
    assert sorted(r["src_port"] for r in found) == [1, 2, 3, 4, 5, 6, 7]
    assert {r["hops"] for r in found} == {2}


def test_the_ends_of_time(net: Net) -> None:
    schema = builtin("path")
    a, b = (int.from_bytes(socket.inet_aton(net.host(x)), "big") for x in "ab")
    times = [0, -1, (1 << 63) - 1, (1 << 63) - 2, -(1 << 63), -(1 << 63) + 1, 5]
    same = {"kind": 1, "ip_version": 4, "proto": 6, "src_ip": a, "dst_ip": b, "dst_port": 443, "lost": 1}
    columns = []
    for c in schema.columns:
        size = c.size * c.count
        values = times if c.name == "ts" else range(1, 8) if c.name == "src_port" else [same.get(c.name, 0)] * 7
        columns.append(b"".join((v & (1 << 8 * size) - 1).to_bytes(size, "little") for v in values))
    done = completed(
        net.spaces["a"].argv(TRACE, *FAST, "-T", "--no-header", "-f", "src_port,hops"),
        input=arrow(Block.wrap(schema.layout, 7, columns)),
        capture_output=True,
        env=environment(),
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = {line.split(b"\t")[0]: line.split(b"\t")[1] for line in done.stdout.splitlines()}
    assert {b"1", b"2", b"4", b"7"} <= set(found)
    assert set(found.values()) == {b"2"}


def arrow(block: Block) -> bytes:
    from confluo_tools.formats.arrow import metadata_of
    from confluo_tools.formats.output_file import open_sink
    from confluo_tools.formats.writers import open_writer

    schema = builtin("path")
    path = Path(f"/dev/shm/trace-{os.getpid()}.arrows")
    try:
        sink = open_sink(str(path), force=True)
        writer = open_writer("stream", schema, sink, metadata=metadata_of(schema, {}, "test", "here", "UTC"))
        writer.start()
        writer.write(block, None)
        writer.close()
        sink.close()
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


# ---------------------------------------------------------------- records of other commands


def test_retransmissions_of_a_capture(tmp_path: Path) -> None:
    """Packets that --analyze tcp calls retransmissions: each is one that was lost."""
    text = (
        json.dumps(
            {
                "ts": moment(0),
                "ip_version": 4,
                "proto": "tcp",
                "src_ip": "10.88.1.0",
                "dst_ip": "10.88.3.1",
                "src_port": 7,
                "dst_port": 443,
            }
        )
        + "\n"
    )
    done = run("confluo-convert", "-i", "ndjson", "--schema", "packet", "-", "-o", "stream", stdin=text.encode() * 3)
    with Lab() as lab:
        small = chain(lab, 2)
        out = completed(
            small.spaces["a"].argv(TRACE, "-J", *FAST),
            input=done.stdout,
            capture_output=True,
            env=environment(),
            check=False,
            timeout=60,
        )
    assert out.returncode == 0, out.stderr
    (found,) = [json.loads(line) for line in out.stdout.splitlines()]
    assert (found["src_port"], found["lost"], found["retrans"], found["sent"], found["hops"]) == (7, 3, 3, 0, 2)


def test_flows_that_are_not_tcp_and_those_that_lost_nothing(net: Net) -> None:
    three = records([flow(net, 1), flow(net, 2), flow(net, 3)])
    rows: list[dict[str, Any]] = [json.loads(line) for line in three.splitlines()]
    rows[0]["proto"] = "udp"
    rows[1]["lost"] = 0
    rows[2]["kind"] = "failed"
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    found, said = trace(net.spaces["a"], text, *FAST, "--stats", status=1)
    assert found == []
    assert "2 not of TCP flows" in said
    found, _ = trace(net.spaces["a"], text, *FAST, "--healthy")
    assert [(r["src_port"], r["lost"], r["hops"], r["notes"]) for r in found] == [(2, 0, 0, None)]


# ---------------------------------------------------------------- wrong words, wrong records


def complaint(*words: Any, stdin: bytes = b"") -> str:
    done = run("confluo-trace", *words, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, b"")
    text = done.stderr.decode()
    assert text.startswith("confluo-trace: ")
    assert text.count("\n") == 1
    return text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rate", "0"], "--rate: 0 is out of range; write 0.001 to 10000000"),
        (["--rate", "nan"], "--rate: nan is out of range; write 0.001 to 10000000"),
        (["--rate", "1e9"], "--rate: 1e+09 is out of range; write 0.001 to 10000000"),
        (["--rate", "1e999"], "--rate: inf is out of range; write 0.001 to 10000000"),
        (["--epoch", "1ms"], "--epoch: '1ms' is too short; 10ms or more"),
        (["--epoch", "soon"], "--epoch: "),
        (["--timeout", "1h"], "--timeout: '1h' is too long; 10s at most"),
        (["--bound", "full"], "--bound requires --topology and excludes --rate"),
        (["--t-max", "5"], "--t-max requires --topology and excludes --rate"),
        (["--bound", "best"], "--bound: unknown bound 'best'; write full or paper"),
        (["--only", "everywhere"], "--only: 'everywhere' is not a prefix"),
        (["--allow", "all"], "--allow: unknown kind of address 'all'; the kinds are"),
        (["--vip", "10.9.0.0/16"], "--vip: requires a lookup; --map FILE or --map-command CMD"),
        (["--map", "a", "--map-command", "b"], "--map and --map-command exclude each other"),
        (["--map-command", "no-such-command"], "--map-command: command not found: 'no-such-command'"),
        (["--map", "/nonexistent"], "/nonexistent: No such file"),
        (["--alias", "/nonexistent"], "/nonexistent: No such file"),
        (["--topology", "/nonexistent"], "/nonexistent: No such file"),
        (["--follow"], "--follow: requires one MultiLog of this host, or a topic; name it with --from LOG"),
        (["--follow", "--from", "a", "--from", "b"], "--follow: requires one MultiLog"),
        (["--append"], "--append is for a MultiLog"),
        (["--from", "/nonexistent"], "/nonexistent: No such file"),
        (["-Z", "no-such-user"], "-Z: unknown user 'no-such-user'"),
        (["--tries", "0"], "invalid value for '--tries'"),
        (["-o", "tables"], "-o: unknown output format 'tables'"),
        (["-f", "nothing"], "nothing"),
    ],
)
def test_wrong_words(words: list[str], says: str) -> None:
    assert says in complaint(*words, stdin=stream(records([("10.0.0.1", "10.0.0.2", 1, 2)])))


def test_records_that_are_not_of_flows(tmp_path: Path) -> None:
    assert "is empty" in complaint(stdin=b"")
    assert ": unknown format; -i FORMAT names it" in complaint(stdin=os.urandom(64) + b"\0" * 64)
    other = tmp_path / "other.yaml"
    other.write_text("schema: other\nfields:\n- {name: ts, type: time}\n- {name: value, type: u32}\n")
    made = run(
        "confluo-convert",
        "-i",
        "ndjson",
        "--schema",
        other,
        "-",
        "-o",
        "stream",
        stdin=json.dumps({"ts": moment(0), "value": 5}).encode() + b"\n",
    )
    assert (
        "has no field ip_version: its records are not of flows; use records of kind retx, packet or path"
        in complaint(stdin=made.stdout)
    )
    text = records([("10.0.0.1", "10.0.0.2", 1, 2)])
    said = "the field kind has another type here; confluo-convert --schema path converts text"
    assert said in complaint("-q", stdin=text)  # else it also says which types were guessed
    assert "exists" in complaint("-w", tmp_path, stdin=stream(text))


def test_a_stream_that_is_cut() -> None:
    """The records so far are written, and the status says that there were more."""
    with Lab() as lab:
        small = chain(lab, 2)
        data = stream(records([(small.host("a"), small.host("b"), 7, 443)]))
        done = completed(
            small.spaces["a"].argv(TRACE, "-T", "--no-header", "-f", "hops", *FAST),
            input=data + data[:-200],
            capture_output=True,
            env=environment(),
            check=False,
            timeout=60,
        )
    assert done.returncode == 2
    assert b"confluo-trace: standard input: " in done.stderr


def test_who_may_not_open_raw_sockets() -> None:
    done = subprocess.run(
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", TRACE],
        capture_output=True,
        input=stream(records([("10.0.0.1", "10.0.0.2", 1, 2)])),
        env=environment(),
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == (
        b"confluo-trace: raw sockets are not allowed; run it as root, or give it the capability CAP_NET_RAW\n"
    )


def test_a_table_names_the_switches(net: Net) -> None:
    from confluo_tools.formats.block_builder import block_of_rows
    from confluo_tools.trace.path_table import PathTable

    six = bytes.fromhex("20010db8") + bytes(11) + b"\x07"
    rows = [
        {"hops": 4, "path": [5, 0, 0x0A000001, 99], "path6": b""},
        {"hops": 1, "path": [70], "path6": six},
        {"hops": 0, "path": [], "path6": b""},
        {"hops": 40, "path": list(range(1, 17)), "path6": b""},
    ]
    ways = PathTable(builtin("path"), {5: "tor-1", 99: "\u00e9" * 130} | {n: f"switch-{n}" for n in range(6, 17)})
    block = ways.of(block_of_rows(builtin("path"), rows))
    told = [block.get(ways.schema.layout.index("way"), row).rstrip(b"\0").decode() for row in range(4)]
    assert told[0] == "tor-1 ? 10.0.0.1 " + "\u00e9" * 116
    assert told[1:3] == ["2001:db8::7", ""]
    assert told[3].startswith("0.0.0.1 0.0.0.2 0.0.0.3 0.0.0.4 tor-1 switch-6 switch-7 ")
    text = records([(net.host("a"), net.host("b"), 1, 443)])
    for wide, columns in ((), 7), (("-W",), 23):
        done = completed(
            net.spaces["a"].argv(TRACE, *FAST, "-o", "table", *wide),
            input=stream(text),
            capture_output=True,
            env=environment(),
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        head, _, row = done.stdout.decode().splitlines()
        assert (head.split()[-1], len(head.split())) == ("way", columns)
        assert [":" in word or "." in word for word in row.split()[-2:]] == [True, True]


def test_started_bare_and_asked_for_fields() -> None:
    done = run("confluo-trace", "-f", "help")
    assert done.returncode == 0
    assert b"src_tor" in done.stdout
    assert (BIN / "confluo-trace").exists()
    done = run("confluo-trace", "--from", CAMPUS, "--only", "192.0.2.0/24", "-J", "--stats", "--duration", "1s")
    assert b"refused: not among --only" in done.stderr
    assert b" 0 probes" in done.stderr
