"""What recording costs: CPU and bytes of a log, next to tcpdump -s 94, for bulk data and for requests.  Prints TSV.

    .venv/bin/python bench/replay_record.py [--mb 1000] [--requests 10000] [--seconds 30] [--rounds 3]
                                            [--recorders none,bpf,signals,headers,tcpdump]

Both ends are on one veth pair in namespaces of their own: `offload` with packets of up to 64 kB, the others with
packets of at most one segment (the grade strict).  `bulk` is --mb of data, `requests` as many as --requests one after
the other, `paced` 10,000 of them a second for --seconds.  CPU is user and system time of client and server, and of
the recorder or tcpdump after it has started, from the scheduler; the median of --rounds runs, recorders in turn.
`meanwhile_s` is that of the recorder until the traffic ends: what it takes to end does not depend on how long it
recorded.  `bpf_s` is the time of client and server in BPF and what calls it, from samples of perf; both ends run in
this kernel, so programs are called for both, and return at once for the one that is not recorded.  `share` is both of
the CPU of client and server, `of_a_cpu` both of the time of one CPU.  Bytes: the log as Parquet, the sealed segments
of the log by zstd -19, the capture of tcpdump by gzip; `of_capture` is the second of the third of the same round.
Needs root, perf and tcpdump.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from netns import Lab, Space

PORT = 5201
RATE = 10_000  # requests a second
SAMPLES = 4999  # a second
BPF = re.compile(r" *(\d+) +[0-9a-f]+ (.*bpf.*|htab_.*|lookup_nulls_elem_raw|copy_from_kernel_nofault.*)")
SERVE = """
import socket, sys
s = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
c, _ = s.accept()
if sys.argv[2] == "bulk":
    while c.recv(1 << 20): pass
else:
    while data := c.recv(4096): c.sendall(data * 10)
"""
CALL = """
import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
n = int(sys.argv[4])
if sys.argv[3] == "bulk":
    data = bytes(1 << 16)
    for _ in range(n * 16): c.sendall(data)
else:
    import time
    rate, next = float(sys.argv[5]), time.monotonic()
    for _ in range(n):
        if rate:
            wait = next - time.monotonic()
            if wait > 0: time.sleep(wait)
            next += 1 / rate
        c.sendall(b"x" * 100)
        got = 0
        while got < 1000: got += len(c.recv(4096))
"""


def started(space: Space, *words: object, **more: Any) -> subprocess.Popen[bytes]:
    """A process in a namespace that is a child of this one, so that its CPU time can be read.  No fork of `running`."""
    return subprocess.Popen(space.argv(*words), **more)


def cpu_of(process: subprocess.Popen[bytes]) -> float:
    """User and system time of a child that is waited for here."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    return usage.ru_utime + usage.ru_stime


def transfer(client: Space, server: Space, what: str, n: int, rate: int) -> tuple[float, float, set[int]]:
    """CPU of both programs, the time it took, and the processes."""
    there = started(server, sys.executable, "-c", SERVE, PORT, what, stdout=subprocess.PIPE)
    there.stdout.readline()  # type: ignore[union-attr]
    begin = time.monotonic()
    here = started(client, sys.executable, "-c", CALL, server.address, PORT, what, n, rate)
    cpu = cpu_of(here) + cpu_of(there)
    there.stdout.close()  # type: ignore[union-attr]
    return cpu, time.monotonic() - begin, {here.pid, there.pid}


def cpu_so_far(pid: int) -> float:
    """User and system time of a process that runs."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def in_programs(samples: Path, pids: set[int]) -> float:
    """Seconds of these processes in BPF."""
    words = ["perf", "script", "-i", str(samples), "-F", "pid,ip,sym"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(1 for line in lines if (m := BPF.match(line)) and int(m[1]) in pids) / SAMPLES


def packets(space: Space) -> int:
    """Packets that v0 has sent and received."""
    words = space.run("cat", "/proc/net/dev").stdout.decode().split("v0:")[1].split()
    return int(words[1]) + int(words[9])


class Run(NamedTuple):
    """Seconds: of the programs and the recorder, of the recorder, until the traffic ended, in BPF programs; in all."""

    cpu: float
    recorder: float
    meanwhile: float
    bpf: float
    wall: float
    packets: float  # at one end
    parquet: float  # bytes
    packed: float


def parquet_size(log: Path) -> int:
    out = log.with_suffix(".parquet")
    subprocess.run([ROOT / "bin/confluo-convert", "-q", log, "-w", out, "--force"], check=True)
    return out.stat().st_size


def packed_size(log: Path) -> int:
    segments = b"".join(path.read_bytes() for path in sorted(log.glob("lane-*/seg-*")))
    return len(zstandard.ZstdCompressor(level=19).compress(segments))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recorders", default="none,bpf,signals,headers,tcpdump")
    parser.add_argument("--traffic", default="offload,bulk,requests,paced")
    args = parser.parse_args()
    sizes = {"offload": args.mb, "bulk": args.mb, "requests": args.requests, "paced": args.seconds * RATE}
    print(
        "traffic\trecorder\tcpu_s\trecorder_s\tmeanwhile_s\tbpf_s\tshare\tof_a_cpu\twall_s\tpackets"
        "\tparquet_B\tpacked_B\tpacked_B_per_packet\tof_capture"
    )
    recorders = args.recorders.split(",")
    with Lab() as lab, tempfile.TemporaryDirectory() as folder:
        client, server = lab.pair()
        for what in args.traffic.split(","):
            for space in (client, server):
                space.ip("link", "set", "v0", "gso_max_segs", "65535" if what == "offload" else "1")
            runs = [
                {recorder: run(client, server, what, sizes[what], recorder, Path(folder)) for recorder in recorders}
                for _ in range(args.rounds)
            ]
            for recorder in recorders:
                report(what, recorder, runs)


def report(what: str, recorder: str, runs: list[dict[str, Run]]) -> None:
    middle = Run(*map(statistics.median, zip(*[each[recorder] for each in runs], strict=True)))
    spent = middle.meanwhile + middle.bpf
    figures = [f"{x:.3f}" for x in (middle.cpu, middle.recorder, middle.meanwhile, middle.bpf)]
    figures += [f"{100 * spent / (middle.cpu - middle.recorder):.2f}%", f"{100 * spent / middle.wall:.2f}%"]
    figures += [f"{x:.0f}" for x in (middle.wall, middle.packets, middle.parquet, middle.packed)]
    figures.append(f"{middle.packed / middle.packets:.2f}")
    if "tcpdump" in runs[0]:
        figures.append(
            f"{100 * statistics.median(each[recorder].packed / each['tcpdump'].packed for each in runs):.1f}%"
        )
    print(what, recorder, *figures, sep="\t", flush=True)


def run(client: Space, server: Space, what: str, n: int, recorder: str, folder: Path) -> Run:
    path = folder / f"{what}-{recorder}-{time.monotonic_ns()}"
    process = None
    if recorder == "tcpdump":
        process = started(client, "tcpdump", "-i", "v0", "-s", "94", "-w", path, stderr=subprocess.PIPE)
        process.stderr.readline()  # type: ignore[union-attr]
    elif recorder != "none":
        how = ("--source", "bpf") if recorder == "bpf" else ("--level", recorder)
        words = [ROOT / "bin/confluo-replay-record", "attach", "--port", PORT, *how, "-w", f"{path}.ml"]
        process = started(client, *words, stderr=subprocess.PIPE)
        process.stderr.readline()  # type: ignore[union-attr]
        time.sleep(1)  # what it writes at first is not of the traffic
    first = cpu_so_far(process.pid) if process is not None else 0.0
    before = packets(client)
    samples = folder / "samples"
    command = ["perf", "record", "-q", "-F", str(SAMPLES), "-e", "cpu-clock", "-a", "-o", str(samples)]
    perf = subprocess.Popen(command, stderr=subprocess.DEVNULL) if recorder == "bpf" else None
    kind = "bulk" if what in ("offload", "bulk") else "requests"
    cpu, wall, pids = transfer(client, server, kind, n, RATE if what == "paced" else 0)
    count = packets(client) - before
    own, meanwhile, programs, parquet, packed = 0.0, 0.0, 0.0, 0, 0
    if process is not None:
        meanwhile = cpu_so_far(process.pid) - first
        if perf is not None:
            perf.send_signal(2)
            perf.wait()
            programs = in_programs(samples, pids)
        process.send_signal(2)
        own = cpu_of(process) - first
        said = process.stderr.read().decode().strip()  # type: ignore[union-attr]
        process.stderr.close()  # type: ignore[union-attr]
        if recorder == "tcpdump":
            packed = len(gzip.compress(path.read_bytes(), 6))
        else:
            print("#", said.splitlines()[-1], file=sys.stderr)
            parquet, packed = parquet_size(Path(f"{path}.ml")), packed_size(Path(f"{path}.ml"))
    return Run(cpu + own, own, meanwhile, programs, wall, count, parquet, packed)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
