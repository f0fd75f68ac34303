"""confluo-trace in real networks: namespaces that route, hash, limit their ICMP, keep silent, loop and lie."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from confluo_tools.schema import fold6
from netns import Lab, Space
from running import completed, environment, next_line, run
from trace_lab import TRACE, Net, chain, counter, fabric, moment, records, stream, sysctl, tcp_server, trace

pytestmark = [pytest.mark.root, pytest.mark.net]
FAST = ("--rate", "100000", "--burst", "10000")


def number(address: str) -> int:
    """The number of an address in a path."""
    if ":" in address:
        return fold6(socket.inet_pton(socket.AF_INET6, address))
    return int.from_bytes(socket.inet_aton(address), "big")


def names(net: Net, path: list[int], six: bool = False) -> list[str]:
    known = {number(address): node for address, node in net.nodes(six).items()}
    return [known[n] if n else "" for n in path]


def flows_of(net: Net, n: int, six: bool = False, first: int = 20000) -> list[tuple[str, str, int, int]]:
    return [(net.host("a", six), net.host("b", six), first + i, 443) for i in range(n)]


@pytest.fixture(scope="module")
def wide() -> Iterator[Net]:
    """Four equal ways between two ToRs, IPv4 and IPv6."""
    with Lab() as lab:
        yield fabric(lab, 4, six=True)


@pytest.fixture
def line() -> Iterator[Net]:
    """a - r1 - r2 - r3 - r4 - b."""
    with Lab() as lab:
        yield chain(lab, 4, six=True)


# ---------------------------------------------------------------- the right path


def seen_by(net: Net, six: bool) -> dict[str, set[int]]:
    """Source ports of the data that each middle has forwarded."""
    found = {}
    for name, space in net.spaces.items():
        if name.startswith("m"):
            text = space.run("nft", "list", "set", "netdev", "seen", f"ports{6 if six else 4}").stdout.decode()
            inside = text.split("elements = {")[1].split("}")[0] if "elements = {" in text else ""
            found[name] = {int(p) for p in inside.replace("\n", " ").split(",") if p.strip()}
    return found


def watch(net: Net, port: int) -> None:
    """Have each middle remember the source ports of packets to ``port`` that carry data."""
    for name, space in net.spaces.items():
        if name.startswith("m"):
            rules = f"""table netdev seen {{
                set ports4 {{ type inet_service; size 65535; flags dynamic; }}
                set ports6 {{ type inet_service; size 65535; flags dynamic; }}
                chain in {{ type filter hook ingress device x priority 0;
                    ether type ip tcp dport {port} meta length > 80 update @ports4 {{ tcp sport }}
                    ether type ip6 tcp dport {port} meta length > 100 update @ports6 {{ tcp sport }}
                }}
            }}"""
            space.run("nft", rules)


@pytest.mark.parametrize("six", [False, True], ids=["IPv4", "IPv6"])
def test_probes_go_the_way_of_the_data(wide: Net, six: bool) -> None:
    """Real connections, what each switch has really forwarded, and what the traceroutes say."""
    port = 5006 if six else 5004
    watch(wide, port)
    server = tcp_server(wide.spaces["b"], wide.host("b", six), port)
    family = socket.AF_INET6 if six else socket.AF_INET
    ends = []
    with server, wide.spaces["a"].inside():
        for _ in range(40):
            one = socket.create_connection((wide.host("b", six), port), timeout=5)
            one.sendall(b"x" * 500)
            ends.append((one, server.accept()[0]))
        flows = [(wide.host("a", six), wide.host("b", six), one.getsockname()[1], port) for one, _ in ends]
        bad = counter(wide.spaces["b"], "InCsumErrors", "Tcp")
        found, said = trace(wide.spaces["a"], records(flows), *FAST, "--stats")
        for one, other in ends:  # they have not noticed
            got = b""
            while len(got) < 500:
                got += other.recv(1000)
            one.sendall(b"y")
            assert other.recv(10) == b"y"
            assert one.family == family
            one.close()
            other.close()
    assert len(found) == 40, said
    assert counter(wide.spaces["b"], "InCsumErrors", "Tcp") > bad
    forwarded = seen_by(wide, six)
    assert sum(map(len, forwarded.values())) == 40
    assert sum(bool(ports) for ports in forwarded.values()) == 4  # all ways are used
    for record in found:
        way = names(wide, record["path"], six)
        assert way == ["x", way[1], "y"]
        assert record["src_port"] in forwarded[way[1]]
        assert record["notes"] is None


def test_full_addresses_of_ipv6(wide: Net) -> None:
    done = completed(
        wide.spaces["a"].argv(TRACE, "-o", "stream"),
        input=stream(records(flows_of(wide, 1, True))),
        capture_output=True,
        env=environment(),
        check=True,
    )
    import os

    from confluo_tools.formats.arrow import StreamReader
    from confluo_tools.formats.bytestream import ByteStream

    r, w = os.pipe()
    os.write(w, done.stdout)
    os.close(w)
    reader = StreamReader(ByteStream(r, "records"))
    (block,) = list(reader)
    path6 = bytes(block.get(block.layout.index("path6"), 0))
    hops = block.get(block.layout.index("hops"), 0)
    addresses = [socket.inet_ntop(socket.AF_INET6, path6[16 * i : 16 * i + 16]) for i in range(hops)]
    assert [wide.nodes(True)[a] for a in addresses][::2] == ["x", "y"]
    assert not any(path6[16 * hops :])
    assert list(block.get(block.layout.index("path"), 0))[:hops] == [number(a) for a in addresses]


def test_a_chain_of_routers(line: Net) -> None:
    for six in (False, True):
        found, _ = trace(line.spaces["a"], records(flows_of(line, 3, six)), *FAST)
        assert [names(line, r["path"], six) for r in found] == [["r1", "r2", "r3", "r4"]] * 3
        assert [(r["hops"], r["notes"]) for r in found] == [(4, None)] * 3


def test_fifteen_switches_and_more() -> None:
    """The 15th hop is the last one probed."""
    with Lab() as lab:
        net = chain(lab, 16)
        (found,), _ = trace(net.spaces["a"], records(flows_of(net, 1)), *FAST)
    assert found["hops"] == 15
    assert names(net, found["path"]) == [f"r{i}" for i in range(1, 16)]
    assert found["notes"] == "partial"


# ---------------------------------------------------------------- holes, loops, limits, lies


def mute(space: Space, what: str = "icmp") -> None:
    space.run(
        "nft",
        "add table inet mute; add chain inet mute out { type filter hook output priority 0; };"
        f" add rule inet mute out meta l4proto {{ {what} }} drop",
    )


def test_a_silent_hop_is_a_zero(line: Net) -> None:
    mute(line.spaces["r2"], "icmp, ipv6-icmp")
    for six in (False, True):
        found, _ = trace(line.spaces["a"], records(flows_of(line, 4, six)), *FAST)
        assert [names(line, r["path"], six) for r in found] == [["r1", "", "r3", "r4"]] * 4
        assert {r["notes"] for r in found} == {None}


def test_what_ends_early_is_partial_when_others_came_farther(line: Net) -> None:
    """r3 drops the probes of one flow."""
    line.spaces["r3"].run(
        "nft",
        "add table netdev t; add chain netdev t in { type filter hook ingress device r2"
        " priority 0; }; add rule netdev t in tcp sport 20001 drop",
    )
    found, _ = trace(line.spaces["a"], records(flows_of(line, 3)), *FAST)
    assert [(r["hops"], r["notes"]) for r in found] == [(4, None), (2, "partial"), (4, None)]


def test_a_flow_that_failed_is_compared_with_other_source_ports(line: Net) -> None:
    """r3 drops the probes of the flow only: those of six other ports show how far the path goes."""
    line.spaces["r3"].run(
        "nft",
        "add table netdev t; add chain netdev t in { type filter hook ingress device r2"
        " priority 0; }; add rule netdev t in tcp sport 20000 drop",
    )
    failed = records(flows_of(line, 1), lost=6, notes="unconnected")
    found, _ = trace(line.spaces["a"], failed, *FAST)
    assert [(r["hops"], r["lost"], r["notes"]) for r in found] == [
        (2, 6, "partial|unconnected"),
        *[(4, 0, "probe")] * 6,
    ]
    assert len({r["src_port"] for r in found}) == 7
    again, _ = trace(line.spaces["a"], records(flows_of(line, 1), lost=6, notes="stalled") * 2, *FAST)
    assert [r["notes"] for r in again] == ["partial|stalled", *["probe"] * 6]


def test_a_topology_says_what_is_partial(line: Net, tmp_path: Path) -> None:
    """With a ToR that is known one flow is enough; and the ToR ends the path without further waiting."""
    address = line.address
    by = {r: [a for (n, _), a in address.items() if n == r] for r in ("r1", "r2", "r3", "r4")}
    text = "".join(f"  {r}: {{number: {i}, addresses: {by[r]}}}\n" for i, r in enumerate(by, 1))
    topology = tmp_path / "net.yaml"
    topology.write_text(
        f"switches:\n{text}links: [[r1, r2], [r2, r3], [r3, r4]]\n"
        f"hosts: {{{line.host('a')}: r1, {line.host('b')}: r4}}\n"
    )
    words = ("--topology", topology, *FAST, "--stats", "--healthy")
    (found, healthy), said = trace(line.spaces["a"], records(flows_of(line, 2), lost=[1, 0]), *words)
    assert (found["path"], found["notes"], found["src_tor"], found["dst_tor"]) == ([1, 2, 3, 4], None, 1, 4)
    assert (healthy["path"], healthy["hops"], healthy["lost"]) == ([], 0, 0)
    assert (healthy["src_tor"], healthy["dst_tor"]) == (1, 4)
    assert "4 answers" in said
    mute(line.spaces["r4"])
    (found, _), _ = trace(line.spaces["a"], records(flows_of(line, 2), lost=[1, 0]), *words)
    assert (found["path"], found["notes"]) == ([1, 2, 3], "partial")


def test_a_loop(line: Net) -> None:
    line.route("r3", "b", ["r2"])
    (found,), _ = trace(line.spaces["a"], records(flows_of(line, 1)), *FAST)
    # r2 answers from the address that the probe came in by: another one the second time
    way = names(line, found["path"])
    assert way[:4] == ["r1", "r2", "r3", "r2"]
    assert "partial" in found["notes"]
    alias = {line.address[n, p]: n for n, p in line.address}
    hosts = Path(f"/tmp/{line.spaces['a'].name}.hosts")
    hosts.write_text("".join(f"{address} {node}\n" for address, node in alias.items()))
    try:
        (found,), _ = trace(line.spaces["a"], records(flows_of(line, 1)), *FAST, "--alias", hosts)
    finally:
        hosts.unlink()
    first = {}
    for address, node in alias.items():
        first.setdefault(node, number(address))
    assert found["path"] == [first[n] for n in ("r1", "r2", "r3", "r2")]
    assert set(found["notes"].split("|")) == {"partial", "loop"}


def test_unreachable(line: Net) -> None:
    """A router without a way on says so, and is the last of a partial path."""
    line.spaces["r3"].ip("route", "replace", "unreachable", f"{line.host('b')}/32")
    time.sleep(1.2)  # the kernel gives such answers from a bucket that is empty at first
    (found,), _ = trace(line.spaces["a"], records(flows_of(line, 1)), *FAST)
    assert (names(line, found["path"]), found["notes"]) == (["r1", "r2", "r3"], "partial")


def test_switches_that_limit_their_icmp(line: Net) -> None:
    """100 a second and 10 at once, as in the paper: what is beyond is silent, and the paths have holes, no lies."""
    sysctl(line.spaces["r2"], net__ipv4__icmp_msgs_per_sec=100, net__ipv4__icmp_msgs_burst=10)
    found, said = trace(line.spaces["a"], records(flows_of(line, 200)), *FAST, "--stats")
    assert len(found) == 200
    assert 5 <= sum(r["path"][1] != 0 for r in found) < 100, said
    for record in found:
        way = names(line, record["path"])
        assert way == ["r1", way[1], "r3", "r4"]
        assert way[1] in ("r2", "")
    time.sleep(0.5)  # below the limit all of them answer
    found, said = trace(line.spaces["a"], records(flows_of(line, 40)), "--rate", "40", "--burst", "5", "--stats")
    assert all(names(line, r["path"]) == ["r1", "r2", "r3", "r4"] for r in found), said


def lie(space: Space, src: str, dst: str, ports: range, stop: threading.Event, sent: list[int]) -> None:
    """An attacker who knows all flows but not the probes: time exceeded, for all hops."""
    with space.inside(), socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        while not stop.is_set():
            for port in ports:
                for hop in range(1, 6):
                    ip = struct.pack(
                        "!BBHHHBBH4s4s", 0x45, 0, 40, hop, 0x4000, 1, 6, 0, socket.inet_aton(src), socket.inet_aton(dst)
                    )
                    quote = ip + struct.pack("!HHI", port, 443, 0x12345670 | hop)
                    head = struct.pack("!BBHI", 11, 0, 0, 0)
                    total = sum(struct.unpack(f"!{len(head + quote) // 2}H", head + quote))
                    total = (total & 0xFFFF) + (total >> 16)
                    check = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
                    raw.sendto(struct.pack("!BBHI", 11, 0, check, 0) + quote, (src, 0))
                    sent[0] += 1
            time.sleep(0.001)


def test_forged_answers_are_counted_and_ignored(line: Net) -> None:
    """A third party (r4, which answers last) makes up answers of every hop of every flow while they are traced."""
    stop, sent = threading.Event(), [0]
    src, dst = line.host("a"), line.host("b")
    liar = threading.Thread(target=lie, args=(line.spaces["r4"], src, dst, range(20000, 20010), stop, sent))
    liar.start()
    try:
        while sent[0] < 100:
            time.sleep(0.01)
        found, said = trace(line.spaces["a"], records(flows_of(line, 10)), *FAST, "--stats")
    finally:
        stop.set()
        liar.join()
    assert [names(line, r["path"]) for r in found] == [["r1", "r2", "r3", "r4"]] * 10
    words = said.split()
    assert int(words[words.index("forged,") - 1]) > 0, said
    assert "40 answers" in said


def test_traceroutes_of_others_are_not_ours(line: Net) -> None:
    """An ICMP error about a packet that we never sent."""
    a, stop = line.spaces["a"], threading.Event()

    def other() -> None:
        with a.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 2)
            while not stop.is_set():
                with suppress(OSError):
                    udp.sendto(b"", (line.host("b"), 33434))
                time.sleep(0.002)

    somebody = threading.Thread(target=other)
    somebody.start()
    try:
        (found,), said = trace(a, records(flows_of(line, 1)), *FAST, "--stats")
    finally:
        stop.set()
        somebody.join()
    assert names(line, found["path"]) == ["r1", "r2", "r3", "r4"]
    assert "answers to others" in said


# ---------------------------------------------------------------- where probes go, and how often


def sent_to(space: Space, device: str, flows: bytes, *words: object, status: int | None = 0) -> tuple[list[str], str]:
    """Destinations of all TCP packets that left, by tcpdump."""
    dump = subprocess.Popen(
        space.argv("tcpdump", "-nn", "-l", "-t", "-Q", "out", "-i", device, "tcp"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert dump.stderr is not None
    while b"listening" not in dump.stderr.readline():
        pass
    _, said = trace(space, flows, *words, status=status)
    time.sleep(0.3)
    dump.terminate()
    out, _ = dump.communicate()
    return sorted(
        {line.split(" > ")[1].split(":")[0].rpartition(".")[0] for line in out.decode().splitlines() if " > " in line}
    ), said


def test_probes_go_nowhere_else(line: Net) -> None:
    a, b = line.host("a"), line.host("b")
    flows = [(a, b, 20000, 443), (a, "10.88.3.1", 20001, 443), (a, "10.88.2.1", 20002, 443)]
    line.route("a", "default", ["r1"])
    where, _ = sent_to(line.spaces["a"], "r1", records(flows), *FAST)
    assert where == sorted([b, "10.88.3.1", "10.88.2.1"])
    where, said = sent_to(
        line.spaces["a"], "r1", records(flows), *FAST, "--only", f"{b}/32", "--only", "10.88.3.0/24", "--stats"
    )
    assert where == sorted([b, "10.88.3.1"])
    assert "1 refused: not among --only" in said


def test_addresses_that_are_no_hosts(line: Net) -> None:
    a = line.host("a")
    line.spaces["a"].ip("addr", "add", "10.99.0.1/24", "dev", "r1")
    bad = ["224.0.0.5", "127.0.0.1", "10.99.0.1", "255.255.255.255", "0.0.0.0", "10.99.0.255", "240.0.0.1"]
    found = [(a, to, 20000 + i, 443) for i, to in enumerate(bad)]
    where, said = sent_to(line.spaces["a"], "r1", records(found), *FAST, "--stats")
    assert where == []
    said_by_kernel = "1 refused: permission denied"  # the subnet's broadcast address
    for part in ("1 refused: multicast", "2 refused: loopback", "3 refused: broadcast", said_by_kernel):
        assert part in said
    where, said = sent_to(line.spaces["a"], "r1", records([("10.1.1.1", line.host("b"), 9, 9)]), *FAST, "--stats")
    assert (where, "1 refused: foreign" in said) == ([], True)
    where, _ = sent_to(
        line.spaces["a"], "r1", records([("10.1.1.1", line.host("b"), 9, 9)]), *FAST, "--allow", "foreign"
    )
    assert where == [line.host("b")]


def test_never_above_the_rate(line: Net) -> None:
    """First probes by their time of departure: in any stretch no more flows begin than the bucket gives."""
    a = line.spaces["a"]
    dump = subprocess.Popen(
        a.argv("tcpdump", "-nn", "-l", "-tt", "-Q", "out", "-i", "r1", "ip[8] == 1 and tcp"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert dump.stderr is not None
    while b"listening" not in dump.stderr.readline():
        pass
    found, said = trace(a, records(flows_of(line, 300)), "--rate", "60", "--burst", "10", "--epoch", "2s")
    time.sleep(0.3)
    dump.terminate()
    out, _ = dump.communicate()
    times = [float(text.split()[0]) for text in out.decode().splitlines() if " > " in text]
    assert 100 <= len(times) <= 60 * 2.5 + 10
    for i, begin in enumerate(times):
        for j in (i + 15, i + 40, len(times) - 1):
            if i < j < len(times):  # a probe may leave some ms after its token was taken
                assert j - i + 1 <= 10 + 60 * (times[j] - begin + 0.05) + 1
    capped = [r for r in found if r["notes"] == "capped"]
    assert len(found) == 300
    assert f"{len(capped)} flows were not traced, to keep to 60 per second" in said
    assert all(r["hops"] == 0 and r["lost"] == 1 for r in capped)


def test_once_an_epoch(line: Net) -> None:
    """Ten records of a flow in one epoch are one traceroute and one record with their sum; so are those of the next
    epoch, without a new trace when its path was found a moment ago."""
    flow = flows_of(line, 1) * 10
    found, said = trace(line.spaces["a"], records(flow, step=1_000_000_000), *FAST, "--stats")
    assert [(r["lost"], r["sent"], r["hops"]) for r in found] == [(10, 1000, 4)]
    assert "1 traced" in said
    found, said = trace(line.spaces["a"], records(flow, step=10_000_000_000), *FAST, "--stats")
    assert [r["lost"] for r in found] == [3, 3, 3, 1]
    assert [names(line, r["path"]) for r in found] == [["r1", "r2", "r3", "r4"]] * 4
    assert "1 traced" in said
    assert found[0]["ts"] == moment(20_000_000_000)


# ---------------------------------------------------------------- following, stopping, writing


def test_follows_a_log_until_a_signal(line: Net, tmp_path: Path) -> None:
    """Records that come into a log while it is followed; SIGINT writes what is known."""
    from confluo_tools.units import format_time

    a, b = line.host("a"), line.host("b")

    def put(port: int, *more: str) -> None:
        text = records([(a, b, port, 443)]).replace(moment(0).encode(), format_time(time.time_ns()).encode())
        assert (
            run(
                "confluo-convert", "-i", "ndjson", "--schema", "path", "-", "-w", tmp_path / "in.ml", *more, stdin=text
            ).returncode
            == 0
        )

    words = ("--from", tmp_path / "in.ml", "--follow", "-w", tmp_path / "out.ml", "--epoch", "1h", *FAST)
    child = line.spaces["a"].popen(TRACE, *words, stderr=subprocess.PIPE, env=environment())
    assert child.stderr is not None
    put(30000)  # the log is made after the command that follows it
    assert b"tracing at most" in child.stderr.readline()
    put(30001, "--append")
    put(30001, "--append")
    deadline = time.monotonic() + 20
    while True:
        child.send_signal(10)  # SIGUSR1
        line_of_counts = child.stderr.readline()
        if b" 3 records read, 2 traced" in line_of_counts:
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    child.send_signal(2)
    _, said = child.communicate(timeout=20)
    assert child.returncode == 130, said
    done = run("confluo-query", tmp_path / "out.ml", "-T", "--no-header", "-f", "src_port,lost,hops")
    assert done.stdout == b"30000\t1\t4\n30001\t2\t4\n"


def test_epochs_end_by_the_clock(line: Net) -> None:
    """In a pipe that stays open, the records of an epoch come out when it is over."""
    from confluo_tools.units import format_time

    words = (TRACE, "--epoch", "500ms", "-T", "--no-header", "-f", "hops", *FAST)
    child = line.spaces["a"].popen(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    assert child.stdin is not None
    assert child.stdout is not None
    now = format_time(time.time_ns())  # on a busy machine, the epoch is over when the command reads this
    data = stream(records(flows_of(line, 1)).replace(moment(0).encode(), now.encode()))
    child.stdin.write(data[:-8])  # without the end mark
    child.stdin.flush()
    assert next_line(child.stdout) == b"4\n"
    assert child.poll() is None
    child.stdin.write(data[-8:])
    child.communicate(timeout=20)
    assert child.returncode == 0


def test_a_hop_is_asked_again_after_the_end_of_its_epoch(line: Net) -> None:
    """A record of now; the answer of one hop is lost, and the bucket is empty until its epoch is over."""
    from confluo_tools.units import format_time

    line.spaces["r3"].run(
        "nft",
        "add table inet once; add chain inet once out { type filter hook output priority 0; };"
        " add rule inet once out meta l4proto icmp numgen inc mod 1000000 < 1 drop",
    )
    try:
        data = records(flows_of(line, 1)).replace(moment(0).encode(), format_time(time.time_ns()).encode())
        slowly = "--rate", "1", "--burst", "1", "--timeout", "100ms"
        found, _ = trace(line.spaces["a"], data, "--epoch", "500ms", *slowly)
    finally:
        line.spaces["r3"].run("nft", "delete table inet once")
    assert [names(line, r["path"]) for r in found] == [["r1", "r2", "r3", "r4"]]


def test_gives_up_its_privileges(line: Net, tmp_path: Path) -> None:
    """What /proc says of the running command: no capability but, for root without -Z, those for files."""
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:3]:
        if parent.stat().st_mode & 0o077 == 0 and parent.stat().st_uid == 0 and "pytest" in parent.name:
            parent.chmod(0o755)
    for words, uid, caps in (((), 0, 0b1011), (("-Z", "65534"), 65534, 0)):
        child = line.spaces["a"].popen(
            TRACE,
            "--rate",
            "1",
            "--epoch",
            "1h",
            *words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert child.stdin is not None
        child.stdin.write(stream(records(flows_of(line, 50))))
        child.stdin.flush()
        deadline = time.monotonic() + 20
        while True:
            status = Path(f"/proc/{child.pid}/status").read_text()
            have = {line.split(":")[0]: line.split(":")[1].split() for line in status.splitlines() if ":" in line}
            if have["Threads"] == ["2"]:  # it reads
                break
            assert time.monotonic() < deadline, child.poll()
            time.sleep(0.02)
        assert have["NoNewPrivs"] == ["1"]
        assert int(have["Uid"][1]) == uid
        assert {int(have[c][0], 16) for c in ("CapPrm", "CapEff")} == {caps}
        assert int(have["CapInh"][0], 16) | int(have["CapAmb"][0], 16) == 0
        child.terminate()
        _, said = child.communicate(timeout=20)
        assert child.returncode == 143, said
