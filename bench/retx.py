"""The cost of confluo-retx while N sockets per second retransmit and end; and the effect of a storm.

    python bench/retx.py [--seconds 10] [--rate 1100] [--storm]

TSV: case, sockets that retransmitted per second, retransmissions per second, CPU of the agent in % of a core, its most
memory in MB, records, retransmissions that the kernel counted and the records report, messages lost, flows not traced.
The network is a loopback of our own that drops one full packet in nine.  Bar: at most 1 % and 45 MB at 1,000 sockets a
second, as the figures of the load are real TCP on the same machine.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RULES = """table netdev bench { chain in { type filter hook ingress device lo priority 0;
  tcp dport 5001 meta length > 1000 numgen inc mod 9 == 8 drop; }; }"""


def lossy_loopback() -> None:
    for words in (["link", "set", "lo", "mtu", "1500", "gso_max_segs", "1"], ["link", "set", "lo", "up"]):
        subprocess.run(["ip", *words], check=True)
    Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("1024 65000")
    Path("/proc/sys/net/ipv4/tcp_max_tw_buckets").write_text("1000")
    Path("/proc/sys/net/ipv4/tcp_fin_timeout").write_text("1")
    subprocess.run(["nft", "-f", "-"], input=RULES, text=True, check=True)


def serve(address: str) -> None:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, 5001))
    server.listen(4096)
    server.setblocking(False)
    poll = select.epoll()
    poll.register(server.fileno(), select.EPOLLIN)
    peers: dict[int, socket.socket] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == server.fileno():
                try:
                    peer = server.accept()[0]
                except BlockingIOError:
                    continue
                peers[peer.fileno()] = peer
                poll.register(peer.fileno(), select.EPOLLIN)
                continue
            try:
                if peers[fd].recv(1 << 16):
                    continue
            except OSError:
                pass
            poll.unregister(fd)
            peers.pop(fd).close()


def load(address: str, rate: float, end: float) -> None:
    """N connections per second, 16 kB each: one or two of their packets are dropped."""
    poll = select.epoll()
    open_: dict[int, socket.socket] = {}
    data = bytes(16_000)
    start, n = time.monotonic(), 0
    while (now := time.monotonic()) < end:
        while n < (now - start) * rate and len(open_) < 2000:
            n += 1
            s = socket.socket()
            try:
                s.connect((address, 5001))
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
            except OSError:
                s.close()
                continue
            open_[s.fileno()] = s
            poll.register(s.fileno(), select.EPOLLIN)
        for fd, _ in poll.poll(0.002):
            poll.unregister(fd)
            open_.pop(fd).close()


def cpu(pid: int) -> float:
    """Seconds on a CPU of all its threads, by the scheduler's clock, not in ticks."""
    return sum(int(t.read_text().split()[0]) for t in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name)))


def retransmitted() -> int:
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def spawn(function: object, *args: object) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            function(*args)  # type: ignore[operator]
        finally:
            os._exit(0)
    return pid


def measure(case: str, rate: float, seconds: float, extra: list[str], log: Path) -> str:
    at_first = retransmitted()
    agent = subprocess.Popen([ROOT / "bin" / "confluo-retx", "--follow", "-w", log, *extra], stderr=subprocess.PIPE)
    assert agent.stderr is not None
    agent.stderr.readline()
    workers = 2
    end = time.monotonic() + seconds + 2
    children = [spawn(serve, f"127.0.0.{k + 1}") for k in range(workers)]
    time.sleep(0.2)
    children += [spawn(load, f"127.0.0.{k + 1}", rate / workers, end) for k in range(workers)]
    time.sleep(1)  # what is loaded once is loaded
    before, counted, start = cpu(agent.pid), retransmitted(), time.monotonic()
    time.sleep(seconds)
    used, now, retrans = cpu(agent.pid) - before, time.monotonic(), retransmitted() - counted
    time.sleep(max(end - now, 0) + 0.5)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    all_retrans = retransmitted() - at_first
    memory = status(agent.pid, "VmHWM") / 1000
    agent.send_signal(signal.SIGTERM)
    said = agent.communicate()[1].decode().splitlines()[-1]
    parts = [part.split(" ", 1) for part in said.split(": ", 1)[1].split(", ")[:-1]]
    figures = {what: int(n) for n, what in parts}
    query = [ROOT / "bin" / "confluo-query", log, "--agg", "count, distinct(cookie), sum(retrans)", "-T", "--no-header"]
    count, sockets, told = map(int, subprocess.run(query, capture_output=True, check=True).stdout.split())
    per_second = sockets / (seconds + 2)
    return "\t".join(
        map(
            str,
            (
                case,
                round(per_second),
                round(retrans / (now - start)),
                f"{100 * used / (now - start):.2f}",
                f"{memory:.1f}",
                count,
                all_retrans,
                told,
                figures["ends not heard"],
                figures["not traced"],
            ),
        )
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=10)
    options.add_argument("--rate", type=float, default=1100, help="connections per second")
    options.add_argument("--storm", action="store_true", help="as many as can be, too")
    options.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if not given.inside:
        return subprocess.run(["unshare", "-n", sys.executable, __file__, *sys.argv[1:], "--inside"]).returncode
    lossy_loopback()
    print("#fields\tcase\tsockets_s\tretrans_s\tcpu_percent\tmemory_mb\trecords\tkernel\ttold\tnot_heard\tnot_traced")
    cases = [("agent", given.rate, []), ("untraced", given.rate, ["--trace", "never"]), ("all", given.rate, ["--all"])]
    if given.storm:
        cases.append(("storm", 1e6, ["--cpu", "1%"]))
    for case, rate, extra in cases:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(case, rate, given.seconds, extra, Path(folder) / "retx.ml"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
