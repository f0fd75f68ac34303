"""Recording many connections at once: what is lost, how much memory it takes, how many replay the same.

    .venv/bin/python bench/replay_many.py [--replays 20] [CASE...]

Client and server are in namespaces with a router of 100 Mb/s and a drop-tail queue between them, each recorded by
confluo-replay-record run (grade strict).  Of each recording --replays connections are replayed, up to 3 tries
each.  Prints TSV; share is that of the connections replayed that are the same.  Needs root.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
sys.path.insert(0, str(ROOT))

import rpc_traffic as rpc
from confluo_tools.inputs.open import open_records
from confluo_tools.replay.recording import RecordedConnection, pair_ends, read_ends
from netns import Lab
from replay_lab import PORT, recorder, routed

SCALE = 1 / 20  # sizes of web search on a link of 100 Mb/s instead of 10 Gb/s, less a few
LOAD = 0.8 * 12.5e6  # B/s
# name: server, caller, connections, plan
CASES = {
    "rpc 400, epoll": (rpc.SERVER_EPOLL, "epoll", 400, rpc.poisson(400, 4000, 2000, 1000)),
    "rpc 400, server of threads": (rpc.SERVER_THREADS, "epoll", 400, rpc.poisson(400, 4000, 2000, 1000)),
    "blocking callers, 40 threads": (rpc.SERVER_THREADS, "threads", 40, rpc.poisson(40, 2000, 1000, 3000)),
    "callers with timeouts, 40 threads": (rpc.SERVER_THREADS, "timeouts", 40, rpc.poisson(40, 2000, 1000, 3000)),
    "incast, 40 to 1": (rpc.SERVER_THREADS, "epoll", 40, rpc.incast(40, 10, 20_000, 0.2)),
    "mix of section 5.2, threads": (rpc.SERVER_THREADS, "threads", 20, rpc.search_mix(20, 4, LOAD, SCALE)),
    "mix of section 5.2, epoll": (rpc.SERVER_EPOLL, "epoll", 20, rpc.search_mix(20, 4, LOAD, SCALE)),
    "8 blocking callers": (rpc.SERVER_THREADS, "threads", 8, rpc.poisson(8, 800, 400, 3000)),
    "8 callers with timeouts": (rpc.SERVER_THREADS, "timeouts", 8, rpc.poisson(8, 800, 400, 3000)),
    "12 of the mix, epoll": (rpc.SERVER_EPOLL, "epoll", 12, rpc.search_mix(12, 2, LOAD, SCALE)),
    "rpc 400, epoll, 4 x as long": (rpc.SERVER_EPOLL, "epoll", 400, rpc.poisson(400, 16000, 2000, 1000)),
}


class Peak(threading.Thread):
    """The most memory that a process has had, in MB."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self.process, self.most = process, 0.0
        self.start()

    def run(self) -> None:
        while self.process.poll() is None:
            try:
                text = Path(f"/proc/{self.process.pid}/status").read_text()
            except OSError:
                return
            if found := re.search(r"VmHWM:\s+(\d+)", text):
                self.most = int(found[1]) / 1024
            time.sleep(0.1)


def recorded(folder: Path, case: str, level: str) -> tuple[list[Path], list[float], float]:
    """The logs of both ends, the memory of their recorders, and how long the programs took."""
    server, caller, many, plan = CASES[case]
    logs = [folder / "client.ml", folder / "server.ml"]
    with Lab() as lab:
        path = routed(lab, towards="client")
        there = recorder(path.server, logs[1], sys.executable, "-c", server, PORT, many, options=("--level", level))
        peaks = [Peak(there)]
        assert there.stdout.readline() == "listening\n"
        begin = time.monotonic()
        asked = folder / "plan.json"
        asked.write_text(rpc.written(plan))
        words = (sys.executable, "-c", rpc.CLIENT, path.server.address, PORT, many, caller, asked)
        here = recorder(path.client, logs[0], *words, options=("--level", level))
        peaks.append(Peak(here))
        assert here.wait(300) == 0
        took = time.monotonic() - begin
        assert there.wait(300) == 0
    return logs, [peak.most for peak in peaks], took


def replayed(logs: list[Path], connections: list[RecordedConnection], share: int) -> list[tuple[str, bool]]:
    """(flow, whether a replay was the same) of a few connections, evenly chosen."""
    found = []
    chosen = connections[:: max(len(connections) // share, 1)][:share]
    for connection in chosen:
        flow = str(connection.client.flow)
        words = [str(ROOT / "bin/confluo-replay"), *map(str, logs), "--flow", flow, "--tries", "3"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        found.append((flow, done.returncode == 0))
        if done.returncode:
            print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
    return found


def parquet_size(log: Path) -> int:
    """Bytes of a log as Parquet, as it is archived."""
    out = log.with_suffix(".parquet")
    subprocess.run([ROOT / "bin/confluo-convert", "-q", log, "-w", out, "--force"], check=True)
    return out.stat().st_size


def row(case: str, replays: int, level: str) -> str:
    with tempfile.TemporaryDirectory() as name:
        logs, memory, took = recorded(Path(name), case, level)
        ends = [end for log in logs for end in read_ends(open_records([str(log)]))]
        connections, alone = pair_ends(ends)
        packets = sum(end.packets_sent + end.packets_received for end in ends)
        able = [c for c in connections if not c.problems]
        for connection in connections:
            for problem in connection.problems[:1]:
                print(f"{connection.client.flow}: {problem}", file=sys.stderr)
        same = [ok for _, ok in replayed(logs, able, replays)]
        size = sum(parquet_size(log) for log in logs)
        lost = max((end.lost for end in ends), default=0)
        gone = sum(c.server.packets_sent - c.client.packets_received for c in connections)
        figures = (len(connections), len(alone), packets, gone, lost, len(able), f"{sum(same)}/{len(same)}")
        return "\t".join(map(str, (case, *figures, f"{max(memory):.0f}", f"{size / packets:.1f}", f"{took:.1f}")))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("cases", nargs="*", metavar="CASE", help="beginnings of names")
    arguments.add_argument("--replays", type=int, default=20)
    arguments.add_argument("--level", default="signals", help="of the recordings: signals or headers")
    given = arguments.parse_args()
    columns = ("case", "connections", "alone", "packets", "dropped", "lost_events", "replayable", "same")
    print("\t".join((*columns, "peak_mb", "log_b_per_packet", "seconds")), flush=True)
    for case in CASES:
        if not given.cases or any(case.startswith(word) for word in given.cases):
            print(row(case, given.replays, given.level), flush=True)


if __name__ == "__main__":
    main()
