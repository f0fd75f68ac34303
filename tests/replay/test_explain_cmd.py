"""confluo-replay explain as a command: inputs, selections, sums, and what it says of bad input."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_explain_twin import START, frame, write

from confluo_tools.replay.explain.labels import LABELS
from running import BIN, environment, popen, run

MSS = 1000


class Talk:
    """A connection of 10.78.0.1:4711 and 10.78.0.2:80, packet by packet, as one tap sees it."""

    def __init__(self) -> None:
        self.now, self.frames = START, list[tuple[int, bytes]]()
        self.next, self.acked, self.number = 1, 1, 0
        syn = struct.pack(">BBHBBBBB", 2, 4, 1460, 4, 2, 3, 3, 0)
        self.add(0, 0, 2, 0, 0, options=syn)
        self.add(10, 1, 18, 0, 1, options=syn)  # the tap is at the client
        self.add(0, 0, 16, 1, 1)

    def add(self, ms: float, side: int, flags: int, seq: int, ack: int, size: int = 0, **more: Any) -> None:
        self.now += round(ms * 1e6)
        self.number += 1
        options, window = more.get("options", b""), more.get("window", 60_000)
        self.frames.append((self.now, frame(side, flags, seq, ack, size, window, options, self.number)))

    def send(self, ms: float, size: int = MSS, seq: int = 0) -> None:
        self.add(ms, 0, 16, seq or self.next, 1, size)
        self.next = max(self.next, (seq or self.next) + size)

    def ack(self, ms: float, window: int = 60_000) -> None:
        self.add(ms, 1, 16, 1, self.next, window=window)


@pytest.fixture
def pcap(tmp_path: Path) -> Path:
    """Three messages: one with a timeout, one with a closed window, one without trouble."""
    talk = Talk()
    talk.send(1)
    talk.send(0)
    talk.ack(10)
    talk.send(0)
    talk.send(230, seq=2 * MSS + 1)  # a probe
    talk.send(300, seq=2 * MSS + 1)  # a timeout
    talk.ack(10)
    talk.send(500)
    talk.ack(10, window=0)
    talk.add(400, 1, 16, 1, talk.next, window=60_000)
    talk.send(0)
    talk.ack(10)
    talk.send(1000)
    talk.ack(10)
    return write(tmp_path / "talk.pcap", talk.frames)


def lines(*words: Any, status: int = 0) -> list[dict[str, Any]]:
    done = run("confluo-replay", "explain", *words, "-J", "-q")
    assert (done.returncode, done.stderr.decode()) == (status, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_labels(pcap: Path) -> None:
    found = [(r["event"], r["name"], r["why"], r["packet"]) for r in lines(pcap)]
    assert found == [
        ("gap", "cwnd-limited", None, 7),
        ("retransmission", "tlp", "tail_loss", 8),
        ("retransmission", "rto(backoff=1)", "tail_loss", 9),
        ("gap", "app-limited", None, 11),
        ("gap", "zero-window", None, 14),
        ("gap", "app-limited", None, 16),
    ]


def test_a_window_smaller_than_a_segment(tmp_path: Path) -> None:
    """The timer for probes sends as much as the window takes: one message, limited by the receiver."""
    talk = Talk()
    talk.send(1)
    talk.ack(10, window=640)
    talk.send(230, size=640)
    talk.ack(10)
    path = write(tmp_path / "small.pcap", talk.frames)
    (row,) = lines(path)
    found = {name: row[name] for name in ("name", "trigger", "certainty", "packet", "window")}
    expected = {"name": "rwnd-limited", "trigger": "timer", "certainty": "likely", "packet": 6, "window": 640}
    assert found == expected
    (message,) = lines(path, "--messages")
    assert (message["bytes"], message["main"]) == (MSS + 640, "rwnd_limited")


def test_messages_and_sums_agree(pcap: Path) -> None:
    messages = lines(pcap, "--messages")
    assert [(m["bytes"], m["main"]) for m in messages] == [(3000, "tail_loss"), (2000, "zero_window"), (1000, None)]
    rows = lines(pcap, "--by", "cause")
    assert [r["cause"] for r in rows][:2] == ["tail_loss", "zero_window"]
    for row in rows:
        assert row["time"] == sum(m[row["cause"]] for m in messages)
        assert row["messages"] == sum(m["main"] == row["cause"] for m in messages)
    assert sum(r["share"] for r in rows) == pytest.approx(1)
    assert sum(r["time"] for r in rows) == sum(m["above"] for m in messages)
    for m in messages:
        assert m["took"] == m["ideal"] + sum(m[label] for label in LABELS if label in m)
    assert {r["size"] for r in lines(pcap, "--by", "size")} == {"to 10 kB"}


def test_the_slowest_messages(pcap: Path) -> None:
    worst = max(lines(pcap, "--messages"), key=lambda m: m["slowdown"])
    assert lines(pcap, "--messages", "--slowest", "1%") == [worst]
    assert {r["message"] for r in lines(pcap, "--slowest", "1%")} == {worst["message"]}
    assert len(lines(pcap, "--messages", "--slowest", "100%")) == 3


def test_connections_are_chosen(pcap: Path, tmp_path: Path) -> None:
    """By name in either direction, and by records; others are not explained."""
    all_rows = lines(pcap)
    assert lines(pcap, "--flow", "10.78.0.1:4711-10.78.0.2:80/tcp") == all_rows
    assert lines(pcap, "--flow", "10.78.0.2:80-10.78.0.1:4711") == all_rows
    assert lines(pcap, "--flow", "10.78.0.1:4712-10.78.0.2:80", status=1) == []
    flows = tmp_path / "flows.tsv"
    head = "#fields\tip_version\tproto\tsrc_ip\tdst_ip\tsrc_port\tdst_port\n#types\tu8\tu8\tip\tip\tu16\tu16\n"
    flows.write_text(f"{head}4\t6\t10.78.0.1\t10.78.0.2\t4711\t80\n")
    assert lines(pcap, "--flows", flows) == all_rows
    flows.write_text(f"{head}4\t17\t10.78.0.1\t10.78.0.2\t4711\t80\n")
    assert lines(pcap, "--flows", flows, status=1) == []


def test_connections_are_explained_when_they_are_named(pcap: Path, tmp_path: Path) -> None:
    """In a stream that stays open: at once; named again, only what came since."""
    head = b"#fields\tip_version\tproto\tsrc_ip\tdst_ip\tsrc_port\tdst_port\n#types\tu8\tu8\tip\tip\tu16\tu16\n"
    line = b"4\t6\t10.78.0.1\t10.78.0.2\t4711\t80\n"
    whole, short = pcap.read_bytes(), tmp_path / "growing.pcap"
    names = [row["name"] for row in lines(pcap)]
    argv = [BIN / "confluo-replay", "explain", short, "--flows", "-", "-q", "-J", "-f", "name"]
    cut = 24  # after 8 packets
    for _ in range(8):
        cut += 16 + struct.unpack_from("<I", whole, cut + 8)[0]
    short.write_bytes(whole[:cut])
    with popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(head + line)
        process.stdin.flush()
        found = [json.loads(process.stdout.readline())["name"]]
        assert found == names[:1]
        short.write_bytes(whole)
        rest, _ = process.communicate(line, timeout=60)
    found += [json.loads(row)["name"] for row in rest.splitlines()]
    assert found == names
    assert process.returncode == 0


def test_a_log_has_the_same_labels(pcap: Path, tmp_path: Path) -> None:
    """Without SACK blocks, which the output says; and labels go into a log like other records."""
    assert run("confluo-capture", "-q", "-r", pcap, "-w", tmp_path / "log.ml").returncode == 0
    done = run("confluo-replay", "explain", tmp_path / "log.ml", "-w", tmp_path / "labels.ml")
    assert (done.returncode, b"SACK blocks" in done.stderr) == (0, True)
    query = run("confluo-query", tmp_path / "labels.ml", "-f", "name,packet", "-J")
    found = [json.loads(line) for line in query.stdout.splitlines()]
    assert found == [{"name": r["name"], "packet": r["packet"]} for r in lines(pcap)]


def test_shorter_waits_are_explained_on_request(pcap: Path) -> None:
    assert len(lines(pcap, "--gap", "400ms")) < len(lines(pcap)) <= len(lines(pcap, "--gap", "0"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--flow", "10.0.0.1:80"), "--flow: '10.0.0.1:80' is not a connection"),
        (("--by", "day"), "--by"),
        (("--by", "cause", "--messages"), "--by and --messages exclude each other"),
        (("--flows", "missing.tsv"), "missing.tsv"),
        (("--gap", "fast"), "--gap"),
    ],
)
def test_wrong_words(pcap: Path, words: tuple[str, ...], said: str) -> None:
    done = run("confluo-replay", "explain", pcap, *words)
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_other_records_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "alerts.tsv"
    other.write_text("#fields\tname\n#types\ttext(8)\nx\n")
    done = run("confluo-replay", "explain", other)
    assert (done.returncode, b"not packets" in done.stderr) == (2, True)


def test_the_verbs() -> None:
    assert b"explain" in run("confluo-replay", "--help").stdout
    assert b"--slowest" in run("confluo-replay", "explain", "--help").stdout
