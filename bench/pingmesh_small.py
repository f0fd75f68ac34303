"""Faults of hosts and switches in a small Clos: `.venv/bin/python bench/pingmesh_small.py [RUNS]`.

3 podsets of 2 pods of 2 servers, a probe a second for each pair, five minutes.  A row per fault: how often `drops` and
`verdict` name what is broken, and how often they blame what is not.  `verdict` judges three pairs of servers: those of
the pod with the fault, a neighbour of the faulty server, and two servers elsewhere.  docs/pingmesh-detection.md has
the tables.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
import small_fleet as fleet

HOSTS: dict[str, tuple[Callable[[], dict[str, Any]], set[str], set[str]]] = {
    # fault: (arguments of fleet.write, its servers, places of the network that drop)
    "none": (lambda: {"lost": fleet.either()}, set(), set()),
    "an agent stopped 10 s of 20": (lambda: {"lost": fleet.stopped("p3a"), "sends": fleet.runs("p3a")}, {"p3a"}, set()),
    "an agent stopped 3 s of 6": (
        lambda: {"lost": fleet.stopped("p3a", 6), "sends": fleet.runs("p3a", 6)},
        {"p3a"},
        set(),
    ),
    "a host off for a minute": (lambda: {"lost": fleet.off("p3a", 100, 160)}, {"p3a"}, set()),
    "a host off to the end": (lambda: {"lost": fleet.off("p3a", 100, 1e9)}, {"p3a"}, set()),
    "two hosts off": (
        lambda: {"lost": fleet.either(fleet.off("p3a", 100, 160), fleet.off("p5b", 140, 190))},
        {"p3a", "p5b"},
        set(),
    ),
    "a ToR drops 2 %": (lambda: {"lost": fleet.tor("p3", 0.02)}, set(), {"p3"}),
    "an agent stopped, another ToR drops 3 %": (
        lambda: {"lost": fleet.either(fleet.stopped("p3a"), fleet.tor("p6", 0.03)), "sends": fleet.runs("p3a")},
        {"p3a"},
        {"p6"},
    ),
}
JUDGED = ("p3a,p3b", "p3b,p4a", "p1a,p2a")


def rows(verb: str, *words: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        path = f"{folder}/answer.ndjson"
        module = import_module(f"confluo_tools.pingmesh.analysis.{verb}_command")
        if module.main([*words, "-o", "ndjson", "-w", path]) > 1:
            raise SystemExit(f"confluo-pingmesh {verb} {' '.join(words)} failed")
        return [json.loads(line) for line in Path(path).read_text().splitlines()]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print("#fields\tfault\truns\tdrops_right\tdrops_false\tverdict_right\tverdict_false\tverdicts")
    for name, (make, servers, places) in HOSTS.items():
        right = false = named = blamed = judged = 0
        for seed in range(100, 100 + runs):
            with tempfile.TemporaryDirectory() as folder:
                log = str(fleet.write(Path(folder) / "probes.arrows", seed=seed, **make()))
                found = {
                    row["src"] or row["pod"] or row["podset"] or row["layer"] for row in rows("drops", log, "--top=0")
                }
                right += places <= found
                false += bool(found - places - servers)
                for pair in JUDGED:
                    row = rows("verdict", log, "--servers", pair)[0]
                    inside = {word for server in pair.split(",") for word in (server, server[:2])}
                    network = row["verdict"] in ("network", "one_server")
                    judged += 1
                    named += (
                        (network and bool(places))
                        or any(s in (row["why"] or "") for s in servers)
                        or not (inside & servers or places or network)
                    )
                    blamed += row["verdict"] == "network" and not places
        print(f"{name}\t{runs}\t{right}\t{false}\t{named}\t{blamed}\t{judged}", flush=True)


if __name__ == "__main__":
    main()
