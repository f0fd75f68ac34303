"""confluo-pingmesh itself: the list of verbs."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest

from confluo_tools.pingmesh.command import VERBS
from running import run, shell

ROOT = Path(__file__).resolve().parents[2]


def test_verbs_are_modules_with_manuals_and_examples() -> None:
    package = ROOT / "confluo_tools" / "pingmesh"
    files = [p for p in package.rglob("*.py") if "\ndef main(" in p.read_text()]
    here = {".".join(p.relative_to(package).with_suffix("").parts) for p in files} - {"command"}
    assert here == {verb.module for verb in VERBS}
    for verb in VERBS:
        assert callable(importlib.import_module(f"confluo_tools.pingmesh.{verb.module}").main)
        assert (ROOT / "man" / "man1" / f"confluo-pingmesh-{verb.name}.1").exists()
        assert verb.help


def test_its_version_is_that_of_the_others() -> None:
    ours, others = run("confluo-pingmesh", "--version"), run("confluo-query", "--version")
    assert ours.stdout == others.stdout.replace(b"confluo-query", b"confluo-pingmesh")
    assert ours.returncode == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [([], 2, b"Usage: confluo-pingmesh VERB"), (["paln"], 2, b"confluo-pingmesh: unknown verb 'paln'; ")],
)
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
    assert "\nspine failure. Within podsets the drop rate is good" in said
    assert "\nsearch: It is the network: too many drops" in said
    assert (tmp_path / "first.html").stat().st_size > 50_000
    if os.geteuid() != 0:
        pytest.skip("a network of its own needs root")
    (tmp_path / "real.sh").write_text(f"set -e -o pipefail\nip link set lo up\n{real}")
    done = shell("unshare -n bash real.sh", cwd=tmp_path)
    assert done.returncode == 1, done.stderr.decode()  # of the last one, which cannot tell
    said = done.stdout.decode()
    assert re.search(r"^rack1  [·▒█]{4,}$", said, re.M), said
    assert "\n2 servers: Undecided" in said
