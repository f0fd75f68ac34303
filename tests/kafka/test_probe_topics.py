"""Verbs of confluo-pingmesh give the same answers of probes in a topic as of the log that was published."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from kafka_lab import Broker
from running import run


@pytest.fixture(scope="module")
def probes(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A log of probes through a network with two faults, and a topic with the same records."""
    log = tmp_path_factory.mktemp("probes") / "probes.ml"
    faults = ["--fault", "spine_drops,rate=4%", "--fault", "blackhole1"]
    small = ["--podsets", "2", "--pods", "2", "--servers", "4", "--seed", "3"]
    done = run("confluo-pingmesh", "simulate", *faults, *small, "--span", "4m", "-q", "-w", log)
    assert done.returncode == 0, done.stderr
    topic = broker.topic(f"p{uuid4().hex[:12]}")
    assert run("confluo-stream", "publish", log, "--to", topic, "--create", "3", "--size", "16Ki").returncode == 0
    return log, topic


@pytest.mark.parametrize("verb", ["sla", "drops", "blackholes", "heatmap"])
def test_the_answers_of_a_topic_are_those_of_the_log(probes: tuple[Path, str], verb: str) -> None:
    log, topic = probes
    wanted = run("confluo-pingmesh", verb, log, "-J")
    found = run("confluo-pingmesh", verb, topic, "-J")
    assert len(wanted.stdout.splitlines()) > 1
    assert (found.returncode, found.stdout) == (wanted.returncode, wanted.stdout)
    assert found.stderr == wanted.stderr
