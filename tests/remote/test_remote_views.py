"""confluo-index on logs of other hosts: the same views as here, refusals, and hosts that are away or strange."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from confluo_tools import multilog
from confluo_tools.schema import builtin
from monitor_writer import rows_of
from remote_lab import env
from running import environment, run

ROWS = 5000


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    with multilog.create(tmp_path / "0.ml", builtin("header64")) as made, made.writer() as writer:
        writer.append(rows_of(list(range(ROWS)), [n % 1000 for n in range(ROWS)], [n % 7 for n in range(ROWS)]))
    for n in (1, 2):
        shutil.copytree(tmp_path / "0.ml", tmp_path / f"{n}.ml", symlinks=True)
    return [tmp_path / f"{n}.ml" for n in range(3)]


def index(folder: Path, *words: Any, status: int = 0, **more: str) -> tuple[list[dict[str, Any]], str]:
    done = run("confluo-index", *words, env=env(folder, CONFLUO_FORMAT="ndjson", **more))
    assert done.returncode == status, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def test_views_of_three_hosts_are_those_of_each(logs: list[Path], tmp_path: Path) -> None:
    """add, list, check and drop do there what they do here; the definitions reach the queries of that host."""
    names = [str(logs[0]), f"sw1:{logs[1]}", f"sw2:{logs[2]}"]
    index(tmp_path, *names, "add", "dst_port")
    index(tmp_path, *names, "add", "filter", "low", "dst_port < 3")
    found, _ = index(tmp_path, *names, "add", "aggregate", "sums", "sum(len)", "--filter", "low", "--stat")
    assert [row.pop("log") for row in found] == names
    assert found[0] == found[1] == found[2]
    assert found[0]["covered"] == ROWS
    everything, _ = index(tmp_path, *names)
    assert [(row["log"], row["kind"]) for row in everything] == [
        (name, kind) for name in names for kind in ("index", "filter", "aggregate")
    ]
    for name in names[1:]:
        assert {row["kind"] for row in index(tmp_path, name)[0]} == {"index", "filter", "aggregate"}
    index(tmp_path, *names, "check")
    assert run("confluo-query", logs[1], "filter low", "--count", env=environment()).returncode == 0
    _, said = index(tmp_path, names[1], "drop", "dst_port", "--stat")
    assert [row["kind"] for row in index(tmp_path, names[1])[0]] == ["filter", "aggregate"]
    assert [row["kind"] for row in index(tmp_path, names[2])[0]] == ["index", "filter", "aggregate"]
    _, said = index(tmp_path, names[1], "drop", "dst_port")
    assert said == f"confluo-index: sw1: {logs[1]}: no index of 'dst_port'\n"


def test_a_host_that_fails_does_not_stop_the_others(logs: list[Path], tmp_path: Path) -> None:
    field = "dst_port"
    names = [f"down1:{logs[0]}", f"sw1:{tmp_path}/none.ml", f"sw2:{logs[2]}"]
    _, said = index(tmp_path, *names, "add", field, status=2)
    assert said.splitlines() == [
        f"confluo-index: {names[0]}: cannot be reached: ssh: connect to host down1 port 22: No route to host",
        f"confluo-index: {names[1]}: there is no such MultiLog",
    ]
    assert [row["name"] for row in index(tmp_path, names[2])[0]] == [field]


def test_what_a_server_refuses(logs: list[Path], tmp_path: Path) -> None:
    field, name = "dst_port", f"sw1:{logs[1]}"
    index(tmp_path, name, "add", field)
    only = {"CONFLUO_REMOTE": "confluo-serve --stdio --read-only"}
    assert [row["name"] for row in index(tmp_path, name, **only)[0]] == [field]
    for verb in ("add", "drop", "update", "rebuild"):
        _, said = index(tmp_path, name, verb, field, status=2, **only)
        assert said == f"confluo-index: {name}: is served read-only, so its views cannot be changed\n"
    inside = {"CONFLUO_REMOTE": f"confluo-serve --stdio --root {logs[0]}"}
    assert "is outside the served folders" in index(tmp_path, name, "drop", field, status=2, **inside)[1]
    assert "--follow is for logs of this host" in index(tmp_path, name, "--follow", status=2)[1]
    assert "no field 'nix'" in index(tmp_path, name, "add", "nix", status=2)[1]
    assert [row["name"] for row in index(tmp_path, name)[0]] == [field]


@pytest.mark.parametrize(
    ("hello", "frame", "said"),
    [
        ("analyze alive", "", "sw1: runs confluo-tools 0.0.1, which does not change views for others"),
        ("views", '{"views":[{"kind":1}],"updates":[]}', "sw1: protocol error: invalid numbers in message"),
        ("views", '{"views":{},"updates":[]}', "sw1: protocol error: invalid 'views' in message"),
        ("views", '{"views":[],"updates":[["x"]]}', "sw1: protocol error: invalid numbers in message"),
        ("views", "", "sw1: the connection was lost"),
    ],
)
def test_old_and_strange_servers(logs: list[Path], tmp_path: Path, hello: str, frame: str, said: str) -> None:
    answer = f"confluo-serve 1 0.0.1 {hello}\n".encode()
    if frame:
        answer += len(frame).to_bytes(4, "little") + bytes((71, 0, 0, 0)) + frame.encode()
    (tmp_path / "answer").write_bytes(answer)
    script = tmp_path / "old"
    waits = "" if hello == "views" and not frame else "exec cat >/dev/null\n"  # else it ends while the client writes
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n{waits}")
    script.chmod(0o755)
    _, line = index(tmp_path, f"sw1:{logs[1]}", "add", "dst_port", status=2, CONFLUO_REMOTE=str(script))
    assert line.startswith(f"confluo-index: {said}")
    assert line.count("\n") == 1
