"""confluo-stream service loss: captures at both ends of a lossy path, held against tshark and the kernel."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import dpkt
import pytest

from kafka_lab import Broker
from lossy_path import DATAGRAMS, LossyPath, lossy_path
from netns import Lab
from running import BIN, CAMPUS, completed, environment, lines, run

FIELDS = ("ip.src", "ip.dst", "ip.id", "ip.proto", "udp.srcport", "tcp.srcport", "tcp.seq_raw", "udp.length", "tcp.len")
NAMES = "src_ip,dst_ip,ip_id,proto,src_port,tcp_seq,payload_len"
MORE = ("tcp.ack_raw", "tcp.flags", "tcp.options.timestamp.tsval")  # tell a SYN-ACK from the one that repeats it


@pytest.fixture(scope="module")
def path(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> LossyPath:
    return lossy_path(lab, tmp_path_factory.mktemp("lossy"))


def packets(capture: Path) -> list[tuple[Any, ...]]:
    """Time in ns, identity by NAMES, and the rest of the identity, of each packet, as tshark has them."""
    command = ["tshark", "-n", "-r", capture, "-T", "fields", "-e", "frame.time_epoch"]
    command += [word for name in FIELDS + MORE for word in ("-e", name)]
    found = []
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        time, src, dst, id, proto, uport, tport, seq, ulen, tlen, *more = line.split("\t")
        size = int(tlen) if tlen else int(ulen) - 8
        key = (src, dst, int(id, 0), int(proto), int(uport or tport), int(seq or 0), size)
        seconds, _, fraction = time.partition(".")
        found.append((int(seconds) * 10**9 + int(fraction.ljust(9, "0")), key, tuple(more)))
    return found


def times_of(capture: Path) -> dict[tuple[Any, ...], list[int]]:
    """The times of each packet, in order; a repeated one without an IP identification has several."""
    times: dict[tuple[Any, ...], list[int]] = {}
    for time, key, more in packets(capture):
        times.setdefault(key + more, []).append(time)
    return times


def service(*words: object) -> list[dict[str, Any]]:
    done = run("confluo-stream", "service", "loss", *map(str, words), "-J", "-n")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in lines(done)]


def test_the_lost_packets_are_those_that_are_missing(path: LossyPath) -> None:
    a, b = (Counter(key for _, key, _ in packets(p)) for p in (path.a, path.b))
    found: dict[int, Counter[tuple[Any, ...]]] = {1: Counter(), 2: Counter(), 3: Counter()}
    for row in service(path.a, path.b, "--packets", "-f", f"seen,{NAMES}"):
        found[row.pop("seen")][tuple(row.values())] += 1
    assert (found[1], found[2]) == (a - b, b - a)
    assert found[3] == a & b
    assert (a - b).total() + (b - a).total() == path.dropped > 0


def test_flows_have_the_losses_and_delays_of_their_packets(path: LossyPath) -> None:
    times = [times_of(p) for p in (path.a, path.b)]
    rows = service(path.a, path.b, "--window", "0")
    assert {(r["way"], r["src_ip"]) for r in rows} == {(1, path.addresses[0]), (2, path.addresses[1])}
    assert {(r["sent"], r["proto"]) for r in rows if r["proto"] == 17} == {(DATAGRAMS, 17)}
    assert sum(r["lost"] for r in rows) == path.dropped
    for r in rows:
        first, second = times if r["way"] == 1 else times[::-1]
        mine = {k: t for k, t in first.items() if (k[0], k[3], k[4]) == (r["src_ip"], r["proto"], r["src_port"])}
        pairs = (zip(t, second.get(k, ()), strict=False) for k, t in mine.items())
        delays = sorted(there - here for pair in pairs for here, there in pair)
        sent = sum(map(len, mine.values()))
        assert (r["sent"], r["sent"] - r["lost"], r["missed"]) == (sent, len(delays), 0)
        assert r["loss"] == pytest.approx(r["lost"] / r["sent"])
        assert r["delay_min"] == delays[0]
        assert r["delay_mean"] == pytest.approx(sum(delays) / len(delays), abs=1)
        near = [delays[max(0, int(len(delays) * share) - 1)] for share in (0.98, 1.0)]
        assert near[0] * 0.98 <= r["delay_p99"] <= near[1] * 1.02


def test_clocks_that_differ_do_not_change_losses_and_ways(path: LossyPath, tmp_path: Path) -> None:
    if shutil.which("editcap") is None:
        pytest.skip("editcap is not installed")
    shifted = tmp_path / "b.pcap"
    subprocess.run(["editcap", "-F", "pcap", "-t", "-0.7", path.b, shifted], check=True)
    expected = {(r["src_ip"], r["proto"]): r for r in service(path.a, path.b, "--window", "0")}
    done = run("confluo-stream", "service", "loss", str(path.a), str(shifted), "--window", "0", "-J", "-n")
    for r in map(json.loads, lines(done)):
        other = expected[r["src_ip"], r["proto"]]
        assert [r[n] for n in ("way", "sent", "lost", "missed")] == [
            other[n] for n in ("way", "sent", "lost", "missed")
        ]
    said = done.stderr.decode()
    assert "the clock of b is ahead of a's by -" in said
    offset = said.split("by ")[1].split(",")[0]
    assert f"; --offset {offset}" in said
    right = service(path.a, shifted, "--window", "0", "--offset", "-700ms")
    assert {(r["src_ip"], r["proto"]): r for r in right} == expected


def test_windows_add_up(path: LossyPath) -> None:
    whole = service(path.a, path.b, "--window", "0")
    parts = service(path.a, path.b, "--window", "1ms")
    assert len({r["ts"] for r in parts}) > 2
    for name in ("sent", "lost", "missed", "reordered"):
        total: Counter[tuple[Any, ...]] = Counter()
        for r in parts:
            total[r["src_ip"], r["proto"]] += r[name]
        assert dict(total) == {(r["src_ip"], r["proto"]): r[name] for r in whole}


def test_two_hosts_in_one_topic(path: LossyPath, broker: Broker) -> None:
    """Each has a name of its own when it publishes; the answer is that of the captures."""
    topic = broker.topic("two-hosts")
    publish = 'hostname "$1" && exec "$2" publish "$3" --to "$4" --create 3'
    for name, capture in (("east", path.a), ("west", path.b)):
        words = ["unshare", "--uts", "sh", "-c", publish, "sh", name, BIN / "confluo-stream", capture, topic]
        completed(words, check=True, capture_output=True, env=environment())
    assert service(topic, "--points", "east,west", "--window", "0") == service(path.a, path.b, "--window", "0")
    done = run("confluo-stream", "service", "loss", topic, "--points", "east,north")
    assert done.returncode == 2
    assert b"has no records of host 'north'; there are east, west" in done.stderr


def test_flows_of_one_point_need_all() -> None:
    """Of two points that have nothing in common, there is nothing to report, but how much."""
    inputs = (CAMPUS, CAMPUS, "--window", "0")
    whole = service(*inputs)
    words = ("--from", f"{CAMPUS}", "--from", f"{CAMPUS}", "--offset", "300s", "--window", "0")
    done = run("confluo-stream", "service", "loss", *words, "-T", "--no-header")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"flows were seen at one point only; --all prints them" in done.stderr
    rows = service(*words, "--all")
    assert sum(r["sent"] + r["missed"] for r in rows) == 2 * sum(r["sent"] for r in whole)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([CAMPUS], "1 inputs instead of 2; name what each point saw: A B, --from A --from B; or --points"),
        ([CAMPUS, CAMPUS, "--offset", "x"], "--offset: "),
        (["kafka://localhost:1/t", "--points", "a"], "--points: 'a' is not two hosts; write A,B"),
        ([CAMPUS, "/nonexistent"], "/nonexistent: No such file or directory"),
    ],
)
def test_errors_are_one_line(words: list[object], error: str) -> None:
    done = run("confluo-stream", "service", "loss", *map(str, words))
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"confluo-stream service loss: {error}")
    assert done.stderr.count(b"\n") == 1


def capture(path: Path, times: dict[int, float]) -> Path:
    """Datagrams of one flow: {IP identification: time in s}."""
    with path.open("wb") as f:
        out = dpkt.pcap.Writer(f, linktype=dpkt.pcap.DLT_RAW)
        for number, time in times.items():
            payload = dpkt.udp.UDP(sport=7, dport=8, data=b"x", ulen=9)
            packet = dpkt.ip.IP(id=number, src=bytes([10, 0, 0, 1]), dst=bytes([10, 0, 0, 2]), p=17, data=payload)
            out.writepkt(bytes(packet), ts=time)
    return path


def test_a_flow_that_begins_with_a_lost_packet(tmp_path: Path) -> None:
    """The windows before its first packet that both points saw count, too, when its way is known."""
    a = capture(tmp_path / "a.pcap", {n: n + 0.5 for n in range(1, 5)})
    b = capture(tmp_path / "b.pcap", {n: n + 0.6 for n in (3, 4)})
    found = service(a, b, "--window", "1s", "--timeout", "300ms", "-f", "ts,way,sent,lost")
    assert sorted((r["way"], r["sent"], r["lost"]) for r in found) == [(1, 1, 0), (1, 1, 0), (1, 1, 1), (1, 1, 1)]
    assert len({r["ts"] for r in found}) == 4
