"""The narrated examples print what they show; the pipelines run; and the runner itself sees a difference."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import netns
import sessions
from kafka_lab import free_ports
from sessions import ROOT, Shell, agrees, commands, disagreements, steps, update

EXAMPLES = sorted((ROOT / "examples").glob("*_example.md"))
PIPELINES = ROOT / "examples" / "pipelines.txt"
RECORDINGS = 3  # on a busy machine, TCP may decide by microseconds, and then no replay repeats the recording
SEED = Path("/proc/sys/net/ipv4/fib_multipath_hash_seed")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_prints_what_it_shows(
    path: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path.stem.startswith(("diagnosis", "vote_live")) and netns.missing():
        pytest.skip(netns.missing())
    if path.stem == "vote_live_example" and not SEED.exists():
        pytest.skip("multipath hashes without a seed: Linux 6.11 has one")
    if path.stem.startswith("clickhouse"):
        monkeypatch.setenv("CLICKHOUSE", f"127.0.0.1:{request.getfixturevalue('clickhouse').port}")
    if path.stem.startswith("engines"):
        monkeypatch.setenv("DASK", request.getfixturevalue("dask").address)
    if path.stem.startswith("archive_store"):
        server = request.getfixturevalue("s3")
        for name, value in (server.env | {"BUCKET": server.bucket()}).items():
            monkeypatch.setenv(name, value)
    if path.stem.startswith("stream"):
        monkeypatch.setenv("BROKER", request.getfixturevalue("broker").address)
        monkeypatch.setenv("METRICS", str(free_ports(1)[0]))
    for number in range(RECORDINGS if path.stem.startswith("replay_") else 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            wrong = disagreements(path, folder)
        finally:
            if (folder / "clos.yaml").exists():  # a session that was cut short leaves namespaces
                Shell(folder).run("python3 examples/clos down clos.yaml || true")
        if not wrong:
            return
    pytest.fail("\n\n".join(wrong), pytrace=False)


def test_examples_run_something() -> None:
    for path in EXAMPLES:
        text = path.read_text()
        assert "```console\n$ " in text, path
        assert "bash: " not in text, path  # a command that was cut in two


@pytest.mark.parametrize("command", commands(PIPELINES.read_text()))
def test_pipeline_runs_and_answers(command: str, campus: Path) -> None:
    status, printed = Shell(campus).run(command)
    assert status == 0, "\n".join(printed)
    assert printed


@pytest.fixture(scope="module")
def campus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trace.ml, which the pipelines read."""
    folder = tmp_path_factory.mktemp("pipelines")
    make = "confluo-capture -q -r examples/data/campus.pcap.gz -w trace.ml --index src_ip,dst_ip,src_port,dst_port"
    status, printed = Shell(folder).run(make)
    assert status == 0, "\n".join(printed)
    return folder


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a", "b"], ["a", "b"], True),
        (["a", "b"], ["a"], False),
        (["a"], ["a", "b"], False),
        (["a", "...", "z"], ["a", "b", "c", "z"], True),
        (["a", "...", "z"], ["a", "z"], True),
        (["a", "...", "z"], ["a", "b"], False),
        (["took ... ms"], ["took 17 ms"], True),
        (["took ... ms"], ["took 17 s"], False),
        (["a.b"], ["axb"], False),
        (["a"], ["a  "], True),
        ([], [], True),
        ([], ["surprise"], False),
    ],
)
def test_comparing(shown: list[str], printed: list[str], same: bool) -> None:
    assert agrees(shown, printed) is same


def test_a_lie_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one\none\n$ echo two; exit 3\nthree\n[3]\n$ false\n```\n")
    wrong = disagreements(page, tmp_path)
    assert [w.splitlines()[0] for w in wrong] == ["$ echo two; exit 3", "$ false"]
    update(page, tmp_path)
    assert page.read_text() == "```console\n$ echo one\none\n$ echo two; exit 3\ntwo\n[3]\n$ false\n[1]\n```\n"
    assert disagreements(page, tmp_path) == []


def test_a_command_that_does_not_end_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "DEADLINE", 1)
    ends = "trap 'echo ended >>ends; exit' TERM; echo began >>begins; while :; do read -t 0.1 <> <(:) || :; done"
    with pytest.raises(subprocess.TimeoutExpired):
        Shell(tmp_path).run(f'bash -c "{ends}" & bash -c "{ends}"')
    assert (tmp_path / "begins").read_text() == "began\n" * 2
    assert (tmp_path / "ends").read_text() == "ended\n" * 2


def test_commands_of_a_block() -> None:
    assert commands("# no\na | \\\n  b\n\nc  # yes\n") == ["a |    b", "c  # yes"]
    assert [s.command for s in steps("$ a \\\n  b\nout\n$ c\n")] == ["a \\\n  b", "c"]
