"""Logs on other hosts: names as rsync has them, the same answers as here, from one or several, also of two schemas."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confluo_tools import multilog
from confluo_tools.core.block.block import Block, Picks
from confluo_tools.errors import UsageError
from confluo_tools.expr import compile as compile_expr
from confluo_tools.formats.merge import Merged, Shaped, united, with_host
from confluo_tools.formats.reader import Reader
from confluo_tools.multilog.reader import LogReader
from confluo_tools.remote import frame_codec
from confluo_tools.remote.address import parse
from confluo_tools.remote.request import QueryRequest
from confluo_tools.schema import Field, Schema
from remote_lab import env
from running import BIN, CAMPUS, lines, run

# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "host", "path", "label"),
    [
        ("sw1:/data/a.ml", "sw1", "/data/a.ml", "sw1"),
        ("ops@sw1:/data/a.ml", "ops@sw1", "/data/a.ml", "sw1"),
        ("sw1:a.ml", "sw1", "a.ml", "sw1"),
        ("sw1:a:b", "sw1", "a:b", "sw1"),
        ("[::1]:/a.ml", "::1", "/a.ml", "::1"),
        ("ops@[fe80::1%eth0]:/a.ml", "ops@fe80::1%eth0", "/a.ml", "fe80::1%eth0"),
        ("[sw1]:/a.ml", "sw1", "/a.ml", "sw1"),
        ("a@b@c:/a.ml", "a@b@c", "/a.ml", "c"),
    ],
)
def test_addresses(text: str, host: str, path: str, label: str) -> None:
    assert parse(text) == (host, path, label)
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize("text", ["a.ml", "/a:b", "./a:b", "dir/a:b", ":a", "-", "../x@y:z", "[a]/b", "a/[::1]:/b"])
def test_what_is_here(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "-oProxyCommand=id:/a",
        "--:/a",
        "ops@-x:/a",
        "-x@sw1:/a",
        "[-oProxyCommand=id]:/a",
        "a b:/c",
        "a;id:/c",
        "$(id):/c",
        "a`id`:/c",
        "sw1:",
        "[]:/a",
        "http://sw1/a",
        "x@:/a",
        "a\nb:/c",
        "a\x1b:/c",
        "@sw1:/a",
        "x" * 300 + ":/a",
        "a'b:/c",
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_no_name_becomes_an_option(text: str) -> None:
    try:
        address = parse(text)
    except UsageError:
        return
    if address is not None:
        assert not address.host.startswith("-")
        assert not address.label.startswith("-")
        assert not set(address.host) & set(" \t\n'\"\\$`;&|<>()\0")
        assert address.path


# ---------------------------------------------------------------- the same answers


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all.ml (two lanes, one index), half.ml and rest.ml, which are its two lanes."""
    folder = tmp_path_factory.mktemp("logs")
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", folder / "one.ml", "-s", "64").returncode == 0
    with LogReader(str(folder / "one.ml")) as reader:
        blocks = list(reader)
        made = [multilog.create(folder / name, reader.schema) for name in ("all.ml", "half.ml", "rest.ml")]
        writers = [made[0].writer(), made[0].writer()], [made[1].writer(), made[2].writer()]
        for block in blocks:
            for odd in (0, 1):
                part = block.take(Picks.of(block.rows, range(odd, block.rows, 2)))
                for pair in writers:
                    pair[odd].append(part)
        for pair in writers:
            for writer in pair:
                writer.close()
    assert run("confluo-index", folder / "all.ml", "add", "dst_port").returncode == 0
    return folder


QUESTIONS = [
    ["tcp", "--count"],
    ["dst_port == 443", "-c", "7", "-f", "ts,src_ip,len", "-T"],
    ["tcp_flags has rst", "-T"],
    ["", "-c", "0", "-T"],
    ["tcp", "--count", "-c", "3"],
    ["host 10.1.0.13", "-f", "src_*,-src_mac", "-J"],
    ["ip6 || arp", "-f", "src_ip,dst_ip,ip_version", "-T"],
    ["", "--sample", "1/4", "--count"],
    ["udp", "--since", "2026-11-21T01:18:40", "--until", "2026-11-21T01:18:44", "-f", "len", "-T"],
    ["tcp", "--agg", "count, sum(len), avg(len), stddev(len), min(ts), max(ts), p50(len), p99(len)", "-T"],
    ["tcp", "--agg", "count, distinct(src_ip), distinct~(flow_hash), first(len), rate(len)", "--by", "proto"],
    ["", "--by", "src_ip/24,1s", "--having", "count > 20", "--top", "9"],
    ["", "--by", "dst_ip", "--agg", "sum(len)", "--having", "count > 20 and p50(len) < 500", "-T"],
    ["tcp", "--by", "dst_ip,1s", "--agg", "max(len)", "--sort", "-count(len > 100),-sum(len),dst_ip", "-T"],
    ["", "--by", "flow", "--agg", "sum(len)", "--top", "5", "-J"],
    ["dst_port == 1", "--count"],
    ["dst_port == 1", "--agg", "count"],
    ["tcp", "-o", "csv", "-f", "raw,ts", "-c", "5"],
    ["-f", "help"],
]


@pytest.mark.parametrize("words", QUESTIONS, ids=lambda w: " ".join(w)[:40])
def test_the_same_as_here(logs: Path, tmp_path: Path, words: list[str]) -> None:
    there = run("confluo-query", f"sw1:{logs}/all.ml", *words, env=env(tmp_path))
    here = run("confluo-query", logs / "all.ml", *words)
    assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)
    if "-f" in words and "help" in words:
        return
    several = run("confluo-query", "-r", f"sw1:{logs}/half.ml", "-r", logs / "rest.ml", *words, env=env(tmp_path))
    if "host" not in several.stdout.decode().split("\n")[0]:
        assert (several.returncode, several.stdout, several.stderr) == (here.returncode, here.stdout, here.stderr)


def test_the_plan_of_several(logs: Path, tmp_path: Path) -> None:
    words = ["-r", f"sw1:{logs}/all.ml", "-r", logs / "rest.ml", "dst_port == 443"]
    done = run("confluo-query", *words, "--explain", env=env(tmp_path))
    assert (done.returncode, done.stderr) == (0, b"")
    assert [line for line in lines(done) if line.startswith(("log ", "indexes", "input"))] == [
        f"input    sw1:{logs}/all.ml, {logs}/rest.ml: 8,602 records",
        f"log      sw1:{logs}/all.ml",
        "indexes  dst_port (2 blocks)",
        f"log      {logs}/rest.ml",
        "indexes  none that helps",
    ]


def test_views_of_there(logs: Path, tmp_path: Path) -> None:
    """Names of filters and aggregates mean what the log says, which is there."""
    run("confluo-convert", logs / "all.ml", "-w", tmp_path / "v.ml")
    for words in (
        ["filter", "web", "dst_port == 443 || src_port == 443"],
        ["aggregate", "web_bytes", "sum(len), count", "--filter", "web", "--by", "dst_ip", "--bucket", "1s"],
    ):
        done = run("confluo-index", tmp_path / "v.ml", "add", *words)
        assert done.returncode == 0, done.stderr
    for words in (
        ["filter web && len > 100", "--count"],
        ["--agg", "web_bytes", "--top", "3"],
        ["filter nothing"],
        ["len > 200", "--agg", "web_bytes", "--by", "proto"],
        ["--agg", "web_byte"],
    ):
        here = run("confluo-query", tmp_path / "v.ml", *words)
        there = run("confluo-query", f"sw1:{tmp_path}/v.ml", *words, env=env(tmp_path))
        assert (there.returncode, there.stdout) == (here.returncode, here.stdout), there.stderr
        assert there.stderr.splitlines()[:1] == here.stderr.splitlines()[:1] or "nothing" in words[0]
    names = [f"sw1:{tmp_path}/v.ml", f"sw2:{tmp_path}/v.ml"]
    both = run("confluo-query", "-e", "filter web", *names, "--by", "host", "-J", env=env(tmp_path))
    assert [json.loads(line)["host"] for line in lines(both)] == ["sw1", "sw2"]


def test_the_plan_of_there(logs: Path, tmp_path: Path) -> None:
    done = run("confluo-query", f"sw1:{logs}/all.ml", "dst_port == 443", "--explain", env=env(tmp_path))
    assert done.returncode == 0
    assert b"indexes  dst_port (2 blocks)" in done.stdout
    assert b"5,735 records" in done.stdout


def test_hosts_as_a_field(logs: Path, tmp_path: Path) -> None:
    words = ["-r", f"sw1:{logs}/half.ml", "-r", f"ops@sw2:{logs}/rest.ml"]
    groups = run("confluo-query", *words, "--by", "host", "--agg", "count, distinct(host)", "-T", env=env(tmp_path))
    assert lines(groups)[2:] == ["sw1\t2868\t1", "sw2\t2867\t1"]
    having = run("confluo-query", *words, "--by", "host,proto", "--top", "1", "-J", env=env(tmp_path))
    assert json.loads(having.stdout) == {"host": "sw1", "proto": "tcp", "count": 2585}
    rows = run("confluo-query", *words, "-f", "host,ts", "-T", "-c", "4", env=env(tmp_path))
    times = [line.split("\t")[1] for line in lines(rows)[2:]]
    assert [line.split("\t")[0] for line in lines(rows)[2:]] == ["sw1", "sw2", "sw1", "sw2"]
    assert times == sorted(times)
    one = run("confluo-query", *words, "host == sw2 && host 10.1.0.13", "--count", env=env(tmp_path))
    assert one.stdout == run("confluo-query", logs / "rest.ml", "host 10.1.0.13", "--count").stdout
    everything = run("confluo-query", *words, "-o", "stream", env=env(tmp_path))
    again = run("confluo-query", "-", "-f", "host", "-T", stdin=everything.stdout)
    assert len(lines(again)) == 5737
    alone = run("confluo-query", f"sw1:{logs}/half.ml", "-c", "1", "-T", env=env(tmp_path))
    assert "host" not in lines(alone)[0].split("\t")


def test_a_log_elsewhere_and_a_file(logs: Path, tmp_path: Path) -> None:
    """Not all logs: one after the other, as rows of the first."""
    run("confluo-query", logs / "rest.ml", "udp", "-w", tmp_path / "rest.arrows", "-o", "stream")
    words = ["-r", f"sw1:{logs}/half.ml", "-r", tmp_path / "rest.arrows", "udp && len > 80"]
    both = run("confluo-query", *words, "-T", env=env(tmp_path))
    parts = [run("confluo-query", logs / name, "udp && len > 80", "-T") for name in ("half.ml", "rest.ml")]
    assert lines(both) == [*lines(parts[0]), *lines(parts[1])[2:]]
    other = run(
        "confluo-query",
        "-r",
        tmp_path / "rest.arrows",
        "-r",
        f"sw1:{logs}/half.ml",
        "udp",
        "--count",
        env=env(tmp_path),
    )
    whole = run("confluo-query", logs / "all.ml", "udp", "--count")
    assert other.stdout == whole.stdout


def test_several_logs_here_come_by_time(logs: Path) -> None:
    both = run("confluo-query", "-e", "tcp", logs / "half.ml", logs / "rest.ml", "-T")
    assert both.stdout == run("confluo-query", logs / "all.ml", "tcp", "-T").stdout


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["sw1:LOGS/all.ml", "dst_prt == 3"], 2, "dst_port"),
        (["sw1:LOGS/all.ml", "tcp &&"], 2, "expression, column"),
        (["sw1:LOGS/all.ml", "--agg", "sum(nothing)"], 2, "nothing"),
        (["sw1:LOGS/all.ml", "-f", "nothing"], 2, "no field 'nothing'"),
        (["sw1:LOGS/all.ml", "--sample", "2"], 2, "sample"),
        (["sw1:LOGS/none.ml"], 2, "sw1:LOGS/none.ml: there is no such MultiLog"),
        (["sw1:/etc"], 2, "sw1:/etc: is not a MultiLog"),
        (["down1:/a.ml"], 2, "down1: cannot be reached: ssh: connect to host down1 port 22: No route to host"),
        (["noisy1:/a.ml"], 2, "noisy1: answers with 'Welcome to the machine' instead of a greeting"),
        (["--partial", "-r", "down1:/a.ml", "-r", "sw1:LOGS/all.ml", "--count"], 0, "going on without it"),
        (["-r", "down1:/a.ml", "-r", "sw1:LOGS/all.ml", "--count"], 2, "down1: cannot be reached"),
        (["sw1:"], 2, "names a host but not a log"),
        (["-r", "-oProxyCommand=touch x:/a.ml"], 2, "is not a host name"),
        (["--at", "x.yaml", "-r", "a.ml"], 2, "the snapshot names the logs"),
    ],
)
def test_trouble_is_one_line(logs: Path, tmp_path: Path, words: list[str], status: int, message: str) -> None:
    done = run("confluo-query", *[w.replace("LOGS", str(logs)) for w in words], env=env(tmp_path), cwd=tmp_path)
    assert done.returncode == status
    said = done.stderr.decode().splitlines()
    assert message.replace("LOGS", str(logs)) in said[0]
    assert len(said) == (3 if ", column" in said[0] else 1), said
    assert not (tmp_path / "x:").exists()


def test_no_shell_no_answer(tmp_path: Path) -> None:
    for value, message in (
        ("nowhere", b"nowhere: cannot be run"),
        ("'", b"CONFLUO_RSH: cannot be split"),
        (" ", b"CONFLUO_RSH: is empty"),
        ("true", b"sw1: cannot be reached: true ended with 0"),
    ):
        done = run("confluo-query", "sw1:/a.ml", "--count", env={**env(tmp_path), "CONFLUO_RSH": value})
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
        assert message in done.stderr, done.stderr
    done = run("confluo-query", "sw1:/a.ml", "--count", env=env(tmp_path, CONFLUO_REMOTE="/nowhere/confluo serve"))
    assert b"cannot be reached" in done.stderr
    assert b"confluo-tools must be there" in done.stderr


def test_damage_there_is_told_here(logs: Path, tmp_path: Path) -> None:
    run("confluo-convert", logs / "one.ml", "-w", tmp_path / "d.ml")
    segment = next((tmp_path / "d.ml").glob("lane-*/seg-*"))
    with open(segment, "r+b") as f:
        f.seek(70_000)
        f.write(b"\xff" * 64)
    here = run("confluo-query", tmp_path / "d.ml", "-T")
    there = run("confluo-query", f"sw1:{tmp_path}/d.ml", "-T", env=env(tmp_path))
    assert here.returncode == there.returncode == 2
    assert here.stdout == there.stdout
    assert here.stderr.replace(b"confluo-query: ", b"confluo-query: sw1: ") == there.stderr


def test_the_reader_leaves(logs: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", '"$0" "$1" -T | head -n 3', BIN / "confluo-query", f"sw1:{logs}/all.ml"],
        env=env(tmp_path),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, len(lines(done)), done.stderr) == (141, 3, b"")


def test_the_question_is_in_the_first_packet(logs: Path, tmp_path: Path) -> None:
    """A server that starts only after the first byte: a client that waits for its hello first waits for ever."""
    lazy = tmp_path / "lazy.py"
    lazy.write_text(f"""
import os, subprocess, sys
data = b""
while not (b"\\n" in data and len(data.split(b"\\n", 1)[1]) > 8 and b"dst_port == 443" in data):
    data += os.read(0, 65536)
child = subprocess.Popen([{str(BIN / "confluo-serve")!r}, "--stdio"], stdin=subprocess.PIPE)
child.stdin.write(data)
child.stdin.flush()
while piece := os.read(0, 65536):
    child.stdin.write(piece)
    child.stdin.flush()
child.stdin.close()
sys.exit(child.wait())
""")
    more = {**env(tmp_path), "CONFLUO_RSH": f"{sys.executable} {lazy}"}
    done = run("confluo-query", f"sw1:{logs}/all.ml", "dst_port == 443", "--count", env=more)
    assert (done.returncode, done.stdout) == (0, b"1354\n")


# ---------------------------------------------------------------- schemas, and order

A = Schema("probe", [Field("ts", "time"), Field("x", "u16"), Field("name", "text(8)")])
B = Schema("probe", [Field("ts", "time"), Field("x", "u16"), Field("addr", "ip"), Field("y", "u32")])


def make(path: Path, schema: Schema, times: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns: list[bytes | None] = []
    for column in schema.columns:
        width = column.size * column.count
        data = (
            np.array(times, "<i8").tobytes()
            if column.name == "ts"
            else (rng.integers(97, 122, len(times) * width, np.uint8).tobytes())
        )
        columns.append(None if column.name == "addr6" else data)
    with multilog.create(path, schema) as log, log.writer() as writer:
        writer.append(Block.wrap(schema.layout, len(times), columns))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    make(folder / "a.ml", A, [10**9 * t for t in (1, 3, 5, 7, 9)], 1)
    make(folder / "b.ml", B, [10**9 * t for t in (2, 3, 4, 5)], 2)
    return folder


@pytest.mark.parametrize(
    "names",
    [("sw1:{}/a.ml", "sw2:{}/b.ml"), ("{}/a.ml", "sw2:{}/b.ml"), ("{}/a.ml", "{}/b.ml"), ("sw1:{}/a.ml", "{}/b.ml")],
)
def test_fields_are_united(two: Path, tmp_path: Path, names: tuple[str, str]) -> None:
    words = [w for name in names for w in ("-r", name.format(two))]
    rows = run("confluo-query", *words, "-f", "ts,x,name,addr,y", "-J", env=env(tmp_path))
    assert rows.stderr == b""
    got = [json.loads(line) for line in lines(rows)]
    want = []
    for name, others in (("a.ml", {"addr": None, "y": 0}), ("b.ml", {"name": None})):
        alone = [json.loads(line) for line in lines(run("confluo-query", two / name, "-J"))]
        want += [{**row, **others} for row in alone]
    assert got == sorted(want, key=lambda row: row["ts"])  # a stable sort: ties by input
    count = run("confluo-query", *words, "y > 0", "--count", env=env(tmp_path))
    assert count.stdout == b"4\n"
    assert run("confluo-query", *words, "name == '' || x > 0", "--count", env=env(tmp_path)).stdout == b"9\n"
    sums = run("confluo-query", *words, "--agg", "count, sum(y), min(y)", "-J", env=env(tmp_path))
    assert json.loads(sums.stdout) == {"count": 9, "sum_y": sum(r["y"] for r in want), "min_y": 0}


def test_types_that_differ(two: Path, tmp_path: Path) -> None:
    make(tmp_path / "c.ml", Schema("probe", [Field("ts", "time"), Field("x", "u32")]), [1], 3)
    make(tmp_path / "d.ml", Schema("other", [Field("ts", "time"), Field("x", "u16")]), [1], 3)
    for name, what in (("c", "stores 'x' as u32, {}/a.ml as u16"), ("d", "records of kind 'other', {}/a.ml of kind")):
        for names in ((f"{two}/a.ml", f"sw1:{tmp_path}/{name}.ml"), (f"sw2:{two}/a.ml", f"{tmp_path}/{name}.ml")):
            done = run("confluo-query", "-r", names[0], "-r", names[1], "--count", env=env(tmp_path))
            assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
            assert what.format(names[0].removesuffix("/a.ml")) in done.stderr.decode()


@given(st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), max_size=6), min_size=1, max_size=5))
def test_merging_is_a_stable_sort(streams: list[list[tuple[int, int]]]) -> None:
    """Blocks of rows with growing times; ties go by input, and within one in its order."""
    schema = Schema("t", [Field("ts", "time"), Field("who", "u32"), Field("n", "u32")])
    readers, want = [], []
    for who, steps in enumerate(streams):
        blocks, now, n = [], 0, 0
        for step, rows in steps:
            now += step
            times = [now] * rows
            want += [(now, who, n + i) for i in range(rows)]
            blocks.append(
                Block.wrap(
                    schema.layout,
                    rows,
                    [
                        np.array(times, "<i8").tobytes(),
                        np.full(rows, who, "<u4").tobytes(),
                        np.arange(n, n + rows, dtype="<u4").tobytes(),
                    ],
                )
            )
            n += rows
        readers.append(_Fixed(schema, blocks))
    merged = Merged(readers, schema)
    got = [tuple(b.get(i, r) for i in range(3)) for b in merged for r in range(b.rows)]
    assert got == sorted(want, key=lambda row: row[:2])
    assert merged.rows == len(want)
    selected = Merged(readers, schema).select(compile_expr("who > 0", schema), [1, 2])
    rows = [tuple(b.get(i, r) for i in range(3)) for b, p in selected for r in (p.tolist() if p else range(b.rows))]
    assert rows == [row for row in got if row[1]]


class _Fixed(Reader):
    def __init__(self, schema: Schema, blocks: list[Block]) -> None:
        super().__init__("fixed")
        self.schema, self._blocks = schema, blocks

    def blocks(self) -> Iterator[Block]:
        yield from self._blocks


def test_the_first_rows_wait_for_nobody() -> None:
    """Rows are printed before the next read of an input: the next match may be an hour away."""
    schema = Schema("t", [Field("ts", "time")])
    asked = []

    def block(*times: int) -> Block:
        return Block.wrap(schema.layout, len(times), [np.array(times, "<i8").tobytes()])

    class Slow(_Fixed):
        def blocks(self) -> Iterator[Block]:
            yield block(1, 2, 3)
            asked.append("more")
            yield block(20)

    merged = iter(Merged([Slow(schema, []), _Fixed(schema, [block(10)])], schema))
    first = next(merged)
    assert [first.get(0, i) for i in range(first.rows)] == [1, 2, 3]
    assert asked == []
    assert sum(b.rows for b in merged) == 2


def test_shapes() -> None:
    both = united([("a", A), ("b", B)])
    assert [f.name for f in both.fields] == ["ts", "x", "name", "addr", "y"]
    assert with_host(with_host(both)).fields[-1].type.text == "text(64)"
    named = Schema("probe", [Field("ts", "time"), Field("host", "text(16)")])
    assert with_host(named) is named
    block = Block.wrap(A.layout, 2, [bytes(16), b"\1\0\2\0", b"ab" * 8])
    target = with_host(both)
    shaped = Shaped(_Fixed(A, [block]), target, "sw1")
    out = next(iter(shaped))
    i = {c.name: n for n, c in enumerate(target.columns)}
    assert [out.get(i["x"], r) for r in (0, 1)] == [1, 2]
    assert bytes(out.buffer(i["host"])) == (b"sw1" + bytes(61)) * 2
    assert bytes(out.buffer(i["y"])) == bytes(8)
    assert shaped.count(compile_expr("x == 2", target)) == 1
    assert Shaped(_Fixed(A, [block]), target, "sw1").count(compile_expr("x == 2 && y == 0", target)) == 1


def test_frames() -> None:
    kind, size = frame_codec.parse_head(frame_codec.frame(frame_codec.QUERY, {"path": "ä\udcff"})[:8])
    assert (kind, size) == (frame_codec.QUERY, 14)
    assert frame_codec.parse(frame_codec.frame(frame_codec.QUERY, {"path": "ä\udcff"})[8:]) == {"path": "ä\udcff"}
    assert frame_codec.parse_hello(frame_codec.hello("1.2")) == (
        frame_codec.PROTOCOL,
        "1.2",
        {"analyze", "alive", "archive", "follow", "having", "unnest", "zone", "views"},
    )
    assert frame_codec.parse_hello(b"confluo-serve 1 0.1.0\n") == (1, "0.1.0", set())


@pytest.mark.parametrize(
    "zone", [[[0, 0]], [[-(1 << 63), 1 << 60]], [[-(1 << 63), 0], [5, 0], [5, 1]], [["a", 0]], [[-(1 << 63)]], [3]]
)
def test_a_zone_of_another_program_is_checked(zone: list[object]) -> None:
    with pytest.raises(ValueError, match="zone"):
        QueryRequest.of({"zone": zone})
