"""How right each model of confluo-vote is: simulated epochs of 007's network, or traces of Flock's simulator.

    bench/vote_models.py [--runs 10] [--seed 1000]     # the cases of docs/vote.md, as TSV
    bench/vote_models.py --spread 5 --runs 150         # how far means of 5 runs lie apart: is a table of few runs ours?
    bench/vote_models.py --switches [--runs 10]        # switches as wholes: votes as of links, among peers, likelihood
    bench/vote_models.py --trace FILE.xz ...           # precision, recall, F1 of every model on each, and their means

Bars: Algorithm 1 with its floor within 0.05 of its reference values, flows assigned to the right link in 99 % up to
10 failed links; on traces F1 at least .96 (vote, threshold .003, no floor) and .99 (mle) on even traffic, .90 (mle) on
skewed; switches by votes within .05 of those by likelihood.  Nothing here was fitted to traces: the settings of `vote
tuned` and `mle given` are Flock's published ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from statistics import mean

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from confluo_tools.core.vote.fault_localiser import FaultLocaliser
from confluo_tools.core.vote.flow_tally import FlowTally
from confluo_tools.inputs.open import open_one
from confluo_tools.network.ecmp import Routes
from confluo_tools.network.topology import Clos, make_clos
from confluo_tools.vote import models, voting
from confluo_tools.vote.models import Judgement, ModelSettings
from confluo_tools.vote.registry import model_of
from confluo_tools.vote.simulator import QUIRKS, ClosSimulation, probability
from confluo_tools.vote.simulator import ClosSettings as Made

PAPER = Clos(2, 20, 8, 10, 40)
USUAL = ((probability(5e-4), probability(1e-2)),)
HARD = ((probability(0.1), probability(1.0)), (probability(1e-4), probability(1e-3)))
CASES = {
    **{f"{k} failed": {"failures": k, "rates": USUAL} for k in (1, 5, 10, 15, 30)},
    **{f"{k} failed, hard": {"failures": k, "rates": HARD} for k in (5, 10)},
    **{f"5 failed, noise {n:g}": {"failures": 5, "rates": USUAL, "noise": probability(n)} for n in (1e-5, 1e-4)},
    "10 failed, 70 % to one ToR": {"failures": 10, "rates": USUAL, "hot_tors": 1, "skew": probability(0.7)},
}
MODELS = {
    "vote": ("vote", ModelSettings()),
    "vote tuned": ("vote", ModelSettings(threshold=0.003, floor=0.0)),
    "vote 1%": ("vote", ModelSettings(floor=0.0)),
    "vote ecmp": ("vote", ModelSettings(floor=0.0, adjust="ecmp")),
    "vote initial": ("vote", ModelSettings(floor=0.0, running=False)),
    "vote none": ("vote", ModelSettings(floor=0.0, adjust="none")),
    "mle": ("mle", ModelSettings()),
    "mle given": ("mle", ModelSettings(p_bad=0.003, p_good=0.0002, prior=-15.0)),
    "cover": ("cover", ModelSettings()),
}


def score(judgement: Judgement) -> voting.Score:
    tally = judgement.localiser.tally
    return voting.compare([tally.key(n) for n, _ in judgement.blamed], tally.truth())


def flows_right(judgement: Judgement) -> tuple[int, int]:
    """(flows that lost packets on failed links, those of them assigned to the failed link)."""
    tally = judgement.localiser.tally
    failed = set(tally.truth())
    flows = [(n, tally.flow(n)) for n in range(tally.flows)]
    hit = [(n, flow.truth) for n, flow in flows if flow.truth in failed and not flow.noise]
    told = [judgement.verdict(n).component for n, _ in hit]
    return len(hit), sum(best >= 0 and tally.key(best) == truth for best, (_, truth) in zip(told, hit, strict=True))


Right = dict[str, list[int]]
Scores = dict[str, list[voting.Score]]

DEVICES = {
    "nothing failed": {},
    "1 switch": {"devices": 1},
    **{f"{k} switches": {"devices": k} for k in (3, 5)},
    "3 links": {"failures": 3},
    **{
        f"{what}, noise {n:g}": {**made, "noise": probability(n)}
        for n in (1e-5, 1e-4)
        for what, made in (
            ("nothing failed", {}),
            ("1 switch", {"devices": 1}),
            ("3 switches", {"devices": 3}),
            ("3 links", {"failures": 3}),
        )
    },
    "3 switches, 80 % to 10 ToRs": {"devices": 3, "hot_tors": 10, "skew": probability(0.8)},
    "3 switches, 70 % to one ToR": {"devices": 3, "hot_tors": 1, "skew": probability(0.7)},
}


def as_links(tally: FlowTally) -> Judgement:
    """Algorithm 1 on switches, with nothing but its threshold and its floor."""
    out = Judgement(model_of("vote"), ModelSettings(), FaultLocaliser(tally))
    out.blamed = out.localiser.vote(voting.THRESHOLD, voting.FLOOR)
    return out


def switches(runs: int, seed: int) -> None:
    """``vote, bare``: from the flows with loss alone, without the paths of others and without a topology."""
    ways: dict[str, tuple[int, Callable[[FlowTally], Judgement]]] = {
        "vote as of links": (0, as_links),
        "vote, bare": (0, lambda tally: models.judge(tally, "vote", ModelSettings(), None)),
        "vote": (2, lambda tally: models.judge(tally, "vote", ModelSettings(), None)),
        "mle": (2, lambda tally: models.judge(tally, "mle", ModelSettings(), None)),
    }
    print("#fields\tcase\tmodel\truns\tblamed\tprecision\trecall")
    for case, made in DEVICES.items():
        found: Scores = {name: [] for name in ways}
        for run in range(runs):
            tallies = {}
            for healthy in (0, 2):
                tally = tallies[healthy] = FlowTally(switches=True)
                more = {"failures": 0, "rates": USUAL} | made
                its = Made(seed=seed + run, healthy=healthy, **more)  # type: ignore[arg-type]
                for block in ClosSimulation(PAPER, its).blocks():
                    tally.add(block, 0, block.rows)
            for name, (healthy, judge) in ways.items():
                found[name].append(score(judge(tallies[healthy])))
        for name, scores in found.items():
            means = [mean(values) for values in zip(*[(s.blamed, s.precision, s.recall) for s in scores], strict=True)]
            print(f"{case}\t{name}\t{runs}\t{means[0]:.1f}\t{means[1]:.3f}\t{means[2]:.3f}", flush=True)


def epochs(runs: int, seed: int) -> Iterator[tuple[str, Scores, Right]]:
    """Each case: the scores of every model, one a run; flows with losses on bad links, and those assigned correctly."""
    routes = Routes(make_clos(PAPER))
    for case, made in CASES.items():
        found: Scores = {name: [] for name in MODELS}
        right: Right = {name: [0, 0] for name in MODELS}
        for run in range(runs):
            settings = Made(seed=seed + run, healthy=2, quirks=QUIRKS["last-hop"], **made)  # type: ignore[arg-type]
            tally = FlowTally()
            for block in ClosSimulation(PAPER, settings).blocks():
                tally.add(block, 0, block.rows)
            for name, (model, how) in MODELS.items():
                judgement = models.judge(tally, model, how, routes if how.adjust == "ecmp" else None)
                found[name].append(score(judgement))
                for i, n in enumerate(flows_right(judgement)):
                    right[name][i] += n
        yield case, found, right


def simulated(runs: int, seed: int) -> None:
    print("#fields\tcase\tmodel\truns\tprecision\trecall\tflows_right")
    for case, found, right in epochs(runs, seed):
        for name, scores in found.items():
            count, good = right[name]
            print(
                f"{case}\t{name}\t{runs}\t{mean(s.precision for s in scores):.3f}\t"
                f"{mean(s.recall for s in scores):.3f}\t{good / max(count, 1):.4f}",
                flush=True,
            )


def spread(runs: int, seed: int, of: int) -> None:
    """Where 95 % of the means of ``of`` runs lie: what a table of so few runs can say."""
    print("#fields\tcase\tmodel\tof\tmean\tlow\thigh")
    draw = Random(seed)
    for case, found, _ in epochs(runs, seed):
        for name, scores in found.items():
            for what in ("precision", "recall"):
                its = [getattr(s, what) for s in scores]
                means = sorted(mean(draw.choices(its, k=of)) for _ in range(2000))
                print(f"{case}\t{name}\t{what}\t{mean(its):.3f}\t{means[50]:.2f}\t{means[-51]:.2f}", flush=True)


def traced(paths: list[str]) -> None:
    print("#fields\ttrace\tmodel\tfailed\tblamed\tprecision\trecall\tf1")
    found: dict[tuple[str, str], list[voting.Score]] = {}
    for path in paths:
        tally = FlowTally()
        for block in open_one(path):
            tally.add(block, 0, block.rows)
        for name, (model, how) in MODELS.items():
            if how.adjust == "ecmp":  # needs the topology
                continue
            got = score(models.judge(tally, model, how, None))
            found.setdefault((Path(path).name.split("_")[0], name), []).append(got)
            print(
                f"{Path(path).name}\t{name}\t{got.failed}\t{got.blamed}\t{got.precision:.3f}\t{got.recall:.3f}\t"
                f"{got.f1:.3f}",
                flush=True,
            )
    for (kind, name), scores in found.items():
        precision, recall = mean(s.precision for s in scores), mean(s.recall for s in scores)
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        print(f"{kind}: mean of {len(scores)}\t{name}\t\t\t{precision:.3f}\t{recall:.3f}\t{f1:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--trace", nargs="*", default=[])
    parser.add_argument("--switches", action="store_true")
    parser.add_argument("--spread", type=int, default=0)
    options = parser.parse_args()
    if options.switches:
        switches(options.runs, options.seed)
    elif options.spread:
        spread(options.runs, options.seed, options.spread)
    elif options.trace:
        traced(options.trace)
    else:
        simulated(options.runs, options.seed)


if __name__ == "__main__":
    main()
