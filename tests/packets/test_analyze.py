"""--analyze and --state in commands: the same on captures, streams and logs of several lanes; early choice; bounds."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

import make_tcp
from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.errors import SchemaError
from confluo_tools.expr import compile
from confluo_tools.formats.pcap import open_captures
from confluo_tools.multilog.query.derived_fields import Analysis, AnalyzedReader, tcp_fields, whole_flows
from confluo_tools.multilog.query.plan import QueryPlan
from confluo_tools.schema import builtin
from running import DATA, environment, run, shell

LOSS = DATA / "loss.pcap.gz"
ADDED = [f.name for f in tcp_fields()]


def blocks(path: Path) -> list[Block]:
    with open_captures([str(path)]) as captures:
        return list(captures)


def verdicts(analysis: Analysis, parts: list[Block]) -> list[tuple[int, ...]]:
    columns = [analysis.schema.index(n) for n in ADDED]
    done = [analysis.apply(part) for part in parts]
    return [tuple([out.get(c, i) for c in columns]) for out in done for i in range(out.rows)]


def output(*words: str | Path) -> str:
    done = run(*words)
    assert done.returncode in (0, 1), done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packets of a capture dealt out over three lanes of a log, some at a time."""
    path = tmp_path_factory.mktemp("lanes") / "t.ml"
    rng = random.Random(5)
    schema = builtin("packet").project([f.name for f in builtin("packet").fields if not f.optional])
    with multilog.create(path, schema) as log:
        writers = [log.writer() for _ in range(3)]
        for block in blocks(LOSS):
            at = 0
            while at < block.rows:
                n = min(rng.randrange(1, 9), block.rows - at)
                rng.choice(writers).append(block.slice(at, n).project(schema.layout))
                at += n
        for writer in writers:
            writer.close()
    return path


def test_state_goes_on_from_block_to_block() -> None:
    whole = blocks(LOSS)
    cut = [b.slice(i, min(7, b.rows - i)) for b in whole for i in range(0, b.rows, 7)]
    schema = builtin("packet").project([f.name for f in builtin("packet").fields if f.name in whole[0].layout.names])
    with open_captures([str(LOSS)]) as captures:
        schema = captures.schema
    assert verdicts(Analysis(schema, "tcp"), whole) == verdicts(Analysis(schema, "tcp"), cut)


WORDS = ("--analyze", "tcp", "--agg", "count, sum(tcp_rto)", "--by", "tcp_analysis,flow")


def test_captures_logs_lanes_and_streams_give_the_same(tmp_path: Path, lanes: Path) -> None:
    log = tmp_path / "t.ml"
    assert run("confluo-capture", "-r", LOSS, "-w", log, "-q").returncode == 0
    expected = output("confluo-query", LOSS, *WORDS, "tcp_analysis")
    assert expected.count("\n") > 8
    assert output("confluo-query", log, *WORDS, "tcp_analysis") == expected
    assert output("confluo-query", lanes, *WORDS, "tcp_analysis") == expected
    text = 'confluo-query "$1" -o stream | confluo-query - --analyze tcp -o stream | '
    done = shell(text + 'confluo-query - "${@:2}" tcp_analysis', lanes, *WORDS[2:])
    assert (done.stdout.decode(), done.stderr) == (expected, b"")


@pytest.mark.parametrize(
    ("text", "early"),
    [
        ("host 10.1.0.11", True),
        ("port 443", True),
        ("tcp and net 10.1.0.0/16", True),
        ("src_ip in fd00::/16", True),
        ("dst_port == 443", False),
        ("src_ip == 10.1.0.11 or dst_ip == 10.1.0.11", True),
        ("src_port == dst_port", True),
        ("len > 100", False),
        ("not host fd00:1::12", True),
        ("src_port < dst_port", False),
        ("src_ip == 10.1.0.11", True),
        ("host 10.1.0.11 and len > 100", True),
        ("host 10.1.0.11 or len > 100", False),
    ],
)
def test_only_whole_conversations_are_chosen_beforehand(lanes: Path, text: str, early: bool) -> None:
    """Of one address that is only its IP version; but the answer is the same with and without."""
    with multilog.open(lanes) as log:
        schema = Analysis(log.schema, "tcp").schema
    expr = compile(f"({text}) and tcp_analysis", schema)
    assert (whole_flows(expr.tree, schema) is not None) == early
    asked = f"({text}) and tcp_analysis"
    chosen = output("confluo-query", lanes, "--analyze", "tcp", asked, "-J")
    done = shell('confluo-query "$1" --analyze tcp -o stream | confluo-query - "$2" -J', lanes, asked)
    assert chosen == done.stdout.decode()


def test_flows_are_bounded_and_it_is_said(lanes: Path) -> None:
    done = run("confluo-query", lanes, "--analyze", "tcp", "--analyze-flows", "1", "--count", "tcp_analysis")
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    evicted = re.search(
        r": ([0-9,]+) flows? (?:was|were) evicted, so --analyze tcp is not exact; raise the limit", line
    )
    assert evicted is not None
    with multilog.open(lanes) as log:
        analysis = Analysis(log.schema, "tcp", flows=1)
        for block, picks in QueryPlan(log).ordered():
            analysis.apply(block.take(picks))
    assert int(evicted[1].replace(",", "")) == analysis.evicted > 0
    assert run("confluo-query", lanes, "--analyze", "tcp", "--count", "tcp_analysis").stderr == b""


def test_states_are_bounded_and_it_is_said(lanes: Path) -> None:
    done = run("confluo-query", lanes, "--state", "maxseq", "--analyze-flows", "1", "--count")
    assert done.returncode == 2
    assert "flows were evicted, so --state maxseq is not exact; raise the limit" in done.stderr.decode()
    assert run("confluo-query", lanes, "--state", "maxseq", "--count").stderr == b""


@pytest.mark.parametrize("flows", ["0", str((1 << 26) + 1), "99999999999"])
def test_a_limit_that_cannot_be_kept_is_refused(lanes: Path, flows: str) -> None:
    for option in ("--analyze", "tcp"), ("--state", "maxseq"):
        done = run("confluo-query", lanes, *option, "--analyze-flows", flows, "--count")
        assert done.returncode == 2
        assert f"'--analyze-flows': {flows} is not in the range" in done.stderr.decode()


def test_appended_in_any_order_an_analysis_is_the_same(tmp_path: Path) -> None:
    """Parts of a capture appended in the wrong order, and one direction after the other."""
    rng = random.Random(9)
    packets: list[tuple[int, bytes]] = []
    for number in range(40):
        ts = rng.randrange(10**9)
        for segment in make_tcp.conversation(rng, 30):
            ts += rng.randrange(1, 10**8)
            packets.append((ts, make_tcp.frame(number, segment)))
    packets.sort(key=lambda packet: packet[0])
    client = [p for p in packets if p[1][29] == 1]
    server = [p for p in packets if p[1][29] != 1]
    parts = {"whole": [packets], "parts": [packets[500:], packets[:500]], "directions": [client, server]}
    question = ("--analyze", "tcp", "tcp_analysis", "-J", "-f", "ts,src_port,dst_port,tcp_analysis,tcp_rto")
    answers = {}
    for name, captures in parts.items():
        for i, some in enumerate(captures):
            make_tcp.write(tmp_path / f"{name}-{i}.pcap", some)
        files = [str(tmp_path / f"{name}-{i}.pcap") for i in range(len(captures))]
        log = tmp_path / f"{name}.ml"
        for i, file in enumerate(files):
            run("confluo-capture", "-q", "-r", file, "-w", log, *(["--append"] if i else []))
        answers[name] = output("confluo-query", log, *question)
        read = [word for file in files for word in ("-r", file)]
        piped = run("confluo-query", *read, *question)
        assert piped.returncode == (0 if name == "whole" else 2)
        assert ("earlier than one before, so --analyze tcp may be wrong" in piped.stderr.decode()) == (name != "whole")
        assert output("confluo-query", *read, "--sort-input", *question) == answers["whole"]
    assert len(answers["whole"].splitlines()) > 100
    assert answers["parts"] == answers["whole"]
    assert answers["directions"] == answers["whole"]


def test_sorting_leaves_nothing_and_needs_times(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("ts,n\n" + "".join(f"{1_700_000_000 + 7 * i % 100},{i}\n" for i in range(100)))
    (tmp_path / "n.json").write_text('{"n":1}\n')
    (tmp_path / "tmp").mkdir()
    env = environment() | {"TMPDIR": str(tmp_path / "tmp")}
    done = run("confluo-query", tmp_path / "t.csv", "--sort-input", "-f", "n", "-T", "--no-header", env=env)
    assert [int(line) for line in done.stdout.split()] == sorted(range(100), key=lambda i: (7 * i % 100, i))
    assert run("confluo-query", tmp_path / "t.csv", "--sort-input", "n < 10", "--count", env=env).stdout == b"10\n"
    assert (
        run("confluo-query", tmp_path / "t.csv", "--sort-input", "--agg", "first(n)", "-T", env=env).stdout[-2:]
        == b"0\n"
    )
    assert not list((tmp_path / "tmp").iterdir())
    done = run("confluo-query", tmp_path / "n.json", "--sort-input", "--count")
    assert (done.returncode, b"--sort-input" in done.stderr, b"no time field" in done.stderr) == (2, True, True)


def test_many_conversations(tmp_path: Path) -> None:
    """Interleaved, more than there was room for at first: each as if it were alone."""
    rng = random.Random(6)
    alone = [make_tcp.conversation(rng, 6) for _ in range(3000)]
    order = [i for i, segments in enumerate(alone) for _ in segments]
    rng.shuffle(order)
    at = [0] * len(alone)
    packets: list[tuple[int, bytes]] = []
    times: list[list[int]] = [[] for _ in alone]
    for now, i in enumerate(order):
        packets.append((now * 1000, make_tcp.frame(i, alone[i][at[i]])))
        times[i].append(now * 1000)
        at[i] += 1
    make_tcp.write(tmp_path / "all.pcap", packets)
    with open_captures([str(tmp_path / "all.pcap")]) as captures:
        schema = captures.schema
    found = verdicts(Analysis(schema, "tcp"), blocks(tmp_path / "all.pcap"))
    for i in rng.sample(range(len(alone)), 40):
        one = tmp_path / "one.pcap"
        make_tcp.write(one, [(ts, make_tcp.frame(i, s)) for ts, s in zip(times[i], alone[i], strict=True)])
        told = [v for v, k in zip(found, order, strict=True) if k == i]
        assert verdicts(Analysis(schema, "tcp"), blocks(one)) == told
    small = Analysis(schema, "tcp", flows=2000)
    verdicts(small, blocks(tmp_path / "all.pcap"))
    assert small.evicted > 500


def test_records_of_the_paper_are_enough() -> None:
    """header64 has no IP version, no notes and a short payload length."""
    schema = builtin("header64")
    analysis = Analysis(schema, "tcp")
    with open_captures([str(LOSS)]) as captures:
        four = compile("ip and tcp", captures.schema).program
        full = Analysis(captures.schema, "tcp")
        for block in captures:
            block = block.take(four.select(block))
            narrow = [None if n == "payload_len" else block.buffer(block.layout.index(n)) for n in schema.layout.names]
            size = bytes(block.buffer(block.layout.index("payload_len")))
            narrow[schema.layout.index("payload_len")] = b"".join(size[i : i + 2] for i in range(0, len(size), 4))  # type: ignore[call-overload]
            out = analysis.apply(Block.wrap(schema.layout, block.rows, narrow))
            whole = full.apply(block)
            for name in ADDED:
                assert out.buffer(analysis.schema.index(name)) == whole.buffer(full.schema.index(name)), name


def test_inputs_that_cannot_be_analysed(tmp_path: Path, lanes: Path) -> None:
    schema = builtin("packet").project(["ts", "src_ip", "dst_ip"])
    with pytest.raises(SchemaError, match="no field 'proto'"):
        Analysis(schema, "tcp")
    with pytest.raises(SchemaError, match="field 'tcp_analysis' exists already"):
        Analysis(Analysis(builtin("packet"), "tcp").schema, "tcp")
    for words, told in (
        (["retransmission"], "--analyze tcp computes it"),
        (["--analyze", "tpc"], "did you mean 'tcp'?"),
        (["--analyze", "no.such:Thing"], "is the module on $PYTHONPATH?"),
        (["--analyze", "os.path:join"], "is not a subclass of State"),
        (["--analyze", "maxseq:dealy=3ms"], "its parameters are delay"),
        (["--analyze", "maxseq:delay=soon"], "write e.g. 10 or 3ms"),
        (["--state", "tcp"], "unknown analysis 'tcp'"),
    ):
        done = run("confluo-query", lanes, *words)
        assert done.returncode == 2
        assert done.stderr.decode().splitlines()[0].startswith("confluo-query: ")
        assert told in done.stderr.decode(), done.stderr


PLUGIN = '''
from confluo_tools.schema import Field
from confluo_tools.multilog.query.state_definitions import State


class Runs(State):
    """How many rows in a row had this proto."""

    name = "runs"
    fields = [Field("run", "u32")]
    needs = ["proto"]

    def zero(self, schema):
        self.at, self.last, self.n = schema.index("proto"), None, 0

    def update(self, batch):
        out = []
        for proto in bytes(batch.buffer(self.at)):
            self.n = self.n + 1 if proto == self.last else 1
            self.last = proto
            out.append(self.n)
        return [b"".join(n.to_bytes(4, "little") for n in out)]

    def merge(self, other):
        self.last, self.n = other.last, other.n
'''


def test_a_class_that_the_user_names(tmp_path: Path, lanes: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    words = ("--analyze", "mine:Runs", "--agg", "max(run)", "--by", "proto", "-o", "tsv")
    done = run("confluo-query", lanes, *words, env=environment(PYTHONPATH=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    protos = [b.get(b.layout.index("proto"), i) for b in blocks(LOSS) for i in range(b.rows)]
    best: dict[int, int] = {}
    run_, last = 0, -1
    for proto in protos:
        run_ = run_ + 1 if proto == last else 1
        last = proto
        best[proto] = max(best.get(proto, 0), run_)
    found = sorted(int(line.split("\t")[-1]) for line in done.stdout.decode().splitlines()[2:])
    assert found == sorted(best.values())
    assert run("confluo-query", lanes, *words).returncode == 2  # nothing of that name is known by itself
    denied = run("confluo-query", lanes, "--state", "mine:Runs", env=environment(PYTHONPATH=str(tmp_path)))
    assert b"is not a state definition" in denied.stderr


def test_states_of_a_view_and_of_no_view_are_the_same(tmp_path: Path, lanes: Path) -> None:
    words = ("confluo-query", lanes, "--state", "maxseq:delay=1ms", "-o", "tsv", "--numeric")
    without = sorted(output(*words).splitlines())
    assert len(without) == 2 + 4
    assert sorted(output("confluo-query", LOSS, *words[2:]).splitlines()) == without
    done = run("confluo-index", lanes, "add", "state", "late", "--define", "maxseq:delay=1ms")
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(output(*words).splitlines()) == without
    assert sorted(output("confluo-query", lanes, "--state", "late", *words[4:]).splitlines()) == without
    listed = output("confluo-index", lanes, "list", "-T").splitlines()
    assert listed[2].startswith("state\tlate\t0\t")
    assert listed[2].endswith("maxseq (delay=1ms): max_seq, max_ts by flow")
    by_name = output("confluo-query", lanes, "--analyze", "late", "--count", "retransmission")
    assert by_name == output("confluo-query", LOSS, "--analyze", "maxseq:delay=1ms", "--count", "retransmission")
    assert int(by_name) > 0
    assert run("confluo-index", lanes, "drop", "state", "late").returncode == 0


def test_a_damaged_block_is_left_out_with_a_warning(tmp_path: Path) -> None:
    log = tmp_path / "t.ml"
    assert run("confluo-capture", "-r", LOSS, "-w", log, "-q").returncode == 0
    segment = next((log / "lane-000").glob("*.arrow"))
    with multilog.open(log) as opened:
        column = opened.schema.index("tcp_seq")
        (part,) = opened.segments()
        shape = part.segment.shape
        at = shape.geometry(part.segment.capacity)[1][column][0] + len(shape.header) + shape.message
    data = bytearray(segment.read_bytes())
    data[at + 9000] ^= 1
    segment.write_bytes(data)
    done = run("confluo-query", log, "--analyze", "tcp", "--count", "tcp_analysis")
    assert done.returncode == 2
    assert b"damaged" in done.stderr
    assert b"tcp_seq" in done.stderr


def test_convert_adds_the_fields_too(lanes: Path) -> None:
    done = shell('confluo-convert "$1" --analyze tcp --analyze maxseq -f ts,tcp_analysis,retransmission -o tsv', lanes)
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "#fields\tts\ttcp_analysis\tretransmission"
    assert len(lines) - 2 == sum(b.rows for b in blocks(LOSS))
    assert [line.split("\t")[0] for line in lines[2:]] == sorted(line.split("\t")[0] for line in lines[2:])
    marked = sum(line.endswith("\t1") for line in lines[2:])
    assert marked == int(output("confluo-query", lanes, "--analyze", "maxseq", "--count", "retransmission"))


def test_rows_read_and_the_plan_are_told(lanes: Path) -> None:
    done = run("confluo-query", lanes, "--analyze", "tcp", "host 10.1.0.11 and retransmission", "--explain")
    assert "src_ip" in done.stdout.decode()
    done = run("confluo-query", lanes, "--analyze", "tcp", "retransmission", "-J", "--stats")
    packets = sum(b.rows for b in blocks(LOSS))
    assert done.stderr.decode().startswith(f"confluo-query: {packets} records read, ")


def test_analyzed_reader_in_a_program(lanes: Path) -> None:
    from confluo_tools.multilog.reader import LogReader

    with AnalyzedReader(LogReader(str(lanes)), ["tcp", "maxseq"]) as reader:
        both = sum(len(p) for _, p in reader.select(compile("retransmission", reader.schema)) if p is not None)
    words = ("confluo-query", lanes, "--analyze", "tcp", "--analyze", "maxseq", "--count", "retransmission")
    assert both == int(output(*words))  # the field of maxseq goes before the word of tcp_analysis
    assert both < int(output("confluo-query", lanes, "--analyze", "tcp", "--count", "retransmission"))


def test_live_pipe_is_flushed() -> None:
    """What is analysed is printed before the input ends."""
    script = 'zcat "$1" | (head -c 100000; sleep 5) | confluo-query - --analyze tcp tcp_analysis -J --line-buffered'
    env = environment()
    env["PATH"] = f"{DATA.parent.parent / 'bin'}:{env['PATH']}"
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", str(LOSS)], stdout=subprocess.PIPE, env=env, start_new_session=True
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert process.poll() is None
        assert b"tcp_analysis" in first
    finally:
        import os
        import signal

        os.killpg(process.pid, signal.SIGTERM)
        process.stdout.close()
        process.wait()
