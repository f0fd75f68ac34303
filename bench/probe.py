"""Probes: how many a second one core makes, what a paper-size pinglist costs, and what a busy host does to the times.

usage: bench/probe.py [SECONDS]     (1 for each; needs root; fping if it is there)

Bars: 25,000 TCP connections a second and 150,000 datagrams a second on one core; at 250 probes a second 1 % of a core
and 45 MB; the kernel's P99 moves by less than 2x when the core is overloaded.  Against asyncio and fping in the same
run.

All between two namespaces with a veth pair; on it the target's kernel works in the sender's time, so that a real NIC
leaves more.  `at_once`: probes in flight.  `per_cpu_s`: probes for a CPU second of the prober.  Times in microseconds:
`rtt` as the kernel has it, `program` as the program saw it.  `overload`: another process spins on the same core.

Prints TSV.
"""

from __future__ import annotations

import array
import asyncio
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from timing import ROOT, header, row

sys.path.insert(0, str(ROOT / "tests" / "support"))

from confluo_tools.core.block.block import Staging
from netns import Lab, Space, missing
from ping_lab import ECHO, SCHEMA, TCP, UDP, packed, pinger

PORT, TOKEN, ADDRESSES, PORTS = 8765, 7, 249, 10
NAMES = (
    "what",
    "at_once",
    "per_s",
    "per_cpu_s",
    "rtt_p50",
    "rtt_p99",
    "program_p50",
    "program_p99",
    "ok",
    "again",
    "failed",
    "peak_mb",
)
PACED = """
import time
from confluo_tools.core.block.block import Staging
from confluo_tools.core.pingmesh.echo_prober import EchoProber
from confluo_tools.schema import builtin
layout = builtin("probe").layout
p = EchoProber(layout, seed=1)
for i in range({addresses}):
    for port in range({ports}):
        p.add(bytes([10, 77, 0, 2 + i]), {port} + port, 1)
block = Staging(layout, 4096)
def go(seconds):
    end = time.monotonic_ns() + int(seconds * 1e9)
    while time.monotonic_ns() < end:
        block.publish(0)
        p.run(block, end)
go(1)
n, cpu, wall = p.counts["probes"], time.process_time(), time.monotonic()
go({seconds})
n, cpu, wall = p.counts["probes"] - n, time.process_time() - cpu, time.monotonic() - wall
c = p.counts
print(n / wall, cpu / wall, c["ok"], c["retried"], c["probes"] - c["ok"] - p.inflight,
      next(int(x.split()[1]) >> 10 for x in open("/proc/self/status") if x.startswith("VmHWM")))
"""


@contextmanager
def responding(space: Space) -> Iterator[None]:
    words: list[Any] = ["--token", TOKEN, "--connections", 20000, "--backlog", 65535]
    for port in range(PORTS):
        words += ["--listen", f"0.0.0.0:{PORT + port}"]
    space.run("sysctl", "-qw", "net.core.somaxconn=65535")
    child = space.popen(ROOT / "bin" / "confluo-pingmesh", "respond", *words, stderr=subprocess.PIPE)
    try:
        assert child.stderr is not None
        if b"answering" not in (said := child.stderr.readline()):
            raise RuntimeError(said.decode())
        yield
    finally:
        child.terminate()
        child.communicate()


def column(block: Staging, name: str) -> array.array[int]:
    return array.array("q", bytes(block.buffer(SCHEMA.layout.index(name))))


def us(values: list[int], share: float) -> str:
    return f"{sorted(values)[int(len(values) * share)] / 1000:.1f}" if values else "-"


def ours(what: str, space: Space, address: str, kind: int, at_once: int, seconds: float, **more: Any) -> None:
    settings = {"stamps": more.pop("stamps", True)}
    with space.inside():
        p = pinger(inflight=at_once, **settings)
        p.token = TOKEN
        for i in range(8):
            p.add(packed(address), PORT + i, kind, interval=0, **more)
        block = Staging(SCHEMA.layout, 65536)
        rtt: list[int] = []
        program: list[int] = []
        start, cpu = time.perf_counter(), time.process_time()
        end = time.monotonic_ns() + int(seconds * 1e9)
        while time.monotonic_ns() < end:
            block.publish(0)
            p.run(block, end)
            rtt += [t for t in column(block, "rtt") if t]
            program += column(block, "elapsed")
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    c = p.counts
    failed = sum(c[name] for name in ("timeout", "refused", "unreachable", "reset", "local", "garbled"))
    row(
        what,
        at_once,
        f"{(c['ok'] + failed) / wall:.0f}",
        f"{(c['ok'] + failed) / cpu:.0f}",
        us(rtt, 0.5),
        us(rtt, 0.99),
        us(program, 0.5),
        us(program, 0.99),
        c["ok"],
        c["retried"],
        failed,
        "-",
    )


def plain(
    what: str, space: Space, address: str, at_once: int, seconds: float, connect: Callable[[str, int], Any]
) -> None:
    """asyncio, as one would write it."""
    done: list[int] = []

    async def worker(end: float) -> None:
        while time.monotonic() < end:
            begun = time.perf_counter_ns()
            await connect(address, PORT)
            done.append(time.perf_counter_ns() - begun)

    async def everybody() -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(worker(end) for _ in range(at_once)))

    with space.inside():
        start, cpu = time.perf_counter(), time.process_time()
        asyncio.run(everybody())
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    row(
        what,
        at_once,
        f"{len(done) / wall:.0f}",
        f"{len(done) / cpu:.0f}",
        "-",
        "-",
        us(done, 0.5),
        us(done, 0.99),
        len(done),
        "-",
        "-",
        "-",
    )


async def bare(address: str, port: int) -> None:
    with socket.socket() as s:
        s.setblocking(False)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await asyncio.get_running_loop().sock_connect(s, (address, port))


async def streams(address: str, port: int) -> None:
    _, writer = await asyncio.open_connection(address, port)
    writer.transport.abort()


def fping(space: Space, seconds: float) -> None:
    if shutil.which("fping") is None:
        return
    addresses = [f"10.77.0.{2 + i}" for i in range(ADDRESSES)]
    n = int(200 * seconds)
    words = ["fping", "-q", "-i", "0", "-p", "1", "-c", str(n), *addresses]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    space.run(*words, check=False)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row(
        "fping",
        ADDRESSES,
        f"{n * ADDRESSES / wall:.0f}",
        f"{n * ADDRESSES / cpu:.0f}",
        "-",
        "-",
        "-",
        "-",
        n * ADDRESSES,
        "-",
        "-",
        "-",
    )


def paced(space: Space, target: Space, seconds: float) -> None:
    """A pinglist's pace.  The target's kernel works on another CPU, as it would behind a real NIC."""
    cpus = sorted(os.sched_getaffinity(0))
    mask = f"{1 << cpus[-1]:x}" if len(cpus) > 1 else "0"
    target.run("sh", "-c", f"echo {mask} >/sys/class/net/v0/queues/rx-0/rps_cpus", check=False)
    code = PACED.format(addresses=ADDRESSES, ports=PORTS, port=PORT, seconds=seconds)
    done = space.run("taskset", "-c", cpus[0], sys.executable, "-c", code, cwd=ROOT)
    rate, cpu, ok, again, failed, peak = done.stdout.split()
    row(
        f"paced, {100 * float(cpu):.2f}% of a core",
        "-",
        f"{float(rate):.0f}",
        f"{float(rate) / float(cpu):.0f}",
        "-",
        "-",
        "-",
        "-",
        int(ok),
        int(again),
        int(failed),
        int(peak),
    )


def overload(space: Space, address: str, seconds: float) -> None:
    """The same probes with and without another process that spins on our core."""
    cores = os.sched_getaffinity(0)
    core = max(cores)
    os.sched_setaffinity(0, {core})
    hog = 0
    try:
        for what in ("one core, idle", "one core, overload"):
            if what.endswith("overload"):
                hog = os.fork()
                if hog == 0:
                    while True:
                        pass
            ours(what, space, address, TCP, 256, seconds)
    finally:
        if hog:
            os.kill(hog, signal.SIGKILL)
            os.waitpid(hog, 0)
        os.sched_setaffinity(0, cores)


def main() -> int:
    if missing():
        print(f"bench/probe.py: {missing()}", file=sys.stderr)
        return 2
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    header(*NAMES)
    with Lab() as lab:
        a, b = lab.pair()
        for i in range(1, ADDRESSES):
            b.ip("addr", "add", f"10.77.0.{2 + i}/24", "dev", "v0")
        b.run("sysctl", "-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv4.icmp_msgs_per_sec=1000000")
        with responding(b):
            for at_once in (1, 64, 256):
                ours("TCP", a, b.address, TCP, at_once, seconds)
            for at_once in (16, 256):
                plain("asyncio, sock_connect", a, b.address, at_once, seconds, bare)
            plain("asyncio, open_connection", a, b.address, 16, seconds, streams)
            ours("echo, 1000 B", a, b.address, ECHO, 64, seconds, payload=1000)
            ours("UDP", a, b.address, UDP, 256, seconds, stamps=False)
            ours("UDP, stamped both ways", a, b.address, UDP, 256, seconds)
            fping(a, seconds)
            overload(a, b.address, seconds)
            paced(a, b, 4 * seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
