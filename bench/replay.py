"""Share of replays that are the same as recorded, by flow size, grade, congestion control and loss; time errors, cost.

The cost is the wall time of a try, with its networks and the comparison, by the time that was recorded: the mean of a
line.

Each cell is one recording of a request and its response at 100 Mb/s and 1 ms each way, replayed --runs times with
one try each.  Needs root.

    python bench/replay.py [--runs 20] [--sizes 10000,30000,100000,1000000] [--grades strict,default]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "tests/support")]

from confluo_tools.inputs.open import open_records
from confluo_tools.replay.engine.script import script_of
from confluo_tools.replay.engine.tries import outcomes
from confluo_tools.replay.recording import pair_ends, read_ends
from free_run import SERVER, Traffic, record

MSS = 1448


def drops(loss: str, size: int, strict: bool) -> frozenset[tuple[int, int]]:
    """Packets of the server that are lost.  With default settings a packet has several segments."""
    packets = max(size // MSS, 4) if strict else max(size // (MSS * 20), 4)
    numbers = {
        "none": [],
        "1%": [n for n in range(3, packets) if random.Random(n).random() < 0.01] or [packets // 2],
        "tail": [packets + 1, packets],
        "burst": list(range(packets // 2, packets // 2 + 3)),
    }[loss]
    return frozenset((SERVER, n) for n in numbers)


def measure(traffic: Traffic, runs: int) -> tuple[int, float, float, float]:
    """(runs that were the same, p50 and p99 of the time errors of the last one in us, cost of a run)."""
    with tempfile.TemporaryDirectory() as folder:
        ends = read_ends(open_records([str(record(Path(folder) / "c.ml", traffic))]))
        script = script_of(pair_ends(ends)[0][0])
        same, p50, p99 = 0, 0.0, 0.0
        began = time.monotonic_ns()
        for _ in range(runs):
            (outcome,) = outcomes(script, 1)
            same += outcome.verdict.same
            p50, p99 = outcome.verdict.percentile(50), outcome.verdict.percentile(99)
        cost = (time.monotonic_ns() - began) / runs / script.length
    return same, p50, p99, cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--sizes", default="10000,30000,100000,1000000")
    parser.add_argument("--grades", default="strict,default")
    parser.add_argument("--controls", default="reno,cubic,bbr")
    parser.add_argument("--losses", default="none,1%,tail,burst")
    chosen = parser.parse_args()
    losses = chosen.losses.split(",")
    print(f"| grade | control | size | {' | '.join(losses)} | p50/p99 us | cost |")
    print("|---" * (len(losses) + 5) + "|")
    for grade in chosen.grades.split(","):
        for control in chosen.controls.split(","):
            for size in map(int, chosen.sizes.split(",")):
                cells, times, costs = [], "", []
                for loss in losses:
                    strict = grade == "strict"
                    traffic = Traffic(size, drops(loss, size, strict), control, strict)
                    same, p50, p99, cost = measure(traffic, chosen.runs)
                    cells.append(f"{same}/{chosen.runs}")
                    times = f"{p50:.1f}/{p99:.0f}"
                    costs.append(cost)
                words = (grade, control, f"{size:,}", *cells, times, f"{mean(costs):.2f}")
                print(f"| {' | '.join(words)} |", flush=True)


if __name__ == "__main__":
    main()
