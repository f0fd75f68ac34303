#!/usr/bin/env python3
"""What confluo-pingmesh blackholes and drops cost: whole commands over the log of a simulated fleet.

Bars, on one core, when one ToR is a black hole and another drops 1 %: 400 ns of CPU a probe for three minutes, 200 ns
for ten and more, start and 157,000 pairs of servers included; memory grows with pairs and failures, not with probes.

    bench/locate.py                     # 1,600 servers, three minutes: 3 million probes, some seconds
    bench/locate.py --span 30m          # 28 million

TSV: what is broken, probes, command, seconds and ns of CPU a probe, peak memory in MB (the pages of the log that it
looked at among it); best of ROUNDS.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from timing import ROOT, Run, in_turn, machine, run

PINGMESH = str(ROOT / "bin" / "confluo-pingmesh")
SHAPE = ("--podsets=8", "--pods=10", "--servers=20")
FAULTS = {
    "ToRs": ("blackhole1:p003", "tor_drops:p045"),
    "podset down": ("podset_down:ps02",),
    "spines eat 5 % of ports": ("blackhole2:dc1",),
}
COLUMNS = ("broken", "probes", "command", "cpu_s", "ns_a_probe", "peak_mb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--span", default="3m", help="of the records (3m)")
    parser.add_argument("--rounds", type=int, default=2, help="of each command (2)")
    args = parser.parse_args()
    print(machine())
    print("#fields", *COLUMNS, sep="\t")
    for name, faults in FAULTS.items():
        with tempfile.TemporaryDirectory() as folder:
            log = str(Path(folder) / "probes.ml")
            words = [PINGMESH, "simulate", "-q", *SHAPE, "--span", args.span, *(f"--fault={f}" for f in faults)]
            subprocess.run([*words, "-w", log], check=True)
            count = [str(ROOT / "bin" / "confluo-query"), log, "kind == tcp", "--count"]
            probes = int(subprocess.run(count, check=True, capture_output=True).stdout)
            commands: dict[str, Callable[[], Run]] = {
                verb: partial(run, [PINGMESH, verb, "-q", log, "-T", "--top", "10"]) for verb in ("blackholes", "drops")
            }
            for verb, results in in_turn(commands, args.rounds).items():
                best = min(results, key=lambda result: result.cpu)
                print(
                    name,
                    probes,
                    verb,
                    f"{best.cpu:.2f}",
                    f"{best.cpu / probes * 1e9:.0f}",
                    f"{best.peak / 1e6:.0f}",
                    sep="\t",
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
