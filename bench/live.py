"""Live capture on a veth pair against tcpdump -w and dumpcap -w: what each keeps of the same load, at what CPU.

usage: bench/live.py [FRAMES [RING [RATE...]]]      1500000 frames, rings of 8 MiB, 200k, 500k, 0 and -3 frames/s

A rate of 0 is all that one sender can do, -N all that N can.

Each tool captures what bench/blast.py sends (frames of examples/data/campus.pcap.gz, 97 bytes on average, and a mix of
64, 576 and 1514 bytes), into files on the disk of $TMPDIR, with rings of the same size.  "+ views" is ours with two
indexes, 16 filters and 100 triggers at work.  Ours runs with --sync none, as neither of the others waits for the disk.
$TMPDIR: a file system on which no process has just removed many files, or ext4 takes 20 times as long to create one.

Prints TSV: load, frames/s wanted and sent, tool, packets sent, kept and dropped, nanoseconds of CPU (user and system,
all threads) for each packet kept.  The bar: we keep at least as many as the better of tcpdump and dumpcap, at no more
CPU a packet.  Needs root.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from blast import CAMPUS
from timing import ROOT, header, row

sys.path.insert(0, str(ROOT / "tests" / "support"))
from netns import Lab, Space, missing

CAPTURE = str(ROOT / "bin" / "confluo-capture")
FILTERS = [f"dst_port == {port}" for port in (22, 25, 53, 80, 123, 143, 179, 443, 445, 993, 3306, 5432, 6379, 8080)]
FILTERS += ["tcp_flags has syn", "proto == udp and len > 100"]


def mix(path: Path) -> None:
    """A capture of UDP packets of 64, 576 and 1514 bytes, 7 : 4 : 1, of 256 flows."""
    import struct

    out = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)]
    for k in range(3072):
        size = (64, 576, 64, 64, 576, 64, 1514, 64, 576, 64, 576, 64)[k % 12]
        ip = struct.pack(">BBHHHBBHII", 0x45, 0, size - 14, k, 0, 64, 17, 0, 0x0A4D0001, 0x0A4D0002)
        udp = struct.pack(">HHHH", 1024 + k % 256, 9000 + k % 7, size - 34, 0)
        frame = bytes.fromhex("020000010002020000010001") + b"\x08\0" + ip + udp
        frame += bytes(size - len(frame))
        out.append(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
    path.write_bytes(b"".join(out))


def cpu_of(pid: int) -> float:
    """Seconds on a CPU, in user and system, of all threads of a process: by the scheduler's clock, not in ticks."""
    return sum(int(t.read_text().split()[0]) for t in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def count(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    return int(found[-1]) if found else -1


def with_views(log: Path) -> list[subprocess.Popen[bytes]]:
    """Add filters and an aggregate, and start a monitor with 100 triggers."""
    for i, text in enumerate(FILTERS):
        subprocess.run(
            [ROOT / "bin/confluo-index", log, "add", "filter", f"f{i}", text], check=True, stdout=subprocess.DEVNULL
        )
    subprocess.run(
        [ROOT / "bin/confluo-index", log, "add", "aggregate", "bytes", "sum(len)", "--bucket", "1ms"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    triggers = [w for i in range(100) for w in ("--trigger", f"t{i}: bytes > {i + 1}P over 1s every 1ms")]
    return [subprocess.Popen([ROOT / "bin/confluo-monitor", log, *triggers, "-o", "ndjson"], stdout=subprocess.DEVNULL)]


def measure(name: str, command: list[str], here: Space, there: Space, load: list[str], scratch: Path) -> list[object]:
    """One tool under one load: frames/s sent, packets sent, kept, dropped, ns of CPU a packet."""
    tool = here.popen(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    beside: list[subprocess.Popen[bytes]] = []
    try:
        time.sleep(1.0)
        if "views" in name:
            beside = with_views(scratch / "log")
            time.sleep(1.0)
        before = cpu_of(tool.pid)
        sent, seconds = there.run(sys.executable, ROOT / "bench" / "blast.py", "v0", *load).stdout.split()
        time.sleep(1.5)  # tcpdump and dumpcap are handed their last packets after a second
        used = cpu_of(tool.pid) - before
    finally:
        for process in beside:
            process.send_signal(signal.SIGTERM)
            process.wait()
        tool.send_signal(signal.SIGINT)
        words = tool.communicate()[1].decode()
    if name.startswith("tcpdump"):
        kept, dropped = count(r"(\d+) packets captured", words), count(r"(\d+) packets dropped by kernel", words)
    elif name.startswith("dumpcap"):
        kept, dropped = count(r"Packets captured: (\d+)", words), count(r"on interface '.*?': \d+/(\d+)", words)
    else:
        kept, dropped = count(r"(\d+) kept", words), count(r"(\d+) dropped by the kernel", words)
    return [round(int(sent) / float(seconds)), int(sent), kept, dropped, round(used * 1e9 / max(kept, 1))]


def main(frames: int, ring: int, rates: list[int]) -> None:
    if missing():
        raise SystemExit(missing())
    scratch = Path(tempfile.mkdtemp(prefix="confluo-bench-"))
    # In turn, the machine may drift.  Root may write as root: neither tool changes its user.
    ours = [CAPTURE, "-i", "v0", "--sync", "none", "--ring", f"{ring}MiB", "-w", f"{scratch}/log"]
    tools = {
        "tcpdump -w": ["tcpdump", "-i", "v0", "-B", str(ring << 10), "-Z", "root", "-w", f"{scratch}/a.pcap"],
        "dumpcap -w": ["dumpcap", "-q", "-i", "v0", "-B", str(ring), "-w", f"{scratch}/b.pcap"],
        "confluo-capture": ours,
        "confluo-capture + views": [*ours, "--index", "src_ip,dst_port"],
    }
    if not (ROOT / "bin/confluo-monitor").exists():
        del tools["confluo-capture + views"]
    mix(scratch / "mix.pcap")
    header("load", "asked_per_s", "sent_per_s", "tool", "sent", "kept", "dropped", "cpu_ns_per_packet")
    try:
        with Lab() as lab:
            there, here = lab.pair()
            for load, capture in (("campus", CAMPUS), ("mix", scratch / "mix.pcap")):
                for rate in rates:
                    for name, command in tools.items():
                        if shutil.which(command[0]) is None:
                            continue
                        words = [str(frames), str(max(rate, 0)), str(max(-rate, 1)), str(capture)]
                        speed, *rest = measure(name, command, here, there, words, scratch)
                        row(load, rate if rate > 0 else f"all of {max(-rate, 1)}", speed, name, *rest)
                        for left in scratch.iterdir():
                            if left.is_dir():
                                shutil.rmtree(left)
                            elif left.name != "mix.pcap":
                                left.unlink()
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(
        int(words[0]) if words else 1_500_000,
        int(words[1]) if len(words) > 1 else 8,
        [int(w) for w in words[2:]] or [200_000, 500_000, 0, -3],
    )
