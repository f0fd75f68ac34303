"""What recording costs: CPU and bytes of a log, beside tcpdump -s 94, for bulk data and for requests.

    .venv/bin/python bench/replay_record.py [--mb 100] [--requests 20000] [--recorders none,bpf,signals,headers,tcpdump]

Both ends are on one veth pair in namespaces of their own: `offload` with packets of up to 64 kB, the others with
packets of at most one segment (the grade strict).  CPU is user and system time of client and server, and of the
recorder or tcpdump after it has started, from the scheduler; the best of three runs.  `meanwhile_s` is that of the
recorder until the traffic ends: what it takes to end does not depend on how long it recorded.  `bpf_s` is the time in
the programs of the recorder by BPF, from the kernel (bpf_stats_enabled), which costs some of it.  `share` is both of
the CPU of client and server.
Needs root and tcpdump.
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from netns import Lab, Space

PORT = 5201
STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")
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
    for _ in range(n):
        c.sendall(b"x" * 100)
        got = 0
        while got < 1000: got += len(c.recv(4096))
"""


def cpu_of(process: subprocess.Popen[bytes]) -> float:
    """User and system time of a child that is waited for here."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    return usage.ru_utime + usage.ru_stime


def transfer(client: Space, server: Space, what: str, n: int) -> tuple[float, float]:
    """CPU of both programs, and the time it took."""
    there = server.popen(sys.executable, "-c", SERVE, PORT, what, stdout=subprocess.PIPE)
    there.stdout.readline()  # type: ignore[union-attr]
    begin = time.monotonic()
    here = client.popen(sys.executable, "-c", CALL, server.address, PORT, what, n)
    cpu = cpu_of(here) + cpu_of(there)
    there.stdout.close()  # type: ignore[union-attr]
    return cpu, time.monotonic() - begin


def cpu_so_far(pid: int) -> float:
    """User and system time of a process that runs."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def in_programs(pid: int) -> float:
    """Time in the BPF programs of a process, since the kernel counts it."""
    found = {}
    for fd in Path(f"/proc/{pid}/fdinfo").iterdir():
        fields = dict(line.split(":\t") for line in fd.read_text().splitlines() if ":\t" in line)
        if "run_time_ns" in fields:
            found[fields["prog_id"]] = int(fields["run_time_ns"])
    return sum(found.values()) / 1e9


def packets(space: Space) -> int:
    """Packets that v0 has sent and received."""
    words = space.run("cat", "/proc/net/dev").stdout.decode().split("v0:")[1].split()
    return int(words[1]) + int(words[9])


def size_of(log: Path) -> int:
    """Bytes on disk of a log as Parquet, as it is archived."""
    out = log.with_suffix(".parquet")
    subprocess.run([ROOT / "bin/confluo-convert", "-q", log, "-w", out, "--force"], check=True)
    return out.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--recorders", default="none,bpf,signals,headers,tcpdump")
    args = parser.parse_args()
    print(
        "traffic\trecorder\tcpu_s\tof_which_recorder_s\tmeanwhile_s\tbpf_s\tshare\twall_s\tpackets\tlog_B\tB_per_packet"
    )
    with Lab() as lab, tempfile.TemporaryDirectory() as folder:
        client, server = lab.pair()
        for what, n in (("offload", args.mb), ("bulk", args.mb), ("requests", args.requests)):
            for space in (client, server):
                space.ip("link", "set", "v0", "gso_max_segs", "65535" if what == "offload" else "1")
            for recorder in args.recorders.split(","):
                best = min((run(client, server, what, n, recorder, Path(folder)) for _ in range(3)), key=lambda r: r[0])
                cpu, own, meanwhile, programs, wall, count, size = best
                figures = (
                    f"{cpu:.3f}",
                    f"{own:.3f}",
                    f"{meanwhile:.3f}",
                    f"{programs:.3f}",
                    f"{100 * (meanwhile + programs) / (cpu - own):.1f}%",
                    f"{wall:.2f}",
                    count,
                    size,
                    f"{size / count:.2f}",
                )
                print(what, recorder, *figures, sep="\t", flush=True)


def run(
    client: Space, server: Space, what: str, n: int, recorder: str, folder: Path
) -> tuple[float, float, float, float, float, int, int]:
    """CPU in all, of the recorder, until the traffic ended, in programs; time; packets at one end; bytes of its log."""
    path = folder / f"{what}-{recorder}-{time.monotonic_ns()}"
    process = None
    if recorder == "tcpdump":
        process = client.popen("tcpdump", "-i", "v0", "-s", "94", "-w", path, stderr=subprocess.PIPE)
        process.stderr.readline()  # type: ignore[union-attr]
    elif recorder != "none":
        how = ("--source", "bpf") if recorder == "bpf" else ("--level", recorder)
        words = [ROOT / "bin/confluo-replay-record", "attach", "--port", PORT, *how, "-w", f"{path}.ml"]
        process = client.popen(*words, stderr=subprocess.PIPE)
        process.stderr.readline()  # type: ignore[union-attr]
    started = cpu_so_far(process.pid) if process is not None else 0.0
    before = packets(client)
    STATISTICS.write_text("1" if recorder == "bpf" else "0")
    cpu, wall = transfer(client, server, "requests" if what == "requests" else "bulk", n)
    STATISTICS.write_text("0")
    programs = in_programs(process.pid) if process is not None and recorder == "bpf" else 0.0
    count = packets(client) - before
    own, meanwhile, size = 0.0, 0.0, 0
    if process is not None:
        meanwhile = cpu_so_far(process.pid) - started
        process.send_signal(2)
        own = cpu_of(process) - started
        said = process.stderr.read().decode().strip()  # type: ignore[union-attr]
        process.stderr.close()  # type: ignore[union-attr]
        if recorder == "tcpdump":
            size = len(gzip.compress(path.read_bytes(), 6))
        else:
            print("#", said.splitlines()[-1], file=sys.stderr)
            size = size_of(Path(f"{path}.ml"))
    return cpu + own, own, meanwhile, programs, wall, count, size


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
