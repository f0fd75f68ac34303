"""What simulated probes cost: `.venv/bin/python bench/meshsim.py [ROUNDS]`.

Bar: 2 million records a second on one core, written to a MultiLog by the whole command.  In process, least of ROUNDS
(3); `ns` is per record; `log` and `stream` are the whole confluo-pingmesh simulate, into a MultiLog and a pipe.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from timing import ROOT, header, median, row, run

from confluo_tools.network.fleet import make_grid
from confluo_tools.pingmesh.simulate.simulation import SECOND, Fault, ProbeSimulation, SimulationSettings

# name: (data centres, podsets, pods, servers), seconds, faults
FLEETS: dict[str, tuple[tuple[int, int, int, int], int, tuple[str, ...]]] = {
    "240 servers": ((1, 4, 6, 10), 3600, ()),
    "1,000 servers": ((1, 5, 10, 20), 480, ()),
    "the same, 4 faults": (
        (1, 5, 10, 20),
        480,
        ("spine_drops:dc1/1", "podset_failure:ps02", "blackhole1:p003", "blackhole2:p020"),
    ),
    "20,000 servers": ((2, 10, 25, 40), 6, ()),
}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    header("fleet", "pairs", "records", "ms", "ns", "M_records_s", "log_s", "log_M_records_s", "stream_M_records_s")
    for name, (shape, seconds, faults) in FLEETS.items():
        given = tuple(Fault(*fault.split(":")) for fault in faults)
        best, records, pairs = float("inf"), 0, 0
        for _ in range(rounds):
            sim = ProbeSimulation(make_grid(*shape), SimulationSettings(span=seconds * SECOND, faults=given))
            start, records, pairs = time.perf_counter(), 0, sim.core.pairs
            for block in sim.blocks():
                records += block.rows
            best = min(best, time.perf_counter() - start)
        words = [f"--{k}={n}" for k, n in zip(("dcs", "podsets", "pods", "servers"), shape, strict=True)]
        command = [
            str(Path(ROOT) / "bin" / "confluo-pingmesh"),
            "simulate",
            *words,
            f"--span={seconds}s",
            *[f"--fault={fault}" for fault in faults],
        ]
        took = []
        for _ in range(rounds):
            folder = tempfile.mkdtemp()
            took.append(median([run([*command, "-w", f"{folder}/probes.ml"])], "wall"))
            shutil.rmtree(folder)
        log, stream = min(took), median([run([*command, "-ostream"]) for _ in range(rounds)], "wall")
        row(
            name,
            pairs,
            records,
            best * 1e3,
            best / records * 1e9,
            records / best / 1e6,
            log,
            records / log / 1e6,
            records / stream / 1e6,
        )


if __name__ == "__main__":
    main()
