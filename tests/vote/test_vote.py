"""confluo-vote as a filter: what goes in, what comes out, and what is wrong with it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from confluo_tools import multilog
from confluo_tools.core.vote.flow_tally import FlowTally
from confluo_tools.schema import fold6
from confluo_tools.vote.epochs import Epochs
from confluo_tools.vote.registry import MODELS, NAMES, model_of
from running import BIN, environment, listens, popen, run
from vote_rows import PATH, blocks, failed, flow

HEAD = "#fields\tts\tkind\tsrc_ip\tdst_ip\tlost\tsent\thops\tpath\n"


def line(
    ts: float = 0, src: int = 1, path: str = "10,30,40", dst: int = 2, lost: int | str = 1, kind: str = "flow"
) -> str:
    hops = len(path.split(",")) if path != "-" else 0
    return f"{ts}\t{kind}\t0.0.0.{src}\t0.0.1.{dst}\t{lost}\t100\t{hops}\t{path}\n"


def shared(ts: float = 0, n: int = 4) -> str:
    """Flows that share the link from 30 to 40 alone."""
    return "".join(line(ts, i + 1, f"{10 + i},30,40,{50 + i}", i + 1) for i in range(n))


def vote(text: str | bytes, *words: str) -> tuple[int, list[list[str]], str]:
    data = text if isinstance(text, bytes) else text.encode()
    done = run("confluo-vote", "-", "-T", "--no-header", *words, stdin=data)
    return done.returncode, [row.split("\t") for row in done.stdout.decode().splitlines()], done.stderr.decode()


def test_a_link_that_flows_share_is_blamed() -> None:
    status, rows, said = vote(HEAD + shared(), "-f", "rank,verdict,link_a,link_b,votes,flows,lost")
    assert (status, said) == (0, "")
    assert rows[0] == ["1", "bad", "30", "40", "0.8", "4", "4"]
    assert {row[1] for row in rows[1:]} <= {"good"}


def test_all_formats_say_the_same(tmp_path: Path) -> None:
    stream = tmp_path / "paths.arrows"
    source = (HEAD + shared()).encode()
    assert run("confluo-convert", "-", "-w", stream, "--schema", "path", stdin=source).returncode == 0
    want = vote(source)[1]
    assert run("confluo-vote", stream, "-T", "--no-header").stdout.decode().splitlines() == ["\t".join(r) for r in want]
    rows = [json.loads(text) for text in run("confluo-vote", stream, "-J").stdout.splitlines()]
    assert [[r["link_a"], r["link_b"], r["votes"]] for r in rows] == [[r[4], r[5], float(r[7])] for r in want]
    back = run("confluo-vote", stream, "-o", "stream")
    again = run("confluo-convert", "-", "-T", stdin=back.stdout)
    assert again.stdout.decode().splitlines()[2:] == ["\t".join(r) for r in want]


def test_switches_instead_of_links() -> None:
    text = HEAD + "".join(line(0, i, f"{60 + i},{30 + i // 20},{90 + i}") for i in range(22))
    status, rows, _ = vote(text, "--by", "switch", "-f", "rank,verdict,link_a,link_b,votes")
    assert (status, rows[0]) == (0, ["1", "bad", "30", "-", "6.666666666666667"])
    # 31 got what is left, and flows of it are noise: who has no more than its peers is not to blame
    assert [row[1] for row in rows[1:]] == ["good"] * len(rows[1:])
    status, rows, _ = vote(text, "--by", "switch", "--flows", "-f", "verdict,blame_a")
    assert rows == [["link", "30"]] * 20 + [["noise", "-"]] * 2


def test_flows_and_whom_they_blame() -> None:
    text = HEAD + shared() + line(0, 9, "80,81", 9) + line(0, 8, "-", 8) + line(0, 7, "10,30,40", 7, lost=0)
    status, rows, _ = vote(text, "--flows", "-f", "src_ip,verdict,blame_a,blame_b,confidence")
    assert status == 0
    assert rows[:4] == [[f"0.0.0.{i}", "link", "30", "40", rows[0][4]] for i in (1, 2, 3, 4)]
    assert rows[4:] == [["0.0.0.9", "noise", "-", "-", "0.0"], ["0.0.0.8", "unknown", "-", "-", "0.0"]]


@pytest.mark.parametrize("model", ["vote", "cover", "mle", "milp-binary", "milp-integer"])
def test_every_model_finds_the_one_link(model: str) -> None:
    if model.startswith("milp"):
        pytest.importorskip("scipy")
    text = HEAD + shared(n=6) + "".join(line(0, i, "70,71,72", i, lost=0) for i in range(1, 60))
    more = ["--prior", "-3"] if model == "mle" else []
    status, rows, said = vote(text, "--model", model, *more, "--top", "0", "-f", "link_a,link_b")
    assert (status, rows, said) == (0, [["30", "40"]], "")


def test_rates_are_not_fitted_to_flows_whose_way_nobody_knows(tmp_path: Path) -> None:
    healthy = "".join(line(0, i, "-", i, lost=0) for i in range(1, 60))
    status, rows, said = vote(HEAD + shared(n=2) + healthy, "--model", "mle", "-f", "verdict,link_a")
    assert (status, {row[0] for row in rows}) == (1, {"good"})
    assert said == (
        "confluo-vote: paths of flows without loss are unknown: mle cannot fit drop rates "
        "and uses 0.7 % and 0.03 %; use --topology\n"
    )


def test_without_scipy_one_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "scipy.py").write_text("raise ImportError('no scipy here')")
    env = environment(PYTHONPATH=str(tmp_path))
    done = run("confluo-vote", "-", "--model", "milp-binary", stdin=(HEAD + shared()).encode(), env=env)
    assert done.returncode == 2
    assert done.stderr.decode() == (
        "confluo-vote: --model milp-binary: needs scipy, which is not installed; pip install 'confluo-tools[milp]'\n"
    )


def test_scores_of_several_models() -> None:
    text = "#fields\tkind\tsrc_ip\tdst_ip\tlost\tsent\thops\tpath\tlink_a\tlink_b\n"
    text += "failed\t-\t-\t0\t0\t0\t-\t30\t40\nfailed\t-\t-\t0\t0\t0\t-\t90\t91\n"
    text += "".join(f"flow\t0.0.0.{i}\t0.0.1.{i}\t1\t50\t3\t{i + 10},30,40\t30\t40\n" for i in range(1, 5))
    status, rows, _ = vote(
        text,
        "--model",
        "vote,cover",
        "--score",
        "-f",
        "model,failed,blamed,right,found,precision,recall,flows,accuracy",
    )
    assert status == 0
    assert rows == [[m, "2", "1", "1", "1", "1.0", "0.5", "4", "1.0"] for m in ("vote", "cover")]


# ---------------------------------------------------------------- what is odd or wrong


@pytest.mark.parametrize("text", ["", line(lost=0), line(kind="failed")])
def test_nothing_to_blame_is_status_1_and_an_empty_ranking(text: str) -> None:
    assert vote(HEAD + text) == (1, [], "")


def test_negative_counts_are_left_out_and_told() -> None:
    status, rows, said = vote(HEAD + line(0, 1, lost=-3) + shared(), "-f", "link_a,flows", "--top", "0")
    assert (status, rows) == (2, [["30", "4"]])
    assert said == "confluo-vote: standard input: line 2: '-3' is not of type u32 (field lost)\n"


def test_records_of_another_kind() -> None:
    done = run("confluo-vote", "examples/data/campus.pcap.gz", cwd=BIN.parent)
    assert done.returncode == 2
    assert b"holds records of kind 'packet', not paths of flows; confluo-trace finds" in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "guess"], "--model: not 'guess'; there are vote, mle"),
        (["--model", "vote,mle"], "--model: 'vote,mle' is more than one model; several models require --score"),
        (["--adjust", "ecmp"], "--adjust ecmp needs a topology; --topology FILE describes it"),
        (["--model", "mle", "--healthy", "ecmp"], "--healthy ecmp needs a topology"),
        (["--threshold", "7"], "--threshold: '7' is not a share"),
        (["--p-bad", "1%"], "--p-bad and --p-good go together"),
        (["--p-bad", "1%", "--p-good", "2%"], "--p-bad must be greater than --p-good"),
        (["--p-bad", "0", "--p-good", "0"], "--p-bad: '0' is not a drop rate"),
        (["--epoch", "0"], "--epoch: '0' is too short"),
        (["--epoch", "x"], "--epoch: 'x' is not a duration"),
        (["--lateness", "x"], "--lateness: 'x' is not a duration"),
        (["--time-limit", "0s", "--model", "milp-binary"], "--time-limit: '0s' is too short; more than 0"),
        (["--threshold", "1e400"], "--threshold: '1e400' is not a share"),
        (["--floor", "nan"], "--floor: 'nan' is not a finite number"),
        (["--noise", "inf"], "--noise: 'inf' is not a finite number"),
        (["--model", "mle", "--prior", "nan"], "--prior: 'nan' is not a finite number"),
        (["--model", "mle", "--ratio", "inf"], "--ratio: 'inf' is not a finite number"),
        (["--flows", "--score"], "--flows and --score exclude each other"),
        (["--topology", "/nonexistent"], "/nonexistent: No such file"),
        (["-f", "nothing"], "no field 'nothing'"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], said: str) -> None:
    status, rows, error = vote(HEAD + shared(), *words)
    assert (status, rows) == (2, [])
    assert said in error
    assert error.count("\n") == 1


def test_every_model_of_the_registry_is_listed_and_in_the_manual() -> None:
    done = run("confluo-vote", "--model", "help")
    assert (done.returncode, [line.split()[0] for line in done.stdout.decode().splitlines()]) == (0, list(NAMES))
    page = (ROOT / "man" / "man1" / "confluo-vote.1").read_text()
    section = page[page.index(".SH MODELS") : page.index(".SH OPTIONS")]
    for row in MODELS:
        assert model_of(row.name).name == row.name
        assert re.search(rf"^\.BR? .*\b{row.name}\b", section, re.M), row.name
        assert all(option.replace("-", "\\-") in page for option in row.options)


def test_options_that_no_chosen_model_uses_are_named() -> None:
    words = ["--model", "mle", "-f", "link_a,link_b"]
    plain = vote(HEAD + shared(), *words)
    status, rows, said = vote(HEAD + shared(), *words, "--floor", "2", "--time-limit", "5s")
    assert (status, rows) == plain[:2]
    assert (
        said
        == (
            "confluo-vote: --floor has no effect: only --model vote uses it\n"
            "confluo-vote: --time-limit has no effect: only --model milp-binary and milp-integer use it\n"
        )
        + plain[2]
    )
    late = vote(HEAD + shared(), *words, "--lateness", "2s")
    assert late == (*plain[:2], "confluo-vote: --lateness has no effect without --follow\n" + plain[2])
    both = vote(HEAD + shared(), "--score", "--model", "vote,mle", "--floor", "2", "--prior", "-3")
    assert "has no effect" not in plain[2] + both[2]


def test_flows_without_paths_cannot_vote() -> None:
    text = "#fields\tkind\tsrc_ip\tdst_ip\tlost\nflow\t10.0.0.1\t10.0.0.2\t3\n"
    status, rows, said = vote(text)
    assert (status, rows) == (1, [])
    assert said == "confluo-vote: none of the flows with loss has a path; confluo-trace finds paths\n"


def test_a_trace_without_any_answer_blames_nothing() -> None:
    """`--flows` divided by its number of hops."""
    path = "#fields\tkind\tsrc_ip\tdst_ip\tsrc_port\tlost\tsent\thops\tpath\tnotes\n"
    rows = ["flow\t10.0.0.1\t10.0.0.2\t7\t1\t100\t0\t-\tpartial\n"]
    rows += ["flow\t10.0.0.1\t10.0.0.3\t7\t0\t100\t2\t10,30\t-\n"]
    status, found, _ = vote(path + "".join(rows), "--flows", "-f", "src_ip,verdict")
    assert (status, found) == (0, [["10.0.0.1", "noise"]])
    # No flow votes for the link that explains it here.
    status, found, _ = vote(path + "".join(rows), "--flows", "-f", "src_ip,verdict,confidence", "--model", "cover")
    assert (status, found) == (0, [["10.0.0.1", "link", "0.0"]])


def test_records_of_others_need_not_say_that_they_are_flows() -> None:
    """A table without `kind` was no flow at all, and nothing was said."""
    text = "\n".join(
        "\t".join(w for i, w in enumerate(row.split("\t")) if i != 1 + (row[0] == "#"))
        for row in (HEAD + shared()).splitlines()
    )
    assert text.startswith("#fields\tts\tsrc_ip")
    assert vote(text, "-f", "link_a,link_b") == vote(HEAD + shared(), "-f", "link_a,link_b")
    status, _, said = vote("#fields\tsrc_ip\tdst_ip\thops\n10.0.0.1\t10.0.0.2\t3\n")
    assert (status, said.split("; ")[0]) == (2, "confluo-vote: standard input: has no field 'lost'")


def test_quiet_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "net").write_text("10 30\n30 41\n")
    for words in (["--topology", str(tmp_path / "net")], ["--model", "mle"]):
        assert vote(HEAD + shared(), *words)[2] != ""
        assert vote(HEAD + shared(), *words, "-q")[2] == ""


def test_switches_that_the_topology_lacks_are_told_and_judged(tmp_path: Path) -> None:
    edges = tmp_path / "net"
    edges.write_text("10 30\n30 40\n11 30\n12 30\n13 30\n")  # asymmetric, without hosts, most links missing
    text = HEAD + shared() + line(0, 9, "99,40,54", 9) + line(0, 8, "10,99,40", 8)
    status, rows, said = vote(text, "--topology", str(edges), "--top", "0", "-f", "link_a,link_b")
    assert (status, rows) == (0, [["30", "40"]])
    assert "6 switches of paths are not in the topology: 50, 51, 52, ..." in said
    assert said.count("\n") == 1


def test_names_and_aliases(tmp_path: Path) -> None:
    (tmp_path / "alias").write_text("10.0.0.30 spine\n10.0.1.30 spine\n10.0.0.40 leaf  # comment\n")

    def number(address: str) -> str:
        return str(int.from_bytes(bytes(map(int, address.split(".")))))

    paths = [(f"10.9.9.{i}", f"10.0.{i % 2}.30", "10.0.0.40") for i in range(1, 6)]
    text = HEAD + "".join(line(0, i, ",".join(map(number, path)), i) for i, path in enumerate(paths, 1))
    status, rows, _ = vote(text, "--alias", str(tmp_path / "alias"), "--top", "0", "-f", "link_a,link_b,flows")
    assert (status, rows) == (0, [["spine", "leaf", "5"]])
    assert vote(text, "--top", "1", "-f", "link_b")[1] == [["10.0.0.40"]]


def test_ipv6_switches_print_as_addresses(tmp_path: Path) -> None:
    def six(n: int) -> bytes:
        return bytes.fromhex("20010db8") + n.to_bytes(12)

    def row(i: int) -> dict[str, Any]:
        nodes = [six(0x100 + i), six(7), six(8), six(0x200 + i)]
        return flow(
            fold6(six(0x1000 + i)),
            [fold6(n) for n in nodes],
            fold6(six(0x2000 + i)),
            lost=1,
            ip_version=6,
            src_ip6=six(0x1000 + i),
            dst_ip6=six(0x2000 + i),
            path6=b"".join(nodes).ljust(256, b"\0"),
            src_port=i,
            dst_port=443,
            proto=6,
        )

    log = multilog.create(str(tmp_path / "six.ml"), PATH)
    with log.writer() as writer:
        for block in blocks(map(row, range(1, 6))):
            writer.append(block)
    log.close()
    done = run("confluo-vote", tmp_path / "six.ml", "-T", "--no-header", "--top", "0", "-f", "link_a,link_b,flows")
    assert (done.returncode, done.stdout) == (0, b"2001:db8::7\t2001:db8::8\t5\n")
    done = run("confluo-vote", tmp_path / "six.ml", "--flows", "-T", "--no-header", "-f", "src_ip,blame_a,blame_b")
    assert done.stdout.splitlines()[0] == b"2001:db8::1001\t2001:db8::7\t2001:db8::8"


# ---------------------------------------------------------------- epochs


def test_epochs_in_any_order_and_before_1970() -> None:
    text = HEAD + shared(61) + shared(-1) + shared(1) + shared(62) + shared(29.9999)
    status, rows, said = vote(text, "--epoch", "30s", "--top", "0", "-f", "ts,epoch,link_a,flows")
    assert (status, said) == (0, "")
    assert [(r[0][:19], *r[1:]) for r in rows] == [
        ("1969-12-31T23:59:30", "30000000000", "30", "4"),
        ("1970-01-01T00:00:00", "30000000000", "30", "8"),
        ("1970-01-01T00:01:00", "30000000000", "30", "8"),
    ]


def test_many_epochs_are_not_all_kept_open() -> None:
    """In order, more epochs than may be open; then one that is long over; then times at both ends of time."""
    text = HEAD + "".join(shared(30 * i) for i in range(1100)) + shared(0)
    status, rows, said = vote(text, "--epoch", "30s", "--top", "0", "-f", "flows")
    assert (status, rows) == (0, [["4"]] * 1100)
    assert said == "confluo-vote: 4 records arrived after their epoch was printed; raise --lateness\n"
    seen: list[tuple[int, int]] = []
    epochs = Epochs(7_000_000_000, 0, False, FlowTally, lambda begin, tally: seen.append((begin, tally.flows)))
    for block in blocks([flow(1, [2, 3], 4, lost=1, ts=ts) for ts in (-(1 << 63), (1 << 63) - 1, -1)]):
        epochs.add(block)
    epochs.finish()
    last = ((1 << 63) - 1) // 7_000_000_000 * 7_000_000_000
    assert seen == [(-(1 << 63), 1), (-7_000_000_000, 1), (last, 1)]


class Live:
    """confluo-vote --follow on a pipe."""

    def __init__(self, *words: str) -> None:
        command = [BIN / "confluo-vote", "-", "-T", "--no-header", "--follow", "--top", "0", "-f", "ts,flows", *words]
        self.child = popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )

    def say(self, text: str) -> None:
        assert self.child.stdin
        self.child.stdin.write(text.encode())
        self.child.stdin.flush()

    def hear(self) -> str:
        assert self.child.stdout
        return self.child.stdout.readline().decode()

    def end(self) -> tuple[int, str, str]:
        out, err = self.child.communicate(timeout=30)
        return self.child.returncode, out.decode(), err.decode()


def test_an_epoch_is_printed_when_a_record_beyond_it_comes() -> None:
    live = Live("--epoch", "10s", "--lateness", "2s")
    begin = (time.time() // 10 + 100) * 10  # ahead of the clock: only records can end it
    live.say(HEAD + shared(begin) + shared(begin + 11) + shared(begin + 1, 2) + line(begin + 12.5))
    assert live.hear().split("\t")[1] == "6\n"
    live.say(line(begin + 3) + line(begin + 4))
    status, out, said = live.end()
    assert (status, [r.split("\t")[1] for r in out.splitlines()]) == (0, ["5"])
    assert "2 records arrived after their epoch was printed; raise --lateness" in said


def test_an_epoch_is_printed_when_its_time_has_come() -> None:
    live = Live("--epoch", "1s", "--lateness", "200ms")
    live.say(HEAD + shared(time.time()))
    assert live.hear().endswith("\t4\n")  # nothing more was said, and the pipe is open
    assert live.end()[0] == 0


def test_a_log_is_followed_as_it_grows(tmp_path: Path) -> None:
    path = str(tmp_path / "paths.ml")
    log = multilog.create(path, PATH)
    begin = int(time.time() // 60 - 10) * 60_000_000_000

    def rows(ts: int, n: int) -> list[dict[str, Any]]:
        lossy = [flow(i + 1, [10 + i, 30, 40, 50 + i], 200 + i, lost=1, ts=ts) for i in range(n)]
        return [*lossy, failed(30, 40) | {"ts": ts}]

    with log.writer() as writer:
        for block in blocks(rows(begin, 5)):
            writer.append(block)
        writer.flush()
        child = popen(
            [BIN / "confluo-vote", path, "--follow", "--epoch", "60s", "--top", "0", "-J"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        try:
            assert child.stdout
            first = json.loads(child.stdout.readline())
            for block in blocks(rows(begin + 60_000_000_000, 7)):
                writer.append(block)
            writer.flush()
            second = json.loads(child.stdout.readline())
        finally:
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=30)
    log.close()
    told = [(r["link_a"], r["flows"], r["truth"]) for r in (first, second)]
    assert told == [("30", 5, "failed"), ("30", 7, "failed")]
    assert (child.returncode, out, err) == (130, b"", b"")


def test_a_lane_that_is_behind_is_not_late(tmp_path: Path) -> None:
    """Two agents write into one log; one has written all, and the other begins with the same epochs."""
    path, minute = tmp_path / "paths.ml", 60_000_000_000
    begin = int(time.time() // 60 - 10) * minute

    def row(epoch: int, source: int) -> dict[str, Any]:
        return flow(source, [10, 30, 40], 200, lost=1, ts=begin + epoch * minute)

    def write(into: Path, epochs: range) -> None:
        with multilog.create(str(into), PATH) as log, log.writer() as one, log.writer() as two:
            for writer, sources in ((one, range(1, 4)), (two, range(4, 6))):
                for block in blocks([row(epoch, source) for epoch in epochs for source in sources]):
                    writer.append(block)

    write(path, range(3))
    child = popen(
        [BIN / "confluo-vote", path, "--follow", "--epoch", "60s", "--top", "1", "-J"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert child.stdout
    told = [json.loads(child.stdout.readline()) for _ in range(2)]
    path.rename(tmp_path / "before.ml")  # the log is replaced by a new one
    write(tmp_path / "new.ml", range(3, 6))
    (tmp_path / "new.ml").rename(path)
    told += [json.loads(child.stdout.readline()) for _ in range(3)]
    child.send_signal(signal.SIGINT)
    told += [json.loads(line) for line in child.stdout]
    err = child.communicate(timeout=30)[1]
    assert [(r["flows"], r["rank"]) for r in told] == [(5, 1)] * 6
    assert [r["ts"] for r in told] == sorted({r["ts"] for r in told})
    assert err == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_there_is_of_an_epoch_is_printed_when_a_signal_ends_it(tmp_path: Path, number: int) -> None:
    live = Live("--epoch", "1h", "--stats")
    begin = (time.time() // 3600 + 100) * 3600  # neither of the two epochs is over
    live.say(HEAD + shared(begin) + shared(begin + 3600, 3))
    log = multilog.create(str(tmp_path / "paths.ml"), PATH)
    with log.writer() as writer:
        for block in blocks([flow(i + 1, [10 + i, 30, 40], 200 + i, lost=1, ts=time.time_ns()) for i in range(6)]):
            writer.append(block)
        writer.flush()
        words = [BIN / "confluo-vote", tmp_path / "paths.ml", "--follow", "--epoch", "1000d", "--top", "0", "-J"]
        child = popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        listens(child, number)
        time.sleep(2)
        for each in (live.child, child):
            each.send_signal(number)
        out, err = child.communicate(timeout=30)
    log.close()
    assert (child.returncode, err) == (128 + number, b"")
    assert [json.loads(row)["flows"] for row in out.splitlines()] == [6]
    status, text, said = live.end()
    assert (status, [r.split("\t")[1] for r in text.splitlines()]) == (128 + number, ["4"])
    assert "7 flows with loss" in said


def test_only_one_log_can_be_followed(tmp_path: Path) -> None:
    for name in ("a.ml", "b.ml"):
        multilog.create(str(tmp_path / name), PATH).close()
    done = run("confluo-vote", "--follow", tmp_path / "a.ml", tmp_path / "b.ml")
    assert done.returncode == 2
    assert b"--follow watches one MultiLog of this host, a topic, or a pipe; " in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    pipe = '"$0" simulate --epochs 40 -o stream | "$0" - --epoch 30s -T --top 1000 | head -1'
    words = ["bash", "-c", pipe, BIN / "confluo-vote"]
    done = subprocess.run(words, capture_output=True, env=environment(), timeout=60, check=False)
    assert (done.stdout.count(b"\n"), done.stderr) == (1, b"")


def test_memory_does_not_grow_with_flows_that_lose_nothing() -> None:
    """2 million records, none with loss: only the links are kept."""
    code = (
        "from pathlib import Path; from vote_rows import blocks, flow\n"
        "from confluo_tools.core.vote.flow_tally import FlowTally\n"
        "peak = lambda: int(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])\n"
        "t = FlowTally(); b = blocks([flow(1 + i % 50, [100 + i % 7, 200], 60 + i % 40) for i in range(50000)])[0]\n"
        "t.add(b, 0, b.rows); before = peak()\n"
        "for _ in range(39): t.add(b, 0, b.rows)\n"
        "print(t.records, peak() - before)"
    )
    env = os.environ | {"PYTHONPATH": f"{BIN.parent}:{BIN.parent / 'tests' / 'support'}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    records, grown = map(int, done.stdout.split())
    assert records == 2_000_000
    assert grown < 2048  # KiB
