"""confluo-pingmesh itself: the verbs it has."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest
from running import run, shell

from confluo_tools.commands.pingmesh import VERBS

ROOT = Path(__file__).resolve().parent.parent


def test_verbs_are_modules_with_manuals_and_examples() -> None:
    files = (ROOT / "confluo_tools" / "commands" / "pingmesh").glob("*.py")
    here = {p.stem for p in files if "\ndef main(" in p.read_text()} - {"__init__"}  # others are parts of a verb
    assert here == {verb for verb, _ in VERBS}
    for verb, line in VERBS:
        assert callable(importlib.import_module(f"confluo_tools.commands.pingmesh.{verb}").main)
        assert (ROOT / "man" / "man1" / f"confluo-pingmesh-{verb}.1").exists()
        assert line


def test_its_version_is_that_of_the_others() -> None:
    ours, others = run("confluo-pingmesh", "--version"), run("confluo-query", "--version")
    assert ours.stdout == others.stdout.replace(b"confluo-query", b"confluo-pingmesh")
    assert ours.returncode == 0


@pytest.mark.parametrize(("words", "status", "said"), [
    ([], 2, b"Usage: confluo-pingmesh VERB"),
    (["paln"], 2, b"confluo-pingmesh: no verb 'paln'; "),
])  # fmt: skip
def test_without_a_verb(words: list[str], status: int, said: bytes) -> None:
    done = run("confluo-pingmesh", *words)
    assert (done.returncode, done.stdout) == (status, b"")
    assert said in done.stderr


@pytest.mark.slow
def test_the_first_lines_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    """docs/pingmesh.md: from nothing to a map and a verdict, simulated and with real agents."""
    text = (ROOT / "docs" / "pingmesh.md").read_text().partition("## A first map and a first verdict")[2]
    simulated, real = re.findall(r"^```sh\n(.*?)^```$", text.partition("\n## ")[0], re.M | re.S)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = shell(simulated, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    said = done.stdout.decode()
    assert "\nspine failure. Within podsets all is well" in said
    assert "\nsearch: It is the network: too many drops" in said
    assert (tmp_path / "first.html").stat().st_size > 50_000
    if os.geteuid() != 0:
        pytest.skip("a network of its own needs root")
    (tmp_path / "real.sh").write_text(f"set -e -o pipefail\nip link set lo up\n{real}")
    done = shell("unshare -n bash real.sh", cwd=tmp_path)
    assert done.returncode == 1, done.stderr.decode()  # of the last one, which cannot tell
    said = done.stdout.decode()
    assert re.search(r"^rack1  [·▒█]{4,}$", said, re.M), said
    assert "\n2 servers: Nobody can tell" in said
