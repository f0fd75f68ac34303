"""Faults in a Clos of 18 namespaces, and what confluo-vote blames for them.  Prints TSV.  Root only.

    .venv/bin/python bench/vote_faults.py [--runs 4] [--only 100%] [--keep DIR]     # live
    .venv/bin/python bench/vote_faults.py --again DIR                               # judge kept records again
    .venv/bin/python bench/vote_faults.py --simulate [--runs 200] [--paper]         # by confluo-vote simulate --deaths

For each fault and run, on another directed link each time: 240 flows of 50 kB that are given up after 12 s,
confluo-retx on each host meanwhile, then confluo-trace on each host and confluo-vote over all of it.
Judgements: `vote` and `mle` with records of all flows; `lossy` is `vote` with records of flows with loss only;
`plain` is that without a topology.
`--simulate`: 30 flows of 35 packets per host of the same network, another failed link each run; with `--paper` 60 flows
of 1 to 100 packets per host of the paper's network.  Columns: runs; runs with
the failed link first of the blamed (`right`); runs with other links blamed (`false`, `links`
of them in all); runs that report a black hole (`holes`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from timing import ROOT, header, row

sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "clos"), str(ROOT / "examples" / "lab")]
import agents
import clos
import drops
import load
import net
import proof
import spaces

from confluo_tools.core.vote.flow_tally import FlowTally
from confluo_tools.network.ecmp import Routes
from confluo_tools.network.topology import Clos, make_clos
from confluo_tools.vote import models, voting
from confluo_tools.vote.models import Judgement, ModelSettings
from confluo_tools.vote.simulator import HOLES, ClosSettings, ClosSimulation, probability

LINKS = [
    ("h1", "tor1"),
    ("tor1", "agg2"),
    ("agg1", "core1"),
    ("core1", "agg3"),
    ("agg3", "tor4"),
    ("tor2", "h3"),
    ("h6", "tor3"),
    ("tor4", "agg3"),
    ("agg4", "core2"),
    ("core2", "agg1"),
    ("agg2", "tor1"),
    ("tor3", "h5"),
]
SHARES = ("none", "0.5%", "2%", "10%", "30%", "60%", "100%", "1/8 pairs", "1/8 flows")
GIVE_UP = 12.0  # s
PARALLEL = 80  # with more flows at the same time the queues behind veth pairs are full
BIN = Path(os.environ.get("CONFLUO_BIN", ROOT / "bin"))  # another version, to compare with
agents.PATIENCE = 120.0  # a busy machine
MODELS = {
    "vote": ("--model", "vote"),
    "mle": ("--model", "mle"),
    "lossy": ("--model", "vote"),
    "plain": ("--model", "vote"),
}


def run(args: argparse.Namespace, top: Path) -> None:
    plan = clos.Clos()
    file = top / "clos.yaml"
    state = spaces.up(plan, str(file), f"bench{os.getpid()}")
    port = 10_000
    try:
        file.write_text(clos.describe(plan))
        for share in SHARES:
            for number in range(args.runs if args.only in (None, share) else 0):
                link = LINKS[(number + SHARES.index(share)) % len(LINKS)]
                folder = top / f"{share.replace('/', '-').replace(' ', '-')}.{number}"
                folder.mkdir()
                (folder / "fault.json").write_text(json.dumps([share, link]))
                drops.forget(state, plan)
                if share != "none":
                    places = [link]
                    if share.endswith("s"):  # a black hole is in a switch: it does not depend on the link
                        node = link[1] if link[1][0] != "h" else link[0]
                        places = [(peer.name, node) for peer, _, _ in plan.around(node)]
                    for place in places:
                        drops.drop(state, plan, *place, share)
                flows = load.choose(plan, args.flows, 50_000, number + 100, first_port=port)
                port += args.flows
                if port > 60_000:
                    port = 10_000
                it = proof.Proof(state, plan, folder, {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"})
                it.load_with(flows, proof.RETX, parallel=PARALLEL, give_up=GIVE_UP)
                it.trace(rate=200)
                (folder / "undone").write_text(str(sum(not flow.done for flow in flows)))
    finally:
        net.down(state)


def judged(folder: Path, name: str) -> Iterator[tuple[str, str, str]]:
    """(link_a, link_b, verdict) of what is not good."""
    logs = sorted(str(one) for one in folder.glob("*.paths.ml"))
    words = [str(BIN / "confluo-vote"), *MODELS[name], "-q", "-T", "-f", "link_a,link_b,verdict"]
    data = None
    if name in ("lossy", "plain"):
        query = [str(BIN / "confluo-query"), "-e", "lost > 0 || notes has probe", *logs, "-o", "stream"]
        done = subprocess.run(query, capture_output=True, check=False)
        if b"probe" in done.stderr:
            query[2] = "lost > 0"
            done = subprocess.run(query, capture_output=True, check=False)
        data, logs = done.stdout, ["-"]
        if done.returncode == 1:
            return
    if name != "plain":
        words += ["--topology", str(folder.parent / "clos.yaml")]
    done = subprocess.run([*words, *logs], input=data, capture_output=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr.decode())
    owner = clos.Clos().owner()
    for line in done.stdout.decode().splitlines():
        if not line.startswith("#"):
            a, b, verdict = line.split("\t")[:3]
            if verdict != "good":
                yield owner.get(a, a), owner.get(b, b), verdict


def table(top: Path, verbose: bool) -> None:
    found: dict[tuple[str, str], list[int]] = {}
    for folder in sorted(top.iterdir()):
        if not (folder / "fault.json").exists():
            continue
        share, link = json.loads((folder / "fault.json").read_text())
        for name in MODELS:
            out = list(judged(folder, name))
            blamed = [(a, b) for a, b, verdict in out if verdict == "bad"]
            mine = [tuple(link), (link[0], "?")] if name == "plain" else [tuple(link)]
            others = [one for one in blamed if one not in mine]
            sums = found.setdefault((share, name), [0] * 5)
            figures = (1, bool(blamed) and blamed[0] in mine, bool(others), len(others), len(out) > len(blamed))
            for i, n in enumerate(figures):
                sums[i] += n
            if verbose:
                print(f"# {folder.name} {'>'.join(link)} {name}: {' '.join('>'.join(one) for one in out)}", flush=True)
    header("fault", "model", "runs", "right", "false", "links", "holes")
    for share in SHARES:
        for name in MODELS:
            if (share, name) in found:
                row(share, name, *found[share, name])


def simulate(runs: int, paper: bool, seed: int, verbose: bool) -> None:
    """Judge simulated epochs; several links are not made to fail."""
    size = Clos(2, 20, 8, 10, 40) if paper else Clos(2, 2, 2, 2, 2)
    routes = Routes(make_clos(size))
    traffic = {} if paper else {"connections": (30, 30), "packets": (35, 35)}
    header("fault", "model", "runs", "right", "false", "links", "holes")
    for share in SHARES:
        hole = share.split()[-1] if share.endswith("s") else "none"
        rate = probability(0.125 if hole != "none" else 0 if share == "none" else float(share[:-1]) / 100)
        sums = {name: [0] * 5 for name in MODELS}
        for number in range(seed, seed + runs):
            where = [number % 6] if not paper else [1 + number % 4]
            failures = {"devices": 1, "failures": 0} if hole != "none" else {"failures": int(rate > 0), "where": where}
            made = ClosSettings(
                seed=number,
                deaths=True,
                holes=HOLES.index(hole),
                rates=[(rate, rate)],
                healthy=1,
                **failures,
                **traffic,
            )
            for name, out in epoch(ClosSimulation(size, made), routes).items():
                failed = set(out.localiser.tally.truth())
                blamed = [out.localiser.tally.key(n) for n in out.accused()]
                right = [one for one in blamed if voting.compare([one], failed).right or _open_end(one, failed)]
                others = [one for one in blamed if one not in right]
                holes = "black_hole" in out.kinds.values()
                for i, n in enumerate((1, bool(right) and right[0] == blamed[0], bool(others), len(others), holes)):
                    sums[name][i] += n
                if verbose and (others or (rate and not right)):
                    print(f"# {share} seed {number} {name}: failed {failed} blamed {blamed} {out.kinds}")
        for name in MODELS:
            row(share, name, *sums[name])


def _open_end(link: tuple[int, int], failed: set[tuple[int, int]]) -> bool:
    return link[1] == 0 and any(a == link[0] for a, _ in failed)


def epoch(simulation: ClosSimulation, routes: Routes) -> dict[str, Judgement]:
    """The judgement of one epoch by each of `MODELS`."""
    tallies = {
        "all": FlowTally(tor_of=routes.topology.tor_of),
        "lossy": FlowTally(healthy=0, tor_of=routes.topology.tor_of),
        "plain": FlowTally(healthy=0),
    }
    for block in simulation.blocks():
        for tally in tallies.values():
            tally.add(block, 0, block.rows)
    usual = ModelSettings()
    return {
        "vote": models.judge(tallies["all"], "vote", usual, routes),
        "mle": models.judge(tallies["all"], "mle", usual, routes),
        "lossy": models.judge(tallies["lossy"], "vote", usual, routes),
        "plain": models.judge(tallies["plain"], "vote", usual, None),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4, help="of each fault")
    parser.add_argument("--flows", type=int, default=240)
    parser.add_argument("--only", choices=SHARES)
    parser.add_argument("--keep", metavar="DIR", help="keep the records there")
    parser.add_argument("--again", metavar="DIR", help="judge the records that are there")
    parser.add_argument("--simulate", action="store_true", help="simulate; needs no root")
    parser.add_argument("--paper", action="store_true", help="simulate the network of the paper")
    parser.add_argument("--seed", type=int, default=1000, help="the first one")
    parser.add_argument("-v", action="store_true", help="print what each judgement blames")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background a shell ignores it, for agents too
    if args.again:
        return table(Path(args.again), args.v)
    if args.simulate:
        return simulate(args.runs, args.paper, args.seed, args.v)
    with tempfile.TemporaryDirectory() as top:
        place = Path(args.keep or top)
        place.mkdir(exist_ok=True)
        run(args, place)
        table(place, args.v)


if __name__ == "__main__":
    main()
