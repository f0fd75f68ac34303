"""The files of examples/stream: what they ask for is what a run gives, and what they start fits together."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from confluo_tools.schema import builtin
from confluo_tools.stream.operation.operation import RunOperation
from grafana_board import Given, check_panels, given_by, questions, unanswered
from kafka_lab import free_ports
from stream_runs import ScriptedRun

pytest.importorskip("prometheus_client", reason="the package prometheus_client is not installed")
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "stream"
BOARD = FOLDER / "grafana.json"
VALUES = {"stage": set(builtin("stage")["stage"].names.values()), "job": {"confluo-stream"}}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    """The series of the endpoint of a run with all kinds of stages."""
    (port,) = free_ports(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        with RunOperation("eth0", [], f":{port}") as operation:
            operation.serve(ScriptedRun())
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                return given_by(answer.read().decode())


def test_each_panel_has_an_answer(given: Given) -> None:
    board = json.loads(BOARD.read_text())
    assert len(set(questions(board))) > 15
    assert unanswered(board, given, "confluo_stream", VALUES) == set()


def test_each_series_has_a_panel(given: Given) -> None:
    asked = " ".join(questions(json.loads(BOARD.read_text())))
    assert {name for name in given if name.startswith("confluo_") and name not in asked} == set()


@pytest.mark.parametrize(
    ("is_", "was", "missing"),
    [
        ("confluo_stream_dropped_records_total", "confluo_stream_drops_total", "confluo_stream_drops_total"),
        ("by (run, stage, name)", "by (run, stage, flow)", "flow"),
        ('stage=\\"deliver\\"', 'stage=\\"delivery\\"', "delivery"),
        ('job=\\"confluo-stream\\"', 'job=\\"stream\\"', "stream"),
        ("label_values(confluo_stream_run_info, run)", "label_values(confluo_stream_run, run)", "confluo_stream_run"),
    ],
)
def test_a_panel_without_an_answer_is_found(given: Given, is_: str, was: str, missing: str) -> None:
    """Else the test above could not fail."""
    text = BOARD.read_text()
    assert is_ in text
    assert missing in unanswered(json.loads(text.replace(is_, was)), given, "confluo_stream", VALUES)


def test_panels_have_room_and_say_what_they_are() -> None:
    check_panels(json.loads(BOARD.read_text()))


def loaded(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def test_alerts_ask_for_what_exists(given: Given) -> None:
    rules = [rule for group in loaded("alerts.yaml")["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 3
    text = " ".join(rule["expr"] for rule in rules)
    assert set(re.findall(r"confluo_stream_\w+", text)) <= given.keys()
    assert set(re.findall(r'stage="(\w+)"', text)) <= VALUES["stage"]
    named = {label for rule in rules for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])}
    assert named <= {"run", "stage", "name", "topic", "instance"}


def test_prometheus_and_grafana_find_each_other() -> None:
    (job,) = loaded("prometheus.yaml")["scrape_configs"]
    assert {job["job_name"]} == VALUES["job"]
    services = loaded("compose.yaml")["services"]
    (address,) = [word.partition("=")[2] for word in services["prometheus"]["command"] if "listen-address" in word]
    (source,) = loaded("grafana-source.yaml")["datasources"]
    assert source["url"] == f"http://{address}"
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    (boards,) = loaded("grafana-boards.yaml")["providers"]
    mounts = [volume.split(":") for volume in services["grafana"]["volumes"]]
    assert f"{boards['options']['path']}/confluo.json" in {mount[1] for mount in mounts}


def test_six_brokers_make_one_cluster() -> None:
    compose = loaded("compose.yaml")
    brokers = {name: of for name, of in compose["services"].items() if name.startswith("kafka-")}
    assert len(brokers) == 6
    settings = [of["environment"] for of in brokers.values()]
    assert [s["KAFKA_NODE_ID"] for s in settings] == [1, 2, 3, 4, 5, 6]
    assert len({s["CLUSTER_ID"] for s in settings}) == 1
    assert len(settings[0]["CLUSTER_ID"]) == 22  # 16 bytes in base64
    controllers = {
        f"{s['KAFKA_NODE_ID']}@{place.removeprefix('CONTROLLER://')}"
        for s in settings
        for place in s["KAFKA_LISTENERS"].split(",")
        if place.startswith("CONTROLLER")
    }
    assert {s["KAFKA_CONTROLLER_QUORUM_VOTERS"] for s in settings} == {",".join(sorted(controllers))}
    for s in settings:
        is_controller = "controller" in s["KAFKA_PROCESS_ROLES"].split(",")
        assert is_controller == ("CONTROLLER://" in s["KAFKA_LISTENERS"])
        assert s["KAFKA_ADVERTISED_LISTENERS"] == s["KAFKA_LISTENERS"].split(",")[0]
        assert s["KAFKA_DEFAULT_REPLICATION_FACTOR"] <= len(brokers)
    places = [place for s in settings for place in s["KAFKA_LISTENERS"].split(",")]
    ports = [place.rpartition(":")[2] for place in places]
    assert len(set(ports)) == len(ports)
    for name, of in compose["services"].items():
        for volume in of["volumes"]:
            there = volume.split(":")[0]
            assert (FOLDER / there).is_file() if there.startswith(".") else there in compose["volumes"], name
        assert re.fullmatch(r"[\w./-]+:[\w.]*\d[\w.]*", of["image"])  # pinned
