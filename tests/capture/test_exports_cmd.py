"""confluo-capture --netflow and --sflow: sockets and captures, against nfcapd, tshark and softflowd."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from confluo_tools.multilog.capture_statistics import captures
from confluo_tools.schema import builtin
from flow_exporters import (
    Element,
    Template,
    data_set,
    flow_sample,
    gateway,
    ipfix,
    ntp,
    number,
    packed,
    raw_header,
    router,
    sflow,
    template_set,
    v5,
    v9,
)
from kafka_lab import free_ports
from nic_lab import frame
from running import BIN, CAMPUS, environment, run

NUMBERS = {name: number for number, name in builtin("netflow")["proto"].names.items()}
NOW = 1_700_000_000
DEADLINE = 30.0
KEYS = ("src_ip", "dst_ip", "src_port", "dst_port", "proto", "packets", "bytes", "first", "last")
needs_nfdump = pytest.mark.skipif(not shutil.which("nfcapd"), reason="needs nfdump; bin/check installs it as root")
needs_tshark = pytest.mark.skipif(not shutil.which("tshark"), reason="no tshark here")


def flows_of_all_protocols() -> list[bytes]:
    """Datagrams with flows of every form of time: NetFlow v5, NetFlow v9, IPFIX for IPv4 and IPv6."""
    r = random.Random(7)

    def some(n: int, six: bool = False) -> Iterator[dict[str, Any]]:
        for _ in range(n):
            size = 16 if six else 4
            yield {
                "src": (b"\x20\x01" if six else b"\x0a") + r.randbytes(size - (2 if six else 1)),
                "dst": (b"\x20\x01" if six else b"\x0b") + r.randbytes(size - (2 if six else 1)),
                "src_port": r.randrange(65536), "dst_port": r.randrange(65536), "proto": r.choice([6, 17]),
                "packets": r.randrange(1, 10**6), "bytes": r.randrange(64, 10**9),
                "first": r.randrange(100_000), "last": r.randrange(100_000, 200_000), "in_if": 3, "out_if": 4,
                "src_as": 64500, "dst_as": r.randrange(1, 65536), "flags": 0x1B, "tos": 0x28,
            }  # fmt: skip

    ends = {4: (8, 12), 6: (27, 28)}
    out = [v5(list(some(20)), uptime=300_000, time=NOW * 10**9 + 123_456_789, sequence=0)]
    common = [Element(7, 2), Element(11, 2), Element(4, 1), Element(2, 4), Element(1, 4), Element(6, 1)]

    def rows(t: Template, flows: Iterable[dict[str, Any]], first: Any) -> list[list[bytes]]:
        return [
            [f["src"], f["dst"], number(f["src_port"], 2), number(f["dst_port"], 2), number(f["proto"], 1),
             number(f["packets"], 4), number(f["bytes"], 4), number(f["flags"], 1), first(f["first"]), first(f["last"])]
            for f in flows
        ]  # fmt: skip

    for sequence, version in enumerate((4, 6)):
        size = 4 if version == 4 else 16
        t = Template(
            300 + version, [Element(e, size) for e in ends[version]] + [*common, Element(22, 4), Element(21, 4)]
        )
        data = data_set(t, rows(t, some(15, version == 6), lambda v: number(v, 4)), pad=4)
        out.append(v9([template_set([t], ipfix=False), data], uptime=300_000, seconds=NOW, sequence=sequence))
    sent = 0
    for version in (4, 6):
        size = 4 if version == 4 else 16
        t = Template(
            400 + version, [Element(e, size) for e in ends[version]] + [*common, Element(152, 8), Element(153, 8)]
        )
        data = data_set(t, rows(t, some(12, version == 6), lambda v: number(NOW * 1000 - 300_000 + v, 8)))
        out.append(ipfix([template_set([t], ipfix=True), data], seconds=NOW, sequence=sent))
        sent += 12
    return out


def softflowd(version: int) -> list[bytes]:
    """What softflowd exports of the packets of campus.pcap."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.ExitStack() as stack:
        sock.bind(("127.0.0.1", 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(folder, "campus.pcap")
        path.write_bytes(gzip.decompress(CAMPUS.read_bytes()))
        command = ["softflowd", "-r", path, "-n", f"127.0.0.1:{sock.getsockname()[1]}", "-v", str(version)]
        subprocess.run(command, capture_output=True, check=True, timeout=DEADLINE, cwd=folder)
        out = []
        while select.select([sock], [], [], 0)[0]:
            out.append(sock.recv(65536))
    return out


def capture_of(path: Path, datagrams: Iterable[bytes], port: int, source: bytes = b"\x7f\0\0\1") -> Path:
    """A capture with the datagrams as sent to this port of 127.0.0.1."""
    out = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 101)
    for i, d in enumerate(datagrams):
        udp = struct.pack(">HHHH", 5000, port, 8 + len(d), 0) + d
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), i, 0, 64, 17, 0, source, b"\x7f\0\0\1") + udp
        out += struct.pack("<IIII", NOW, i, len(ip), len(ip)) + ip
    path.write_bytes(out)
    return path


class Listener:
    """A confluo-capture that receives; `port`: where."""

    def __init__(self, *words: Any, option: str = "--netflow") -> None:
        command = [BIN / "confluo-capture", option, "127.0.0.1:0", *map(str, words)]
        self.child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment()
        )
        assert self.child.stderr is not None
        self.line = self.child.stderr.readline().decode()
        assert "listening on" in self.line, self.line
        self.port = int(self.line.partition("127.0.0.1:")[2].partition(";")[0])

    def send(self, datagrams: Iterable[bytes]) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for d in datagrams:
                sock.sendto(d, ("127.0.0.1", self.port))

    def end(self) -> tuple[bytes, str]:
        """What it wrote, and said; it reads all that has arrived."""
        self.child.send_signal(signal.SIGTERM)
        out, err = self.child.communicate(timeout=DEADLINE)
        assert self.child.returncode == 143, err
        return out, err.decode()


@pytest.fixture
def listeners() -> Iterator[list[Listener]]:
    started: list[Listener] = []
    yield started
    for one in started:
        if one.child.poll() is None:
            one.child.kill()
            one.child.communicate()


def records(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def comparable(rows: Iterable[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """What nfdump prints as well, times cut to milliseconds."""
    found: Counter[tuple[Any, ...]] = Counter()
    for r in rows:
        plain = {
            "first": _ms(r["ts"][:23]),
            "last": _ms(r["last_ts"][:23]),
            "proto": NUMBERS.get(r["proto"], r["proto"]),
        }
        found[tuple({**r, **plain}[k] for k in KEYS)] += 1
    return found


def of_nfdump(folder: Path) -> Counter[tuple[Any, ...]]:
    command = ["nfdump", "-R", folder, "-q", "-N", "-6", "-o", "json"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "TZ": "UTC"}).stdout
    found: Counter[tuple[Any, ...]] = Counter()
    objects = re.sub(r"}\s*,?\s*{", "},{", text).strip().strip("[],")  # nfdump 1.7.1 writes no list
    for r in json.loads(f"[{objects}]"):
        first, last = (_ms(r[k]) for k in ("first", "last"))
        src, dst = (r.get(f"{e}4_addr") or r[f"{e}6_addr"] for e in ("src", "dst"))
        ports = (r.get("src_port", 0), 0 if r["proto"] in (1, 58) else r.get("dst_port", 0))
        found[(src, dst, *ports, r["proto"], r["in_packets"], r["in_bytes"], first, last)] += 1
    return found


def _ms(text: str) -> int:
    when = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return int(when.timestamp()) * 1000 + when.microsecond // 1000


def queue_of(port: int) -> int:
    """Bytes that wait in the UDP socket of this port; -1: there is none."""
    for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[1].partition(":")[2], 16) == port:
            return int(words[4].partition(":")[2], 16)
    return -1


def until(true: Any) -> None:
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def by_nfcapd(datagrams: list[bytes], folder: Path) -> Path:
    """The folder of what nfcapd made of them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = ["nfcapd", "-l", folder, "-w", folder, "-p", str(port), "-b", "127.0.0.1", "-t", "3600", "-B", "2000000"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    try:
        until(lambda: queue_of(port) >= 0)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for d in datagrams:
                sock.sendto(d, ("127.0.0.1", port))
        until(lambda: queue_of(port) == 0)
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(DEADLINE)
    return folder


def exported_by(who: str) -> list[bytes]:
    if who == "us":
        return flows_of_all_protocols()
    if not shutil.which("softflowd"):
        pytest.skip("needs softflowd; bin/check installs it as root")
    return softflowd(int(who.removeprefix("softflowd ")))


@needs_nfdump
@pytest.mark.parametrize("who", ["us", "softflowd 5", "softflowd 9", "softflowd 10"])
def test_records_equal_nfcapd(who: str, tmp_path: Path) -> None:
    """Times to the millisecond, addresses, ports, packets and bytes of every record."""
    datagrams = exported_by(who)
    path = capture_of(tmp_path / "sent.pcap", datagrams, 2055)
    done = run("confluo-capture", "-q", "-r", path, "--netflow", ":2055", "-J")
    ours = comparable(records(done.stdout))
    folder = tmp_path / "nfcapd"
    folder.mkdir()
    theirs = of_nfdump(by_nfcapd(datagrams, folder))
    assert len(ours) > 50
    if who in ("softflowd 9", "softflowd 10"):  # nfcapd 1.7.1 has wrong times of flows before the start of the exporter
        ours, theirs = (Counter(key[:-2] for key in side.elements()) for side in (ours, theirs))
    assert ours == theirs


@needs_nfdump
def test_csv_of_nfdump_is_read(tmp_path: Path) -> None:
    """Its rows without the summary after them; it prints whole seconds."""
    names = "te=last,sa=src_ip,da=dst_ip,sp=src_port,dp=dst_port,pr=proto,ipkt=packets,ibyt=bytes,td=seconds"
    folder = by_nfcapd(flows_of_all_protocols(), tmp_path)
    command = ["nfdump", "-R", folder, "-6", "-o", "csv"]
    text = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "TZ": "UTC"}).stdout
    assert b"Summary" in text
    done = run("confluo-convert", "-q", "-", "--rename", names, "-J", input=text)
    assert (done.returncode, done.stderr) == (0, b"")
    rows = records(done.stdout)
    names_of = ("src_ip", "dst_ip", "src_port", "packets", "bytes")
    found = Counter((*(r[n] for n in names_of), NUMBERS.get(r["proto"], r["proto"])) for r in rows)
    theirs: Counter[tuple[Any, ...]] = Counter()
    for (src, dst, port, _, proto, packets, size, *_), n in of_nfdump(folder).items():
        theirs[src, dst, port, packets, size, proto] += n
    assert found == theirs


@needs_nfdump
@pytest.mark.skipif(not shutil.which("nfreplay"), reason="needs nfreplay")
def test_nfreplay_is_an_exporter(tmp_path: Path, listeners: list[Listener]) -> None:
    """What nfcapd stored, sent again by nfreplay, live: the records are those of nfdump."""
    folder = tmp_path / "nfcapd"
    folder.mkdir()
    by_nfcapd(flows_of_all_protocols(), folder)
    listener = Listener("-J")
    listeners.append(listener)
    (file,) = folder.glob("nfcapd.2*")
    command = ["nfreplay", "-H", "127.0.0.1", "-p", str(listener.port), "-r", file, "-v", "9"]
    subprocess.run(command, capture_output=True, check=True, timeout=DEADLINE)
    until(lambda: queue_of(listener.port) == 0)
    out, _ = listener.end()
    assert comparable(records(out)) == of_nfdump(folder)


@needs_tshark
def test_records_equal_tshark(tmp_path: Path) -> None:
    """Its dissectors of NetFlow, IPFIX and sFlow."""
    packets = [frame(sport=n, dport=53 + n, proto=6 if n % 2 else 17, size=90) for n in range(20)]
    samples = [flow_sample([raw_header(p, 1000 + n), router("10.9.9.9", 24, 16), gateway("10.8.8.8", 1, 2, [3, 4])],
                           rate=64 + n, into=n, out=n + 1, wide=n % 3 == 0) for n, p in enumerate(packets)]  # fmt: skip
    path = capture_of(tmp_path / "s.pcap", [sflow(samples[i : i + 5], sequence=i) for i in range(0, 20, 5)], 6343)
    found = records(run("confluo-capture", "-q", "-r", path, "--sflow", ":6343", "-J").stdout)
    names = [
        "ip.src",
        "ip.dst",
        "tcp.srcport",
        "udp.srcport",
        "sflow_245.nexthop.src_mask",
        "sflow_245.nexthop.dst_mask",
    ]
    theirs = tshark(path, "udp.port==6343,sflow", names)
    addresses = [(s, d) for r in theirs for s, d in list(zip(r["ip.src"], r["ip.dst"], strict=True))[1:]]
    assert [(r["src_ip"], r["dst_ip"]) for r in found] == addresses
    assert Counter(r["src_port"] for r in found) == Counter(
        int(p) for r in theirs for p in r["tcp.srcport"] + r["udp.srcport"][1:]
    )
    assert {(r["src_mask"], r["dst_mask"]) for r in found} == {(24, 16)}

    path = capture_of(tmp_path / "n.pcap", flows_of_all_protocols(), 2055)
    found = records(run("confluo-capture", "-q", "-r", path, "--netflow", ":2055", "-J").stdout)
    names = ["cflow.srcaddr", "cflow.srcaddrv6", "cflow.octets", "cflow.packets", "cflow.srcport", "cflow.abstimestart"]
    theirs = tshark(path, "udp.port==2055,cflow", names)
    assert [r["src_ip"] for r in found] == [a for r in theirs for a in r["cflow.srcaddr"] + r["cflow.srcaddrv6"]]
    for ours, name in (("bytes", "octets"), ("packets", "packets"), ("src_port", "srcport")):
        assert [r[ours] for r in found] == [int(v) for r in theirs for v in r[f"cflow.{name}"]]


def tshark(path: Path, decode_as: str, names: list[str]) -> list[dict[str, list[str]]]:
    command = ["tshark", "-n", "-r", str(path), "-d", decode_as, "-T", "fields", "-E", "separator=|"]
    command += [w for n in names for w in ("-e", n)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [
        {n: v.split(",") if v else [] for n, v in zip(names, line.split("|"), strict=True)}
        for line in text.splitlines()
    ]


def test_live_and_capture_give_the_same(tmp_path: Path, listeners: list[Listener]) -> None:
    """Into a log, with an expression and the counters of the capture in the log."""
    datagrams = flows_of_all_protocols()
    listener = Listener("-w", tmp_path / "live.ml", "--stats", "--index", "src_ip")
    listeners.append(listener)
    listener.send([datagrams[0][:30], *datagrams])  # the first one is cut
    until(lambda: queue_of(listener.port) == 0)
    out, err = listener.end()
    assert out == b""
    assert "74 records, 74 kept, 0 filtered, 6 datagrams" in err
    assert "1 datagrams are cut or contradict themselves" in err
    (seen,) = captures(tmp_path / "live.ml")
    assert (seen["kept"], seen["malformed"], seen["ended"]) == (74, 1, "signal")
    path = capture_of(tmp_path / "sent.pcap", datagrams, 2055)
    done = run("confluo-capture", "-r", path, "--netflow", ":0", "-w", tmp_path / "file.ml")
    assert (done.returncode, done.stderr) == (0, b"")
    stored = [records(run("confluo-query", tmp_path / name, "-J").stdout) for name in ("live.ml", "file.ml")]
    assert len(stored[0]) == 74
    assert [{**r, "received": 0} for r in stored[0]] == [{**r, "received": 0} for r in stored[1]]
    piped = run(
        "confluo-capture", "-r", "-", "--netflow", ":2055", "proto == udp and bytes > 1M", "-J", stdin=path.read_bytes()
    )
    selected = run("confluo-query", tmp_path / "file.ml", "proto == udp and bytes > 1M", "-J", "--count")
    assert len(piped.stdout.splitlines()) == int(selected.stdout)


def test_other_ports_and_addresses_are_left_out(tmp_path: Path) -> None:
    path = capture_of(tmp_path / "sent.pcap", flows_of_all_protocols(), 2055)
    for where, n in ((":9995", 0), ("127.0.0.1:2055", 74), ("127.0.0.2:2055", 0), ("[::1]:0", 0)):
        done = run("confluo-capture", "-q", "-r", path, "--netflow", where, "-J")
        assert (done.returncode, len(done.stdout.splitlines())) == (0, n)
    done = run("confluo-capture", "-r", path, "--sflow", ":2055", "-J")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"5 datagrams have another protocol or version" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_privileges_are_dropped_after_binding(tmp_path: Path, listeners: list[Listener]) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:3]:
        parent.chmod(0o755)
    listener = Listener("-w", tmp_path / "flows.ml", "-Z", "nobody")
    listeners.append(listener)
    status = Path(f"/proc/{listener.child.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert (tmp_path / "flows.ml").stat().st_uid == 65534
    listener.send(flows_of_all_protocols())
    until(lambda: queue_of(listener.port) == 0)
    listener.end()
    assert run("confluo-query", tmp_path / "flows.ml", "--count").stdout == b"74\n"


def test_dropped_datagrams_are_counted(listeners: list[Listener]) -> None:
    """By a full buffer of the socket, while the capture is stopped."""
    listener = Listener("--ring", "128KiB", "-J")
    listeners.append(listener)
    os.kill(listener.child.pid, signal.SIGSTOP)
    big = v5([{"packets": 1}] * 30)
    listener.send([big] * 2000)
    os.kill(listener.child.pid, signal.SIGCONT)
    until(lambda: queue_of(listener.port) == 0)
    out, err = listener.end()
    kept = len(out.splitlines()) // 30
    assert 0 < kept < 2000
    assert f"{2000 - kept} dropped by the kernel" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--netflow", "x"], "'x' has no port; write e.g. 127.0.0.1:8443, [::1]:8443 or :8443"),
        (["--sflow", "host:1"], "'host:1' is not an address and a port"),
        (["--netflow", ":1", "-i", "lo"], "-i does not go with --netflow and --sflow"),
        (["--netflow", ":1", "--follow"], "--follow does not go with --netflow and --sflow"),
        (["--netflow", ":1", "-r", "x", "--metrics", ":1"], "--metrics does not go with --netflow and --sflow"),
        (["--netflow", ":1", "-r", "x", "-Z", "nobody"], "-Z does not go with --netflow and --sflow"),
        (["--scale-samples", "-r", "x"], "--scale-samples is for --netflow and --sflow"),
        (["--netflow", "192.0.2.77:1"], "192.0.2.77:1: cannot listen: Cannot assign requested address"),
    ],
)
def test_errors(words: list[str], message: str) -> None:
    done = run("confluo-capture", *words)
    assert done.returncode == 2
    assert message in done.stderr.decode()


def test_ntp_times_are_read_from_captures(tmp_path: Path) -> None:
    """Nanoseconds of IPFIX, to the nanosecond."""
    t = Template(256, [Element(8, 4), Element(156, 8), Element(157, 8)])
    times = [1_700_000_000_123_456_789, 1_700_000_000_999_999_999]
    data = data_set(t, [[packed("10.0.0.1"), *map(ntp, times)]])
    path = capture_of(tmp_path / "x.pcap", [ipfix([template_set([t], ipfix=True), data])], 4739)
    done = run("confluo-capture", "-q", "-r", path, "--netflow", ":4739", "-J")
    (row,) = records(done.stdout)
    assert (row["ts"], row["last_ts"]) == ("2023-11-14T22:13:20.123456789Z", "2023-11-14T22:13:20.999999999Z")


@pytest.mark.parametrize("to_log", [True, False])
def test_metrics_are_the_counters(to_log: bool, tmp_path: Path, listeners: list[Listener]) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families as parse

    (port,) = free_ports(1)
    out = ["-w", tmp_path / "x.ml"] if to_log else ["-J"]
    listeners.append(Listener(*out, "--metrics", f":{port}", "src_port < 30000"))
    listeners[0].send([*flows_of_all_protocols(), b"no datagram of an exporter"])
    found: dict[str, float] = {}

    def counted() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE) as answer:
            families = list(parse(answer.read().decode()))
        found.update({s.name.removeprefix("confluo_capture_"): s.value for f in families for s in f.samples})
        return (found["datagrams_total"], found["records_received_total"]) == (6, 74)

    until(counted)
    written, said = listeners[0].end()
    assert found["datagrams_unknown_total"] == 1
    kept, filtered = (int(re.search(rf"(\d+) {word}", said)[1]) for word in ("kept", "filtered"))  # type: ignore[index]
    assert (found["records_kept_total"], found["records_filtered_total"]) == (kept, filtered)
    assert 0 < kept < 74
    assert to_log or len(written.splitlines()) == kept
