"""Accuracy of confluo-pingmesh: simulated faults, judged by the commands as a user runs them.

    bench/pingmesh_detect.py [--runs 2] [--seed 1000]      # the cases of docs/pingmesh-detection.md, as TSV
    bench/pingmesh_detect.py --case "none" --judge drops   # only these
    bench/pingmesh_detect.py --strength                    # weak faults, in short and long spans
    bench/pingmesh_detect.py --thresholds                  # "drop rate > 1e-3" alone against sla, by scope
    bench/pingmesh_detect.py --markdown TSV                # the first table of the document

Each run has another seed: another faulty place, other ports and paths, other latencies.  Nothing was tuned on these
seeds.  A row per case and judgement: over all runs, the answers expected, given, and given correctly.
Requirements: precision and recall 1 for the patterns of the paper, for a silent drop of 1 % at one switch, and for
black holes of 5 % at one ToR; no finding without a fault, and no silent drop for a burst of loss.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from confluo_tools.pingmesh.command import VERBS

SHAPE = ("--podsets=4", "--pods=6", "--servers=10")
PODSETS = [f"ps{i:02d}" for i in range(1, 5)]
PODS = [f"p{i:03d}" for i in range(1, 25)]
SPAN = "20m"

Answers = set[tuple[str, ...]]
OTHER: Answers = {("unclassified",)}  # none of the paper's four pictures


@dataclass
class Case:
    """``faults``: for --fault; the other fields: expected answers of each judgement, by default no finding.

    None: not evaluated.  Two losses in five thousand are close to the limit of green, and whether a burst makes the
    rate over minutes too high is a matter of definition.
    """

    faults: list[str]
    p99: Answers = field(default_factory=lambda: {("normal",)})
    drop: Answers | None = field(default_factory=lambda: {("normal",)})
    drops: Answers = field(default_factory=set)
    holes: Answers = field(default_factory=set)
    sla: Answers | None = field(default_factory=set)
    verdict: Answers | None = field(default_factory=lambda: {("not_network",)})
    service: tuple[str, ...] = ("p001", "p013")  # pods with five servers of a service each

    @property
    def servers(self) -> str:
        """Servers of the service, without those that are off."""
        off = {fault.partition(":")[2].partition(",")[0] for fault in self.faults}
        return ",".join(s for pod in self.service for i in range(1, 6) if (s := f"{pod}s{i:02d}") not in off)


NETWORK: Answers = {("network",)}
HOSTS: Answers = {("hosts",)}
UNREACHABLE: Answers = {("unreachable",)}


def two_pods(place: str) -> tuple[str, str]:
    """Two pods of a podset; or a pod, and one of another podset."""
    at = PODSETS.index(place) * 6 if place in PODSETS else PODS.index(place)
    return PODS[at], PODS[at + 1 if place in PODSETS else (at + 6) % 24]


def podset_of(pod: str) -> str:
    return PODSETS[PODS.index(pod) // 6]


def crossing(podset: str) -> Answers:
    """Alerts about P99 of all pairs with this podset."""
    return {("p99", a, b) for a in PODSETS for b in PODSETS if podset in (a, b)}


def apart(metric: str) -> Answers:
    return {(metric, a, b) for a in PODSETS for b in PODSETS if a != b}


def podset_down(r: Random) -> Case:
    podset = r.choice(PODSETS)
    down = {("podset down", podset)}
    return Case([f"podset_down:{podset}"], p99=down, drop=down, verdict=HOSTS, service=two_pods(podset))


def podset_failure(r: Random) -> Case:
    podset = r.choice(PODSETS)
    return Case(
        [f"podset_failure:{podset}"],
        p99={("podset failure", podset)},
        sla=crossing(podset),
        verdict=NETWORK,
        service=two_pods(podset),
    )


def congested_podset(r: Random) -> Case:
    podset = r.choice(PODSETS)
    return Case(
        [f"congestion:{podset}"],
        p99={("podset failure", podset)},
        drop=None,
        sla=crossing(podset),
        verdict=NETWORK,
        service=two_pods(podset),
    )


def congested_spine(r: Random) -> Case:
    return Case(["congestion:dc1"], p99={("spine failure",)}, drop=None, sla=apart("p99"), verdict=NETWORK)


def down_and_slow(r: Random) -> Case:
    a, b = r.sample(PODSETS, 2)
    both = {("podset down", a), ("podset failure", b)}
    slow = {("p99", x, y) for _, x, y in crossing(b) if a not in (x, y)}
    return Case(
        [f"podset_down:{a}", f"podset_failure:{b}"],
        p99=both,
        drop={("podset down", a)},
        sla=slow,
        verdict=NETWORK,
        service=two_pods(b),
    )


def spine_drops(r: Random) -> Case:
    return Case(
        [f"spine_drops:dc1/{r.randint(1, 8)}"],
        drop={("spine failure",)},
        drops={("spine", "dc1")},
        sla=apart("drop"),
        verdict=NETWORK,
    )


def leaf_drops(r: Random) -> Case:
    podset = r.choice(PODSETS)
    pairs = {("drop", a, b) for _, a, b in crossing(podset)}
    return Case(
        [f"leaf_drops:{podset}/{r.randint(1, 4)}"],
        drop={("podset failure", podset)},
        drops={("leaf", podset)},
        sla=pairs,
        verdict=NETWORK,
        service=two_pods(podset),
    )


def tor_drops(r: Random) -> Case:
    pod = r.choice(PODS)
    pairs = {("drop", a, b) for _, a, b in crossing(podset_of(pod))}  # a pod in six: 0.3 % of their probes
    return Case(
        [f"tor_drops:{pod}"],
        drop={("ToR failure", podset_of(pod))},
        drops={("tor", pod)},
        sla=pairs,
        verdict=NETWORK,
        service=two_pods(pod),
    )


def tor_and_spine(r: Random) -> Case:
    pod = r.choice(PODS)
    return Case(
        [f"tor_drops:{pod}", f"spine_drops:dc1/{r.randint(1, 8)}"],
        drop=OTHER,
        drops={("tor", pod), ("spine", "dc1")},
        sla=apart("drop") | {("drop", podset_of(pod), podset_of(pod))},
        verdict=NETWORK,
        service=two_pods(pod),
    )


def hole(kind: str) -> Callable[[Random], Case]:
    def case(r: Random) -> Case:
        pod = r.choice(PODS)
        return Case([f"{kind}:{pod}"], holes={("tor", pod)}, verdict=UNREACHABLE, service=two_pods(pod))

    return case


def two_holes(r: Random) -> Case:
    a, b = r.sample(PODS, 2)
    return Case(
        [f"blackhole1:{a}", f"blackhole2:{b}"], holes={("tor", a), ("tor", b)}, verdict=UNREACHABLE, service=two_pods(b)
    )


def hole_leaf(r: Random) -> Case:
    podset = r.choice(PODSETS)
    return Case([f"blackhole1:{podset}"], holes={("leaf", podset)}, verdict=UNREACHABLE, service=two_pods(podset))


def hole_spine(r: Random) -> Case:
    return Case(["blackhole2:dc1"], holes={("spine", "dc1")}, verdict=UNREACHABLE)


def hole_one_leaf(r: Random) -> Case:
    podset = r.choice(PODSETS)
    return Case(
        [f"blackhole1:{podset}/{r.randint(1, 4)},rate=20%"],
        holes={("leaf", podset)},
        verdict=UNREACHABLE,
        service=two_pods(podset),
    )


def hole_one_spine(r: Random) -> Case:
    return Case([f"blackhole2:dc1/{r.randint(1, 8)},rate=20%"], holes={("spine", "dc1")}, verdict=UNREACHABLE)


def one_pair(r: Random) -> Case:
    """Two servers that cannot reach each other: no ToR has a fault."""
    a, b = r.sample(PODS, 2)
    i = r.randint(1, 10)
    return Case([f"blackhole1:{a}s{i:02d}>{b}s{i:02d}"], service=(a, b))


def busy_hosts(r: Random) -> Case:
    pod = r.choice(PODS)
    return Case([f"host_slow:{pod},rate=5%"], verdict=HOSTS, service=two_pods(pod))


def dead_servers(r: Random) -> Case:
    return Case([f"server_down:{pod}s{r.randint(1, 10):02d}" for pod in r.sample(PODS, 8)])


def flapping(r: Random) -> Case:
    """Servers that are off for some minutes."""
    return Case(
        [
            f"server_down:{pod}s{r.randint(1, 10):02d},from={r.randint(1, 10)}m,for={r.randint(1, 8)}m"
            for pod in r.sample(PODS, 8)
        ]
    )


def bursts(r: Random) -> Case:
    """Twelve times, a switch loses a tenth of its packets for three seconds, like a full queue."""
    at = [f"leaf_drops:{r.choice(PODSETS)}/{r.randint(1, 4)}" for _ in range(6)]
    at += [f"spine_drops:dc1/{r.randint(1, 8)}" for _ in range(6)]
    return Case(
        [f"{fault},rate=10%,from={r.randint(10, 1190)}s,for=3s" for fault in at], drop=None, sla=None, verdict=None
    )


def one_burst(r: Random) -> Case:
    """Once, for 3 to 60 seconds, all switches of a layer, or a ToR, lose a fifth of their packets."""
    where = r.choice(["spine_drops:dc1/all", f"leaf_drops:{r.choice(PODSETS)}/all", f"tor_drops:{r.choice(PODS)}"])
    return Case(
        [f"{where},rate=20%,from={r.randint(10, 1140)}s,for={r.choice((3, 10, 30, 60))}s"],
        drop=None,
        sla=None,
        verdict=None,
    )


def came(case: Callable[[Random], Case]) -> Callable[[Random], Case]:
    """A fault that begins within the span, and lasts."""

    def later(r: Random) -> Case:
        made = case(r)
        return replace(
            made,
            faults=[f"{fault},from={r.randint(1, 12)}m" for fault in made.faults],
            drop=None,
            sla=None,
            verdict=None,
        )

    return later


def amid_bursts(case: Callable[[Random], Case]) -> Callable[[Random], Case]:
    def worse(r: Random) -> Case:
        made = case(r)
        return replace(made, faults=made.faults + bursts(r).faults, drop=None, sla=None, verdict=None)

    return worse


def amid_trouble(case: Callable[[Random], Case]) -> Callable[[Random], Case]:
    """The same while some servers are off or overloaded, which is not a fault of the network."""

    def worse(r: Random) -> Case:
        made = case(r)
        made.faults += dead_servers(r).faults[:4] + busy_hosts(r).faults
        return made

    return worse


CASES: dict[str, Callable[[Random], Case]] = {
    "none": lambda r: Case([]),
    "busy hosts": busy_hosts,
    "8 dead servers": dead_servers,
    "8 flapping servers": flapping,
    "podset down": podset_down,
    "podset failure": podset_failure,
    "congested podset": congested_podset,
    "congested spine": congested_spine,
    "one down, one slow": down_and_slow,
    "spine drops 1%": spine_drops,
    "leaf drops 1%": leaf_drops,
    "ToR drops 1%": tor_drops,
    "ToR and spine drop": tor_and_spine,
    "black hole 1, ToR": hole("blackhole1"),
    "black hole 2, ToR": hole("blackhole2"),
    "two black holes": two_holes,
    "black hole 1, leaves": hole_leaf,
    "black hole 2, spines": hole_spine,
    "black hole 1, one leaf": hole_one_leaf,
    "black hole 2, one spine": hole_one_spine,
    "one pair of servers": one_pair,
    **{
        f"{name}, amid trouble": amid_trouble(case)
        for name, case in (
            ("podset failure", podset_failure),
            ("spine drops 1%", spine_drops),
            ("ToR drops 1%", tor_drops),
            ("black hole 1", hole("blackhole1")),
            ("black hole 2", hole("blackhole2")),
        )
    },
    "12 bursts of loss": bursts,
    "one burst of loss": one_burst,
    **{
        f"{name}, amid bursts": amid_bursts(case)
        for name, case in (("spine drops 1%", spine_drops), ("leaf drops 1%", leaf_drops), ("ToR drops 1%", tor_drops))
    },
    "spine drops 1%, from the middle on": came(spine_drops),
    "ToR drops 1%, from the middle on": came(tor_drops),
}


# ---------------------------------------------------------------- answers of the commands


def rows(verb: str, *words: str) -> list[dict[str, Any]]:
    """The rows that confluo-pingmesh VERB prints.  Raises SystemExit when it fails."""
    stderr = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(stderr):
        path = f"{folder}/answer.ndjson"
        module = next(known.module for known in VERBS if known.name == verb)
        status = import_module(f"confluo_tools.pingmesh.{module}").main([*words, "-o", "ndjson", "-w", path])
        if status > 1:
            raise SystemExit(f"confluo-pingmesh {verb} {' '.join(words)}: status {status}\n{stderr.getvalue()}")
        with open(path) as lines:
            return [json.loads(line) for line in lines]


def patterns(log: str, metric: str) -> Answers:
    """Patterns of the whole span, as one map."""
    found: Answers = set()
    for row in rows("heatmap", log, "--patterns", "--metric", metric, "--window", "all"):
        found.add((row["pattern"], row["podset"]) if row["podset"] else (row["pattern"],))
    return found


def layers(log: str, *words: str) -> Answers:
    """Silent drops: places with steady drops."""
    return {
        (row["layer"], row["pod"] or row["podset"] or row["dc"])
        for row in rows("drops", log, "--top", "0", *words)
        if row["state"] == "steady"
    }


def holes(log: str) -> Answers:
    """Places with black holes, without servers and places that are cut off."""
    return {
        ("leaf" if row["what"] == "upper" else row["what"], row["pod"] or row["podset"] or row["dc"])
        for row in rows("blackholes", log)
        if row["what"] in ("tor", "leaf", "upper", "spine")
    }


def alarms(log: str) -> Answers:
    """(metric, source, target) of alerts of pairs of podsets."""
    found: Answers = set()
    for row in rows("sla", log, "--by", "podset_pair", "--window", "10m", "--alerts"):
        places = dict(word.split("=") for word in row["key"].split())
        found.add((row["trigger"], places["src_podset"], places["dst_podset"]))
    return found


def verdicts(log: str, servers: str) -> Answers:
    return {(row["verdict"],) for row in rows("verdict", log, "--servers", servers) if row["verdict"]}


JUDGES: dict[str, tuple[str, Callable[[str, Case], Answers]]] = {
    "heatmap P99": ("p99", lambda log, _: patterns(log, "p99")),
    "heatmap drop": ("drop", lambda log, _: patterns(log, "drop")),
    "sla, podset pairs": ("sla", lambda log, _: alarms(log)),
    "drops": ("drops", lambda log, _: layers(log)),
    "blackholes": ("holes", lambda log, _: holes(log)),
    "verdict": ("verdict", lambda log, case: verdicts(log, case.servers)),
}
MORE: dict[str, tuple[str, Callable[[str, Case], Answers]]] = {
    "drops --lasting 0s": ("drops", lambda log, _: layers(log, "--lasting", "0s"))  # if bursts were drops, too
}


@contextlib.contextmanager
def simulated(faults: list[str], seed: int, *more: str) -> Iterator[str]:
    folder = tempfile.mkdtemp()
    try:
        words = [*SHAPE, "--span", SPAN, f"--seed={seed}", *[f"--fault={fault}" for fault in faults], *more]
        log = f"{folder}/probes.ml"
        if import_module("confluo_tools.pingmesh.simulate.command").main([*words, "-w", log]):
            raise SystemExit(f"confluo-pingmesh simulate {' '.join(words)}")
        yield log
    finally:
        shutil.rmtree(folder)


def ratio(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "-"


def table(names: list[str], judges: list[str], runs: int, seed: int) -> None:
    print("#fields\tcase\tjudgement\truns\texpected\tgiven\tright\tprecision\trecall")
    for name in names:
        counts = {judge: [0, 0, 0] for judge in judges}
        judged_by = set()
        for run in range(runs):
            case = CASES[name](Random(seed + run))
            with simulated(case.faults, seed + run) as log:
                for judge in judges:
                    what, ask = (JUDGES | MORE)[judge]
                    if getattr(case, what) is None:
                        continue
                    judged_by.add(judge)
                    wanted, given = getattr(case, what), ask(log, case)
                    for i, n in enumerate((len(wanted), len(given), len(wanted & given))):
                        counts[judge][i] += n
                    if wanted != given:
                        print(
                            f"{name}, seed {seed + run}, {judge}: {case.faults}: expected {sorted(wanted)}, "
                            f"given {sorted(given)}",
                            file=sys.stderr,
                        )
        for judge, (wanted, given, right) in counts.items():
            if judge in judged_by:
                print(
                    f"{name}\t{judge}\t{runs}\t{wanted}\t{given}\t{right}\t{ratio(right, given)}\t"
                    f"{ratio(right, wanted)}",
                    flush=True,
                )


def strength(runs: int, seed: int) -> None:
    """Recall and precision by strength of the fault and length of the span."""
    print("#fields\tfault\tstrength\tspan\truns\tprecision\trecall")
    cases: list[tuple[str, str, tuple[str, ...], Callable[[str], Answers], Callable[[str], tuple[str, ...]]]] = [
        ("spine_drops", "rate", ("0.1%", "0.2%", "0.5%", "1%"), layers, lambda _: ("spine", "dc1")),
        ("tor_drops", "rate", ("0.02%", "0.05%", "0.1%", "0.2%"), layers, lambda pod: ("tor", pod)),
        ("blackhole1", "rate", ("0.5%", "1%", "2%", "5%"), holes, lambda pod: ("tor", pod)),
        ("blackhole2", "rate", ("0.2%", "0.5%", "1%", "2%"), holes, lambda pod: ("tor", pod)),
        (
            "podset_failure",
            "delay",
            ("1ms", "2ms", "3ms"),
            lambda log: patterns(log, "p99"),
            lambda pod: ("podset failure", podset_of(pod)),
        ),
    ]
    for kind, name, strengths, ask, answer in cases:
        for strong in strengths:
            for span in ("10m", "1h"):
                counts = [0, 0, 0]
                for run in range(runs):
                    pod = Random(seed + run).choice(PODS)
                    where = {"spine_drops": "dc1/1", "podset_failure": podset_of(pod)}.get(kind, pod)
                    with simulated([f"{kind}:{where},{name}={strong}"], seed + run, "--span", span) as log:
                        wanted, given = {answer(pod)}, ask(log) - {("normal",)}
                    for i, n in enumerate((1, len(given), len(wanted & given))):
                        counts[i] += n
                print(
                    f"{kind}\t{strong}\t{span}\t{runs}\t{ratio(counts[2], counts[1])}\t{ratio(counts[2], counts[0])}",
                    flush=True,
                )


def thresholds(runs: int, seed: int) -> None:
    """Groups in ten minutes with a drop rate above 1e-3, and those that sla judges bad."""
    print(
        "#fields\tcase\tscope\tgroups\tfaulty\tabove_1e-3\tright\tprecision\trecall\tsla_bad\tsla_right\t"
        "sla_precision\tsla_recall\tnot_enough"
    )
    for name in ("none", "spine drops 1%", "ToR drops 1%"):
        for scope in ("server_pair", "pod_pair", "podset_pair", "pod"):
            groups = faulty = fixed = fixed_right = bad = bad_right = few = 0
            for run in range(runs):
                case = CASES[name](Random(seed + run))
                with simulated(case.faults, seed + run, "--span", "10m") as log:
                    for row in rows("sla", log, "--by", scope, "--window", "10m"):
                        broken = touched(case, [v for k, v in row.items() if k in PLACE_FIELDS])
                        over = row["dropped"] > 1e-3 * row["ok"]
                        judged = row["state"] == "bad" and "drop" in (row["why"] or "")
                        groups += 1
                        faulty += broken
                        fixed += over
                        fixed_right += over and broken
                        bad += judged
                        bad_right += judged and broken
                        few += row["state"] == "not_enough_probes"
            print(
                f"{name}\t{scope}\t{groups}\t{faulty}\t{fixed}\t{fixed_right}\t{ratio(fixed_right, fixed)}\t"
                f"{ratio(fixed_right, faulty)}\t{bad}\t{bad_right}\t{ratio(bad_right, bad)}\t"
                f"{ratio(bad_right, faulty)}\t{few}",
                flush=True,
            )


PLACE_FIELDS = ("src", "dst", "src_pod", "dst_pod", "src_podset", "dst_podset", "pod", "podset")


def touched(case: Case, places: list[str]) -> bool:
    """Whether the fault makes this group (one place or a pair) drop more than 1e-3 of its probes."""
    places = [place.partition("s")[0] if place[0] == "p" and place[1] != "s" else place for place in places]  # pods
    if not case.faults:
        return False
    at = case.faults[0].partition(":")[2]
    if case.faults[0].startswith("tor"):  # 2 % of the pod's probes; a sixth of those of its podset with others
        return at in places or (len(places) == 2 and podset_of(at) in places)
    # a spine of eight: 0.25 % of all probes between podsets, which are 18 of 32 that a server of this fleet sends
    podsets = [place if place in PODSETS else podset_of(place) for place in places]
    return len(places) == 1 or podsets[0] != podsets[1]


def markdown(path: str) -> None:
    """A row per case, a column per judgement: precision and recall, or the number of false answers."""
    found: dict[str, dict[str, str]] = {}
    with open(path) as lines:
        for line in lines:
            case, judge, _, wanted, given, _, precision, recall = (line.rstrip("\n").split("\t") + [""] * 8)[:8]
            if not line.startswith("#"):
                cell = (
                    f"{float(precision):.2f} {float(recall):.2f}"
                    if "-" not in (precision, recall)
                    else (f"{given} false" if wanted == "0" else f"0 of {wanted}")
                )
                found.setdefault(case, {})[judge] = "none" if wanted == given == "0" else cell
    print("| case | " + " | ".join(JUDGES) + " |")
    print("|---" * (len(JUDGES) + 1) + "|")
    for case, cells in found.items():
        print(f"| {case.replace('%', ' %')} | " + " | ".join(cells.get(judge, "") for judge in JUDGES) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--judge", action="append", choices=[*JUDGES, *MORE])
    parser.add_argument("--strength", action="store_true")
    parser.add_argument("--thresholds", action="store_true")
    parser.add_argument("--markdown", metavar="TSV")
    options = parser.parse_args()
    if options.markdown:
        markdown(options.markdown)
    elif options.thresholds:
        thresholds(options.runs, options.seed)
    elif options.strength:
        strength(options.runs, options.seed)
    else:
        table(options.case or list(CASES), options.judge or list(JUDGES), options.runs, options.seed)


if __name__ == "__main__":
    main()
