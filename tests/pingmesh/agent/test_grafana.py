"""The dashboard of examples/pingmesh: what its panels ask for is what an agent's endpoint gives, labels and all."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from pathlib import Path

import pytest

import agent_lab as lab
from confluo_tools.schema import builtin
from grafana_board import Given, check_panels, given_by, questions, unanswered

BOARD = Path(__file__).resolve().parents[3] / "examples" / "pingmesh" / "grafana.json"
OUTCOMES = {"outcome": set(builtin("probe")["outcome"].names.values())}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    """Metrics of a real agent that probed a good network."""
    path = tmp_path_factory.mktemp("agent")
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    with lab.Targets(2) as targets:
        lab.write_list(path / "lists", "a1", lab.peers_at(*targets.ports))
        with lab.agent(path, str(path / "lists"), "--metrics", f"127.0.0.1:{port}") as agent:
            agent.says("list: 2 peers")
            time.sleep(2)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            agent.end()
    return given_by(text)


def test_each_panel_has_an_answer(given: Given) -> None:
    board = json.loads(BOARD.read_text())
    assert len(set(questions(board))) > 20
    assert unanswered(board, given, "pingmesh", OUTCOMES) == set()


@pytest.mark.parametrize(
    ("is_", "was", "missing"),
    [
        ("pingmesh_dropped_probes_total", "pingmesh_drops_total", "pingmesh_drops_total"),
        ("sum by (level) (", "sum by (layer) (", "layer"),
        ('level=~\\"$level\\"', 'lvl=~\\"$level\\"', "lvl"),
        ('outcome=\\"ok\\"', 'outcome=\\"good\\"', "good"),
        ('outcome!~\\"ok|local\\"', 'outcome!~\\"ok|loc\\"', "loc"),
        ("label_values(pingmesh_probing, instance)", "label_values(pingmesh_alive, instance)", "pingmesh_alive"),
        ("label_values(pingmesh_probes_total, level)", "label_values(pingmesh_probes_total, layer)", "layer"),
    ],
)
def test_a_panel_without_an_answer_is_found(given: Given, is_: str, was: str, missing: str) -> None:
    """Else the test above could not fail."""
    text = BOARD.read_text()
    assert is_ in text
    assert missing in unanswered(json.loads(text.replace(is_, was)), given, "pingmesh", OUTCOMES)


def test_panels_have_room_and_say_what_they_are() -> None:
    check_panels(json.loads(BOARD.read_text()))
