"""What confluo-pingmesh agent costs at the paper's size: 2,500 targets every 10 s, and as many who probe it.

    python bench/agent.py [--seconds 30] [--targets 2500] [--metrics]

TSV: case, probes a second, probes answered a second, CPU of the agent in % of a core (all threads), of it in the
kernel, of all the thread that probes, CPU of its children (questions to the controller) in %, resident memory in MB
(largest), of it private.
The network is two namespaces joined by a veth pair: there, the target's share of a handshake is done by the kernel in
the agent's time.  In the cases `... apart`, packets that come out of the pair are handled by the last CPU (RPS) and the
agent runs on the others, as where there is a cable between prober and target.  The case `bare` is a C program that
makes the same connections at the same pace and does nothing else.
Bar: at most 1 % of a core and 45 MB at 250 probes a second, in the case `probes apart`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import ROOT

sys.path.insert(0, str(ROOT / "tests" / "support"))

BARE = r"""
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
  int n = atoi(argv[1]), targets = atoi(argv[3]), i;
  double seconds = atof(argv[2]);
  struct timespec t;
  struct rusage r;
  clock_gettime(CLOCK_MONOTONIC, &t);
  for (i = 0; i < n * seconds; i++) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(8765)};
    struct linger now = {1, 0};
    struct tcp_info info;
    socklen_t size = sizeof info;
    if ((t.tv_nsec += 1000000000 / n) >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0);
    to.sin_addr.s_addr = htonl(0x0a510000 + i % targets / 250 * 256 + i % targets % 250 + 1);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    connect(s, (void *)&to, sizeof to);
    struct pollfd p = {s, POLLOUT, 0};
    poll(&p, 1, 1000);
    getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &size);
    setsockopt(s, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(s);
  }
  getrusage(RUSAGE_SELF, &r);
  printf("%.6f %.6f", r.ru_utime.tv_sec + r.ru_utime.tv_usec / 1e6, r.ru_stime.tv_sec + r.ru_stime.tv_usec / 1e6);
}
"""
TICKS = os.sysconf("SC_CLK_TCK")
FIRST = 3  # s until all is under way


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def network(a: str, b: str) -> None:
    """10.80/16 are all of ``a``'s own addresses, 10.81/16 of ``b``'s."""
    for name in (a, b):
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip("-n", a, "link", "add", "v0", "type", "veth", "peer", "name", "v0", "netns", b)
    for name, other, mine, theirs in ((a, 1, "80", "81"), (b, 2, "81", "80")):
        ip("-n", name, "addr", "add", f"10.79.0.{other}/24", "dev", "v0")
        ip("-n", name, "link", "set", "v0", "up")
        ip("-n", name, "route", "add", "local", f"10.{mine}.0.0/16", "dev", "lo")
        ip("-n", name, "route", "add", f"10.{theirs}.0.0/16", "via", f"10.79.0.{3 - other}")


def lists(folder: Path, n: int) -> None:
    from confluo_tools.pingmesh.plan.graphs import Pinglist, PinglistPeer, version_of
    from confluo_tools.pingmesh.plan.pinglist_file import to_yaml

    folder.mkdir()
    for name, net in (("a", 81), ("b", 80)):
        peers = tuple(
            PinglistPeer(
                f"s{i}",
                f"10.{net}.{i // 250}.{i % 250 + 1}",
                8765,
                level="pod" if i < 39 else "dc",
                pod=f"p{i // 40:04}",
                podset=f"ps{i // 800:02}",
                dc="dc1",
            )
            for i in range(n)
        )
        (folder / f"{name}.yaml").write_bytes(to_yaml(Pinglist(name, version_of(name, 7, peers), 7, peers)))


def bare(folder: Path, spaces: tuple[str, str], seconds: float, targets: int) -> None:
    program = folder / "bare"
    (folder / "bare.c").write_text(BARE)
    subprocess.run(["cc", "-O2", "-o", program, folder / "bare.c"], check=True)
    inside = ["ip", "netns", "exec"]
    respond = [ROOT / "bin/confluo-pingmesh", "respond", "-q", "--listen", "0.0.0.0"]
    other = subprocess.Popen([*inside, spaces[1], *respond], stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        done = subprocess.run(
            [*inside, spaces[0], program, str(targets // 10), str(seconds), str(targets)],
            capture_output=True,
            check=True,
        )
        user, system = (float(word) / seconds * 100 for word in done.stdout.split())
        print(f"bare\t{targets // 10}\t0\t{user + system:.2f}\t{system:.2f}\t{user + system:.2f}\t0\t0\t0", flush=True)
    finally:
        other.terminate()
        other.wait()


def times(pid: int) -> tuple[float, float, float, float]:
    """CPU seconds of a process, of it in the kernel, of its first thread, and of its children that have ended."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    first = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (
        sum(map(int, words[11:13])) / TICKS,
        int(words[12]) / TICKS,
        sum(map(int, first[11:13])) / TICKS,
        sum(map(int, words[13:15])) / TICKS,
    )


def memory(pid: int) -> tuple[float, float]:
    status = Path(f"/proc/{pid}/status").read_text()
    return tuple(int(status.partition(f"{key}:")[2].split()[0]) / 1024 for key in ("VmHWM", "RssAnon"))  # type: ignore[return-value]


def counts(folder: Path, name: str) -> int:
    done = subprocess.run(
        [ROOT / "bin/confluo-query", folder / f"{name}.ml", "kind < 16", "--count"], capture_output=True, check=False
    )
    return int(done.stdout)


def apart(spaces: tuple[str, str]) -> list[str]:
    """The last CPU handles what comes out of the pair; what a command is to be run with, so that it uses the others."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        return []
    for name in spaces:
        mask = f"echo {1 << cpus[-1]:x} >/sys/class/net/v0/queues/rx-0/rps_cpus"
        subprocess.run(["ip", "netns", "exec", name, "sh", "-c", mask], check=True)
    return ["taskset", "-c", ",".join(map(str, cpus[:-1]))]


def case(
    name: str,
    folder: Path,
    spaces: tuple[str, str],
    seconds: float,
    more: list[str],
    *,
    both: bool,
    on: list[str] | None = None,
) -> None:
    """An agent in the first namespace; in the second one that answers, and probes, too, when ``both``.

    ``on``: the command that the agents are run with.
    """
    work = folder / name
    work.mkdir()

    def start(space: str, who: str, *options: str) -> subprocess.Popen[bytes]:
        verb = (
            ["respond", "-q", "--listen", "0.0.0.0"]
            if who == "r"
            else [
                "agent",
                "-q",
                "--controller",
                str(folder / "lists"),
                "--name",
                who,
                "--allow",
                "10.0.0.0/8",
                "--every",
                "60s",
                "-w",
                str(work / f"{who}.ml"),
                "--keep",
                "1d",
                *options,
            ]
        )
        return subprocess.Popen(
            ["ip", "netns", "exec", space, *(on or []), ROOT / "bin/confluo-pingmesh", *verb], stderr=subprocess.DEVNULL
        )

    other = start(spaces[1], "b" if both else "r")
    agent = start(spaces[0], "a", *more)
    try:
        time.sleep(1)
        for process in (agent, other):
            process.send_signal(signal.SIGHUP if process is agent or both else 0)
        time.sleep(FIRST)
        before, start_count, began = times(agent.pid), counts(work, "a"), time.monotonic()
        answered = counts(work, "b") if both else 0
        time.sleep(seconds)
        after, span = times(agent.pid), time.monotonic() - began
        probes = (counts(work, "a") - start_count) / span
        got = (counts(work, "b") - answered) / span if both else 0.0
        whole, kernel, first, children = ((y - x) / span * 100 for x, y in zip(before, after, strict=True))
        most, private = memory(agent.pid)
        print(
            f"{name}\t{probes:.0f}\t{got:.0f}\t{whole:.2f}\t{kernel:.2f}\t{first:.2f}\t{children:.2f}\t{most:.1f}"
            f"\t{private:.1f}",
            flush=True,
        )
    finally:
        for process in (agent, other):
            process.terminate()
            process.wait()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=30)
    options.add_argument("--targets", type=int, default=2500)
    options.add_argument("--metrics", action="store_true", help="also with the endpoint of Prometheus")
    given = options.parse_args()
    spaces = f"cfb{os.getpid()}a", f"cfb{os.getpid()}b"
    print("case\tprobes/s\tanswered/s\tcpu %\tkernel %\tprobing %\tchildren %\tMB\tprivate MB")
    try:
        network(*spaces)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            lists(folder / "lists", given.targets)
            bare(folder, spaces, min(given.seconds, 10), given.targets)
            case("probes", folder, spaces, given.seconds, [], both=False)
            case("both", folder, spaces, given.seconds, [], both=True)
            if given.metrics:
                case("metrics", folder, spaces, given.seconds, ["--metrics", "127.0.0.1:9000"], both=True)
            on = apart(spaces)
            if on:
                case("probes apart", folder, spaces, given.seconds, [], both=False, on=on)
                case("both apart", folder, spaces, given.seconds, [], both=True, on=on)
    finally:
        for name in spaces:
            subprocess.run(["ip", "netns", "del", name], check=False)


if __name__ == "__main__":
    main()
