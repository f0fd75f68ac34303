"""Share of replays that are the same as recorded, by flow size, grade, congestion control and loss; time errors, cost.

The cost is the wall time of a try, with its networks and the comparison, by the time that was recorded: the mean of a
line.

Each cell is --recordings recordings of a request and its response at 100 Mb/s and 1 ms each way, replayed --runs times
with one try each.  Needs root.

    python bench/replay.py [--runs 20] [--recordings 4] [--sizes 10000,100000] [--grades strict,default]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import NamedTuple

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


class Cell(NamedTuple):
    """``same``: replays that were the same; ``errors``: of their packet times, ns; ``costs``: of each replay."""

    same: int
    errors: list[int]
    costs: list[float]


def measure(traffic: Traffic, runs: int, recordings: int) -> Cell:
    """Replay some recordings, ``runs`` times in all."""
    cell = Cell(0, [], [])
    for number in range(recordings):
        with tempfile.TemporaryDirectory() as folder:
            ends = read_ends(open_records([str(record(Path(folder) / "c.ml", traffic))]))
            script = script_of(pair_ends(ends)[0][0])
        for _ in range(runs // recordings + (number < runs % recordings)):
            began = time.monotonic_ns()
            (outcome,) = outcomes(script, 1)
            cell.costs.append((time.monotonic_ns() - began) / script.length)
            if outcome.verdict.same:
                cell.errors.extend(outcome.verdict.errors)
                cell = cell._replace(same=cell.same + 1)
    return cell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--recordings", type=int, default=4)
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
                strict = grade == "strict"
                cells = [
                    measure(Traffic(size, drops(loss, size, strict), control, strict), chosen.runs, chosen.recordings)
                    for loss in losses
                ]
                shares = [f"{cell.same}/{chosen.runs}" for cell in cells]
                errors = sorted(error for cell in cells for error in cell.errors)
                times = "/".join(f"{errors[len(errors) * p // 100] / 1000:.0f}" for p in (50, 99) if errors)
                cost = mean(cost for cell in cells for cost in cell.costs)
                words = (grade, control, f"{size:,}", *shares, times, f"{cost:.2f}")
                print(f"| {' | '.join(words)} |", flush=True)


if __name__ == "__main__":
    main()
