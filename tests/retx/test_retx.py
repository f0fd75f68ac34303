"""confluo-retx against the sockets' own TCP_INFO, the kernel's traces and captured packets, over links that drop."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import nic_lab
import retx_lab as lab
from netns import Lab, Space
from running import completed, environment

pytestmark = [pytest.mark.root, pytest.mark.net]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    nic_lab.end_all()


@pytest.fixture
def net() -> Iterator[tuple[Space, Space]]:
    with Lab() as made:
        yield lab.net(made)


def instances() -> set[str]:
    """The instances of tracefs that agents have made."""
    from confluo_tools.kernel import tracefs

    root = tracefs._root()
    try:
        return {n for n in os.listdir(f"/proc/self/fd/{root}/instances") if n.startswith("confluo-retx")}
    finally:
        os.close(root)


def gone(name_part: str, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while any(name_part in n for n in instances()):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def run(*words: object, **more: object) -> subprocess.CompletedProcess[bytes]:
    return completed(
        [str(w) for w in (lab.RETX, *words)], capture_output=True, env=environment(), check=False, timeout=60, **more
    )  # type: ignore[call-overload, no-any-return]


def test_records_of_every_flow_are_what_its_socket_counted(net: tuple[Space, Space], tmp_path: Path) -> None:
    """IPv4, IPv6 and IPv4 in sockets of IPv6; the kernel's events, too: one for each retransmission."""
    a, b = net
    lab.drop(b)
    log = tmp_path / "retx.ml"
    agent = lab.retx(a, "-w", log, "--trace", "always")
    with lab.Server(b):
        truth = lab.at_once(
            partial(lab.transfer, a, address, mapped=mapped)
            for address, mapped in (("10.77.0.2", False), ("fd00:77::2", False), ("10.77.0.2", True))
            for _ in range(12)
        )
        lossy = {port: t for port, t in truth.items() if t.retrans}
        rows = lab.wait(log, lambda rows: {r["src_port"] for r in rows if r["event"] == 3} >= set(lossy))
    status, _, said = agent.end(signal.SIGTERM)
    assert status == 143, said
    rows = lab.read(log)
    sums = lab.totals(rows)
    assert len(lossy) >= 30
    assert sum(t.retrans for t in truth.values()) > 50
    for port, t in lossy.items():
        s = sums[port]
        assert (s["retrans"], s["events"], s["dsack"], s["sent"]) == (t.retrans, t.retrans, t.dsack, t.data), port
        assert s["bytes"] == t.bytes
        assert s["lost"] >= t.lost
        assert {r["cookie"] for r in rows if r["src_port"] == port} == {t.cookie}
    # A duplicate reported after the record of its retransmission cannot be removed; the agent counts them.
    late = re.search(rb"(\d+) DSACKs too late", said)
    assert sum(sums[port]["lost"] - t.lost for port, t in lossy.items()) == (int(late[1]) if late else 0)
    assert set(sums) == set(lossy)
    by_version = {v: {r["src_port"] for r in rows if r["ip_version"] == v} for v in (4, 6)}
    assert len(by_version[6]) >= 8
    mapped = {r["src_port"] for r in rows if r["notes"] & 1}
    assert len(mapped) >= 8
    assert mapped < by_version[4]
    assert {r["dst_ip"] for r in rows if r["ip_version"] == 4} == {0x0A4D0002}
    six = {socket.inet_ntop(socket.AF_INET6, r["dst_ip6"]) for r in rows if r["ip_version"] == 6}
    assert six == {"fd00:77::2"}
    assert gone(f"-{agent.child.pid}-")


def test_captured_packets_show_the_same_losses(net: tuple[Space, Space], tmp_path: Path) -> None:
    """confluo-capture at the sender, --analyze tcp: its retransmissions are the kernel's; what nft dropped is lost."""
    a, b = net
    for space in net:
        space.run("sh", "-c", "echo 0 >/proc/sys/net/ipv4/tcp_early_retrans")
    lab.drop(b)
    capture = nic_lab.capture(a, "-i", "v0", "-w", tmp_path / "packets.ml")
    agent = lab.retx(a, "-w", tmp_path / "retx.ml")
    with lab.Server(b):
        truth = lab.at_once(partial(lab.transfer, a, "10.77.0.2") for _ in range(20))
    lossy = {port for port, t in truth.items() if t.retrans}
    lab.wait(tmp_path / "retx.ml", lambda rows: {r["src_port"] for r in rows if r["event"] == 3} >= lossy)
    agent.end()
    capture.end()
    sums = lab.totals(lab.read(tmp_path / "retx.ml"))
    done = completed(
        [
            lab.BIN / "confluo-query",
            tmp_path / "packets.ml",
            "--analyze",
            "tcp",
            # at the sender, nothing else is out of order
            "(retransmission || fast_retransmission || spurious_retransmission || out_of_order) && dst_port == 5001",
            "--agg",
            "count",
            "--by",
            "src_port",
            "-T",
            "--no-header",
        ],
        capture_output=True,
        env=environment(),
        check=True,
        text=True,
    )
    seen = {int(port): int(n) for port, n in (line.split("\t") for line in done.stdout.splitlines())}
    assert seen == {port: s["retrans"] for port, s in sums.items() if port in truth}
    dropped = int(b.run("sh", "-c", "nft list ruleset | sed -n 's/.*counter packets \\([0-9]*\\).*/\\1/p'").stdout)
    lost = sum(s["lost"] for port, s in sums.items() if port in truth)
    # A duplicate reported after its socket has ended counts as lost in the kernel; the receiver counts its reports.
    late = lab.duplicates(b) - sum(s["dsack"] for port, s in sums.items() if port in truth)
    assert late >= 0
    assert 0 < lost - late <= dropped  # acknowledgements are dropped, too, without effect
    assert lost >= 0.8 * dropped


def test_a_flow_that_goes_on_is_told_while_it_lives(net: tuple[Space, Space], tmp_path: Path) -> None:
    """Within a second of its losses, in several records that add up to its totals; also without tracing."""
    a, b = net
    lab.drop(b, "numgen random mod 100 < 4")
    for trace, event in (("always", 1), ("never", 2)):
        log = tmp_path / f"{trace}.ml"
        agent = lab.retx(a, "-w", log, "--trace", trace, "--interval", "200ms" if trace == "never" else "10s")
        with lab.Server(b):
            port, truth = lab.transfer(a, "10.77.0.2", size=600_000, pieces=12, pause=0.25)
        lab.wait(log, lambda rows, port=port: any(r["event"] == 3 and r["src_port"] == port for r in rows))
        agent.end()
        rows = [r for r in lab.read(log) if r["src_port"] == port]
        assert len(rows) >= 3
        assert [r["event"] for r in rows] == [event] * (len(rows) - 1) + [3]
        assert [r["ts"] for r in rows] == sorted(r["ts"] for r in rows)
        sums = lab.totals(rows)[port]
        assert (sums["retrans"], sums["sent"], sums["bytes"]) == (truth.retrans, truth.data, truth.bytes)
        assert sums["events"] == (truth.retrans if trace == "always" else 0)
        assert sums["lost"] >= truth.lost
        assert sums["lost"] - truth.lost <= truth.dsack


def test_what_was_before_the_agent_is_not_its_to_tell(net: tuple[Space, Space], tmp_path: Path) -> None:
    a, b = net
    lab.drop(b, "numgen inc mod 10 == 9")
    log = tmp_path / "retx.ml"
    with lab.Server(b), lab.connect(a, "10.77.0.2") as s:
        s.sendall(bytes(200_000))
        end = time.monotonic() + 20
        while lab.tcp_info(s).bytes - 1448 * lab.tcp_info(s).retrans < 200_000 and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)
        before = lab.tcp_info(s)
        assert before.retrans
        agent = lab.retx(a, "-w", log)
        s.sendall(bytes(200_000))
        lab.settle(s)
        after, port = lab.tcp_info(s), s.getsockname()[1]
    lab.wait(log, lambda rows: any(r["event"] == 3 for r in rows))
    agent.end()
    sums = lab.totals(lab.read(log))[port]
    assert sums["retrans"] == after.retrans - before.retrans > 0
    assert sums["events"] == sums["retrans"]
    assert sums["sent"] == after.data - before.data


def test_sockets_of_one_address_one_after_the_other(net: tuple[Space, Space], tmp_path: Path) -> None:
    """The same five-tuple again and again (reset each time): each has its own records."""
    a, b = net
    lab.drop(b, "numgen inc mod 10 == 9")
    log = tmp_path / "retx.ml"
    agent = lab.retx(a, "-w", log)
    truths, end = {}, time.monotonic() + 60

    def told(cookie: int) -> int:
        return sum(r["retrans"] for r in (lab.read(log) if lab.multilog.is_log(log) else []) if r["cookie"] == cookie)

    with lab.Server(b):
        for _ in range(4):
            with a.inside():
                s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("10.77.0.1", 40001))
            s.settimeout(30)
            s.connect(("10.77.0.2", 5001))
            s.sendall(bytes(60_000))
            time.sleep(0.7)
            # What a busy agent does not know before the reset, it cannot tell: CAVEATS of the manual.
            while (t := lab.tcp_info(s)).retrans > told(t.cookie):
                assert time.monotonic() < end, (t, lab.read(log))
                time.sleep(0.02)
            truths[t.cookie] = t
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            s.close()
            time.sleep(0.5)  # at once, events of the next one may be recorded for this one: CAVEATS of the manual
        lab.wait(
            log,
            lambda rows: {r["cookie"] for r in rows if r["event"] == 3} >= {c for c, t in truths.items() if t.retrans},
        )
    agent.end()
    sums = lab.totals((r for r in lab.read(log) if r["src_port"] == 40001), "cookie")
    assert len(truths) == 4
    assert {c: (s["retrans"], s["events"]) for c, s in sums.items()} == {
        c: (t.retrans, t.retrans) for c, t in truths.items() if t.retrans
    }


def test_a_socket_that_is_closed_and_not_yet_ended(net: tuple[Space, Space], tmp_path: Path) -> None:
    """Reset by the other end, held open by its program: no dump has it any more, and its end comes late."""
    a, b = net
    lab.drop(b, "numgen inc mod 10 == 9")
    with b.inside():
        server = socket.create_server(("10.77.0.2", 5001))
    agent = lab.retx(a, "-w", tmp_path / "retx.ml", "--interval", "100ms")
    with server, lab.connect(a, "10.77.0.2") as s:
        peer = server.accept()[0]
        s.sendall(bytes(50_000))
        lab.wait(tmp_path / "retx.ml", bool)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        time.sleep(1)
        truth, port = lab.tcp_info(s), s.getsockname()[1]
        assert lab.state(s) == 7
    rows = lab.wait(tmp_path / "retx.ml", lambda rows: rows[-1]["event"] == 3)
    agent.end()
    assert {r["event"] for r in rows} == {1, 3}
    sums = lab.totals(rows)[port]
    assert (sums["retrans"], sums["sent"]) == (truth.retrans, truth.data)


def test_without_privileges_it_does_without_tracing_and_says_so(net: tuple[Space, Space], tmp_path: Path) -> None:
    a, b = net
    lab.drop(b, "numgen inc mod 10 == 9")
    words = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    agent = nic_lab.Live(
        a,
        lab.RETX,
        "--follow",
        "-w",
        tmp_path / "retx.ml",
        "--interval",
        "100ms",
        prefix=words,
        ready=b"following ends of sockets, a look at all sockets every 100ms",
    )
    assert b"retransmissions are not traced one by one" in agent.said
    with lab.Server(b):
        port, truth = lab.transfer(a, "10.77.0.2", pieces=4, pause=0.3)
    lab.wait(tmp_path / "retx.ml", lambda rows: any(r["event"] == 3 for r in rows))
    agent.end()
    rows = lab.read(tmp_path / "retx.ml")
    assert {r["event"] for r in rows} == {2, 3}
    sums = lab.totals(rows)[port]
    assert (sums["retrans"], sums["sent"], sums["events"]) == (truth.retrans, truth.data, 0)
    always = a.run(*words, lab.RETX, "--follow", "--trace", "always", check=False, env=environment())
    assert always.returncode == 2
    assert b"tracefs" in always.stderr


def test_without_word_of_ends_looking_is_enough(net: tuple[Space, Space], monkeypatch: pytest.MonkeyPatch) -> None:
    from confluo_tools.retx import sock_diag

    monkeypatch.setattr(sock_diag, "_listener", lambda *args: None)
    a, b = net
    lab.drop(b, "numgen inc mod 10 == 9")
    rows = []
    with sock_diag.open_watch(follow=True, trace="never", netns=a.name, interval=0.1, seconds=4) as watch:
        watch.begin()
        found: dict[int, lab.Truth] = {}

        def one() -> None:
            with lab.Server(b), lab.connect(a, "10.77.0.2") as s:
                s.sendall(bytes(100_000))
                time.sleep(1.5)
                found[s.getsockname()[1]] = lab.tcp_info(s)

        thread = threading.Thread(target=one)
        thread.start()
        for block in watch:
            rows += [{n: block.get(i, r) for i, n in enumerate(block.layout.names)} for r in range(block.rows)]
        thread.join()
    ((port, truth),) = found.items()
    sums = lab.totals(rows)[port]
    assert (sums["retrans"], sums["sent"]) == (truth.retrans, truth.data)
    assert [r["event"] for r in rows][-1] == 4
    assert {r["event"] for r in rows} == {2, 4}


def test_agents_side_by_side_tell_of_their_own_namespace(net: tuple[Space, Space], tmp_path: Path) -> None:
    a, b = net
    lab.drop(b)
    lab.drop(a, match="tcp sport 5002")
    agents = [
        lab.retx(a, "-w", tmp_path / "a.ml"),
        lab.retx(b, "-w", tmp_path / "b.ml"),
        lab.retx(None, "-w", tmp_path / "b2.ml", host=b),
    ]
    names = instances()
    assert all(any(f"-{one.child.pid}-" in n for n in names) for one in agents)
    with lab.Server(b):
        truth = lab.at_once(partial(lab.transfer, a, "10.77.0.2") for _ in range(5))
    with lab.Server(a, 5001):
        lab.drop(a)
        back = lab.at_once(partial(lab.transfer, b, "10.77.0.1") for _ in range(5))
    time.sleep(0.5)
    for one in agents:
        one.end()
    a_rows, b_rows, other = (lab.totals(lab.read(tmp_path / f"{n}.ml")) for n in ("a", "b", "b2"))
    for rows, truths in ((a_rows, truth), (b_rows, back)):
        assert {p: s["retrans"] for p, s in rows.items() if p != 5001} == {
            p: t.retrans for p, t in truths.items() if t.retrans
        }
    assert {p: (s["retrans"], s["events"]) for p, s in other.items()} == {
        p: (s["retrans"], s["events"]) for p, s in b_rows.items()
    }
    for one in agents:
        assert gone(f"-{one.child.pid}-")


def test_the_instance_goes_however_the_agent_ends(net: tuple[Space, Space], tmp_path: Path) -> None:
    a, _ = net
    for how in (signal.SIGKILL, signal.SIGTERM):
        agent = lab.retx(a, "-w", tmp_path / f"{how}.ml", "--trace", "always")
        assert any(f"-{agent.child.pid}-" in n for n in instances())
        agent.end(how)
        assert gone(f"-{agent.child.pid}-")


def test_privileges_are_given_up_and_nothing_is_missing(net: tuple[Space, Space]) -> None:
    import tempfile

    a, b = net
    lab.drop(b, "numgen inc mod 10 == 9")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        log = Path(folder) / "retx.ml"
        agent = lab.retx(a, "-w", log, "-Z", "nobody", "--interval", "300ms")
        about = dict(line.split(":\t", 1) for line in Path(f"/proc/{agent.child.pid}/status").read_text().splitlines())
        assert set(about["Uid"].split()) == {"65534"}
        assert int(about["CapEff"], 16) == int(about["CapPrm"], 16) == 0
        with lab.Server(b):
            port, truth = lab.transfer(a, "10.77.0.2")
            lab.wait(log, lambda rows: any(r["event"] == 3 for r in rows))
        agent.end()
        assert lab.totals(lab.read(log))[port]["events"] == truth.retrans > 0
        assert os.stat(log).st_uid == 65534
        assert gone(f"-{agent.child.pid}-")


def test_looking_once_needs_no_privileges(net: tuple[Space, Space]) -> None:
    a, b = net
    lab.drop(b, "numgen inc mod 10 == 9")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    with lab.Server(b), lab.connect(a, "fd00:77::2") as s, lab.connect(a, "10.77.0.2", 5001):
        s.sendall(bytes(100_000))
        time.sleep(1)
        truth = lab.tcp_info(s)
        code = (
            "from confluo_tools.retx.sock_diag import open_watch\n"
            "with open_watch() as w:\n"
            "    print(*((b.get(b.layout.index('retrans'), r), b.get(b.layout.index('ip_version'), r))"
            " for b in w for r in range(b.rows)))"
        )
        done = a.run(
            *nobody, lab.BIN.parent / ".venv/bin/python", "-c", code, check=False, cwd=lab.BIN.parent, env=environment()
        )
        if b"ModuleNotFoundError" in done.stderr or done.returncode in (126, 127):
            pytest.skip("another user cannot run this Python")
        assert done.stdout.split(b") (") == [b"(%d, 6)\n" % truth.retrans], done.stderr
        once = run("--netns", a.name, "-T", "-f", "retrans,sent,event", "--no-header")
        assert (once.returncode, once.stdout.split(b"\n")[0]) == (0, b"%d\t%d\tpoll" % (truth.retrans, truth.data))
        assert len(run("--netns", a.name, "--all", "-T", "--no-header").stdout.splitlines()) == 2
        assert run("--netns", b.name, "-T", "--no-header").returncode == 1


def test_all_tells_of_healthy_flows_with_what_they_sent(net: tuple[Space, Space], tmp_path: Path) -> None:
    a, b = net
    log = tmp_path / "retx.ml"
    agent = lab.retx(a, "--all", "-w", log, "--interval", "200ms")
    with lab.Server(b):
        truth = lab.at_once(partial(lab.transfer, a, "10.77.0.2", 60_000, pieces=4, pause=0.3) for _ in range(10))
    lab.wait(log, lambda rows: len({r["src_port"] for r in rows if r["event"] == 3}) == 10)
    agent.end()
    rows = lab.read(log)
    sums = lab.totals(rows)
    assert {p: s["sent"] for p, s in sums.items()} == {p: t.data for p, t in truth.items()}
    assert sum(r["event"] == 2 for r in rows) >= 20


def test_handshakes_that_are_repeated_or_come_to_nothing(net: tuple[Space, Space], tmp_path: Path) -> None:
    """SYNs while they are sent again and again, SYN-ACKs of a socket of IPv6 for IPv4; what the own host drops."""
    a, b = net
    lab.rules(
        a,
        "table netdev t { chain c { type filter hook ingress device v0 priority 0; tcp sport 5001 "
        "tcp flags & (syn|ack) == (syn|ack) numgen inc mod 2 == 0 drop; }; }",
    )
    lab.rules(
        a,
        "table inet o { chain c { type filter hook output priority 0; tcp dport 5003 numgen inc mod 6 == 5 "
        "counter drop; }; }",
    )
    lab.drop(b, "", "tcp dport 5009")
    agents = [lab.retx(space, "-w", tmp_path / f"{name}.ml") for name, space in (("a", a), ("b", b))]
    with lab.Server(b), lab.Server(b, 5003):
        port, truth = lab.transfer(a, "10.77.0.2", 3000)
        local, of_local = lab.transfer(a, "10.77.0.2", 60_000, port=5003)
        with a.inside():
            s = socket.socket()
        s.settimeout(2.5)
        with pytest.raises(TimeoutError):
            s.connect(("10.77.0.2", 5009))
        syns, lonely = lab.tcp_info(s), s.getsockname()[1]
        s.close()
        time.sleep(0.5)
    for one in agents:
        assert b"not recorded" not in one.end()[2]
    at_a, at_b = lab.read(tmp_path / "a.ml"), lab.read(tmp_path / "b.ml")
    sums = lab.totals(at_a)
    assert sums[port]["retrans"] == sums[port]["events"] == truth.retrans >= 1
    assert sums[lonely]["retrans"] == sums[lonely]["events"] == sums[lonely]["sent"] == syns.retrans >= 1
    assert {r["state"] for r in at_a if r["src_port"] == lonely and r["event"] == 1} == {2}
    assert {r["notes"] for r in at_a if r["src_port"] == lonely} == {32}  # unconnected
    assert {r["notes"] for r in at_a if r["src_port"] == port} == {0}
    assert sums.get(local, {"retrans": 0})["retrans"] == of_local.retrans
    (child,) = [s for p, s in lab.totals(at_b, "dst_port").items() if p == port]
    assert child["events"] == child["retrans"] >= 1
    assert {(r["ip_version"], r["notes"]) for r in at_b} == {(4, 1)}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--follow", "--cpu", "0"], b"--cpu: '0' is not a share of a core; write 3%"),
        (["--follow", "--trace", "maybe"], b"--trace: not 'maybe'; there are auto, always, never"),
        (["--follow", "--interval", "soon"], b"--interval"),
        (["--follow", "--interval", "1ns"], b"--interval: '1ns' is too short; 10ms or more"),
        (["--netns", "nowhere-at-all"], b"nowhere-at-all: is not a network namespace"),
        (["--netns", "/dev/null"], b"/dev/null: cannot be entered"),
        (["--duration", "1s"], b"--duration requires --follow"),
        (["--keep", "1h", "--follow"], b"--keep is for a MultiLog"),
        (["--follow", "-Z", "no-such-user"], b"-Z: unknown user 'no-such-user'"),
        (["lost > nothing"], b"confluo-retx: "),
        (["-o", "sideways"], b"unknown output format 'sideways'"),
    ],
)
def test_wrong_usage_is_one_clear_line(words: list[str], complaint: bytes) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stderr.startswith(b"confluo-retx: ")
    assert done.stdout == b""


def test_a_closed_pipe_and_a_limit_end_it(net: tuple[Space, Space]) -> None:
    a, b = net
    lab.drop(b, "numgen inc mod 10 == 9")
    with lab.Server(b):
        agent = lab.retx(a, "-c", "2", "-T", "-f", "dst_port,lost", "--no-header", out=subprocess.PIPE)
        lab.at_once(partial(lab.transfer, a, "10.77.0.2") for _ in range(4))
        status, out, _ = agent.wait()
        assert status == 0
        assert len(out.splitlines()) == 2
        piped = lab.retx(a, "-T", out=subprocess.PIPE)
        assert piped.child.stdout is not None
        piped.child.stdout.close()
        piped.child.stdout = None
        lab.at_once(partial(lab.transfer, a, "10.77.0.2") for _ in range(2))
        assert piped.wait() == (141, b"", b"")


def test_quiet_ends_in_silence(net: tuple[Space, Space], tmp_path: Path) -> None:
    agent = nic_lab.Live(net[0], lab.RETX, "--follow", "-q", "-w", tmp_path / "x.ml")
    end = time.monotonic() + 20
    while not (tmp_path / "x.ml" / "control").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(0.3)
    agent.child.send_signal(signal.SIGUSR1)  # counts that are requested are printed, also with -q
    agent.hear(b"0 records, ")
    assert agent.end() == (130, b"", b"")
