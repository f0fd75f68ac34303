"""confluo-pingmesh itself: the verbs it has."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from running import run

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
