"""--help: options in panels, the most important ones first; -h: only these; -o: only formats that can be written."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import pytest
import typer

from confluo_tools.__main__ import COMMANDS, module_of
from confluo_tools.cli.options import MAX_IMPORTANT, PANELS
from confluo_tools.cli.output import PACKET_FORMATS, RECORD_FORMATS
from confluo_tools.pingmesh.command import VERBS
from confluo_tools.replay.command import VERBS as REPLAY_VERBS
from confluo_tools.stream.command import VERBS as STREAM_VERBS
from confluo_tools.stream.services.command import VERBS as SERVICES

GROUPS = ("pingmesh", "vote", "replay-record", "replay", "stream")
# {command: its module}
PAGES = {
    **{name: module_of(name) for name, _, _ in COMMANDS if name not in GROUPS},
    **{f"pingmesh-{verb.name}": f"confluo_tools.pingmesh.{verb.module}" for verb in VERBS},
    "replay-explain": "confluo_tools.replay.explain.command",
    "replay": "confluo_tools.replay.engine.replay_command",
    "replay-record-run": "confluo_tools.replay.record.run_command",
    "replay-record-attach": "confluo_tools.replay.record.attach_command",
    **{f"replay-{verb.name}": f"confluo_tools.replay.{verb.module}" for verb in REPLAY_VERBS},
    **{f"stream-{verb.name}": f"confluo_tools.stream.{verb.module}" for verb in STREAM_VERBS if verb.name != "service"},
    **{f"stream-service-{verb.name}": f"confluo_tools.stream.services.{verb.module}" for verb in SERVICES},
    "vote": "confluo_tools.vote.analyse_command",
    "vote-simulate": "confluo_tools.vote.simulate_command",
    "vote-bound": "confluo_tools.vote.bound_command",
}
PACKETS = {"capture", "convert", "query", "replay"}  # commands that write packets


def printed(name: str, flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert import_module(PAGES[name]).main([flag]) == 0
    return capsys.readouterr().out


def panels(text: str) -> dict[str, list[str]]:
    """{panel: first words of its options}, as printed."""
    found: dict[str, list[str]] = {}
    for line in text.partition("\nExamples:\n")[0].splitlines():
        if title := re.fullmatch(r"(\w+):", line):
            found[title.group(1)] = []
        elif found and (names := re.match(r"  (-\S+?),? ", f"{line} ")):
            found[list(found)[-1]].append(names.group(1).partition(" ")[0])
    found.pop("Arguments", None)
    return found


def command_of(name: str) -> Any:
    app = getattr(import_module(PAGES[name]), "app", None)
    return None if app is None else typer.main.get_command(app)


@pytest.mark.parametrize("name", PAGES)
def test_options_are_in_panels(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = panels(printed(name, "--help", capsys))
    assert list(found) == [panel for panel in PANELS if panel in found]  # known ones, in their order
    assert next(iter(found)) == "Options"
    assert 1 <= len(found["Options"]) <= MAX_IMPORTANT
    assert found["General"][-3:] == ["-h", "--help", "--version"]
    assert all(found.values())


@pytest.mark.parametrize("name", PAGES)
def test_no_option_is_missing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = command_of(name)
    if command is None:
        assert name == "serve"  # it loads typer only when it has to
        return
    names = [n for group in panels(printed(name, "--help", capsys)).values() for n in group]
    expected = [p.opts[0] for p in command.params if p.param_type_name == "option"]
    assert sorted(names) == sorted([*expected, "-h", "--help", "--version"])
    known = {n for p in command.params for n in (*p.opts, *p.secondary_opts)}
    assigned = [n for names in command.panels.values() for n in names.split()]
    assert len(set(assigned)) == len(assigned)
    assert set(assigned) <= known
    assert set(command.panels) <= set(PANELS)


@pytest.mark.parametrize("name", PAGES)
def test_the_short_help_has_the_main_options_and_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    short, long = (printed(name, flag, capsys) for flag in ("-h", "--help"))
    assert panels(short) == {"Options": panels(long)["Options"]}
    assert "\n--help lists all options.\n" in short
    assert short.partition("\nExamples:\n")[2] == long.partition("\nExamples:\n")[2]


@pytest.mark.parametrize("name", PAGES)
def test_help_names_the_formats_that_the_command_writes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(printed(name, "--help", capsys).split())
    named = re.search(r"--format FORMAT Write (.*?)\. ", text)
    if named is None:
        assert name in {
            "config",
            "index",
            "info",
            "pingmesh-serve",
            "replay-diff",
            "serve",
            "snapshot",
            "stream-publish",
            "stream-set",
            "topology",
        }
        return
    formats = set(re.split(", | or ", named.group(1)))
    assert formats >= set(RECORD_FORMATS)
    assert ("pcap" in formats) == (name in PACKETS)
    extra = {"pingmesh-heatmap": {"svg", "html", "png"}, "pingmesh-plan": {"yaml"}, "pingmesh-probe": {"lines"}}
    extra |= {"replay-explain": {"svg", "html"}, "query": {"svg", "html", "spark"}}
    assert formats - set(PACKET_FORMATS) - {"multilog"} == extra.get(name, set())
    writes_logs = "-w, --output LOG" in text
    assert ("multilog" in formats) == writes_logs


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["-o", "pcap"], "-o: cannot write pcap"),
        (["-w", "x.pcap"], "-w x.pcap: cannot write pcap"),
        (["-o", "xml"], "-o: unknown output format 'xml'"),
    ],
)
def test_an_error_names_the_formats_that_the_command_writes(
    words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main = import_module("confluo_tools.vote.command").main
    assert main(["bound", *words]) == 2
    formats = "table, tsv, csv, ndjson, json, stream, arrow or parquet"
    assert capsys.readouterr().err == f"confluo-vote bound: {error}; use {formats}\n"
