"""confluo-stream service synflood: floods on real wires, in topics and captures; errors in one line."""

from __future__ import annotations

import json
import random
import signal
import socket
import struct
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import dpkt
import pytest

from confluo_tools.formats.pcap import open_captures
from confluo_tools.stream.services.synflood import SynFloodService
from kafka_lab import Broker
from netns import Space
from running import BIN, CAMPUS, environment, lines, next_line, popen, run

FLOOD = 600  # connections that stay half-open
CALLS = 40  # connections of a client that completes them
PORT = 8081
SECOND = 10**9


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def syn(src: str, dst: str, sport: int, dport: int) -> bytes:
    """An IPv4 packet with a SYN, as hping3 makes them."""
    ends = socket.inet_aton(src) + socket.inet_aton(dst)
    tcp = struct.pack(">HHIIBBHHH", sport, dport, sport * 65537, 0, 5 << 4, 2, 512, 0, 0)
    tcp = tcp[:16] + struct.pack(">H", checksum(ends + struct.pack(">HH", 6, 20) + tcp)) + tcp[18:]
    head = struct.pack(">BBHHHBBH", 0x45, 0, 40, sport, 0, 64, 6, 0)
    return head[:10] + struct.pack(">H", checksum(head + ends)) + ends + tcp


def half_open(space: Space) -> int:
    """Connections of the server that wait for the last ACK, as the kernel counts them."""
    listed = space.run("ss", "-Htan", "state", "syn-recv").stdout
    return len(listed.splitlines())


def until(condition: object, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


def answers(path: Path) -> int:
    """Connections with a SYN-ACK in a capture that grows."""
    ends = set()
    with path.open("rb") as file, suppress(dpkt.NeedData):
        for _, data in dpkt.pcap.Reader(file):
            ip = dpkt.ethernet.Ethernet(data).data
            if ip.data.flags == dpkt.tcp.TH_SYN | dpkt.tcp.TH_ACK:
                ends.add((ip.dst, ip.data.dport))
    return len(ends)


@pytest.fixture(scope="module")
def flooded(pair: tuple[Space, Space], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """A capture at a server that is flooded from forged sources and called by a client: (path, address, half-open)."""
    attacker, server = pair
    path = tmp_path_factory.mktemp("flood") / "flood.pcap"
    server.run("sysctl", "-qw", "net.ipv4.tcp_syncookies=0", "net.ipv4.tcp_max_syn_backlog=8192")
    server.run("sysctl", "-qw", "net.core.somaxconn=4096", check=False)
    server.ip("route", "add", "198.18.0.0/15", "via", attacker.address)
    with ExitStack() as stack:
        words = ["tcpdump", "-i", "v0", "-n", "-U", "-B", "8192", "-w", path, "tcp"]
        dump = server.popen(*words, stderr=subprocess.PIPE, bufsize=0)
        assert dump.stderr is not None
        stack.callback(dump.stderr.close)
        stack.callback(dump.wait, 30)
        stack.callback(dump.send_signal, signal.SIGINT)
        assert b"listening" in next_line(dump.stderr)
        with server.inside():
            listener = stack.enter_context(socket.create_server((server.address, PORT), backlog=4096))
        with attacker.inside():
            raw = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
            for _ in range(CALLS):
                client = socket.create_connection((server.address, PORT), 10)
                listener.accept()[0].close()
                client.close()
        rng = random.Random(13)
        for i in range(FLOOD):
            source = f"198.{rng.choice((18, 19))}.{i >> 8}.{i & 255}"
            raw.sendto(syn(source, server.address, 1024 + i, PORT), (server.address, 0))
        until(lambda: half_open(server) == FLOOD)
        until(lambda: answers(path) == FLOOD + CALLS)  # what tcpdump has not written when it ends is lost
    return path, server.address, FLOOD


def alerts(*words: object, status: int = 0) -> list[dict[str, object]]:
    done = run("confluo-stream", "service", "synflood", *map(str, words), "-J", "-n")
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in lines(done)]


def test_a_flood_is_as_large_as_the_kernel_says(flooded: tuple[Path, str, int]) -> None:
    path, address, waiting = flooded
    found = alerts(path, "--threshold", f"{waiting}/60s")
    assert [(a["event"], a["key"]) for a in found] == [
        (1, f"dst_ip={address}"),
        (1, f"dst_ip={address} dst_port={PORT}"),
    ]
    for alert in found:
        assert (alert["value"], alert["rows"], alert["dst_ip"]) == (waiting, waiting + CALLS, address)
        assert alert["values"][3] == waiting + CALLS  # type: ignore[index]  # the server answered all of them
    assert alerts(path, "--threshold", f"{waiting + 1}/60s", status=1) == []
    assert alerts(path, "not src net 198.18.0.0/15", "--threshold", "1/60s", status=1) == []


def test_it_begins_and_ends_in_a_topic(flooded: tuple[Path, str, int], broker: Broker) -> None:
    """Alerts go to a topic, which is made; they are those of the capture."""
    path, _, waiting = flooded
    packets, found = broker.topic("flood"), broker.topic("flood-alerts")
    assert run("confluo-stream", "publish", path, "--to", packets, "--create", "4").returncode == 0
    expected = alerts(path, "--threshold", f"{waiting // 2}/2s", "-f", "ts,event,key,value,rows")
    done = run(
        *("confluo-stream", "service", "synflood", "--from", packets, "--threshold", f"{waiting // 2}/2s"),
        *("--to", found, "--stats"),
    )
    assert done.returncode == 0
    assert done.stdout == b""
    assert b"2 results, 2 sent, 2 delivered, 0 lost" in done.stderr
    again = run("confluo-query", found, "-J", "-n", "-f", "ts,event,key,value,rows")
    assert [json.loads(line) for line in lines(again)] == expected


def test_it_writes_a_file_of_messages(flooded: tuple[Path, str, int], tmp_path: Path) -> None:
    path, _, waiting = flooded
    words = ("confluo-stream", "service", "synflood", path, "--threshold", f"{waiting // 2}/2s")
    assert run(*words, "--to", tmp_path / "a.messages").returncode == 0
    fields = ("-J", "-n", "-f", "ts,event,key,value,rows")
    assert lines(run("confluo-query", tmp_path / "a.messages", *fields)) == lines(run(*words, *fields))


def test_a_pipe_is_judged_as_it_comes(flooded: tuple[Path, str, int]) -> None:
    """An alert is printed while the pipe is open."""
    path, address, waiting = flooded
    stream = run("confluo-query", str(path), "-o", "stream").stdout
    words = ["service", "synflood", "-", "--threshold", f"{waiting // 2}/1s", "--timeout", "100ms", "-J", "--follow"]
    service = popen([BIN / "confluo-stream", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    assert service.stdin is not None
    assert service.stdout is not None
    service.stdin.write(stream[:-8])  # without its end
    service.stdin.flush()
    try:
        events = [json.loads(service.stdout.readline()) for _ in range(4)]  # the clock ends them
    finally:
        service.stdin.close()
        service.stdout.close()
        service.wait(30)
    assert [e["event"] for e in events] == ["fire", "fire", "clear", "clear"]
    assert {e["dst_ip"] for e in events} == {address}


def test_a_topic_is_followed(flooded: tuple[Path, str, int], broker: Broker) -> None:
    """Alerts of what the topic has, and of what comes later; the clock ends them; a signal ends the service."""
    path, _, waiting = flooded
    packets = broker.topic("followed-flood")
    expected = alerts(path, "--threshold", f"{waiting // 2}/1s", "--timeout", "100ms", "-f", "ts,event,key")
    words = ["service", "synflood", packets, "--threshold", f"{waiting // 2}/1s", "--timeout", "100ms", "-J", "-n"]
    assert run("confluo-stream", "publish", path, "--to", packets, "--create", "4").returncode == 0
    service = popen(
        [BIN / "confluo-stream", *words, "--follow", "-f", "ts,event,key"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert service.stdout is not None
    events = [json.loads(next_line(service.stdout)) for _ in range(4)]
    service.send_signal(signal.SIGINT)
    _, said = service.communicate(timeout=60)
    assert events[: len(expected)] == expected
    assert [e["event"] for e in events] == [1, 1, 2, 2]
    assert (service.returncode, b"4 results" in said) == (130, True), said


def test_real_captures_have_no_false_alerts(pcaps: Path) -> None:
    """With the defaults, only the port scan is one: 2,000 ports of an address, no port twice."""
    fired = set()
    for path in sorted(pcaps.glob("*.pcap*")):
        with open_captures([str(path)]) as captures:
            service = SynFloodService(
                captures.schema, 1000, 10 * SECOND, ratio=0.5, clear=0.5, timeout=3 * SECOND, lateness=SECOND
            )
            for block in captures:
                service.take(block, None)
            service.finish(True)
            fired |= {(path.name, b.get(b.layout.index("dst_port"), 0)) for b in service.results() if b.rows}
    assert fired == {("chris_synscan.pcapng", 0)}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--threshold", "1000"], "--threshold: '1000' is not N/TIME; write e.g. 1000/10s"),
        (["--threshold", "0/1s"], "--threshold: '0/1s' is not N/TIME; write e.g. 1000/10s"),
        (["--threshold", "1/1ns"], "--threshold: '1ns' is too short; 10ms or more"),
        (["--threshold", "1/10ms", "--timeout", "9m"], "--timeout: does not fit a window of 10ms; "),
        (["--ratio", "2"], "--ratio: '2' is not a share; write e.g. 0.05%, 1e-6, 0.5"),
        (["--to", "alerts"], "--to alerts: is not a place for records; "),
    ],
)
def test_errors_are_one_line(words: list[str], error: str) -> None:
    done = run("confluo-stream", "service", "synflood", CAMPUS, *words)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"confluo-stream service synflood: {error}")
    assert done.stderr.count(b"\n") == 1


def test_other_records_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("#fields\tts\tx\n#types\ttime\tu32\n1\t2\n")
    done = run("confluo-stream", "service", "synflood", str(path))
    assert done.returncode == 2
    assert b"have no 'proto'; it needs ts, proto, src_ip" in done.stderr
