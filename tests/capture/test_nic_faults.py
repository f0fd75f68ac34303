"""What goes wrong while packets come in: interfaces that go, rings that are full, disks that are full, privileges,
signals, deaths."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from confluo_tools import multilog
from netns import Lab, Space
from nic_lab import CAPTURE, Live, capture, end_all, frame, rows, send, table, wait_for
from running import BIN, CAMPUS, environment, run

pytestmark = [pytest.mark.net, pytest.mark.root]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    end_all()


def counts(words: bytes) -> dict[str, int]:
    """The line of counts."""
    return {name.decode(): int(n) for n, name in re.findall(rb"(\d+) ([a-zN][a-zA-Z ]*?)(?=,|\n)", words)}


# -- interfaces ------------------------------------------------------------------------------------------------


def test_an_interface_goes_down_and_comes_back(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    a, b = pair
    ours = capture(b, "-i", "v0", "-w", tmp_path / "log", "--lanes", "2")
    send(a, [frame(ident=i) for i in range(10)])
    wait_for(tmp_path / "log", 10)
    b.ip("link", "set", "v0", "down")
    ours.hear(b"v0: went down; packets are captured again when it is up")
    b.ip("link", "set", "v0", "up")
    ours.hear(b"v0: is up again")
    send(a, [frame(ident=i) for i in range(10, 30)])
    wait_for(tmp_path / "log", 30)
    assert ours.end()[0] == 130
    assert sorted(r[0] for r in table(tmp_path / "log", "ip_id")) == list(range(30))


@pytest.mark.parametrize("lanes", [1, 2])
def test_an_interface_that_is_down_is_waited_for(tmp_path: Path, lab: Lab, lanes: int) -> None:
    a, b = lab.pair()
    b.ip("link", "set", "v0", "down")
    ours = capture(b, "-i", "v0", "-w", tmp_path / "log", "--lanes", lanes)
    assert b"v0: is down; its packets will be captured when it is up" in ours.said
    b.ip("link", "set", "v0", "up")
    ours.hear(b"v0: is up again")
    send(a, [frame()])
    wait_for(tmp_path / "log", 1)
    assert ours.end()[0] == 130


def test_an_interface_vanishes_for_good(tmp_path: Path, lab: Lab) -> None:
    a, b = lab.pair()
    ours = capture(b, "-i", "v0", "-w", tmp_path / "log", "--wait", "300ms")
    send(a, [frame()] * 7)
    wait_for(tmp_path / "log", 7)
    b.ip("link", "del", "v0")
    status, _, err = ours.wait()
    assert status == 2
    assert err.splitlines() == [
        b"confluo-capture: v0: has vanished; the packets before are kept",
        b"confluo-capture: v0: has vanished and did not come back; the packets before are kept",
    ]
    assert rows(tmp_path / "log") == 7
    with multilog.open(tmp_path / "log") as log:
        assert all(part.segment.sealed for part in log.segments())


def test_an_interface_is_made_anew(tmp_path: Path, lab: Lab) -> None:
    """As a tunnel that is dialled again, or a USB adapter: another interface with the same name."""
    a, b = lab.pair()
    ours = capture(b, "-i", "v0", "-w", tmp_path / "log")
    send(a, [frame()] * 3)
    wait_for(tmp_path / "log", 3)
    b.ip("link", "del", "v0")
    ours.hear(b"v0: has vanished")
    lab.link(a, b)
    ours.hear(b"v0: is there again")
    send(a, [frame()] * 4)
    wait_for(tmp_path / "log", 7)
    assert ours.end()[0] == 130
    assert {r[0] for r in table(tmp_path / "log", "iface")} == {2, 3}


@pytest.mark.parametrize("how", ["hash", "rr"])
def test_lanes_share_an_interface_that_is_made_anew(tmp_path: Path, lab: Lab, how: str) -> None:
    """Twice: sockets that share packets are replaced, what the old rings held is not lost, nothing is counted twice;
    another interface of the same capture does not notice."""
    a, b = lab.pair()
    lab.link(a, b, ("v1", "v1"))
    log = tmp_path / "log"
    ours = capture(b, "-i", "v0", "-i", "v1", "-w", log, "--lanes", "3", "--fanout", how, "--bpf", "udp")
    sent = 0
    for turn in range(3):
        batch = [frame(sport=turn, dport=i, ident=sent + i) for i in range(300)]
        sent += send(a, batch)
        sent += send(a, [frame(sport=turn, dport=i, ident=sent + i) for i in range(20)], "v1")
        send(a, [frame(proto=6)])
        if turn == 2:
            break
        os.kill(ours.child.pid, signal.SIGSTOP)  # the rings hold what follows, to the end of the interface
        sent += send(a, [frame(sport=turn, dport=i, ident=sent + i) for i in range(200)])
        b.ip("link", "del", "v0")
        os.kill(ours.child.pid, signal.SIGCONT)
        ours.hear(b"v0: has vanished; the packets before are kept")
        lab.link(a, b)
        ours.hear(b"v0: is there again")
    wait_for(log, sent)
    status, _, err = ours.end()
    assert status == 130
    found = counts(err)
    assert (found["packets received"], found["kept"], found["dropped by the kernel"]) == (sent, sent, 0)
    assert sorted(r[0] for r in table(log, "ip_id")) == list(range(sent))
    assert len({r[0] for r in table(log, "iface")}) == 4
    with multilog.open(log, readonly=True) as opened:
        assert sum(rows > 0 for rows in opened.version().tails) == 3


def test_another_interface_with_the_number_of_the_old_one(tmp_path: Path, lab: Lab) -> None:
    """Gone and back between two looks, name and number the same: the sockets know."""
    a, b = lab.space("a"), lab.space("b")

    def make() -> None:
        b.ip("link", "add", "v0", "index", "77", "type", "veth", "peer", "name", "v0", "netns", a.name)
        for space in (a, b):
            space.ip("link", "set", "v0", "up")

    for lanes in (1, 2):
        make()
        log = tmp_path / f"log{lanes}"
        ours = capture(b, "-i", "v0", "-w", log, "--lanes", lanes)
        send(a, [frame()] * 3)
        wait_for(log, 3)
        b.run("sh", "-c", "ip link del v0; ip link add v0 index 77 type veth peer name v1; ip link set v0 up")
        ours.hear(b"v0: is there again")
        b.ip("link", "set", "v1", "up")
        send(b, [frame()] * 4, "v1")
        wait_for(log, 7)
        assert ours.end()[0] == 130
        b.ip("link", "del", "v0")


def test_the_same_name_for_another_kind_of_interface(tmp_path: Path, lab: Lab) -> None:
    """From Ethernet to raw IP: the filter of the kernel is compiled again for the new link type."""
    a, b = lab.pair()
    log = tmp_path / "log"
    ours = capture(b, "-i", "v0", "-w", log, "--bpf", "udp port 53")
    send(a, [frame(dport=53), frame(dport=54)])
    wait_for(log, 1)
    b.ip("link", "del", "v0")
    ours.hear(b"v0: has vanished")
    b.ip("tuntap", "add", "dev", "v0", "mode", "tun")
    b.ip("addr", "add", "10.99.0.1/24", "dev", "v0")
    b.ip("link", "set", "v0", "up")
    ours.hear(b"v0: is there again")
    with b.inside(), open("/dev/net/tun", "r+b", buffering=0) as tun:
        fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"v0", 0x1001))  # TUNSETIFF, IFF_TUN | IFF_NO_PI
        for port in (54, 53, 55, 53):
            tun.write(frame(dport=port)[14:])
    wait_for(log, 3)
    assert ours.end()[0] == 130
    assert [r[0] for r in table(log, "dst_port")] == [53, 53, 53]


def test_one_of_two_interfaces_vanishes(tmp_path: Path, lab: Lab) -> None:
    a, b = lab.pair()
    lab.link(a, b, ("v1", "v1"))
    ours = capture(b, "-i", "v0", "-i", "v1", "-w", tmp_path / "log", "--wait", "100ms")
    b.ip("link", "del", "v0")
    ours.hear(b"v0: has vanished")
    time.sleep(0.3)
    send(a, [frame()] * 5, "v1")
    wait_for(tmp_path / "log", 5)
    assert ours.end()[0] == 130


DISK = "12m"  # of small_disk


# -- full rings, full disks ----------------------------------------------------------------------------------------


def test_a_full_ring_is_counted_and_said(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    """Stopped, it takes nothing; what does not fit is the difference, to the packet."""
    a, b = pair
    log = tmp_path / "log"
    ours = capture(b, "-i", "v0", "-w", log, "--ring", "128KiB")
    os.kill(ours.child.pid, signal.SIGSTOP)
    sent = send(a, [frame(size=300, ident=i) for i in range(4000)])
    os.kill(ours.child.pid, signal.SIGCONT)
    said = ours.hear(b"packets were dropped: their ring was full; --lanes, --ring, --bpf or -s help")
    dropped = re.search(rb"(\d+) packets were dropped", said)
    assert dropped is not None
    end = time.monotonic() + 10
    while b"dropped_by_the_kernel: 0" in record(log) and time.monotonic() < end:
        time.sleep(0.05)
    send(a, [frame(ident=i) for i in range(4000, 4010)])
    status, _, err = ours.end()
    assert status == 130
    found = counts(err)
    assert found["dropped by the kernel"] == int(dropped[1]) > 0
    assert found["packets received"] + found["dropped by the kernel"] == sent + 10
    idents = [r[0] for r in table(log, "ip_id")]
    assert len(idents) == found["kept"] == found["packets received"]
    assert idents[-10:] == list(range(4000, 4010))
    told = run("confluo-info", "-T", log).stdout
    assert b"captures.0.dropped\t%d\n" % found["dropped by the kernel"] in told


@pytest.mark.parametrize("size", [42, 70, 200, 1000])
def test_full_blocks_are_read_to_their_last_byte(tmp_path: Path, pair: tuple[Space, Space], size: int) -> None:
    """Many blocks, all full: the end of each falls at another place of a packet."""
    a, b = pair
    ours = capture(b, "-i", "v0", "-w", tmp_path / "log", "--ring", "1MiB")
    os.kill(ours.child.pid, signal.SIGSTOP)
    sent = send(a, [frame(size=size + i % 7, ident=i) for i in range(2500)])
    os.kill(ours.child.pid, signal.SIGCONT)
    wait_for(tmp_path / "log", 1)
    found = counts(ours.end()[2])
    # A busy machine sends slowly: blocks are closed before they are full, and the last packets find no room.
    assert found["packets received"] + found["dropped by the kernel"] == sent
    assert found["packets received"] > 1500
    assert [r[0] for r in table(tmp_path / "log", "ip_id")] == list(range(found["packets received"]))


def record(log: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (log / "captures").glob("*.yaml"))


def test_a_full_disk_ends_it_and_keeps_the_rows_before(small_disk: Path, pair: tuple[Space, Space]) -> None:
    a, b = pair
    log = small_disk / "log"
    ours = capture(b, "-i", "v0", "-w", log, "--stats", "--index", "dst_port")
    batch = [frame(sport=i % 60000, dport=i * 7 % 60000, ident=i) for i in range(2000)]
    for _ in range(200):
        if ours.child.poll() is not None:
            break
        send(a, batch)
    status, _, err = ours.wait()
    assert status == 2
    assert b"the disk is full; the rows before are kept; make room" in err
    found = counts(err)
    assert found["not stored"] > 0
    kept = table(log, "ip_id")
    assert kept
    assert [r[0] for r in kept] == [i % 2000 for i in range(len(kept))]


# -- privileges ----------------------------------------------------------------------------------------------------


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody may go to, and only root write to."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_privileges_are_given_up(public: Path, pair: tuple[Space, Space]) -> None:
    """In every thread, and for good; the log is that user's, though he may not make folders there."""
    a, b = pair
    log = public / "log"
    ours = capture(b, "-i", "v0", "-w", log, "-Z", "nobody", "--lanes", "2", "--index", "dst_port", "--keep", "1h,1G")
    pid = ours.child.pid
    send(a, [frame()] * 9)
    wait_for(log, 9)
    for thread in os.listdir(f"/proc/{pid}/task"):
        found = status_of(int(thread)) if int(thread) == pid else status_of_thread(pid, thread)
        assert found["Uid"].split() == ["65534"] * 4
        assert found["Gid"].split() == ["65534"] * 4
        assert found["Groups"] == ""
        assert [int(found[f"Cap{which}"], 16) for which in ("Inh", "Prm", "Eff", "Amb")] == [0] * 4
        assert found["NoNewPrivs"] == "1"
    assert ours.end()[0] == 130
    owners = {path.stat().st_uid for path in [log, *log.rglob("*")]}
    assert owners == {65534}
    assert rows(log) == 9


def test_a_log_that_the_user_may_not_write(public: Path, pair: tuple[Space, Space]) -> None:
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", public / "log").returncode == 0
    done = pair[1].run(
        CAPTURE, "-i", "v0", "-w", public / "log", "--append", "-Z", "nobody", check=False, env=environment()
    )
    assert done.returncode == 2
    assert done.stderr.decode() == (
        f"confluo-capture: {public}/log: nobody may not write there; chown it, and allow access to its parents\n"
    )


def status_of_thread(pid: int, thread: str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_one_capability_is_enough(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    a, b = pair
    only = ["setpriv", "--bounding-set=-all,+net_raw", "--inh-caps=-all,+net_raw"]
    ours = capture(b, "-i", "v0", "-w", tmp_path / "log", "--lanes", "2", "--bpf", "udp", prefix=only)
    assert int(status_of(ours.child.pid)["CapEff"], 16) == 1 << 13
    send(a, [frame()] * 3)
    wait_for(tmp_path / "log", 3)
    assert ours.end()[0] == 130


def test_without_privileges_a_line_says_how(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    nothing = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    done = pair[1].run(*nothing, CAPTURE, "-i", "v0", "-w", tmp_path / "log", check=False, env=environment())
    assert done.returncode == 2
    assert done.stderr.startswith(b"confluo-capture: v0: capturing needs the capability CAP_NET_RAW; run it with sudo")
    assert b"setpriv --reuid=" in done.stderr
    assert b"--ambient-caps=+net_raw" in done.stderr
    assert not (tmp_path / "log").exists()


# -- ends ----------------------------------------------------------------------------------------------------------


def test_killed_at_any_instant(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    """With views attached: what was published is there, in order, and the next capture goes on behind it."""
    a, b = pair
    log = tmp_path / "log"
    batch = [frame(dport=i % 100, ident=i) for i in range(1000)]
    total = 0
    for attempt in range(3):
        more = ["--append"] if attempt else []
        ours = capture(b, "-i", "v0", "-w", log, "--index", "dst_port", "--immediate", *more)
        if not attempt:
            done = run("confluo-index", log, "add", "filter", "sevens", "dst_port == 7")
            assert done.returncode == 0, done.stderr
        for _ in range(attempt + 1):
            send(a, batch)
        wait_for(log, total + 500)
        seen = rows(log)
        assert ours.end(signal.SIGKILL)[0] == -9
        assert rows(log) >= seen
        total = rows(log)
    found = [r[0] for r in table(log, "ip_id")]
    assert len(found) == total
    assert all(now in ((before + 1) % 1000, 0) for before, now in pairwise(found))
    assert run("confluo-info", "--verify", log).returncode == 0
    sevens = run("confluo-query", log, "filter sevens", "--count").stdout
    assert int(sevens) == sum(r[0] == 7 for r in table(log, "dst_port"))
    told = run("confluo-info", "-T", log).stdout
    assert told.count(b".ended\t-\n") == 3


def test_a_signal_sent_twice_is_one(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    a, b = pair
    ours = capture(b, "-i", "v0", "-w", tmp_path / "log")
    send(a, [frame()] * 4)
    ours.child.send_signal(signal.SIGINT)
    status, _, err = ours.end(signal.SIGINT)
    assert status == 130
    assert counts(err)["kept"] == 4


def test_nobody_reads_the_output(pair: tuple[Space, Space]) -> None:
    a, b = pair
    read, write = os.pipe()
    ours = capture(b, "-i", "v0", "-o", "ndjson", out=write)
    os.close(write)
    os.close(read)
    send(a, [frame()])
    assert ours.wait()[0] == 141


def test_the_reader_of_the_output_ends_and_no_packet_comes(pair: tuple[Space, Space]) -> None:
    _, b = pair
    read, write = os.pipe()
    ours = capture(b, "-i", "v0", "-o", "stream", out=write)
    os.close(write)
    os.close(read)
    assert ours.wait()[0] == 141


def test_a_stream_goes_on_to_the_next_command(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    """The first packet is there at once, though no other follows."""
    a, b = pair
    read, write = os.pipe()
    ours = capture(b, "-i", "v0", "-o", "stream", out=write)
    os.close(write)
    next_one = Live(
        b, BIN / "confluo-query", "-", "-o", "ndjson", "-l", "-f", "dst_port", stdin_fd=read, out=subprocess.PIPE
    )
    os.close(read)
    assert next_one.child.stdout is not None
    for port in (53, 54):
        send(a, [frame(dport=port)])
        assert next_one.child.stdout.readline() == b'{"dst_port":%d}\n' % port
    assert ours.end()[0] == 130
    assert next_one.wait()[0] == 0


def test_old_rows_are_removed(tmp_path: Path, pair: tuple[Space, Space]) -> None:
    """Rows of years ago, sealed, go; those that come in stay."""
    a, b = pair
    log = tmp_path / "log"
    assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", log).returncode == 0
    with multilog.open(log, readonly=True) as opened:
        assert opened.version().kept == 5735
    ours = capture(b, "-i", "v0", "-w", log, "--append", "--keep", "1h", "--no-header")
    send(a, [frame()] * 5)
    end = time.monotonic() + 10
    while len(table(log, "ts")) != 5:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert ours.end()[0] == 130
    assert len(table(log, "ts")) == 5
