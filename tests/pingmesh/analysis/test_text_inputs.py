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


@pytest.mark.parametrize("verb", ["drops", "blackholes", "heatmap"])
def test_text_of_other_records_is_refused(tmp_path: Path, verb: str) -> None:
    (tmp_path / "other.csv").write_text("ts,src,dst,rtt\n2026-01-01T00:00:00Z,a,b,5\n")
    done = run("confluo-pingmesh", verb, tmp_path / "other.csv", "-T")
    assert done.returncode == 2
    assert b"holds records of kind 'record', not probes" in done.stderr


def test_a_heat_map_of_cells_as_text(probes: Path, tmp_path: Path) -> None:
    expected = run("confluo-pingmesh", "heatmap", probes / "p.ml", "-T", check=True).stdout
    (tmp_path / "cells.tsv").write_bytes(expected)
    assert run("confluo-pingmesh", "heatmap", tmp_path / "cells.tsv", "-T", check=True).stdout == expected
