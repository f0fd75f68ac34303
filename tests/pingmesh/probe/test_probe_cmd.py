"""confluo-pingmesh probe: what it says, and its statuses, against servers that are not ours and in namespaces."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from confluo_tools.errors import UsageError
from confluo_tools.pingmesh.probe.runner import ProbeOptions, ProbeRun
from confluo_tools.pingmesh.probe.targets import TargetLookups, ask_counters, parse_target
from confluo_tools.schema import builtin
from netns import Space
from ping_lab import SYN, Targets, lose, packed, restore
from running import completed, environment, on_terminal, popen

COMMAND = Path(__file__).resolve().parents[3] / "bin" / "confluo-pingmesh"


def run(*words: Any, argv: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return completed(
        [*argv, str(COMMAND), "probe", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment(),
        stdin=subprocess.DEVNULL,
    )


def told(*words: Any, argv: Sequence[str] = ()) -> list[dict[str, Any]]:
    done = run(*words, "-J", argv=argv)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("text", "kind", "host", "port", "address"),
    [
        ("10.0.0.7", "tcp", "10.0.0.7", 8765, "10.0.0.7"),
        ("10.0.0.7:80", "tcp", "10.0.0.7", 80, "10.0.0.7"),
        ("web1:65535", "udp", "web1", 65535, ""),
        ("2001:db8::1", "tcp", "2001:db8::1", 8765, "2001:db8::1"),
        ("[2001:db8::1]:80", "echo", "2001:db8::1", 80, "2001:db8::1"),
        ("[::1]", "icmp", "::1", 0, "::1"),
        ("web1", "https", "web1", 443, ""),
    ],
)
def test_targets(text: str, kind: str, host: str, port: int, address: str) -> None:
    found = parse_target(text, kind)
    assert (found.host, found.port, found.address, found.text, found.kind) == (host, port, address, text, kind)


def test_urls_say_their_kind() -> None:
    found = parse_target("https://web1:8443/health", "tcp")
    assert (found.kind, found.host, found.port, found.url) == ("https", "web1", 8443, "https://web1:8443/health")
    assert parse_target("10.0.0.7", "http").url == "http://10.0.0.7:8765/ping"
    assert parse_target("[::1]:80", "http").url == "http://[::1]:80/ping"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":80",
        "a:b",
        "a:0",
        "a:65536",
        "a:",
        "[::1",
        "[::1]80",
        "[::1]:x",
        "a b",
        "a/b",
        "x" * 254,
        "http://",
        "\x1b[1m",
        "a:８",
    ],
)
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(UsageError):
        parse_target(text, "tcp")


def test_lines_and_a_summary() -> None:
    with Targets() as target:
        where = f"127.0.0.1:{target.port}"
        done = run(where, "--kind", "tcp", "--kind", "echo", "-c", 4, "-i", "10ms", "-o", "lines")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "2 targets, 4 times, every 10ms, without limits"
    assert (
        len(
            [x for x in lines if re.fullmatch(rf"{where} tcp   \d\.\d{{3}} ms, program \d+\.\d{{3}}, from port \d+", x)]
        )
        == 4
    )
    assert len([x for x in lines if x.startswith(f"{where} echo  ") and "payload" in x]) == 4
    assert f"{where} tcp: 4 probes, 4 ok" in lines
    rtt = next(x for x in lines if x.startswith("  rtt "))
    least, p50, p99, most = map(float, re.findall(r"\d+\.\d+", rtt.replace("p50", "").replace("p99", "")))
    assert 0 < least <= p50 <= p99 <= most


def test_records() -> None:
    with Targets() as target:
        found = told(f"127.0.0.1:{target.port}", "-c", 3, "-i", "1ms", "--payload", "2KiB", "--kind", "echo")
    assert [(r["kind"], r["outcome"], r["payload"], r["notes"]) for r in found] == [("echo", "ok", 2048, "lab")] * 3
    assert all(r["rtt"] > 0 and r["echo"] > 0 for r in found)


def test_requests_with_their_phases() -> None:
    """A web server of the standard library: some answers, one that hangs, one that is none."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/hangs":
                time.sleep(2)
            self.send_response(204 if self.path == "/ping" else 404)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        found = told(f"127.0.0.1:{port}", "--kind", "http", "--kind", "tcp", "-c", 3, "-i", "10ms")
        lines = run(f"http://127.0.0.1:{port}/nothing", "-c", 1, "-o", "lines")
        late = told(f"http://127.0.0.1:{port}/hangs", "-c", 1, "--timeout", "300ms")
        server.shutdown()
    assert (
        sorted((r["kind"], r["outcome"], r["status"], r["notes"]) for r in found)
        == [("http", "ok", 204, "lab")] * 3 + [("tcp", "ok", 0, "lab")] * 3
    )
    assert all(r["rtt"] > 0 and (r["first_byte"] > 0) == (r["kind"] == "http") for r in found)
    assert re.search(rf"^http://127.0.0.1:{port}/nothing  .* ms, first byte .*, status 404, from", lines.stdout, re.M)
    assert [(r["outcome"], r["rtt"]) for r in late] == [("timeout", 0)]


def test_a_log_that_is_added_to(tmp_path: Path) -> None:
    log = tmp_path / "probes.ml"
    with Targets() as target:
        where = f"127.0.0.1:{target.port}"
        assert run(where, "-c", 2, "-i", "1ms", "-w", log).returncode == 0
        refused = run(where, "-c", 2, "-i", "1ms", "-w", log)
        assert (refused.returncode, "--append" in refused.stderr) == (2, True)
        assert run(where, "-c", 3, "-i", "1ms", "-w", log, "--append").returncode == 0
    done = completed(
        [COMMAND.parent / "confluo-query", log, "kind == tcp && outcome == ok", "--count"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "5"


def test_statuses() -> None:
    with Targets() as target:
        port = target.port
        assert run(f"127.0.0.1:{port}", "-c", 1, "-T").returncode == 0
    nobody = run(f"127.0.0.1:{port}", "-c", 2, "-i", "1ms", "-o", "lines")
    assert nobody.returncode == 1
    assert f"127.0.0.1:{port} tcp: 2 probes, 0 ok, 2 refused" in nobody.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["10.0.0.1", "-i", "990ms"], "probe: --interval: the minimum is 1 s; in a lab, give --lab"),
        (
            [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(2001)],
            "more than 2000 probes per second; give a longer --interval",
        ),
        (["127.0.0.1", "--kind", "sctp"], "--kind: not 'sctp'; there are tcp, echo"),
        (["127.0.0.1", "--kind", "echo", "--payload", "65537"], "a payload of 65537 bytes: the maximum is 65536"),
        (["127.0.0.1", "--timeout", "61s"], "a time-out of 61 s: the maximum is 60 s"),
        (["127.0.0.1:x"], "'127.0.0.1:x' is not a target"),
        (["127.0.0.1", "--dscp", "64"], "is not a class of service"),
        (["127.0.0.1", "--source", "here"], "'here' is not an address"),
        (["127.0.0.1", "-4", "-6"], "exclude each other"),
        (["127.0.0.1", "--source", "::1"], "--source: an IPv6 address cannot probe 127.0.0.1"),
        (["localhost", "--source", "::1", "-4"], "--source: an IPv6 address and -4 exclude each other"),
        (["fe80::1"], "'fe80::1' is a link-local address; add the interface: fe80::1%eth0"),
        (["127.0.0.1", "-i", "25h"], "--interval: 90000 s is too long; the maximum is a day"),
        (["127.0.0.1", "--append"], "--append is for a MultiLog"),
        (["127.0.0.1", "--token", "xyz"], "--token: 'xyz' is not a token"),
    ],
)
def test_bad_usage_is_one_line(words: list[str], says: str) -> None:
    done = run(*words, "-c", 1)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.startswith("confluo-pingmesh probe: ")
    assert done.stderr.count("\n") == 1


def test_a_name_that_hangs_hangs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def lookup(name: str, *rest: Any) -> Any:
        if name == "hangs":
            released.wait(30)
        return socket.getaddrinfo("127.0.0.1", *rest)

    monkeypatch.setattr("confluo_tools.pingmesh.probe.runner.NAMES", 0.3)
    with Targets() as target:
        names = [parse_target(f"{name}:{target.port}", "tcp") for name in ("hangs", "works")]
        plan = ProbeOptions(wanted=names, times=3, interval=10_000_000, lab=True, counters=False)
        with ProbeRun(builtin("probe"), plan, lookup=lookup) as probing:
            begun = time.monotonic()
            rows = sum(block.rows for block in probing.blocks() if block is not None)
            assert time.monotonic() - begun < 20
            assert (rows, probing.lost()) == (3, [(f"hangs:{target.port}", "cannot resolve: no answer within 0.3 s")])
        released.set()


def test_a_name_that_nobody_knows() -> None:
    with Targets() as target:
        done = run(
            "no-such-host.invalid", f"127.0.0.1:{target.port}", "-c", 1, "--lab", "-T", "--no-header", "-f", "outcome"
        )
    assert (done.returncode, done.stdout) == (2, "ok\n")
    assert done.stderr.startswith("confluo-pingmesh probe: no-such-host.invalid: cannot resolve: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_what_there_is(number: signal.Signals) -> None:
    with Targets() as target:
        child = popen(
            [COMMAND, "probe", f"127.0.0.1:{target.port}", "-i", "20ms", "-o", "lines"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert child.stdout is not None
        for _ in range(3):
            child.stdout.readline()
        child.send_signal(number)
        rest = child.stdout.read()
        child.stdout.close()
        assert child.wait(20) == 128 + number
    assert f"127.0.0.1:{target.port} tcp: " in rest


def test_overflow_is_the_targets_not_the_networks(pair: tuple[Space, Space]) -> None:
    """Third acceptance check of the reference: a backlog of 1 and a responder that does not come round to accept."""
    a, b = pair
    child = b.popen(
        COMMAND, "respond", "--listen", b.address, "--backlog", 1, stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert child.stderr is not None
    probing = None
    try:
        assert "answering" in child.stderr.readline()
        probing = a.popen(
            COMMAND,
            "probe",
            b.address,
            "-c",
            40,
            "-i",
            "50ms",
            "--lab",
            "-o",
            "lines",
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert probing.stdout is not None
        probing.stdout.readline()
        probing.stdout.readline()  # the first probe succeeded: counters were read
        child.send_signal(signal.SIGSTOP)
        time.sleep(0.7)
        child.send_signal(signal.SIGCONT)
        out, _ = probing.communicate(timeout=30)
    finally:
        for one in (child, probing):
            if one is not None and one.poll() is None:
                one.kill()
        child.communicate()
    dropped = [line for line in out.splitlines() if "sent again" in line and line.startswith(f"{b.address} tcp  ")]
    assert dropped, out
    assert all("target overflow; sent again" in line for line in dropped), out
    n = len(dropped)
    assert f"target overflow: {n} of {n} dropped by the target's host, not the network" in out
    assert "drop rate" not in out


def listen_drops(space: Space) -> int:
    """ListenDrops of the kernel in a namespace: SYNs that its listening sockets dropped."""
    names, values = (
        line.split() for line in space.run("grep", "^TcpExt:", "/proc/net/netstat").stdout.splitlines()[:2]
    )
    return int(values[names.index(b"ListenDrops")])


def test_loss_in_the_network_is_not_the_targets(pair: tuple[Space, Space]) -> None:
    """A firewall drops SYNs: none of them counts as an overflow of the target.

    On a busy machine the target may really overflow; the kernel's counter shows it, and the test tries again.
    """
    a, b = pair
    for _ in range(5):
        lose(b, f"in: {SYN} tcp dport 8765 numgen inc mod 4 == 3 drop")
        before = listen_drops(b)
        child = b.popen(COMMAND, "respond", "--listen", b.address, stderr=subprocess.PIPE, text=True, env=environment())
        assert child.stderr is not None
        try:
            assert "answering" in child.stderr.readline()
            found = told(b.address, "-c", 40, "-i", "10ms", "--lab", argv=tuple(a.argv()))
        finally:
            restore(b)
            child.kill()
            child.communicate()
        if listen_drops(b) == before:
            break
    else:
        pytest.fail("the target's own queue overflowed in each of five runs")
    again = [r for r in found if r["retries"]]
    assert len(found) == 40
    assert 5 <= len(again) <= 20
    assert {(r["outcome"], r["notes"], r["rtt"]) for r in again} == {("ok", "lab", 0)}


def test_counters_of_somebody_else() -> None:
    """Whatever a port says, nothing comes of it but an answer or None."""
    answers = [
        b"HTTP/1.1 200 OK\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\n\r\n{"overflows": "many"}',
        b"SSH-2.0-x\r\n",
        b'HTTP/1.1 404 no\r\n\r\n{"overflows": 1}',
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 8192,
        b'HTTP/1.1 200 OK\r\n\r\n{"overflows": 3, "x": 1.5}',
    ]
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for answer in answers:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    port = server.getsockname()[1]
    assert [ask_counters("127.0.0.1", port, 5.0) for _ in answers] == [None] * 6 + [{"overflows": 3}]
    thread.join()
    server.close()
    assert ask_counters("127.0.0.1", port, 5.0) is None


def test_lookups_tell_each_once() -> None:
    lookups = TargetLookups(lookup=lambda name, *rest: socket.getaddrinfo("127.0.0.1", *rest))
    wanted = [parse_target(f"name{i}", "tcp") for i in range(5)]
    for one in wanted:
        lookups.start(one, counters=False)
    found = []
    while lookups.waiting:
        found += lookups.found(5.0)
    assert sorted(f.wanted for f in found) == wanted
    assert {f.address for f in found} == {packed("127.0.0.1")}
    assert lookups.found(0.0) == []


def test_many_names_are_looked_up_by_a_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some lookups hang; the others go on."""
    released = threading.Event()
    now, most = [0], [0]

    def lookup(name: str, *rest: Any) -> Any:
        now[0] += 1
        most[0] = max(most[0], now[0])
        if name.startswith("hangs"):
            released.wait(60)
        now[0] -= 1
        return socket.getaddrinfo("127.0.0.1", *rest)

    monkeypatch.setattr("confluo_tools.pingmesh.probe.targets.MAX_LOOKUPS", 4)
    lookups = TargetLookups(lookup=lookup)
    names = [f"hangs{i}" for i in range(4)] + [f"works{i}" for i in range(300)]
    for name in names:
        lookups.start(parse_target(f"{name}:80", "tcp"), counters=False)
    found: set[str] = set()
    late: set[str] = set()
    end = time.monotonic() + 30
    while lookups.waiting and time.monotonic() < end:
        found |= {f.wanted.host for f in lookups.found(0.02)}
        late |= {wanted.host for wanted in lookups.expire(0.5)}
    released.set()
    assert (found, late) == (set(names[4:]), set(names[:4]))
    assert most[0] <= 8  # four hang, four work


def test_a_terminal_gets_lines() -> None:
    with Targets() as target:
        where = f"127.0.0.1:{target.port}"
        status, text = on_terminal("confluo-pingmesh", "probe", where, "-c", "2", "-i", "1ms")
    assert status == 0
    assert text.count(f"{where} tcp  0.") == 2
    assert f"{where} tcp: 2 probes, 2 ok" in text


def test_udp_wants_a_token() -> None:
    with Targets() as target:
        done = run(f"127.0.0.1:{target.port}", "--kind", "udp", "-c", 1, "-T", "--no-header", "-f", "outcome")
        with_token = run(f"127.0.0.1:{target.port}", "--kind", "udp", "-c", 1, "--token", "7b", "-q", "-T")
    assert (done.returncode, done.stdout) == (0, "ok\n")  # that one answers everybody
    assert done.stderr == "confluo-pingmesh probe: udp without --token: responders do not answer\n"
    assert (with_token.returncode, with_token.stderr) == (0, "")
    assert target.seen[-1][1][8:16] == (0x7B).to_bytes(8, "big")


def test_no_address_is_probed_more_often_than_twice_a_second() -> None:
    """Three ports of one address, a second between two probes of each; nothing is sent."""
    from confluo_tools.pingmesh.probe.command import read_targets
    from confluo_tools.pingmesh.probe.runner import ProbeOptions, ProbeRun
    from confluo_tools.schema import builtin

    wanted = read_targets([f"192.0.2.7:{port}" for port in (1, 2, 3)] + ["192.0.2.8:3"], ["tcp"])
    with ProbeRun(builtin("probe"), ProbeOptions(wanted)) as probing:
        words = "more than 2 probes per second to one address; give a longer --interval"
        assert probing.lost() == [("192.0.2.7:3", words)]
        assert probing.prober.lab
    with ProbeRun(builtin("probe"), ProbeOptions(wanted, interval=10_000_000_000)) as probing:
        assert probing.lost() == []
        assert not probing.prober.lab


def test_urls_of_one_server_are_told_apart() -> None:
    """Records have no path: two pages of one server would be one line of the summary."""
    with Targets() as target:
        urls = [f"http://127.0.0.1:{target.port}/{page}" for page in ("one", "two")]
        done = run(*urls, "-c", 3, "-i", "10ms", "-o", "lines")
    assert sorted(re.findall(r"^(http\S+): 3 probes", done.stdout, re.M)) == urls
    assert [len(re.findall(rf"^{url}  ", done.stdout, re.M)) for url in urls] == [3, 3]


def test_a_target_with_a_long_name() -> None:
    """Records have 32 bytes of it; people see what they wrote."""
    name = "a" * 40 + ".invalid"
    done = run(f"http://{name}/x", "-c", 1, "-o", "lines")
    assert re.search(rf"^http://{name}/x  not sent: name: ", done.stdout, re.M)


def test_targets_that_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written twice, or two names of one address: probed once, and no trouble."""
    with Targets() as target:
        port = target.port
        done = run(
            f"127.0.0.1:{port}",
            f"localhost:{port}",
            f"127.0.0.1:{port}",
            "-4",
            "-c",
            2,
            "-i",
            "10ms",
            "-T",
            "--no-header",
            "-f",
            "outcome",
        )
    assert (done.returncode, done.stdout) == (0, "ok\nok\n")
    assert done.stderr == (
        f"confluo-pingmesh probe: localhost:{port} is the same target as 127.0.0.1:{port}: probed once\n"
    )


def test_the_version_of_ip_is_chosen_for_urls_too() -> None:
    asked: list[int] = []

    def lookup(host: str, port: int, family: int, kind: int) -> Any:
        asked.append(family)
        raise socket.gaierror(socket.EAI_NONAME, "no")

    for family in (0, 4, 6):
        plan = ProbeOptions(wanted=[parse_target("http://web1/", "tcp")], times=1, family=family)
        with ProbeRun(builtin("probe"), plan, lookup=lookup) as probing:
            assert sum(block.rows for block in probing.blocks() if block is not None) == 1
    assert asked == [0, socket.AF_INET, socket.AF_INET6]


def test_an_address_of_a_link(pair: tuple[Space, Space]) -> None:
    a, b = pair
    for space in pair:
        space.run("sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/v0/disable_ipv6")
    for space, mine in ((a, 1), (b, 2)):
        space.ip("addr", "add", f"fe80::{mine}/64", "dev", "v0", "nodad")
    with b.inside():
        target = Targets("::")
    with target:
        port = target.port
        rows = told(
            f"[fe80::2%v0]:{port}",
            f"http://[fe80::2%25v0]:{port}/",
            f"http://[fe80::2%25v9]:{port}/",
            "-c",
            1,
            argv=a.argv(),
        )
    assert {(r["kind"], r["outcome"], r["dst_ip"]) for r in rows} >= {  # what is echoed is not HTTP
        ("tcp", "ok", "fe80::2"),
        ("http", "garbled", "fe80::2"),
    }
    assert [r["detail"] for r in rows if r["outcome"] == "local"] == ["connect: No such device"]


def test_what_was_not_waited_for_is_said(pair: tuple[Space, Space]) -> None:
    """A port that is filtered, and an end before its time-out: one probe, not none."""
    a, b = pair
    b.run(
        "nft",
        "add table ip filtered; add chain ip filtered i { type filter hook input priority 0; };"
        "add rule ip filtered i tcp dport 9099 drop",
    )
    try:
        done = run(f"{b.address}:9099", "-c", 1, "--duration", "500ms", "-o", "lines", argv=a.argv())
        counted = run(f"{b.address}:9099", "-c", 1, "--duration", "500ms", "--stats", "-J", argv=a.argv())
    finally:
        b.run("nft", "delete table ip filtered")
    assert (done.returncode, counted.returncode) == (1, 1)
    assert done.stdout.endswith("\n1 probe without a result at the end\n")
    assert "0 probes, 0 ok, 0 sent again, 1 in flight" in counted.stderr
