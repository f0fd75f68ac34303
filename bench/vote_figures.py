"""The figures of 007's sections 6.1 to 6.7: `.venv/bin/python bench/vote_figures.py [--seeds N] [--full] [FIGURE]...`.

Prints TSV, a line per point, and with `--svg FOLDER` draws each figure.  Every point is the mean over seeds (5; --full:
20 and more points) with the half-width of its 95 % confidence interval (Student's t).  `accuracy`: of the flows that
lost packets on a failed link, the share with that link as the verdict; `precision`, `recall` of the blamed links.
Models: `vote` (the default: explained flows removed, floor 0.67), `paper` (1 % of the remaining votes, ECMP adjustment,
no floor), `cover` (Algorithm 2), `binary` (program 3, the best solution of 5 s).  With --models also `mle`, `integer`
(program 4, takes minutes), and other variants of Algorithm 1 without a floor: `remove` (explained flows), `initial`
(1 % of the initial total), `raw` (no adjustment).

Bars: those of the reference's section 3, +- 0.05: vote has P = R = 1 for 1 to 30 failed links of 0.05 % to 1 %,
accuracy >= 0.99 up to 10; hard case P 1, R .90 at 5 failures (60 seeds: .87); hot ToR with 70 % and 10 failures P .91,
R .97.
Paths as in the authors' simulator: without the last hop (--quirks last-hop).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from timing import header, row

from confluo_tools.core.vote.flow_tally import FlowTally
from confluo_tools.errors import ConfluoError
from confluo_tools.network.ecmp import Routes
from confluo_tools.network.topology import Clos, make_clos
from confluo_tools.schema import builtin
from confluo_tools.vote import models
from confluo_tools.vote.simulator import FABRIC, QUIRKS, ClosSettings, ClosSimulation, probability

PAPER = Clos(2, 20, 8, 10, 40)
OPTIMAL = ((probability(0.0005), probability(0.01)),)
HARD = ((probability(0.1), probability(1.0)), (probability(0.0001), probability(0.001)))
LAYOUT = builtin("path").layout
MODELS: dict[str, tuple[str, models.ModelSettings]] = {
    "vote": ("vote", models.ModelSettings()),
    "paper": ("vote", models.ModelSettings(adjust="ecmp", floor=0.0, literal=True)),
    "remove": ("vote", models.ModelSettings(floor=0.0)),
    "initial": ("vote", models.ModelSettings(floor=0.0, running=False)),
    "raw": ("vote", models.ModelSettings(adjust="none", floor=0.0)),
    "cover": ("cover", models.ModelSettings()),
    "binary": ("milp-binary", models.ModelSettings(seconds=5.0)),
    "integer": ("milp-integer", models.ModelSettings(seconds=20.0)),
    "mle": ("mle", models.ModelSettings()),
}
T95 = (0, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # Student's t, two-sided, by n - 1
COLOURS = {
    "vote": "#1b6ca8",
    "paper": "#7aa6c2",
    "cover": "#c8553d",
    "binary": "#e09f3e",
    "integer": "#9a031e",
    "mle": "#2e7d32",
    "remove": "#8d6e63",
    "initial": "#546e7a",
    "raw": "#bdbdbd",
}


class Result(NamedTuple):
    accuracy: float  # nan: no flow lost anything on a failed link
    precision: float
    recall: float


class Figure(NamedTuple):
    """``points``: (x, what is simulated, in which network); the first list short, the second full."""

    title: str
    x: str
    points: Callable[[bool], list[tuple[float, dict[str, Any], Clos]]]


def sweep(
    name: str, values: list[float], full: list[float], make: Callable[[float], Any], clos: Clos = PAPER, **more: Any
) -> Callable[[bool], list[tuple[float, dict[str, Any], Clos]]]:
    return lambda all_: [(x, {**more, name: make(x)}, clos) for x in (full if all_ else values)]


def rate(x: float) -> list[tuple[int, int]]:
    return [(probability(x / 100),) * 2]


def pods(all_: bool) -> list[tuple[float, dict[str, Any], Clos]]:
    # With one pod nothing goes through T2s: only the other links fail.
    return [
        (n, {"failures": 5, "rates": OPTIMAL, "where": (1, 4) if n == 1 else FABRIC}, Clos(n, 20, 8, 10, 40))
        for n in ((1, 2, 3, 4, 5, 6, 7) if all_ else (1, 2, 4, 7))
    ]


SOME = [1.0, 5.0, 10.0, 15.0, 30.0]
MANY = [1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0]
RATES = [0.01, 0.05, 0.1, 0.5, 1.0]
ALL_RATES = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
FIGURES = {
    "6.1": Figure(
        "Optimal case: failed links of 0.05-1 %", "failed links", sweep("failures", SOME, MANY, int, rates=OPTIMAL)
    ),
    "6.2a": Figure("One failed link", "drop rate, %", sweep("rates", RATES, ALL_RATES, rate)),
    "6.2b": Figure("Several failed links of 0.01-1 %", "failed links", sweep("failures", [1, 4, 7, 10], MANY[:7], int)),
    "6.3a": Figure(
        "Noise, one failed link",
        "drop rate of good links, log10",
        sweep("noise", [-7, -6, -5, -4], [-8, -7, -6, -5.5, -5, -4.5, -4], lambda x: probability(10**x), rates=OPTIMAL),
    ),
    "6.3b": Figure(
        "Noise, five failed links",
        "drop rate of good links, log10",
        sweep(
            "noise",
            [-7, -6, -5, -4],
            [-8, -7, -6, -5.5, -5, -4.5, -4],
            lambda x: probability(10**x),
            rates=OPTIMAL,
            failures=5,
        ),
    ),
    "6.4": Figure(
        "Connections, five failed links",
        "connections of a host",
        sweep(
            "connections",
            [10, 35, 60],
            [5, 10, 20, 30, 40, 50, 60],
            lambda n: (int(n), int(n)),
            failures=5,
            rates=OPTIMAL,
        ),
    ),
    "6.4r": Figure(
        "10 to 60 connections of a host",
        "failed links",
        sweep("failures", [1, 5, 10], MANY[:7], int, connections=(10, 60), rates=OPTIMAL),
    ),
    "6.5a": Figure(
        "80 % of the flows to 10 ToRs, one failed link",
        "drop rate, %",
        sweep("rates", RATES[1:], ALL_RATES, rate, hot_tors=10, skew=probability(0.8)),
    ),
    "6.5b": Figure(
        "80 % of the flows to 10 ToRs",
        "failed links",
        sweep("failures", [1, 5, 10], MANY[:7], int, hot_tors=10, skew=probability(0.8), rates=OPTIMAL),
    ),
    "6.5c": Figure(
        "Ten failed links, one hot ToR",
        "flows to it, %",
        sweep(
            "skew",
            [10, 30, 50, 70],
            [10, 20, 30, 40, 50, 60, 70],
            lambda x: probability(x / 100),
            hot_tors=1,
            failures=10,
            rates=OPTIMAL,
        ),
    ),
    "6.6": Figure(
        "One link of 10-100 %, the others 0.01-0.1 %",
        "failed links",
        sweep("failures", [2, 5, 10], [2, 3, 4, 5, 6, 7, 10, 15], int, rates=HARD),
    ),
    "6.7": Figure("Size of the network, five failed links", "pods", pods),
}


@cache
def network(clos: Clos) -> Routes:
    return Routes(make_clos(clos))


def judge(sim: ClosSimulation, wanted: list[str], routes: Routes) -> Iterator[tuple[str, Result]]:
    """Each model's result for the first epoch of a simulation."""
    tallies: dict[int, FlowTally] = {}
    truth = {(a, b) for a, b, _ in sim.failed}
    for healthy in sorted({2 if name == "mle" else 0 for name in wanted}):
        tallies[healthy] = FlowTally(healthy=healthy)
    for block in sim.blocks():
        whole = block.project(LAYOUT)
        for tally in tallies.values():
            tally.add(whole, 0, whole.rows)
    for name in wanted:
        tally = tallies[2 if name == "mle" else 0]
        model, settings = MODELS[name]
        try:
            found = models.judge(tally, model, settings, routes)
        except ConfluoError:  # a program that was not solved in time
            yield name, Result(math.nan, math.nan, math.nan)
            continue
        blamed = {tally.key(number) for number, _ in found.blamed}
        right = len(blamed & truth)
        hits = flows = 0
        for i in range(tally.flows):
            flow = tally.flow(i)
            its = flow.truth
            if its is not None and not flow.noise:
                number = found.verdict(i).component
                hits += number >= 0 and tally.key(number) == its
                flows += 1
        yield (
            name,
            Result(hits / flows if flows else math.nan, right / len(blamed) if blamed else 1.0, right / len(truth)),
        )


def interval(values: list[float]) -> tuple[float, float]:
    """(mean, half-width of its 95 % confidence interval)."""
    known = [v for v in values if v == v]
    if not known:
        return math.nan, math.nan
    mean, n = statistics.fmean(known), len(known)
    if n < 2:
        return mean, math.nan
    t = T95[n - 1] if n <= len(T95) else 1.96 + 2.4 / (n - 1)
    return mean, t * statistics.stdev(known) / math.sqrt(n)


Points = dict[str, list[tuple[float, list[tuple[float, float]]]]]


def measure(number: str, wanted: list[str], seeds: int, all_: bool, quirks: int) -> Points:
    """Print a figure's points and return them: model -> [(x, [(mean, half-width) of accuracy, precision, recall])]."""
    figure, out = FIGURES[number], Points()
    for x, what, clos in figure.points(all_):
        got: dict[str, list[Result]] = {name: [] for name in wanted}
        routes = network(clos)
        for seed in range(1, seeds + 1):
            sim = ClosSimulation(
                clos, ClosSettings(seed=seed, healthy=1 if "mle" in wanted else 0, quirks=quirks, **what)
            )
            for name, result in judge(sim, wanted, routes):
                got[name].append(result)
        for name, results in got.items():
            cells = [interval([getattr(r, field) for r in results]) for field in Result._fields]
            out.setdefault(name, []).append((x, cells))
            row(number, figure.x, x, name, seeds, *(v for cell in cells for v in cell))
    return out


# -- drawing ---------------------------------------------------------------------------------------------------

WIDE, HIGH, LEFT, TOP = 240, 180, 50, 46


def draw(figure: Figure, points: Points) -> str:
    """SVG: accuracy, precision and recall side by side, a line a model, its confidence intervals as bars."""
    xs = sorted({x for its in points.values() for x, _ in its})
    spread = figure.x.startswith("drop rate, %")
    place = {x: (math.log10(x) if spread else x) for x in xs}
    low, high = min(place.values()), max(place.values())
    total = LEFT + 3 * (WIDE + 40)
    size = f'width="{total}" height="{TOP + HIGH + 70}"'
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{figure.title}</text>',
    ]
    for panel, field in enumerate(Result._fields):
        left = LEFT + panel * (WIDE + 40)
        svg.append(f'<text x="{left}" y="{TOP - 8}">{field}</text>')
        for tick in (0, 0.25, 0.5, 0.75, 1):
            y = TOP + HIGH * (1 - tick)
            svg.append(
                f'<path d="M{left} {y}h{WIDE}" stroke="#ddd"/>'
                f'<text x="{left - 4}" y="{y + 4}" text-anchor="end">{tick:g}</text>'
            )
        for x in xs:
            at = left + 10 + (WIDE - 20) * (place[x] - low) / ((high - low) or 1)
            svg.append(f'<text x="{at:.1f}" y="{TOP + HIGH + 14}" text-anchor="middle">{x:g}</text>')
        svg.append(f'<text x="{left + WIDE / 2}" y="{TOP + HIGH + 30}" text-anchor="middle">{figure.x}</text>')
        for nth, (name, its) in enumerate(points.items()):
            line = []
            for x, cells in its:
                mean, half = cells[panel]
                if mean != mean:
                    continue
                at = left + 10 + (WIDE - 20) * (place[x] - low) / ((high - low) or 1) + nth
                y = TOP + HIGH * (1 - mean)
                line.append(f"{at:.1f},{y:.1f}")
                if half == half:
                    top, bottom = (TOP + HIGH * (1 - min(max(v, 0), 1)) for v in (mean + half, mean - half))
                    svg.append(f'<path d="M{at:.1f} {top:.1f}V{bottom:.1f}" stroke="{COLOURS[name]}"/>')
            svg.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.6"/>')
            if panel == 0:
                svg.append(f'<text x="{LEFT + 90 * nth}" y="{TOP + HIGH + 54}" fill="{COLOURS[name]}">{name}</text>')
    return "\n".join([*svg, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description="The figures of 007's sections 6.1 to 6.7.")
    parser.add_argument("figures", nargs="*", help=f"figures to compute: {', '.join(FIGURES)} (all)")
    parser.add_argument("--seeds", type=int, help="runs per point (5)")
    parser.add_argument("--full", action="store_true", help="20 seeds and more points")
    parser.add_argument("--models", default="vote,paper,cover,binary", help=f"models to compare: {', '.join(MODELS)}")
    parser.add_argument(
        "--quirks", default="last-hop", help=f"deviations from the paper: {', '.join(QUIRKS)}; empty: none"
    )
    parser.add_argument("--svg", metavar="FOLDER", help="also draw each figure into this folder")
    args = parser.parse_args()
    wanted = args.models.split(",")
    unknown = {*args.figures} - FIGURES.keys() | {*wanted} - MODELS.keys()
    if unknown:
        parser.error(f"not known: {', '.join(sorted(unknown))}")
    header("figure", "x_is", "x", "model", "seeds", *(f"{f}{ci}" for f in Result._fields for ci in ("", "_ci")))
    quirks = sum(QUIRKS[name] for name in args.quirks.split(",") if name)
    for number in args.figures or FIGURES:
        points = measure(number, wanted, args.seeds or (20 if args.full else 5), args.full, quirks)
        if args.svg:
            Path(args.svg).mkdir(parents=True, exist_ok=True)
            (Path(args.svg) / f"{number}.svg").write_text(draw(FIGURES[number], points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
