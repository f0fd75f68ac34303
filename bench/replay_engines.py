"""How similar the engines of a replay stay to the recording: serial, decoupled and naive.

Each line is 2 MB at 100 Mb/s and 1 ms each way with five lost packets, replayed --runs times with one try each.
Similarity is of (seq, len, flags) of what client and server sent; of the acknowledgement numbers of the client.
Needs root.

    python bench/replay_engines.py [--runs 12]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import mean

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "tests/support")]

from confluo_tools.inputs.open import open_records
from confluo_tools.replay.engine.attempt import Attempt
from confluo_tools.replay.engine.segments import SentPacket
from confluo_tools.replay.engine.similarity import recorded_packets, similarities, similarity
from confluo_tools.replay.engine.tries import ENGINES, engine_script, outcomes
from confluo_tools.replay.recording import pair_ends, read_ends
from free_run import SERVER, Traffic, record

SIZE = 2_000_000
LOST = {True: (40, 41, 300, 700, 1100), False: (4, 5, 20, 40, 60)}  # strict or not: packets of the server


def acknowledgements(done: Attempt) -> float:
    """Similarity of the acknowledgement numbers of the client."""
    recorded = recorded_packets(done.script.connection.client)
    one, two = ([SentPacket(0, p.ack, 0, 0, 0, 0) for p in side] for side in (recorded, done.segments[0]))
    return similarity(one, two)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12)
    runs = parser.parse_args().runs
    print("| grade | control | engine | same | server | client | acknowledgements |")
    print("|---" * 7 + "|")
    for strict in (True, False):
        for control in ("reno", "cubic", "bbr"):
            traffic = Traffic(SIZE, frozenset((SERVER, n) for n in LOST[strict]), control, strict)
            with tempfile.TemporaryDirectory() as folder:
                ends = read_ends(open_records([str(record(Path(folder) / "c.ml", traffic))]))
                connection = pair_ends(ends)[0][0]
            for engine in ENGINES:
                found = []
                for _ in range(runs):
                    (outcome,) = outcomes(engine_script(connection, engine), 1, naive=engine == "naive")
                    shares = similarities(outcome.done)
                    found.append((outcome.verdict.same, shares[1], shares[0], acknowledgements(outcome.done)))
                same, *shares = zip(*found, strict=True)
                words = " | ".join(f"{mean(share):.3f}" for share in shares)
                grade = "strict" if strict else "default"
                print(f"| {grade} | {control} | {engine} | {sum(same)}/{runs} | {words} |", flush=True)


if __name__ == "__main__":
    main()
