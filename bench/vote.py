"""What confluo-vote costs: counting path records, and judging an epoch by each model.

Bars, on one core: an epoch of 75,000 flows, 1,000 of them with loss, over 2,500 links is judged in 20 ms by votes and
in 100 ms by likelihood (counting included); 1 million records a second are counted; the cost grows in step with the
flows, from 10^4 to 10^7.

    bench/vote.py                       # to 10^6 flows: some seconds
    bench/vote.py --flows 1e7           # to 10^7
    bench/vote.py --trace FILE.xz ...   # traces of Flock; what it takes to unpack, to read and for the whole command

TSV: flows of the epoch, those with loss, links, ms to count them (ns a record), ms of vote, mle with fitted and with
given parameters, and cover; of a shared machine the best of three.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from confluo_tools.core.vote.flow_tally import FlowTally
from confluo_tools.formats.bytestream import open_bytes, unzip
from confluo_tools.inputs.open import open_one
from confluo_tools.network.topology import Clos
from confluo_tools.vote import models
from confluo_tools.vote.simulator import ClosSettings, ClosSimulation, probability

NET = Clos(5, 10, 5, 10, 15)  # 750 hosts, 2,500 directed links
COLUMNS = ("flows", "lossy", "links", "count_ms", "ns_a_record", "vote_ms", "mle_ms", "mle_given_ms", "cover_ms")


def best(call: Callable[[], Any], times: int = 3) -> float:
    """Seconds of the fastest of some calls."""
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return min(took)


def judged(tally: FlowTally) -> list[float]:
    """ms of each model."""
    given = models.ModelSettings(p_bad=0.003, p_good=0.0002)
    ways = (
        ("vote", models.ModelSettings()),
        ("mle", models.ModelSettings()),
        ("mle", given),
        ("cover", models.ModelSettings()),
    )
    return [1e3 * best(lambda m=model, s=settings: models.judge(tally, m, s, None)) for model, settings in ways]


def simulated(flows: int) -> list[Any]:
    """One epoch of N flows (a multiple of the hosts)."""
    each = max(flows // NET.all_hosts, 1)
    noise = probability(2e-6 * 50 * 100 / each)  # about 1 % of 75,000 flows lose packets, fewer of more
    settings = ClosSettings(seed=1, failures=8, noise=noise, connections=(each, each), healthy=2)
    tally, took, records = FlowTally(), 0.0, 0
    for block in ClosSimulation(NET, settings).blocks():
        begin = time.perf_counter()
        tally.add(block, 0, block.rows)
        took += time.perf_counter() - begin
        records += block.rows
    return [tally.records, tally.flows, tally.components, 1e3 * took, 1e9 * took / records, *judged(tally)]


def traced(path: str) -> list[Any]:
    """A trace, counted from memory."""
    blocks = list(open_one(path))
    tally = FlowTally()

    def count() -> None:
        nonlocal tally
        tally = FlowTally()
        for block in blocks:
            tally.add(block, 0, block.rows)

    took = best(count)
    return [tally.records, tally.flows, tally.components, 1e3 * took, 1e9 * took / tally.records, *judged(tally)]


def unpacked(path: str) -> None:
    """The bytes of a trace and no more: what reading it cannot be faster than."""
    with closing(unzip(open_bytes(path))) as stream:
        while stream.some():
            pass


def line(values: list[Any]) -> None:
    print("\t".join([f"{v:.2f}" if isinstance(v, float) else str(v) for v in values]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flows", type=float, default=1e6, help="the largest epoch")
    parser.add_argument("--trace", nargs="*", default=[], help="traces of Flock instead")
    options = parser.parse_args()
    print("#fields\t" + "\t".join(COLUMNS) + ("\tunpack_ms\tread_ms\tcommand_ms" if options.trace else ""))
    for path in options.trace:
        command = [ROOT / "bin" / "confluo-vote", path, "--model", "mle", "-T"]
        whole = best(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=False))  # noqa: B023
        steps = (lambda: unpacked(path), lambda: list(open_one(path)))  # noqa: B023
        line([*traced(path), *[1e3 * best(step) for step in steps], 1e3 * whole])
    flows = 10_000
    while flows <= options.flows and not options.trace:
        line(simulated(flows))
        if flows == 10_000:
            line(simulated(75_000))
        flows *= 10


if __name__ == "__main__":
    main()
