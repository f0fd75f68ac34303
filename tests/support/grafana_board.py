"""Dashboards of Grafana: whether the series that they ask for exist, and whether their panels have room."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

SCRAPED = {"instance", "job"}  # labels that Prometheus adds
Given = Mapping[str, Mapping[str, set[str]]]  # name of a series -> its labels and their values


def given_by(text: str) -> dict[str, dict[str, set[str]]]:
    """The series in what an endpoint of Prometheus answers."""
    from prometheus_client.parser import text_string_to_metric_families as parse

    found: dict[str, dict[str, set[str]]] = {}
    for family in parse(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return found


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


def unanswered(board: Any, given: Given, prefix: str, values: Mapping[str, set[str]]) -> set[str]:
    """Names of series, labels and label values of the dashboard that do not exist.

    ``prefix``: of our series.  ``values``: {label: the values that it may have}.
    """
    series = rf"(?:{prefix}|process)_\w+"
    found = set()
    for text in questions(board):
        if match := re.fullmatch(r"label_values\((\w+), (\w+)\)", text):
            name, label = match.groups()
            found |= {name} if name not in given else {label} - given[name].keys() - SCRAPED
            continue
        selectors = re.findall(rf"({series})\{{([^}}]*)\}}", text)
        assert selectors, text
        assert len(selectors) == len(re.findall(series, text)), text  # each says of whom
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
                    found |= words - values.get(label, set())
        for words_ in re.findall(r"by \(([^)]*)\)", text):
            found |= set(words_.split(", ")) - labels
    return found


def check_panels(board: Any) -> None:
    """Panels do not overlap, and each has a name, a number and a source."""
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
