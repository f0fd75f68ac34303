"""The dashboard of examples/pingmesh: what its panels ask for is what an agent's endpoint gives, labels and all."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import agent_lab as lab
from confluo_tools.schema import builtin

BOARD = Path(__file__).resolve().parents[3] / "examples" / "pingmesh" / "grafana.json"
SCRAPED = {"instance", "job"}  # labels that Prometheus adds
Given = Mapping[str, Mapping[str, set[str]]]  # name of a series -> its labels and their values


def questions(tree: Any) -> Iterator[str]:
    """The expressions of all panels, and of the variables that are questions."""
    if isinstance(tree, dict):
        if "expr" in tree:
            yield tree["expr"]
        if tree.get("type") == "query":
            yield tree["query"]
        for value in tree.values():
            yield from questions(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from questions(value)


def unanswered(board: Any, given: Given) -> set[str]:
    """Names of series, labels and label values of the dashboard that do not exist."""
    found = set()
    for text in questions(board):
        if match := re.fullmatch(r"label_values\((\w+), (\w+)\)", text):
            name, label = match.groups()
            found |= {name} if name not in given else {label} - given[name].keys() - SCRAPED
            continue
        selectors = re.findall(r"((?:pingmesh|process)_\w+)\{([^}]*)\}", text)
        assert selectors, text
        assert len(selectors) == len(re.findall(r"(?:pingmesh|process)_\w+", text)), text  # each names its agents
        labels: set[str] = set(SCRAPED)
        for name, matchers in selectors:
            if name not in given:
                found.add(name)
                continue
            labels |= given[name].keys()
            for label, sign, value in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers):
                if label not in given[name].keys() | SCRAPED:
                    found.add(label)
                elif not value.startswith("$"):
                    words = set(value.split("|")) if sign.endswith("~") else {value}
                    found |= words - (set(builtin("probe")[label].names.values()) if label == "outcome" else set())
        for words_ in re.findall(r"by \(([^)]*)\)", text):
            found |= set(words_.split(", ")) - labels
    return found


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    """Metrics of a real agent that probed a good network."""
    from prometheus_client.parser import text_string_to_metric_families as parse

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
    found: dict[str, dict[str, set[str]]] = {}
    for family in parse(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return found


def test_each_panel_has_an_answer(given: Given) -> None:
    board = json.loads(BOARD.read_text())
    assert len(set(questions(board))) > 20
    assert unanswered(board, given) == set()


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
    assert missing in unanswered(json.loads(text.replace(is_, was)), given)


def test_panels_stand_beside_each_other_and_say_what_they_are() -> None:
    board = json.loads(BOARD.read_text())
    seen: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        places = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not places & seen, panel["title"]
        assert max(x for x, _ in places) < 24
        seen |= places
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
    titles = [panel["title"] for panel in board["panels"]]
    assert len(set(titles)) == len(titles)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
