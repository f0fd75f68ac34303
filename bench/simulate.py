"""What an epoch of the simulator takes: `.venv/bin/python bench/simulate.py [ROUNDS]`.

Bars: the paper's default epoch (1,600 hosts, 96,000 flows) in 50 ms; an epoch of 100,000 hosts in seconds.  In process,
least of ROUNDS (5); `ns` is per flow; `command` is the whole confluo-vote simulate, its records as a stream.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from timing import ROOT, header, median, row, run

from confluo_tools.network.topology import Clos
from confluo_tools.vote.simulator import HEALTHY, ClosSettings, ClosSimulation

NETWORKS = {
    "paper": Clos(2, 20, 8, 10, 40),
    "10,000 hosts": Clos(8, 32, 16, 16, 40),
    "100,000 hosts": Clos(50, 50, 16, 32, 40),
}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    header("network", "links", "flows", "healthy", "records", "ms", "ns", "command_ms")
    for name, clos in NETWORKS.items():
        for healthy in HEALTHY if name == "paper" else HEALTHY[:1]:
            sim = ClosSimulation(clos, ClosSettings(failures=5, healthy=HEALTHY.index(healthy)))
            best, records = float("inf"), 0
            for _ in range(rounds):
                start, records = time.perf_counter(), 0
                for block in sim.epoch(0):
                    records += block.rows
                best = min(best, time.perf_counter() - start)
            flows = clos.all_hosts * 60
            words = [f"--{k}={getattr(clos, k)}" for k in ("pods", "tors", "t1s", "t2s", "hosts")]
            command = [
                str(Path(ROOT) / "bin" / "confluo-vote"),
                "simulate",
                *words,
                "--failures=5",
                "-ostream",
                f"--healthy={healthy}",
            ]
            whole = median([run(command) for _ in range(min(rounds, 3))], "wall")
            row(name, clos.links, flows, healthy, records, best * 1e3, best / flows * 1e9, whole * 1e3)


if __name__ == "__main__":
    main()
