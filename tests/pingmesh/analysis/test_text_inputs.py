"""Probes as text, which has no kind of records, are read as those of a MultiLog."""

from __future__ import annotations

from pathlib import Path

import pytest

from running import run


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probes")
    words = ["--span", "1m", "--fault", "spine_drops,rate=4%", "-w", folder / "p.ml"]
    run("confluo-pingmesh", "simulate", *words, check=True)
    for form in ("tsv", "csv", "ndjson"):
        run("confluo-query", folder / "p.ml", "-o", form, "-w", folder / f"p.{form}", check=True)
    return folder


@pytest.mark.parametrize("verb", ["sla", "drops", "blackholes", "heatmap"])
def test_answers_are_those_of_the_log(probes: Path, verb: str) -> None:
    expected = run("confluo-pingmesh", verb, probes / "p.ml", "-T")
    assert expected.returncode in (0, 1)
    for form in ("tsv", "csv", "ndjson"):
        done = run("confluo-pingmesh", verb, probes / f"p.{form}", "-T")
        assert (done.returncode, done.stdout, done.stderr) == (expected.returncode, expected.stdout, expected.stderr)
