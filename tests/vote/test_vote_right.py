"""How right the verdicts are: simulated epochs of 007's network, and traces as Flock's simulator writes them."""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest
from conftest import DATA

import make_flock
from confluo_tools.core.vote.flow_tally import FlowTally
from confluo_tools.inputs.open import open_one
from confluo_tools.network.topology import Clos
from confluo_tools.vote import models, voting
from confluo_tools.vote.models import Judgement, ModelSettings
from confluo_tools.vote.simulator import QUIRKS, ClosSimulation, probability
from confluo_tools.vote.simulator import ClosSettings as Made

PAPER = Clos(2, 20, 8, 10, 40)
USUAL = ((probability(5e-4), probability(1e-2)),)
HARD = ((probability(0.1), probability(1.0)), (probability(1e-4), probability(1e-3)))
RUNS = 12


def epoch(seed: int, **more: object) -> FlowTally:
    """An epoch of the authors' network and flows, their path without its last link as theirs is."""
    made = Made(seed=seed, healthy=2, quirks=QUIRKS["last-hop"], **more)  # type: ignore[arg-type]
    out = FlowTally()
    for block in ClosSimulation(PAPER, made).blocks():
        out.add(block, 0, block.rows)
    return out


def score(judgement: Judgement) -> voting.Score:
    t = judgement.localiser.tally
    return voting.compare([t.key(n) for n, _ in judgement.blamed], t.truth())


def flows_right(judgement: Judgement) -> tuple[int, int]:
    """(flows that lost packets on a failed link, of them those assigned to it)."""
    t = judgement.localiser.tally
    failed, count, right = set(t.truth()), 0, 0
    for number in range(t.flows):
        *_, truth, noise = t.flow(number)
        if truth in failed and not noise:
            count += 1
            best, _ = judgement.verdict(number)
            right += best >= 0 and t.key(best) == truth
    return count, right


# The table of the variants: precision and recall of Algorithm 1 as it is meant (flows removed, running total, floor).
# Where the table is not 1 it was itself measured on a handful of runs, and more of them lie above it.
CASES = [
    ("1", {"failures": 1, "rates": USUAL}, 1.0, 1.0),
    ("5", {"failures": 5, "rates": USUAL}, 1.0, 1.0),
    ("10", {"failures": 10, "rates": USUAL}, 1.0, 1.0),
    ("15", {"failures": 15, "rates": USUAL}, 1.0, 1.0),
    ("30", {"failures": 30, "rates": USUAL}, 1.0, 1.0),
    ("hard 5", {"failures": 5, "rates": HARD}, 1.0, 0.90),
    ("hard 10", {"failures": 10, "rates": HARD}, 1.0, 0.77),
    ("noise 1e-5", {"failures": 5, "rates": USUAL, "noise": probability(1e-5)}, 0.92, 1.0),
    ("noise 1e-4", {"failures": 5, "rates": USUAL, "noise": probability(1e-4)}, 1.0, 0.70),
    ("hot", {"failures": 10, "rates": USUAL, "hot_tors": 1, "skew": probability(0.7)}, 0.91, 0.97),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "made", "precision", "recall"), CASES, ids=[c[0] for c in CASES])
def test_algorithm_1_is_as_right_as_it_should_be(
    name: str, made: dict[str, object], precision: float, recall: float
) -> None:
    found = [score(models.judge(epoch(7000 + seed, **made), "vote", ModelSettings(), None)) for seed in range(RUNS)]
    assert mean(s.precision for s in found) >= precision - 0.05
    assert mean(s.recall for s in found) >= recall - 0.05


def test_the_papers_literal_threshold_blames_every_lone_drop() -> None:
    """1 % of few votes is less than one flow's: what the floor is there for."""
    t = epoch(7100, failures=1, rates=USUAL)
    literal = score(models.judge(t, "vote", ModelSettings(floor=0.0), None))
    assert literal.recall == 1
    assert literal.precision < 0.3
    assert score(models.judge(t, "vote", ModelSettings(), None)).precision == 1


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vote", "mle"])
@pytest.mark.parametrize("failures", [1, 5, 10])
def test_flows_blame_the_right_link(model: str, failures: int) -> None:
    got = [
        flows_right(models.judge(epoch(7200 + s, failures=failures, rates=USUAL), model, ModelSettings(), None))
        for s in range(RUNS)
    ]
    assert sum(right for _, right in got) >= 0.99 * sum(count for count, _ in got)


@pytest.mark.slow
@pytest.mark.parametrize("failures", [1, 5, 10, 30])
def test_likelihood_needs_no_tuning(failures: int) -> None:
    for noise in (1e-6, 1e-4):
        made = {"failures": failures, "rates": USUAL, "noise": probability(noise)}
        found = [score(models.judge(epoch(7300 + s, **made), "mle", ModelSettings(), None)) for s in range(RUNS)]
        assert mean(s.precision for s in found) >= 0.97
        assert mean(s.recall for s in found) >= (0.97 if noise == 1e-6 else 0.9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        {},
        {"devices": 1},
        {"devices": 3},
        {"failures": 3},
        {"devices": 3, "noise": 1e-5},
        {"noise": 1e-4},
        {"devices": 1, "noise": 1e-4},
        {"devices": 3, "hot_tors": 10, "skew": 0.8},
        {"devices": 3, "hot_tors": 1, "skew": 0.7},
    ],
)
def test_devices_are_found_as_devices(made: dict[str, Any]) -> None:
    """In noise, too, where each of 66 switches has more than 1 % of the votes; of flows that nearly all go to one ToR
    those without loss must say so.
    """
    chances = {name: probability(p) for name, p in made.items() if name in ("noise", "skew")}
    for healthy in (0, 2) if made.get("hot_tors") != 1 else (2,):
        names = ("vote", "mle") if healthy else ("vote",)
        found: dict[str, list[voting.Score]] = {name: [] for name in names}
        for seed in range(7400, 7400 + 4):
            t = FlowTally(switches=True)
            settings = Made(**({"seed": seed, "healthy": healthy, "failures": 0, "rates": USUAL} | made | chances))
            for block in ClosSimulation(PAPER, settings).blocks():
                t.add(block, 0, block.rows)
            for name in names:
                found[name].append(score(models.judge(t, name, ModelSettings(), None)))
        for its in found.values():
            assert mean(s.precision for s in its) >= 0.95
            assert mean(s.recall for s in its) >= 0.9


# ---------------------------------------------------------------- traces


FAT_TREE = DATA / "traces" / "fat-tree"  # of Flock's simulator


@pytest.fixture(scope="module", params=["made", "others"] if FAT_TREE.is_dir() else ["made"])
def traces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[FlowTally]]:
    folder = FAT_TREE if request.param == "others" else tmp_path_factory.mktemp("traces")
    if request.param == "made":
        for kind in ("random", "skewed"):
            for failures in (1, 2, 4, 8):
                made = make_flock.trace(100 + failures, failures, skewed=kind == "skewed")
                (folder / f"{kind}_f{failures}").write_bytes(made.text)
    out: dict[str, list[FlowTally]] = {"random": [], "skewed": []}
    for path in sorted(folder.glob("*_f*")):
        t = FlowTally()
        for block in open_one(str(path)):
            t.add(block, 0, block.rows)
        out[path.name.split("_")[0]].append(t)
    return out


TUNED = ModelSettings(threshold=0.003, floor=0.0)
GIVEN = ModelSettings(p_bad=0.003, p_good=0.0002, prior=-15.0)


@pytest.mark.parametrize(
    ("kind", "model", "settings", "f1"),
    [
        ("random", "vote", TUNED, 0.96),
        ("random", "mle", GIVEN, 0.99),
        ("skewed", "mle", GIVEN, 0.90),
        ("random", "mle", ModelSettings(), 0.99),
        ("skewed", "mle", ModelSettings(), 0.90),
    ],
)
def test_traces_of_a_fat_tree(
    traces: dict[str, list[FlowTally]], kind: str, model: str, settings: ModelSettings, f1: float
) -> None:
    found = [score(models.judge(t, model, settings, None)) for t in traces[kind]]
    assert len(found) >= 4
    precision, recall = mean(s.precision for s in found), mean(s.recall for s in found)
    assert 2 * precision * recall / (precision + recall) >= f1
