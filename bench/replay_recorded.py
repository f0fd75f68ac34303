"""Share of recordings of real programs that replay the same: at the first try, and within three.

A program sends --size bytes through a real drop-tail queue; `confluo-replay-record run` records both ends (grade
strict), once for each recording.  The level bpf is --source bpf.  Needs root.

    python bench/replay_recorded.py [--recordings 20] [--levels headers,signals,bpf] [--senders client,server]
                                    [--versions 4,6] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "tests/support")]

import replay_lab
from confluo_tools.inputs.open import open_records
from confluo_tools.replay.engine.script import script_of
from confluo_tools.replay.engine.tries import outcomes
from confluo_tools.replay.recording import pair_ends, read_ends
from netns import Lab

TRIES = 3


def recorded(folder: Path, size: int, sender: str, version: int, level: str, limit: int) -> None:
    """Record one transfer: client.ml and server.ml in ``folder``."""
    if sender == "client":
        towards, client, server = "server", replay_lab.BULK, replay_lab.SINK
    else:
        towards, client, server = "client", replay_lab.FETCH, replay_lab.SOURCE
    with Lab() as lab:
        path = replay_lab.routed(lab, limit=limit, version=version, towards=towards)
        replay_lab.record(
            path,
            folder,
            client,
            size,
            server=server,
            options=("--source", "bpf") if level == "bpf" else ("--level", level),
        )


def tries_until_same(folder: Path) -> tuple[int, str]:
    """The try that was the same, 0: none; and the first difference of the first try."""
    ends = [e for name in ("client", "server") for e in read_ends(open_records([str(folder / f"{name}.ml")]))]
    connections, _ = pair_ends(ends)
    if len(connections) != 1 or connections[0].problems:
        return 0, f"cannot be replayed: {connections[0].problems if connections else 'no connection'}"
    found = ""
    for number, outcome in enumerate(outcomes(script_of(connections[0]), TRIES), 1):
        if outcome.verdict.same:
            return number, found
        found = found or str(outcome.verdict.differences[0])
    return 0, found


@contextmanager
def place(keep: str | None, name: str) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    folder = Path(keep) / name
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=int, default=20)
    parser.add_argument("--size", type=int, default=2_000_000)
    parser.add_argument("--limit", type=int, default=60_000, help="bytes of the queue")
    parser.add_argument("--levels", default="headers,signals")
    parser.add_argument("--senders", default="client,server")
    parser.add_argument("--versions", default="4,6")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the recordings, and replay those that are there")
    chosen = parser.parse_args()
    print("| sender | IP | level | same at the first try | within 3 tries |")
    print("|---|---|---|---|---|", flush=True)
    for sender in chosen.senders.split(","):
        for version in map(int, chosen.versions.split(",")):
            for level in chosen.levels.split(","):
                if version == 6 and level == "signals":
                    continue  # packets of IPv6 have no identification: without headers they cannot be told apart
                first = within = 0
                for n in range(chosen.recordings):
                    name = f"{sender}-{version}-{level}-{n}"
                    with place(chosen.keep, name) as folder:
                        if not (folder / "server.ml").exists():
                            recorded(folder, chosen.size, sender, version, level, chosen.limit)
                        same, difference = tries_until_same(folder)
                    first += same == 1
                    within += same > 0
                    if difference:
                        print(f"{name}: try {same}: first differed: {difference}", file=sys.stderr, flush=True)
                total = chosen.recordings
                print(f"| {sender} | {version} | {level} | {first}/{total} | {within}/{total} |", flush=True)


if __name__ == "__main__":
    main()
