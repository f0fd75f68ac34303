"""Analyses of probes and paths on one core and on all: whole commands over a log in the page cache.  Prints TSV.

    .venv/bin/python bench/engine_analyses.py [--probes 2e7] [--paths 1e7] [--times 3] [--folder FOLDER]

Each figure is the best of --times; the last column is the time on one core divided by that on all.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sla import make

from confluo_tools import multilog
from confluo_tools.network.topology import Clos
from confluo_tools.vote.simulator import ClosSettings, ClosSimulation

CORES = len(os.sched_getaffinity(0))
FLOWS = 45_000  # of an epoch of the network below
QUESTIONS = {
    "sla by podset": "confluo-pingmesh sla PROBES --window 1m --by podset",
    "sla by pair of podsets": "confluo-pingmesh sla PROBES --window 1m --by podset_pair",
    "sla by server": "confluo-pingmesh sla PROBES --by server",
    "vote": "confluo-vote PATHS --epoch 30s",
    "vote, flows": "confluo-vote PATHS --epoch 30s --flows",
    "vote, likelihood": "confluo-vote PATHS --epoch 30s --model mle",
}


def make_paths(path: Path, rows: int) -> None:
    """A log of whole epochs: flows of 750 hosts with their paths, two links that drop packets."""
    settings = ClosSettings(failures=2, healthy=2, epochs=max(rows // FLOWS, 1))
    simulation = ClosSimulation(Clos(5, 10, 5, 10, 15), settings)
    with multilog.create(str(path), simulation.schema) as log, log.writer() as writer:
        for block in simulation.blocks():
            writer.append(block)


def best(words: list[str], times: int) -> float:
    """Seconds of the fastest run."""
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        done = subprocess.run(words, stdout=subprocess.DEVNULL, check=False)
        if done.returncode > 1:
            raise SystemExit(f"status {done.returncode}: {' '.join(words)}")
        took.append(time.perf_counter() - begin)
    return min(took)


def rows_of(path: Path) -> int:
    with multilog.open(str(path), readonly=True) as log:
        return int(log.version().kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probes", type=float, default=2e7)
    parser.add_argument("--paths", type=float, default=1e7)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where the logs are, or are made; they are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        logs = {"PROBES": folder / "probes.ml", "PATHS": folder / "paths.ml"}
        if not logs["PROBES"].exists():
            make(logs["PROBES"], int(options.probes))
        if not logs["PATHS"].exists():
            make_paths(logs["PATHS"], int(options.paths))
        print("#fields\tquestion\trows\tone_core_s\tall_cores_s\tM_rows_a_second\tspeed_up", flush=True)
        for name, text in QUESTIONS.items():
            program, *words = [str(logs.get(word, word)) for word in text.split()]
            log = next(path for word, path in logs.items() if word in text)
            command = [str(ROOT / "bin" / program), *words, "-T"]
            one, several = best(command, options.times), best([*command, "--engine", "local"], options.times)
            rate = rows_of(log) / several / 1e6
            print(name, rows_of(log), f"{one:.2f}", f"{several:.2f}", f"{rate:.1f}", f"{one / several:.2f}", sep="\t")


if __name__ == "__main__":
    main()
