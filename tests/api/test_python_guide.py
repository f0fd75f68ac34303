"""docs/python.md: its examples print what it says."""

from __future__ import annotations

import doctest

import pytest

from running import ROOT


def test_the_guide_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(ROOT / "docs" / "python.md"), module_relative=False)
    assert tried > 20
    assert not failed
