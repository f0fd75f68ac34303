"""The judgements of confluo-pingmesh against the truth of simulations, with new seeds.

The expected answers are in bench/pingmesh_detect.py, which makes the tables of docs/pingmesh-detection.md.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
BENCH = ROOT / "bench" / "pingmesh_detect.py"
DOCUMENT = ROOT / "docs" / "pingmesh-detection.md"
SEED = 271_828


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pingmesh_detect", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


detect: Any = load()


@pytest.mark.slow
@pytest.mark.parametrize("name", detect.CASES)
def test_every_judgement_says_what_is_broken_and_nothing_else(name: str) -> None:
    case = detect.CASES[name](Random(SEED))
    with detect.simulated(case.faults, SEED) as log:
        for judge, (what, ask) in detect.JUDGES.items():
            if getattr(case, what) is not None:
                assert (judge, ask(log, case)) == (judge, getattr(case, what))


def test_a_fault_is_in_the_windows_that_it_lasts() -> None:
    with detect.simulated(["podset_down:ps03,from=10m,for=10m"], SEED, "--span=40m") as log:
        rows = detect.rows("heatmap", log, "--patterns", "--window", "10m")
        found = [(row["pattern"], row["podset"]) for row in rows]
        assert found == [("normal", None), ("podset down", "ps03"), ("normal", None), ("normal", None)]
    with detect.simulated(["spine_drops:dc1/2,from=10m,for=10m"], SEED, "--span=40m") as log:
        told = [(row["ts"][:16], row["layer"]) for row in detect.rows("drops", log, "--top", "0", "--window", "10m")]
        assert told == [("2026-01-01T00:10", "spine")]
        alarms = detect.rows("sla", log, "--by", "dc", "--window", "10m", "--alerts")
        assert [(row["ts"][:16], row["event"]) for row in alarms] == [
            ("2026-01-01T00:20", "fire"),
            ("2026-01-01T00:40", "clear"),
        ]


def test_the_table_is_a_table() -> None:
    done = subprocess.run(
        [sys.executable, BENCH, "--case", "spine drops 1%", "--runs", "1", "--seed", "5"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [len(row) for row in rows] == [9] + [8] * len(detect.JUDGES)  # "#fields" comes first
    assert {tuple(row[:2]) for row in rows[1:]} == {("spine drops 1%", judge) for judge in detect.JUDGES}


def test_the_document_has_every_case() -> None:
    text = DOCUMENT.read_text()
    rows = {m[1].strip() for m in re.finditer(r"^\| ([^|]+) \|", text, re.M)}
    assert rows >= {name.replace("%", " %") for name in detect.CASES}
